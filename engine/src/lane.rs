//! A connection, as its own thread (in `drive`) and the workers share it.

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

/// What a lane's own thread and the workers share of it.
pub(crate) struct Lane {
    pub(crate) session: Box<dyn Session>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) link: Box<dyn Link>,
    peer: Arc<Peer>,
    /// Of requests that are answered at once, which nobody can cancel.
    pub(crate) inline: Call,
    output: Mutex<Output>,
    flights: Mutex<Flights>,
    /// How many requests are in flight. Only the lane's own thread adds.
    outstanding: AtomicUsize,
    /// How many bytes they are together.
    held: AtomicUsize,
    /// Wakes the lane's own thread from [`Link::wait`]: there only while something is in flight, as
    /// most connections are idle and descriptors are short.
    notifier: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether that thread waits for requests to be answered.
    listens: AtomicBool,
    /// Whether nobody is there to take replies.
    gone: AtomicBool,
    pub(crate) tuning: Tuning,
    /// The last field: whoever hears that the connection is no more finds its session gone.
    member: Member,
}

/// Replies that the link did not take at once.
#[derive(Default)]
struct Output {
    backlog: Vec<u8>,
    sent: usize,
    /// When the peer last took some of it, or when it began.
    progress: Option<Instant>,
    memory: Option<Reservation>,
}

impl Output {
    /// Keeps `bytes` for later.
    fn keep(&mut self, bytes: &[u8], memory: impl FnOnce() -> Reservation) {
        copied(bytes.len());
        if self.backlog.is_empty() {
            self.progress = Some(Instant::now());
        }
        self.backlog.extend_from_slice(bytes);
        let memory = self.memory.get_or_insert_with(memory);
        memory.set(self.backlog.capacity());
    }

    /// How long the peer may take for more of it, of `timeout` at most.
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

/// What a session says of its own accord.
struct LaneVoice(Weak<Lane>);

impl Voice for LaneVoice {
    fn say(&self, message: &[u8]) -> bool {
        self.0.upgrade().is_some_and(|lane| lane.say(message))
    }
}

/// Requests in flight, by the peer's names for them.
#[derive(Default)]
struct Flights {
    by_id: HashMap<u64, Flight>,
    share: Share<Message>,
}

/// A message that came over a connection.
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
        // Workers do not wait for memory: there are only so many.
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
    /// Whether its reply is on its way: the peer may already have it and use the name again.
    answered: bool,
    /// What is to be served right after its reply has been sent: those that cancelled it.
    followers: Vec<Arc<StreamRequest>>,
}

impl Lane {
    /// Output beyond this is sent before more is answered: the client can begin on it.
    pub(crate) const BATCH: usize = 128 << 10;

    /// Replies that a client leaves lying, bytes, beyond which none of its requests run.
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

    /// Answers `message`, or says why not; a panic of the source becomes an error.
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

    /// Errs if request `id` is in flight.
    pub(crate) fn check_unused(&self, id: u64) -> io::Result<()> {
        match self.outstanding() {
            0 => Ok(()),
            _ => self.flights().check_unused(id),
        }
    }

