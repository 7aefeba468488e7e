//! A connection, as shared by its own thread (in `drive`) and the workers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use transports::{Frame, Interest, Link, Outbox, Ready};
use vfs::copies::copied;
use vfs::{Backing, Call, Origin, Patience, Peer, PeerKey};
use wire::{Answer, Malformed, Session, Voice};

use crate::drive::{Beyond, Own};
use crate::input::Held;
use crate::request::{Job, Ran, Request};
use crate::serve::serve;
use crate::server::{Engine, Member, Tuning};
use crate::share::Share;
use crate::stats::{ConnectionRefusals, Stats, add};
use crate::workers::Workers;
use vfs::memory::{MemoryBudget, Need, Reservation, Use};

/// The part of a lane that its own thread and the workers share.
pub(crate) struct Lane {
    pub(crate) session: Box<dyn Session>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) link: Box<dyn Link>,
    peer: Arc<Peer>,
    /// The call of requests that are served inline, which cannot be cancelled.
    pub(crate) inline: Call,
    output: Mutex<Output>,
    flights: Mutex<Flights>,
    /// The number of requests in flight. Only the lane's own thread increases it.
    outstanding: AtomicUsize,
    /// The total size of the requests in flight in bytes.
    held: AtomicUsize,
    /// Wakes the lane's own thread from [`Link::wait`]. Exists only while a request is in flight,
    /// as most connections are idle and descriptors are limited.
    notifier: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether that thread waits for requests to complete.
    listens: AtomicBool,
    /// Whether the client is gone, so that replies are discarded.
    gone: AtomicBool,
    pub(crate) tuning: Tuning,
    /// The last field, so that its drop, which reports the end of the connection, follows that of
    /// the session.
    member: Member,
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
    fn keep(&mut self, bytes: &[u8], memory: impl FnOnce() -> Reservation) {
        copied(bytes.len());
        if self.backlog.is_empty() {
            self.progress = Some(Instant::now());
        }
        self.backlog.extend_from_slice(bytes);
        let memory = self.memory.get_or_insert_with(memory);
        memory.set(self.backlog.capacity());
    }

    /// Returns the rest of `timeout` within which the peer must accept more of the backlog.
    fn patience(&self, timeout: Duration) -> Duration {
        let waited = self
            .progress
            .map_or(Duration::ZERO, |since| since.elapsed());
        timeout.saturating_sub(waited)
    }

    fn is_clogged(&self) -> bool {
        self.backlog.len() - self.sent > Lane::BACKLOG
    }
}

/// The channel for messages that a session sends without a request.
struct LaneVoice(Weak<Lane>);

impl Voice for LaneVoice {
    fn say(&self, message: &[u8]) -> bool {
        self.0.upgrade().is_some_and(|lane| lane.say(message))
    }
}

/// Requests in flight, by the peer's ids.
#[derive(Default)]
struct Flights {
    by_id: HashMap<u64, Flight>,
    share: Share<Message>,
}

/// A message received over a connection.
pub(crate) struct Message {
    lane: Arc<Lane>,
    id: u64,
    bytes: Held,
}

pub(crate) type StreamRequest = Request<Message>;

impl Job for Message {
    fn run(request: &Arc<StreamRequest>, out: &mut Outbox) -> Ran {
        let Message { lane, bytes, .. } = &request.job;
        if lane.is_gone() {
            lane.complete(request, out);
            return Ran::Answered;
        }
        let frame = Frame(bytes);
        // Workers do not wait for memory: their number is limited.
        out.meter(Box::new(Beyond(lane.reservation(Use::Reply))));
        out.expect(lane.large_reply(bytes).unwrap_or(0));
        let served = lane.serve(&request.call, Patience::Full, &frame, out);
        out.expect(0);
        match served {
            Ok(Answer::Done) => {}
            Ok(Answer::Parked) => return Ran::Parked,
            Ok(Answer::WouldBlock) => lane.fail(&"a request would block where it may wait"),
            Ok(Answer::Secure) => {
                lane.fail(&"a request to secure the connection was not answered at once")
            }
            Err(malformed) => lane.fail(&malformed),
        }
        lane.complete(request, out);
        Ran::Answered
    }

