//! A connection, as shared by its own thread (in [`crate::lane_thread`]) and the workers.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Wake;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use transports::{Frame, Interest, Link, Meter, Outbox, Ready};
use vfs::copies::count_copied;
use vfs::{Backing, Call, Patience, Peer, PeerKey};
use wire::{ClientInfo, Malformed, MessageSender, ServeOutcome, Session, Vocabulary};

use crate::connection_limits::{Admission, ConnectionRefusals};
use crate::in_flight::{Entry, Follows, InFlight, Limits, complete, complete_follower};
use crate::input::DetachedMessage;
use crate::request::{Job, Request, RunOutcome};
use crate::serve::serve;
use crate::slow_log::{Exchanged, RecordedRequest, target};
use crate::snapshot::ConnectionStatus;
use crate::stats::{LaneStats, Monitored, Stats, StatsRegistry, add};
use crate::tuning::Tuning;
use crate::workers::Workers;
use vfs::memory::{MemoryBudget, Need, Purpose, Reservation};

/// The part of a lane that its own thread and the workers share.
pub(crate) struct Lane {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) link: Box<dyn Link>,
    pub(crate) peer: Arc<Peer>,
    /// The call of requests that are served inline, which cannot be cancelled.
    pub(crate) inline: Call,
    output: Mutex<Output>,
    /// The requests in flight. Only the lane's own thread begins any.
    pub(crate) in_flight: InFlight<Message>,
    /// Wakes the lane's own thread from [`Link::wait`]. Exists only while a request is in flight,
    /// as most connections are idle and descriptors are limited.
    notifier: Mutex<Option<Arc<Notifier>>>,
    /// Whether the client is gone, so that replies are discarded.
    disconnected: AtomicBool,
    /// Whether the connection continues in another process.
    suspended: AtomicBool,
    /// Messages that are served there, as they have had no effect here.
    unserved: Mutex<Vec<u8>>,
    pub(crate) tuning: Tuning,
    stats: LaneStats,
    /// The last field, so that its drop, which reports the end of the connection, follows that of
    /// the session.
    admission: Admission<Lane>,
}

/// The reservation for what an outbox holds beyond a connection's minimum.
pub(crate) struct ExcessMeter(pub(crate) Reservation);

impl Meter for ExcessMeter {
    fn set(&mut self, bytes: usize) {
        self.0
            .set(bytes.saturating_sub(MemoryBudget::SMALL_MESSAGES / 2));
    }

    fn is_scarce(&self) -> bool {
        self.0.is_scarce()
    }
}

/// Replies that the link did not accept at once.
#[derive(Default)]
struct Output {
    backlog: Vec<u8>,
    sent: usize,
    /// The time when the peer last accepted some of it, or when the backlog began.
    progress: Option<Instant>,
    memory: Option<Reservation>,
}

impl Output {
    /// Queues `bytes` to be sent later.
    fn queue(&mut self, bytes: &[u8], memory: impl FnOnce() -> Reservation) {
        count_copied(bytes.len());
        if self.backlog.is_empty() {
            self.progress = Some(Instant::now());
        }
        self.backlog.extend_from_slice(bytes);
        let memory = self.memory.get_or_insert_with(memory);
        memory.set(self.backlog.capacity());
    }

    /// Returns the rest of `timeout` within which the peer must accept more of the backlog.
    fn time_left(&self, timeout: Duration) -> Duration {
        let waited = self
            .progress
            .map_or(Duration::ZERO, |since| since.elapsed());
        timeout.saturating_sub(waited)
    }

    fn is_congested(&self) -> bool {
        self.backlog.len() - self.sent > Lane::BACKLOG
    }
}

/// The channel for messages that a session sends without a request.
struct LaneMessageSender(Weak<Lane>);

impl MessageSender for LaneMessageSender {
    fn send(&self, message: &[u8]) -> bool {
        self.0.upgrade().is_some_and(|lane| lane.say(message))
    }
}

/// An eventfd that wakes a lane's own thread.
pub(crate) struct Notifier(OwnedFd);