    /// Whether a request of `len` bytes may be in flight as well.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        match self.outstanding() {
            0 => true,
            some => {
                some < self.tuning.in_flight
                    && self.held.load(Ordering::SeqCst) + len <= self.tuning.held
            }
        }
    }

    /// Leaves a request to the workers. Errs if the system has no descriptor by which they can be
    /// waited for.
    pub(crate) fn offload(self: &Arc<Self>, id: u64, message: Held) -> io::Result<()> {
        self.notifier()?;
        add(&self.stats().offloaded, 1);
        let request = self.flights().begin(self, id, message);
        self.schedule(request);
        Ok(())
    }

    /// If `target` is in flight: cancels it, and has `message` served after its reply.
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

    /// The lane's own thread: until the client, or [`Link::end_input`], ends it, and everything in
    /// flight is answered.
    pub(crate) fn run(self: &Arc<Self>, stopping: &AtomicBool) {
        // Here, because it may ask a directory service over the network.
        if let Origin::Local { owner, .. } = self.peer.origin() {
            self.peer.set_owner(transports::caller_of(owner));
        }
        if self.peer.is_nobody() {
            tracing::info!(
                peer = self.link.peer(),
                "a local client's user is unknown: its requests act as nobody"
            );
        }
        if let Err(error) = Own::new(self).run() {
            self.lose(&error);
        }
        if !stopping.load(Ordering::SeqCst) {
            self.cancel_all();
        }
        // With nobody there to take replies, those that still run end unheard.
        if self.await_quiet().is_err() {
            self.leave();
            self.await_answers();
        }
        self.link.hang_up();
    }

    /// Has a worker run `request`, as soon as the lane's share of them allows.
    pub(crate) fn schedule(&self, request: Arc<StreamRequest>) {
        let mut flights = self.flights();
        flights.share.wait(request);
        self.start(&mut flights);
    }

    /// A request of this lane has left its worker, but is still in flight.
    pub(crate) fn leave_worker(&self) {
        let mut flights = self.flights();
        flights.share.leave();
        self.start(&mut flights);
    }

    /// Sends the reply to `request` that stands in `out`, if one does, then those to whatever waited
    /// for that; from a worker's thread.
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

    /// Ends the connection because of what its client sent.
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

    /// Ends the connection because its link did: a client that goes without taking its replies is
    /// nothing to warn of.
    pub(crate) fn lose(&self, error: &io::Error) {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => self.leave(),
            ErrorKind::TimedOut => self.end(ConnectionRefusals::TIMEOUT, error),
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => self.fail(error),
            _ => self.end(ConnectionRefusals::SYSTEM, error),
        }
    }

    /// Nobody takes replies any more.
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

    /// Takes a request that is answered out of flight; whoever cancelled it comes next.
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

    /// Begins requests that have waited for memory, if there is some by now.
    pub(crate) fn start_waiting(&self) {
        self.start(&mut self.flights());
    }

    /// The bytes that the reply to a message may take, if that is so much that it is to be claimed
    /// before it is made.
    pub(crate) fn large_reply(&self, message: &[u8]) -> Option<usize> {
        let large = self.budget().large();
        let bound = self.session.reply_bound(message, large);
        (bound >= large).then_some(bound)
    }

    /// Whether the replies to the client take more memory than it may have.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.budget().is_overdrawn(self.member.client())
    }

    /// Waits until there may be the memory that it needs, for `time` at most.
    pub(crate) fn wait_for(&self, need: Need, time: Duration) {
        self.budget().wait(self.member.client(), need, time);
    }

    /// A reservation of nothing on the client's account.
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

    /// Sends the messages in `out` behind all that was sent before; what does not go at once (without `wait`) the
    /// lane's own thread sends later, without what would be handed over. Says whether that is too much by now.
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

    /// [`Link::send`] of messages, and `file` is handed over with the last, which begins `at`.
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

    /// [`Lane::send`] of messages that have pages among them, and waits.
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

    /// [`Voice::say`].
    fn say(&self, message: &[u8]) -> bool {
        // Whoever sends holds it for microseconds, unless he waits for the peer.
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

    /// Waits until nothing is in flight and all is sent.
    pub(crate) fn await_quiet(&self) -> io::Result<()> {
        self.await_until(|lane| lane.outstanding() == 0 && !lane.has_backlog())
    }

    pub(crate) fn await_until(&self, done: impl Fn(&Lane) -> bool) -> io::Result<()> {
        // Before the first look: what is done behind it rings.
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

    /// Waits for the end of what is in flight, when the link is of no use any more.
    fn await_answers(&self) {
        // It is there: something is in flight.
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

    /// Waits for the link or the notifier, and sends what can be sent of the backlog; for `time` at
    /// most. `TimedOut` if the peer takes nothing of the backlog for too long.
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
            return Err(timed_out("the client does not take its replies"));
        }
        Ok(ready)
    }

    fn ring(&self) {
        let notifier = self.notifier.lock().expect("no panic holds it").clone();
        if let Some(notifier) = notifier {
            // Fails only when it has been rung more often than it can count.
            let _ = rustix::io::write(&*notifier, &1u64.to_ne_bytes());
        }
    }

    /// Returns the eventfd that wakes the lane's own thread, from now on.
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

    /// Gives back what an idle connection does not need; from the lane's own thread, with nothing
    /// in flight.
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

    /// The connection's number.
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
    /// The peer may not use a name again before it has the reply.
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