    fn schedule(request: Arc<StreamRequest>) {
        request.job.lane.clone().schedule(request);
    }

    fn leave_worker(&self) {
        self.lane.leave_worker();
    }

    fn workers(&self) -> &Arc<Workers> {
        &self.lane.workers
    }

    fn stats(&self) -> &Stats {
        self.lane.stats()
    }

    fn made_for(&self, call: Call) -> Call {
        call.coming_from(self.lane.peer.clone())
    }

    fn owner(&self) -> PeerKey {
        self.lane.member.client()
    }
}

struct Flight {
    request: Arc<StreamRequest>,
    /// Whether its reply is being sent: the peer may already have it and reuse the id.
    answered: bool,
    /// The requests to serve right after its reply was sent: those that cancelled it.
    followers: Vec<Arc<StreamRequest>>,
}

impl Lane {
    /// The size in bytes from which on output is sent before more requests are served, so that the
    /// client can start processing it.
    pub(crate) const BATCH: usize = 128 << 10;

    /// The backlog in bytes beyond which no requests of a client are served.
    const BACKLOG: usize = 1 << 20;

    pub(crate) fn new(
        link: Box<dyn Link>,
        session: Box<dyn Session>,
        workers: Arc<Workers>,
        tuning: Tuning,
        peer: Arc<Peer>,
        member: Member,
    ) -> io::Result<Arc<Lane>> {
        link.set_timeouts(tuning.timeouts.tick(), tuning.timeouts.send)?;
        let lane = Arc::new(Lane {
            session,
            workers,
            link,
            inline: Call::detached().coming_from(peer.clone()),
            peer,
            output: Mutex::default(),
            flights: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            notifier: Mutex::default(),
            listens: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            tuning,
            member,
        });
        let voice = LaneVoice(Arc::downgrade(&lane));
        lane.session.can_speak(Arc::new(voice));
        Ok(lane)
    }