impl Notifier {
    fn new() -> io::Result<Arc<Notifier>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Arc::new(Notifier(eventfd(0, flags)?)))
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Fails only if the eventfd's counter would overflow.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// A message received over a connection.
pub(crate) struct Message {
    lane: Arc<Lane>,
    id: u64,
    bytes: DetachedMessage,
    /// Whether it has been parked.
    parked: AtomicBool,
    /// Whether its client has cancelled it: then it is answered here in any case.
    client_cancels: AtomicBool,
}

pub(crate) type StreamRequest = Request<Message>;

impl Job for Message {
    fn run(request: &Arc<StreamRequest>, out: &mut Outbox) -> RunOutcome {
        let Message { lane, bytes, .. } = &request.job;
        if lane.is_disconnected() {
            lane.complete(request, out);
            return RunOutcome::Answered;
        }
        let is_parked = || request.job.parked.load(Ordering::SeqCst);
        if request.job.is_suspended() && !is_parked() {
            // It was never served in full, so that it has had no effect.
            return lane.put_back(request, out);
        }
        let frame = Frame(bytes);
        // Workers do not wait for memory: their number is limited.
        out.set_meter(Box::new(ExcessMeter(lane.reservation(Purpose::Reply))));
        out.set_expected(lane.large_reply(bytes).unwrap_or(0));
        let served = lane.serve(&request.call, Patience::Full, &frame, out);
        out.set_expected(0);
        match served {
            Ok(ServeOutcome::Done)
                if is_parked()
                    && request.job.is_suspended()
                    && lane.session.was_interrupted(&request.call) =>
            {
                return lane.put_back(request, out);
            }
            Ok(ServeOutcome::Done) => {}
            Ok(ServeOutcome::Parked) => {
                request.job.parked.store(true, Ordering::SeqCst);
                // The lane's thread may not have seen that.
                if lane.is_suspended() {
                    request.cancel();
                }
                return RunOutcome::Parked;
            }
            Ok(ServeOutcome::WouldBlock) => lane.fail(&"a request would block where it may wait"),
            Ok(ServeOutcome::StartTls) => {
                lane.fail(&"a request to secure the connection was not answered at once")
            }
            Err(malformed) => lane.fail(&malformed),
        }
        lane.complete(request, out);
        RunOutcome::Answered
    }

    fn schedule(request: Arc<StreamRequest>) {
        request.job.lane.clone().in_flight.schedule(request);
    }

    fn leave_worker(request: &StreamRequest) {
        request.job.lane.in_flight.leave_worker(request);
    }

    fn workers(&self) -> &Arc<Workers> {
        self.lane.in_flight.workers()
    }

    fn stats(&self) -> &Stats {
        self.lane.stats()
    }

    fn with_client(&self, call: Call) -> Call {
        call.with_peer(self.lane.peer.clone())
    }

    fn owner(&self) -> PeerKey {
        self.lane.admission.client()
    }
}

impl Entry for Message {
    fn in_flight(&self) -> &InFlight<Message> {
        &self.lane.in_flight
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn note_client_cancel(&self) {
        self.client_cancels.store(true, Ordering::SeqCst);
    }

    fn may_start(&self) -> bool {
        let lane = &self.lane;
        !lane.is_congested() && (lane.is_disconnected() || !lane.exceeds_share())
    }
}

impl Message {
    /// Returns whether another process serves it if it has had no effect here.
    fn is_suspended(&self) -> bool {
        self.lane.is_suspended() && !self.client_cancels.load(Ordering::SeqCst)
    }
}

impl Lane {
    /// The size in bytes from which on output is sent before more requests are served, so that the
    /// client can start processing it.
    pub(crate) const BATCH: usize = 128 << 10;

    /// The backlog in bytes beyond which no requests of a client are served.
    const BACKLOG: usize = 1 << 20;

    pub(crate) fn new(
        link: Box<dyn Link>,
        session: Arc<dyn Session>,
        workers: Arc<Workers>,
        tuning: Tuning,
        peer: Arc<Peer>,
        tally: &Arc<StatsRegistry>,
        admission: Admission<Lane>,
    ) -> io::Result<Arc<Lane>> {
        link.set_timeouts(tuning.timeouts.tick(), tuning.timeouts.send)?;
        let lane = Arc::new(Lane {
            stats: tally.add_lane(session.vocabulary()),
            session,
            link,
            inline: Call::detached().with_peer(peer.clone()),
            peer,
            output: Mutex::default(),
            in_flight: InFlight::new(
                workers,
                Limits {
                    requests: tuning.in_flight,
                    bytes: tuning.in_flight_bytes,
                },
            ),
            notifier: Mutex::default(),
            disconnected: AtomicBool::new(false),
            suspended: AtomicBool::new(false),
            unserved: Mutex::default(),
            tuning,
            admission,
        });
        lane.stats.set_lane(&lane);
        lane.admission.set(&lane);
        let voice = LaneMessageSender(Arc::downgrade(&lane));
        lane.session.set_message_sender(Arc::new(voice));
        Ok(lane)
    }

    /// Serves `message`; a panic of the source becomes an error reply.
    pub(crate) fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &Frame<'_>,
        out: &mut Outbox,
    ) -> Result<ServeOutcome, Malformed> {
        let session = &*self.session;
        serve(
            session,
            call,
            patience,
            message,
            out.begin(),
            self.link.peer(),
        )
    }

    /// Returns an error if the peer reuses an id before it can have the reply.
    pub(crate) fn check_unused(&self, id: u64) -> io::Result<()> {
        if self.in_flight.uses(id) {
            let error = format!("request {id} is in flight already");
            return Err(invalid(Malformed::new(error)));
        }
        Ok(())
    }

    /// Passes a request to the workers. Returns an error if no descriptor is available for the
    /// notifier.
    pub(crate) fn offload(self: &Arc<Self>, id: u64, message: DetachedMessage) -> io::Result<()> {
        self.notifier()?;
        add(&self.stats().offloaded, 1);
        let request = self.request(id, message);
        self.in_flight.begin_on_worker(request);
        Ok(())
    }

    /// If `target` is in flight, cancels it, and serves `message` after its reply.
    pub(crate) fn follow(
        self: &Arc<Self>,
        id: u64,
        target: u64,
        message: &[u8],
    ) -> io::Result<bool> {
        self.check_unused(id)?;
        if !self.in_flight.contains(target) {
            return Ok(false);
        }
        let message = DetachedMessage::copy(message, self.reservation(Purpose::Request));
        let follower = self.in_flight.begin_follower(self.request(id, message));
        if let Some(follower) = self.in_flight.follow(target, follower) {
            let mut out = Outbox::default();
            complete_follower(follower, |request, follows| {
                self.reply(request, follows, &mut out);
            });
        }
        Ok(true)
    }

    fn request(self: &Arc<Self>, id: u64, bytes: DetachedMessage) -> Arc<StreamRequest> {
        let lane = self.clone();
        let message = Message {
            lane,
            id,
            bytes,
            parked: AtomicBool::new(false),
            client_cancels: AtomicBool::new(false),
        };
        let request = Request::new(self.stats().start_time(), message);
        request.call.note_export(self.inline.export_number());
        request
    }

    /// Sends the reply to `request` that `out` contains, if any, then those to the requests that
    /// waited for it. Called on a worker's thread.
    pub(crate) fn complete(&self, request: &Arc<StreamRequest>, out: &mut Outbox) {
        complete(request, |request, follows| {
            self.reply(request, follows, out);
        });
    }

    fn reply(&self, request: &StreamRequest, follows: Follows, out: &mut Outbox) {
        if follows == Follows::Yes && !self.is_disconnected() {
            let frame = Frame(&request.job.bytes);
            if self.serve(&request.call, Patience::Full, &frame, out) != Ok(ServeOutcome::Done) {
                self.fail(&"a cancellation was not answered at once");
            }
        }
        let stats = self.stats();
        if let Some(recorded) = stats.record(&request.call, || stats.sample(), || request.time()) {
            self.log(&recorded, &request.call, &request.job.bytes, out.size());
        }
        self.send_from_worker(out);
        out.clear();
    }