    /// Serves `message`; a panic of the source becomes an error reply.
    pub(crate) fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &Frame<'_>,
        out: &mut Outbox,
    ) -> Result<Answer, Malformed> {
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

    /// Returns an error if request `id` is in flight.
    pub(crate) fn check_unused(&self, id: u64) -> io::Result<()> {
        match self.outstanding() {
            0 => Ok(()),
            _ => self.flights().check_unused(id),
        }
    }

    /// Returns whether another request of `len` bytes may be in flight.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        match self.outstanding() {
            0 => true,
            some => {
                some < self.tuning.in_flight
                    && self.held.load(Ordering::SeqCst) + len <= self.tuning.held
            }
        }
    }

    /// Passes a request to the workers. Returns an error if no descriptor is available for the
    /// notifier.
    pub(crate) fn offload(self: &Arc<Self>, id: u64, message: Held) -> io::Result<()> {
        self.notifier()?;
        add(&self.stats().offloaded, 1);
        let request = self.flights().begin(self, id, message);
        self.schedule(request);
        Ok(())
    }

    /// If `target` is in flight, cancels it, and serves `message` after its reply.
    pub(crate) fn follow(
        self: &Arc<Self>,
        id: u64,
        target: u64,
        message: &[u8],
    ) -> io::Result<bool> {
        let mut flights = self.flights();
        flights.check_unused(id)?;
        if !flights.by_id.contains_key(&target) {
            return Ok(false);
        }
        let message = Held::copy(message, self.reservation(Use::Request));
        let follower = flights.begin(self, id, message);
        let Some(flight) = flights.by_id.get_mut(&target) else {
            return Ok(false);
        };
        flight.followers.push(follower);
        let target = flight.request.clone();
        drop(flights);
        add(&self.stats().cancelled, 1);
        target.cancel();
        Ok(true)
    }

    /// Runs the lane's own thread until the client or [`Link::end_input`] ends the input, and
    /// everything in flight is answered.
    pub(crate) fn run(self: &Arc<Self>, stopping: &AtomicBool) {
        // Done here because it may query a directory service over the network.
        if let Origin::Local { owner, .. } = self.peer.origin() {
            self.peer.set_owner(transports::caller_of(owner));
        }
        if self.peer.is_nobody() {
            tracing::info!(
                peer = self.link.peer(),
                "the user of a local client is unknown: its requests run as nobody"
            );
        }
        if let Err(error) = Own::new(self).run() {
            self.lose(&error);
        }
        if !stopping.load(Ordering::SeqCst) {
            self.cancel_all();
        }
        // Replies of requests that still run have no recipient.
        if self.await_quiet().is_err() {
            self.leave();
            self.await_answers();
        }
        self.link.hang_up();
    }

    /// Runs `request` on a worker as soon as the lane's share allows.
    pub(crate) fn schedule(&self, request: Arc<StreamRequest>) {
        let mut flights = self.flights();
        flights.share.wait(request);
        self.start(&mut flights);
    }

    /// Notes that a request of this lane left its worker, but is still in flight.
    pub(crate) fn leave_worker(&self) {
        let mut flights = self.flights();
        flights.share.leave();
        self.start(&mut flights);
    }

    /// Sends the reply to `request` that `out` contains, if any, then those to the requests that
    /// waited for it. Called on a worker's thread.
    pub(crate) fn complete(self: &Arc<Self>, request: &Arc<StreamRequest>, out: &mut Outbox) {
        if let Some(flight) = self.flights().by_id.get_mut(&request.job.id) {
            flight.answered = true;
        }
        self.leave_worker();
        let mut done = vec![request.clone()];
        while let Some(request) = done.pop() {
            self.stats().enter(&request.call, || request.age());
            self.send_from_worker(out);
            out.clear();
            for follower in self.land(&request) {
                let frame = Frame(&follower.job.bytes);
                if !self.is_gone()
                    && self.serve(&follower.call, Patience::Full, &frame, out) != Ok(Answer::Done)
                {
                    self.fail(&"a cancellation was not answered at once");
                }
                done.push(follower);
            }
        }
    }

    /// Closes the connection because of a protocol error of the client.
    pub(crate) fn fail(&self, error: &dyn Display) {
        self.end(ConnectionRefusals::PROTOCOL, error);
    }

    fn end(&self, reason: &'static str, error: &dyn Display) {
        if !self.gone.swap(true, Ordering::SeqCst)
            && let Some(suppressed) = self.engine().complain(self.member.client(), reason)
        {
            let peer = self.link.peer();
            tracing::warn!(peer, suppressed, "connection closed: {error}");
        }
        self.leave();
    }

    /// Closes the connection after a failure of its link; logs no warning if the client
    /// disconnected without reading its replies.
    pub(crate) fn lose(&self, error: &io::Error) {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => self.leave(),
            ErrorKind::TimedOut => self.end(ConnectionRefusals::TIMEOUT, error),
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => self.fail(error),
            _ => self.end(ConnectionRefusals::SYSTEM, error),
        }
    }

    /// Marks the client as gone and closes the link.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.link.hang_up();
        self.ring();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn cancel_all(&self) {
        let requests: Vec<_> = self
            .flights()
            .by_id
            .values()
            .map(|flight| flight.request.clone())
            .collect();
        let cancelled = requests.iter().filter(|request| request.cancel());
        add(&self.stats().cancelled, cancelled.count());
    }

    /// Removes an answered request from those in flight, and returns the requests that cancelled
    /// it, to be served next.
    fn land(&self, request: &Arc<StreamRequest>) -> Vec<Arc<StreamRequest>> {
        let mut flights = self.flights();
        let followers = match flights.by_id.entry(request.job.id) {
            Entry::Occupied(entry) if Arc::ptr_eq(&entry.get().request, request) => {
                entry.remove().followers
            }
            _ => Vec::new(),
        };
        drop(flights);
        self.held
            .fetch_sub(request.job.bytes.len(), Ordering::SeqCst);
        self.outstanding.fetch_sub(1, Ordering::SeqCst);
        if self.listens.load(Ordering::SeqCst) {
            self.ring();
        }
        followers
    }

    fn start(&self, flights: &mut Flights) {
        let may = || !self.is_clogged() && (self.is_gone() || !self.is_overdrawn());
        flights.share.start(&self.workers, may);
    }

    /// Starts requests that waited for memory, if some is available.
    pub(crate) fn start_waiting(&self) {
        self.start(&mut self.flights());
    }

    /// Returns an upper bound on the reply to a message in bytes, if that is large enough to be
    /// reserved in advance.
    pub(crate) fn large_reply(&self, message: &[u8]) -> Option<usize> {
        let large = self.budget().large();
        let bound = self.session.reply_bound(message, large);
        (bound >= large).then_some(bound)
    }

    /// Returns whether the replies to the client exceed its share of memory.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.budget().is_overdrawn(self.member.client())
    }

    /// Waits for `time` at most until there may be the needed memory.
    pub(crate) fn wait_for(&self, need: Need, time: Duration) {
        self.budget().wait(self.member.client(), need, time);
    }

    /// Creates an empty reservation on the client's account.
    pub(crate) fn reservation(&self, of: Use) -> Reservation {
        self.budget().reservation(self.member.client(), of)
    }

    fn budget(&self) -> &Arc<MemoryBudget> {
        self.engine().budget()
    }

    pub(crate) fn is_clogged(&self) -> bool {
        !self.is_gone() && self.output().is_clogged()
    }

    fn send_from_worker(&self, out: &Outbox) {
        if self.is_gone() || out.bytes().is_empty() {
            return;
        }
        if let Err(error) = self.send(out, false) {
            self.lose(&error);
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
            let done = match out.handed() {
                None => self.link.send(bytes, wait),
                Some((at, file)) => self.send_handing(bytes, at, file, wait),
            };
            sent = match done {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                done => done?,
            };
        }
        add(&self.stats().sent, bytes.len());
        if sent < bytes.len() {
            output.keep(&bytes[sent..], || self.reservation(Use::Reply));
            self.ring();
        }
        Ok(output.is_clogged())
    }

    /// Does what [`Link::send`] does, and passes the descriptor of `file` with the last message,
    /// which starts `at`.
    fn send_handing(
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
        match self.link.send_handing(message, file.as_fd(), wait) {
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
            return Ok(output.is_clogged());
        }
        drop(output);
        out.settle()?;
        self.send(out, self.outstanding() == 0)
    }

    /// Implements [`Voice::say`].
    fn say(&self, message: &[u8]) -> bool {
        // A sender holds the lock for microseconds, unless it waits for the peer.
        const TRIES: u32 = 20;
        const PAUSE: Duration = Duration::from_micros(100);
        let mut output = None;
        for _ in 0..TRIES {
            match self.output.try_lock() {
                Ok(free) => {
                    output = Some(free);
                    break;
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Poisoned(_)) => return false,
            }
        }
        let Some(mut output) = output else {
            return false;
        };
        if self.is_gone() || output.is_clogged() {
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
            output.keep(&message[sent..], || self.reservation(Use::Reply));
            self.ring();
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
        self.start(&mut self.flights());
        Ok(())
    }

    pub(crate) fn has_backlog(&self) -> bool {
        !self.output().backlog.is_empty()
    }

    /// Waits until no request is in flight and all output is sent.
    pub(crate) fn await_quiet(&self) -> io::Result<()> {
        self.await_until(|lane| lane.outstanding() == 0 && !lane.has_backlog())
    }

    pub(crate) fn await_until(&self, done: impl Fn(&Lane) -> bool) -> io::Result<()> {
        // Set before the first check, so that later completions wake this thread.
        self.notifier()?;
        self.listens.store(true, Ordering::SeqCst);
        let result = loop {
            if self.is_gone() {
                break Err(ErrorKind::BrokenPipe.into());
            }
            if done(self) {
                break Ok(());
            }
            let interest = Interest {
                read: false,
                write: self.has_backlog(),
            };
            match self.listen(interest, None) {
                Ok(ready) if ready.hung_up => break Err(ErrorKind::BrokenPipe.into()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        self.listens.store(false, Ordering::SeqCst);
        result
    }

    /// Waits until no request is in flight, without using the link.
    fn await_answers(&self) {
        // The notifier exists, as a request is in flight.
        let Ok(notifier) = self.notifier() else {
            return;
        };
        self.listens.store(true, Ordering::SeqCst);
        while self.outstanding() > 0 {
            self.start(&mut self.flights());
            let mut fds = [rustix::event::PollFd::new(
                &*notifier,
                rustix::event::PollFlags::IN,
            )];
            let _ = rustix::event::poll(&mut fds, None);
            let _ = rustix::io::read(&*notifier, &mut [0; 8]);
        }
    }

    /// Waits for the link or the notifier for `time` at most, and sends as much of the backlog as
    /// possible. Returns `TimedOut` if the peer accepts nothing of the backlog for too long.
    pub(crate) fn listen(&self, interest: Interest, time: Option<Duration>) -> io::Result<Ready> {
        let notifier = self.notifier()?;
        let send = self.tuning.timeouts.send;
        let (mut time, mut slow) = (time, false);
        if interest.write {
            let left = self.output().patience(send);
            slow = left.is_zero();
            time = Some(time.map_or(left, |time| time.min(left)));
        }
        let ready = self.link.wait(interest, notifier.as_fd(), time)?;
        if ready.woken {
            let _ = rustix::io::read(&*notifier, &mut [0; 8]);
        }
        if ready.write {
            self.send_backlog()?;
        } else if slow {
            return Err(timed_out("the client does not receive its replies"));
        }
        Ok(ready)
    }

    fn ring(&self) {
        let notifier = self.notifier.lock().expect("no panic holds it").clone();
        if let Some(notifier) = notifier {
            // Fails only if the eventfd's counter would overflow.
            let _ = rustix::io::write(&*notifier, &1u64.to_ne_bytes());
        }
    }

    /// Returns the eventfd that wakes the lane's own thread, and creates it if necessary.
    pub(crate) fn notifier(&self) -> io::Result<Arc<OwnedFd>> {
        let mut notifier = self.notifier.lock().expect("no panic holds it");
        if let Some(notifier) = &*notifier {
            return Ok(notifier.clone());
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let made = Arc::new(eventfd(0, flags)?);
        *notifier = Some(made.clone());
        Ok(made)
    }

    /// Releases the resources that an idle connection does not need. Called on the lane's own
    /// thread, with nothing in flight.
    pub(crate) fn rest(&self) {
        if self.outstanding() == 0 && !self.has_backlog() {
            *self.notifier.lock().expect("no panic holds it") = None;
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.member.engine()
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.member.stats
    }

    /// Returns the connection's number.
    pub(crate) fn id(&self) -> u64 {
        self.member.id
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::SeqCst)
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().expect("no panic holds it")
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().expect("no panic holds it")
    }
}

impl Flights {
    /// Returns an error if the peer reuses an id before it can have the reply.
    fn check_unused(&self, id: u64) -> io::Result<()> {
        match self.by_id.get(&id) {
            Some(flight) if !flight.answered => Err(invalid(Malformed::new(format!(
                "request {id} is in flight already"
            )))),
            _ => Ok(()),
        }
    }

    fn begin(&mut self, lane: &Arc<Lane>, id: u64, bytes: Held) -> Arc<StreamRequest> {
        lane.outstanding.fetch_add(1, Ordering::SeqCst);
        lane.held.fetch_add(bytes.len(), Ordering::SeqCst);
        let lane = lane.clone();
        let export = lane.inline.share();
        let request = Request::new(lane.stats().begins(), Message { lane, id, bytes });
        request.call.note_share(export);
        let flight = Flight {
            request: request.clone(),
            answered: false,
            followers: Vec::new(),
        };
        self.by_id.insert(id, flight);
        request
    }
}

pub(crate) fn timed_out(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::TimedOut, why)
}

pub(crate) fn invalid(malformed: Malformed) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, malformed)
}