    /// Logs the request `message`, whose reply has `sent` bytes.
    pub(crate) fn log(&self, recorded: &RecordedRequest, call: &Call, message: &[u8], sent: usize) {
        let exchanged = Exchanged {
            client: self.admission.client(),
            peer: self.link.peer(),
            received: message.len(),
            sent,
        };
        let session = &*self.session;
        let target = || target(session, call, message);
        let log = self.stats().slow_log();
        log.record(session.vocabulary(), recorded, &exchanged, target);
    }

    /// Closes the connection because of a protocol error of the client.
    pub(crate) fn fail(&self, error: &dyn Display) {
        self.close(ConnectionRefusals::PROTOCOL, error);
    }

    /// Counts that the connection is not read for a while because of a limit.
    pub(crate) fn count_throttle(&self, reason: &'static str) {
        self.admission.limits().throttles().count(reason);
    }

    /// Closes the connection because its TLS handshake failed.
    pub(crate) fn close_on_tls_error(&self, error: &io::Error) {
        self.close(ConnectionRefusals::TLS, error);
    }

    fn close(&self, reason: &'static str, error: &dyn Display) {
        if !self.disconnected.swap(true, Ordering::SeqCst)
            && let Some(suppressed) = self
                .admission
                .limits()
                .count_refusal(self.admission.client(), reason)
        {
            let peer = self.link.peer();
            tracing::warn!(peer, suppressed, "connection closed: {error}");
        }
        self.disconnect();
    }

    /// Closes the connection after a failure of its link; logs no warning if the client
    /// disconnected without reading its replies.
    pub(crate) fn close_on_link_error(&self, error: &io::Error) {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => self.disconnect(),
            ErrorKind::TimedOut => self.close(ConnectionRefusals::TIMEOUT, error),
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => self.fail(error),
            _ => self.close(ConnectionRefusals::SYSTEM, error),
        }
    }

    /// Returns a snapshot of the connection.
    pub(crate) fn status(&self) -> ConnectionStatus {
        ConnectionStatus {
            id: self.id(),
            listener: self.admission.listener().to_owned(),
            peer: self.link.peer().to_owned(),
            protocol: self.session.vocabulary().protocol,
            client: self.session.client_info(),
            age: self.stats.started.elapsed(),
            requests: self.stats.totals().requests,
            in_flight: self.in_flight.count(),
        }
    }

    /// Marks the client as gone and closes the link.
    pub(crate) fn disconnect(&self) {
        self.disconnected.store(true, Ordering::SeqCst);
        self.link.hang_up();
        self.wake_thread();
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::SeqCst)
    }

    /// Returns an upper bound on the reply to a message in bytes, if that is large enough to be
    /// reserved in advance.
    pub(crate) fn large_reply(&self, message: &[u8]) -> Option<usize> {
        let large = self.budget().large_reply();
        let bound = self.session.reply_bound(message, large);
        (bound >= large).then_some(bound)
    }

    /// Returns whether the replies to the client exceed its share of memory.
    pub(crate) fn exceeds_share(&self) -> bool {
        self.budget().is_overdrawn(self.admission.client())
    }

    /// Waits for `time` at most until there may be the needed memory.
    pub(crate) fn wait_for(&self, need: Need, time: Duration) {
        self.budget().wait(self.admission.client(), need, time);
    }

    /// Creates an empty reservation on the client's account.
    pub(crate) fn reservation(&self, of: Purpose) -> Reservation {
        self.budget().reservation(self.admission.client(), of)
    }

    fn budget(&self) -> &Arc<MemoryBudget> {
        self.admission.limits().budget()
    }

    pub(crate) fn is_congested(&self) -> bool {
        !self.is_disconnected() && self.output().is_congested()
    }

    fn send_from_worker(&self, out: &Outbox) {
        if self.is_disconnected() || out.bytes().is_empty() {
            return;
        }
        if let Err(error) = self.send(out, false) {
            self.close_on_link_error(&error);
        }
    }

    /// Sends the messages in `out` after all earlier ones. The bytes that the link does not accept
    /// at once (without `wait`) are sent later by the lane's own thread, without a descriptor.
    /// Returns whether the backlog is too large.
    pub(crate) fn send(&self, out: &Outbox, wait: bool) -> io::Result<bool> {
        let bytes = out.bytes();
        let mut output = self.output();
        let mut sent = 0;
        if output.backlog.is_empty() {
            let done = match out.passed_file() {
                None => self.link.send(bytes, wait),
                Some((at, file)) => self.send_with_file(bytes, at, file, wait),
            };
            sent = match done {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                done => done?,
            };
        }
        add(&self.stats().sent, bytes.len());
        if sent < bytes.len() {
            output.queue(&bytes[sent..], || self.reservation(Purpose::Reply));
            self.wake_thread();
        }
        Ok(output.is_congested())
    }

    /// Does what [`Link::send`] does, and passes the descriptor of `file` with the last message,
    /// which starts `at`.
    fn send_with_file(
        &self,
        bytes: &[u8],
        at: usize,
        file: &dyn Backing,
        wait: bool,
    ) -> io::Result<usize> {
        let (before, message) = bytes.split_at(at);
        let sent = self.link.send(before, wait)?;
        if sent < at {
            return Ok(sent);
        }
        match self.link.send_with_file(message, file.as_fd(), wait) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(sent),
            done => done.map(|more| sent + more),
        }
    }

    /// Does what [`Lane::send`] does for messages that contain pages, and waits.
    pub(crate) fn send_pages(&self, out: &mut Outbox) -> io::Result<bool> {
        let output = self.output();
        let size = out.size();
        if output.backlog.is_empty()
            && let Some((before, pages, behind)) = out.parts()
        {
            self.link.send_pages(before, pages, behind)?;
            add(&self.stats().sent, size);
            return Ok(output.is_congested());
        }
        drop(output);
        out.read_pages()?;
        self.send(out, self.in_flight.count() == 0)
    }

    /// Implements [`MessageSender::send`].
    fn say(&self, message: &[u8]) -> bool {
        // A sender holds the lock for microseconds, unless it waits for the peer.
        const TRIES: u32 = 20;
        const PAUSE: Duration = Duration::from_micros(100);
        let mut output = None;
        for _ in 0..TRIES {
            output = self.output.try_lock();
            if output.is_some() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        let Some(mut output) = output else {
            return false;
        };
        if self.is_disconnected() || output.is_congested() {
            return false;
        }
        let mut sent = 0;
        if output.backlog.is_empty() {
            sent = match self.link.send(message, false) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(_) => return false,
                Ok(sent) => sent,
            };
        }
        add(&self.stats().sent, message.len());
        if sent < message.len() {
            output.queue(&message[sent..], || self.reservation(Purpose::Reply));
            self.wake_thread();
        }
        true
    }

    fn send_backlog(&self) -> io::Result<()> {
        let mut output = self.output();
        let sent = self.link.send(&output.backlog[output.sent..], false)?;
        output.sent += sent;
        output.progress = Some(Instant::now());
        if output.sent == output.backlog.len() {
            *output = Output::default();
        }
        drop(output);
        self.in_flight.start_queued();
        Ok(())
    }

    pub(crate) fn has_backlog(&self) -> bool {
        !self.output().backlog.is_empty()
    }

    /// Interrupts requests that are parked, and waits until those that run are answered. Returns
    /// the messages of all others, which another process serves.
    pub(crate) fn suspend(&self) -> io::Result<Vec<u8>> {
        self.suspended.store(true, Ordering::SeqCst);
        for request in self.in_flight.unanswered() {
            if request.job.parked.load(Ordering::SeqCst) {
                request.cancel();
            }
        }
        self.drain()?;
        Ok(std::mem::take(&mut self.unserved.lock()))
    }

    fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::SeqCst)
    }

    /// Completes a request without a reply: another process serves it.
    fn put_back(&self, request: &Arc<StreamRequest>, out: &mut Outbox) -> RunOutcome {
        out.clear();
        self.unserved.lock().extend_from_slice(&request.job.bytes);
        self.complete(request, out);
        RunOutcome::Answered
    }

    /// Waits until no request is in flight and all output is sent.
    pub(crate) fn drain(&self) -> io::Result<()> {
        self.wait_until(|lane| lane.in_flight.count() == 0 && !lane.has_backlog())
    }

    pub(crate) fn wait_until(&self, done: impl Fn(&Lane) -> bool) -> io::Result<()> {
        // Set before the first check, so that later completions wake this thread.
        let _wakes = self.in_flight.wake_on_completion(self.notifier()?.into());
        loop {
            if self.is_disconnected() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            if done(self) {
                return Ok(());
            }
            let interest = Interest {
                read: false,
                write: self.has_backlog(),
            };
            if self.listen(interest, None)?.hung_up {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
    }

    /// Waits until no request is in flight after the client is gone, without using the link.
    pub(crate) fn await_completions(&self) {
        self.in_flight.start_queued();
        self.in_flight.wait_until_idle();
    }

    /// Waits for the link or the notifier for `time` at most, and sends as much of the backlog as
    /// possible. Returns `TimedOut` if the peer accepts nothing of the backlog for too long.
    pub(crate) fn listen(&self, interest: Interest, time: Option<Duration>) -> io::Result<Ready> {
        let notifier = self.notifier()?;
        let send = self.tuning.timeouts.send;
        let (mut time, mut slow) = (time, false);
        if interest.write {
            let left = self.output().time_left(send);
            slow = left.is_zero();
            time = Some(time.map_or(left, |time| time.min(left)));
        }
        let ready = self.link.wait(interest, notifier.0.as_fd(), time)?;
        if ready.woken {
            notifier.clear();
        }
        if ready.write {
            self.send_backlog()?;
        } else if slow {
            return Err(timed_out("the client does not receive its replies"));
        }
        Ok(ready)
    }

    fn wake_thread(&self) {
        let notifier = self.notifier.lock().clone();
        if let Some(notifier) = notifier {
            notifier.wake();
        }
    }

    /// Returns the eventfd that wakes the lane's own thread, and creates it if necessary.
    pub(crate) fn notifier(&self) -> io::Result<Arc<Notifier>> {
        let mut notifier = self.notifier.lock();
        if let Some(notifier) = &*notifier {
            return Ok(notifier.clone());
        }
        let made = Notifier::new()?;
        *notifier = Some(made.clone());
        Ok(made)
    }

    /// Releases the resources that an idle connection does not need. Called on the lane's own
    /// thread, with nothing in flight.
    pub(crate) fn release_idle(&self) {
        if self.in_flight.count() == 0 && !self.has_backlog() {
            *self.notifier.lock() = None;
        }
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the name of the listener that accepted the connection.
    pub(crate) fn listener(&self) -> &str {
        self.admission.listener()
    }

    /// Returns the connection's number.
    pub(crate) fn id(&self) -> u64 {
        self.admission.id()
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock()
    }
}

impl Monitored for Lane {
    fn peer(&self) -> String {
        self.link.peer().to_owned()
    }

    fn listener(&self) -> &str {
        self.admission.listener()
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        self.session.vocabulary()
    }

    fn facts(&self) -> ClientInfo {
        self.session.client_info()
    }

    fn in_flight(&self) -> usize {
        self.in_flight.count()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let totals = self.stats.totals();
        tracing::debug!(
            connection = self.id(),
            requests = totals.requests,
            offloaded = totals.offloaded,
            cancelled = totals.cancelled,
            received = totals.received,
            sent = totals.sent,
            "disconnected"
        );
    }
}

pub(crate) fn timed_out(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, why)
}

pub(crate) fn invalid(malformed: Malformed) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, malformed)
}
