//! A virtqueue's lane: one thread that pops requests, serves those it can, and returns them as
//! used.
//!
//! The thread also serves requests that may take long, but enables the ring's notifications
//! meanwhile: if more requests arrive, a worker stands in for it ([`crate::kick_watcher`]). The
//! consumer of the ring holds a lock ([`crate::consumer_lock`]).
//!
//! Lock order: the consumer lock is taken and released while no other lock is held; that of
//! the table of requests in flight is held briefly.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use parking_lot::{Mutex, MutexGuard};
use rustix::thread::{CpuSet, sched_setaffinity};
use tracing::trace_span;
use transports::{Exchange, Outbox, Poller, Ring};
use vfs::{Call, Patience, PeerKey};
use wire::{ClientInfo, RequestTarget, Role, ServeOutcome, Session, Vocabulary};

use crate::consumer_lock::ConsumerLock;
use crate::in_flight::{Entry, InFlight, Limits, complete, complete_follower};
use crate::inline_budget::InlineBudget;
use crate::interrupts::Interrupts;
use crate::kick_watcher::Registration;
use crate::request::{Job, Request, RunOutcome, enter_span};
use crate::serve::serve;
use crate::server::Engine;
use crate::slow_log::{Exchanged, RecordedRequest, RequestTime, target};
use crate::stats::{LaneStats, Monitored, Stats, add};
use crate::workers::{Run, Workers};

/// A queue served by its own thread.
pub struct QueueThread {
    thread: JoinHandle<()>,
    lane: Arc<QueueLane>,
}

impl QueueThread {
    /// Waits until its thread ends, which it does once its ring is stopped.
    pub fn join(self) {
        // It panics only if a source does, which was logged then.
        let _ = self.thread.join();
        self.lane.queues.interrupts.close();
    }

    /// Cancels the requests in flight, and waits until they are answered, or put back into a ring
    /// that may start again, and the thread ends, which it does once its ring is stopped.
    pub fn cancel_and_join(self) {
        self.lane.ended.store(true, Ordering::SeqCst);
        self.lane.queues.engine.handover.wake();
        self.lane.in_flight.cancel_all_from_now_on();
        self.join();
    }
}

/// The queues of one session: a request of one queue may be cancelled through another.
pub struct Queues {
    engine: Arc<Engine>,
    session: Arc<dyn Session>,
    /// The owner of the share of the workers that its requests use.
    owner: PeerKey,
    /// The account of its requests.
    account: vfs::Account,
    /// The name of the listener that accepted the device's monitor; empty without one.
    listener: String,
    lanes: Mutex<Vec<Weak<QueueLane>>>,
    /// The number of lanes.
    lane_count: Arc<AtomicUsize>,
    interrupts: Arc<Interrupts>,
}

impl Engine {
    /// Creates the queues of a device that `session` serves.
    pub fn queues(self: &Arc<Self>, session: Arc<dyn Session>) -> Arc<Queues> {
        self.queues_at(session, "")
    }

    /// Creates the queues of a device whose monitor the listener `listener` has accepted.
    pub fn queues_at(self: &Arc<Self>, session: Arc<dyn Session>, listener: &str) -> Arc<Queues> {
        let owner = self.next_device();
        let interrupts = Interrupts::new(session.client_threads());
        Arc::new(Queues {
            engine: self.clone(),
            session,
            owner,
            account: vfs::Account::in_budget(self.budget(), owner),
            listener: listener.to_owned(),
            lanes: Mutex::default(),
            lane_count: Arc::default(),
            interrupts,
        })
    }
}

impl Queues {
    /// Returns a call of the device's guest, for operations that no request asks for.
    pub fn call(&self) -> Call {
        Call::detached().with_account(self.account.clone())
    }

    /// Serves the requests of `ring` with a new thread, pinned to `processor` if given.
    pub fn start(
        self: &Arc<Self>,
        ring: Arc<dyn Ring>,
        processor: Option<usize>,
    ) -> io::Result<QueueThread> {
        let lane = Arc::new(QueueLane {
            queues: self.clone(),
            ring,
            stats: self
                .engine
                .stats_registry()
                .add_lane(self.session.vocabulary()),
            inline: Call::detached().with_account(self.account.clone()),
            consumer: ConsumerLock::default(),
            registration: OnceLock::new(),
            armed: AtomicBool::new(false),
            stand_in_queued: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            // The length of the ring limits them.
            in_flight: InFlight::new(
                self.engine.workers().clone(),
                Limits {
                    requests: usize::MAX,
                    bytes: usize::MAX,
                },
            )
            .with_lanes(self.lane_count.clone()),
        });
        lane.stats.set_lane(&lane);
        let mut lanes = self.lanes();
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&lane));
        self.lane_count.store(lanes.len(), Ordering::Relaxed);
        drop(lanes);
        let stand_in = Arc::downgrade(&lane);
        let registration = self
            .engine
            .kick_watcher()
            .register(lane.ring.notifier(), stand_in)?;
        lane.registration.get_or_init(|| registration);
        let own = lane.clone();
        let thread = std::thread::Builder::new()
            .name("barge-queue".into())
            .spawn(move || {
                if let Some(processor) = processor {
                    pin_to(processor, own.ring.name());
                }
                if own.queues.engine.handover.wait_unless(&own.ended) {
                    own.run_thread();
                }
            })?;
        Ok(QueueThread { thread, lane })
    }

    /// Returns the queue in which the request `id` is in flight.
    fn lane_of(&self, id: u64) -> Option<Arc<QueueLane>> {
        let lanes: Vec<_> = self.lanes().iter().filter_map(Weak::upgrade).collect();
        lanes.into_iter().find(|lane| lane.in_flight.contains(id))
    }

    /// Returns the request `id`, if it is in flight and not answered yet.
    fn request(&self, id: u64) -> Option<Arc<Request<QueueMessage>>> {
        self.lane_of(id)?.in_flight.find(id)
    }

    /// Ends the wait for a lock of the request `id`. Returns the client's thread that waits for the
    /// request, or `None` if that is not in flight.
    pub(crate) fn interrupt(&self, id: u64) -> Option<u32> {
        let request = self.request(id)?;
        request.interrupt();
        Some(request.job.thread)
    }

    /// Cancels the request `id`, whose waiter will end. If it waits for a worker, it is answered
    /// here: all workers may wait for a server that does not answer.
    pub(crate) fn cancel(&self, id: u64) {
        if let Some(request) = self.request(id)
            && request.job.lane.in_flight.cancel_and_take(&request)
        {
            request.run(&mut Outbox::default());
        }
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Weak<QueueLane>>> {
        self.lanes.lock()
    }
}

/// Pins the calling thread to one processor.
fn pin_to(processor: usize, queue: &str) {
    let mut set = CpuSet::new();
    set.set(processor);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(
            queue,
            processor,
            "cannot pin the thread to a processor: {error}"
        );
    }
}

struct QueueLane {
    queues: Arc<Queues>,
    ring: Arc<dyn Ring>,
    stats: LaneStats,
    /// The call of requests that the consumer of the ring serves inline, which cannot be cancelled.
    inline: Call,
    consumer: ConsumerLock,
    /// The registration that wakes a stand-in. Set before the first request.
    registration: OnceLock<Registration>,
    /// Whether a stand-in was requested and the request was not withdrawn since.
    armed: AtomicBool,
    /// Whether a stand-in was started without a kick, and has not begun.
    stand_in_queued: AtomicBool,
    /// Whether its ring was stopped, so that its thread need not begin to serve.
    ended: AtomicBool,
    in_flight: InFlight<QueueMessage>,
}

/// An answered request for the log of slow requests: its object, the length of its reply, and
/// whether it is one of the random share for traces.
struct Answered {
    target: RequestTarget,
    sent: usize,
    sampled: bool,
}

/// The state of a request after the attempt to serve it inline.
enum InlineOutcome {
    /// Answered and returned to the ring; with the message's object if it may be recorded.
    Answered(Option<Box<Answered>>),
    /// Queued for a worker.
    Queued,
    /// Allowed to run now, and may take long.
    MayBlock(Arc<Request<QueueMessage>>),
}

/// The next step of a stand-in.
enum StandInStep {
    More,
    Leave,
    Stopped,
}

/// Standing in: done by a worker after a kick, or if the ring had more requests when its thread
/// left.
impl Run for QueueLane {
    fn run(self: Arc<Self>, _: &mut Outbox) {
        self.stand_in_queued.store(false, Ordering::SeqCst);
        if !self.consumer.try_lock() {
            return;
        }
        if self.stand_in().is_err() {
            // The queue's own thread encounters the error, too.
            self.consumer.unlock();
        }
    }

    fn wake(self: Arc<Self>) {}

    fn owner(&self) -> PeerKey {
        self.queues.owner
    }
}

impl Monitored for QueueLane {
    fn peer(&self) -> String {
        self.ring.name().to_owned()
    }

    fn listener(&self) -> &str {
        &self.queues.listener
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        self.queues.session.vocabulary()
    }

    fn facts(&self) -> ClientInfo {
        self.queues.session.client_info()
    }

    fn in_flight(&self) -> usize {
        self.in_flight.count()
    }
}

/// A request from a queue.
struct QueueMessage {
    lane: Arc<QueueLane>,
    id: u64,
    /// The client's thread that waits for it: see [`Session::waiting_thread`].
    thread: u32,
    /// Present until it is answered.
    exchange: Mutex<Option<Box<dyn Exchange>>>,
    /// Whether the thread that runs it next locks the ring again afterwards.
    relocks_ring: AtomicBool,
    /// Whether it is put back into the ring if it has had no effect.
    put_back: AtomicBool,
    /// Whether its client has cancelled it: then it is answered, and not put back.
    client_cancels: AtomicBool,
    /// Whether it was parked.
    parked: AtomicBool,
}

impl Job for QueueMessage {
    fn run(request: &Arc<Request<QueueMessage>>, _: &mut Outbox) -> RunOutcome {
        let QueueMessage {
            lane,
            exchange,
            parked,
            ..
        } = &request.job;
        // Only once: if it is parked, a worker runs it next.
        let resumes = request.job.relocks_ring.swap(false, Ordering::Relaxed);
        let mut held = exchange.lock();
        let Some(mut exchange) = held.take() else {
            return RunOutcome::Answered;
        };
        let was_parked = parked.load(Ordering::Relaxed);
        // One that was never served in full has had no effect. One that was parked has not either,
        // but the source may remember it.
        let mut unserved = request.job.is_to_put_back() && !was_parked;
        let refused = !was_parked && request.job.is_cancelled_by_client() && {
            let (message, out) = exchange.split();
            lane.queues.session.answer_interrupted(message, out)
        };
        if !unserved && !refused {
            if lane.serve(&request.call, Patience::Full, &mut *exchange) == ServeOutcome::Parked {
                parked.store(true, Ordering::Relaxed);
                *held = Some(exchange);
                return RunOutcome::Parked;
            }
            let session = &lane.queues.session;
            unserved = was_parked
                && request.job.is_to_put_back()
                && session.was_interrupted(&request.call);
        }
        if resumes {
            // The client may send more after the reply before this thread is back, which needs no
            // stand-in.
            lane.disarm();
        }
        drop(held);
        let mut served = Some(exchange);
        complete(request, |request, _| match served.take() {
            Some(mut exchange) if unserved => {
                exchange.split().1.truncate(0);
                lane.ring.put_back(exchange);
            }
            served => QueueLane::reply(request, served),
        });
        RunOutcome::Answered
    }

    fn schedule(request: Arc<Request<QueueMessage>>) {
        request.job.lane.clone().in_flight.schedule(request);
    }

    fn leave_worker(request: &Request<QueueMessage>) {
        request.job.lane.in_flight.leave_worker(request);
    }

    fn workers(&self) -> &Arc<Workers> {
        self.lane.in_flight.workers()
    }

    fn stats(&self) -> &Stats {
        &self.lane.stats
    }

    fn owner(&self) -> PeerKey {
        self.lane.queues.owner
    }

    fn with_client(&self, call: Call) -> Call {
        call.with_account(self.lane.queues.account.clone())
    }
}

impl Entry for QueueMessage {
    fn in_flight(&self) -> &InFlight<QueueMessage> {
        &self.lane.in_flight
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn put_back(&self) {
        let restarts = self.lane.ring.restarts();
        self.put_back.store(restarts, Ordering::SeqCst);
    }

    fn note_client_cancel(&self) {
        self.client_cancels.store(true, Ordering::SeqCst);
    }

    fn ends_at_once(&self) -> bool {
        // A wait that is cancelled ends when it is run again.
        self.parked.load(Ordering::Relaxed)
            || self.exchange.lock().as_mut().is_some_and(|exchange| {
                let session = &self.lane.queues.session;
                session.may_be_interrupted(exchange.split().0.bytes())
            })
    }
}

impl QueueMessage {
    fn is_to_put_back(&self) -> bool {
        self.put_back.load(Ordering::SeqCst) && !self.is_cancelled_by_client()
    }

    fn is_cancelled_by_client(&self) -> bool {
        self.client_cancels.load(Ordering::SeqCst)
    }
}

impl QueueLane {
    /// The maximum number of requests that are answered before the peer is signalled.
    const BATCH: usize = 16;

    fn run_thread(self: &Arc<Self>) {
        let mut poller = Poller::new(self.queues.engine.tuning().poll);
        let mut budget = InlineBudget::default();
        self.consumer.lock();
        loop {
            let more = self
                .serve_all(&mut budget, true)
                .and_then(|_| poller.wait(|wait| self.ring.wait(wait)));
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(queue = self.ring.name(), "queue stopped: {error}");
                    break;
                }
            }
        }
        self.consumer.unlock();
        self.in_flight.cancel_all_from_now_on();
        self.in_flight.wait_until_idle();
    }

    /// Serves requests while the lane's own thread is busy.
    fn stand_in(self: &Arc<Self>) -> io::Result<()> {
        let mut poller = Poller::new(self.queues.engine.tuning().poll);
        let mut budget = InlineBudget::default();
        self.ring.disable_notifications()?;
        loop {
            if !self.serve_all(&mut budget, false)? {
                return Ok(());
            }
            let next = poller.wait(|wait| {
                let there = self.ring.wait(false);
                let leave = wait || self.consumer.has_waiters();
                match there {
                    Ok(false) => Ok(StandInStep::Stopped),
                    Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
                    _ if leave => Ok(StandInStep::Leave),
                    there => there.map(|_| StandInStep::More),
                }
            });
            match next? {
                StandInStep::More => {}
                StandInStep::Leave => {
                    let more = self.ring.enable_notifications()?;
                    if !more || self.consumer.has_waiters() {
                        break;
                    }
                    self.ring.disable_notifications()?;
                }
                // Its notifier would be readable forever.
                StandInStep::Stopped => break,
            }
        }
        self.consumer.unlock();
        self.arm();
        Ok(())
    }

    /// Serves all available requests, on its own thread or a stand-in's. Returns false if another
    /// thread has locked the ring meanwhile.
    fn serve_all(self: &Arc<Self>, budget: &mut InlineBudget, own: bool) -> io::Result<bool> {
        let frame = |head: &[u8]| self.queues.session.frame(head).unwrap_or(Some(head.len()));
        budget.begin_batch();
        let mut unsignalled = 0;
        while let Some(mut exchange) = self.ring.pop(&frame)? {
            let len = exchange.split().0.size();
            let mut answered = None;
            match self.try_inline(exchange, budget) {
                InlineOutcome::Answered(recorded) => {
                    unsignalled += 1;
                    answered = recorded;
                }
                InlineOutcome::Queued => {}
                InlineOutcome::MayBlock(request) => {
                    if unsignalled > 0 {
                        self.ring.signal();
                        unsignalled = 0;
                    }
                    if !self.serve_unlocked(request, own)? {
                        return Ok(false);
                    }
                    budget.begin_batch();
                    continue;
                }
            }
            let took = budget.end_request(len);
            let time = || RequestTime::inline(took);
            let sampled = || answered.as_ref().is_some_and(|it| it.sampled);
            if let Some(recorded) = self.stats.record(&self.inline, sampled, time) {
                let (target, sent) =
                    answered.map_or_else(Default::default, |it| (it.target, it.sent));
                self.log(&recorded, len, sent, || target);
            }
            if unsignalled == QueueLane::BATCH {
                self.ring.signal();
                unsignalled = 0;
            }
        }
        if unsignalled > 0 {
            self.ring.signal();
        }
        Ok(true)
    }

    /// Serves a request that may take long, and unlocks the ring meanwhile. Returns whether this
    /// thread holds the lock again.
    fn serve_unlocked(
        self: &Arc<Self>,
        request: Arc<Request<QueueMessage>>,
        own: bool,
    ) -> io::Result<bool> {
        let left = self.ring.enable_notifications();
        self.consumer.unlock();
        match left {
            Ok(true) => self.start_stand_in(),
            _ => self.arm(),
        }
        request.job.relocks_ring.store(true, Ordering::Relaxed);
        request.run(&mut Outbox::default());
        if own {
            self.consumer.lock();
        } else if !self.consumer.try_lock() {
            return Ok(false);
        }
        self.disarm();
        left.and_then(|_| self.ring.disable_notifications())?;
        Ok(true)
    }

    /// Starts a stand-in at once, without a kick.
    fn start_stand_in(self: &Arc<Self>) {
        if !self.stand_in_queued.swap(true, Ordering::SeqCst) {
            self.queues.engine.workers().run(self.clone());
        }
    }

    fn arm(&self) {
        if let Some(registration) = self.registration.get() {
            self.armed.store(true, Ordering::SeqCst);
            registration.arm();
        }
    }

    fn disarm(&self) {
        if let Some(registration) = self.registration.get()
            && self.armed.swap(false, Ordering::SeqCst)
        {
            registration.disarm();
        }
    }

    /// Serves a request, if that is possible with the patience of `budget`.
    fn try_inline(
        self: &Arc<Self>,
        mut exchange: Box<dyn Exchange>,
        budget: &InlineBudget,
    ) -> InlineOutcome {
        let message = exchange.split().0;
        add(&self.stats.requests, 1);
        let _span = enter_span(|| {
            let id = self.stats.requests.load(Ordering::Relaxed);
            trace_span!("request", queue = self.ring.name(), id)
        });
        add(&self.stats.received, message.size());
        let id = match self.queues.session.role(message.bytes()) {
            Ok(Role::Request { id }) => id,
            Ok(Role::Cancel { id, target }) => {
                if let Some(lane) = self.queues.lane_of(target) {
                    if exchange.split().1.room() > 0 {
                        self.follow(&lane, target, self.request(id, exchange));
                        return InlineOutcome::Queued;
                    }
                    // The order does not matter, as it has no reply.
                    lane.in_flight.cancel(target);
                }
                id
            }
            Ok(Role::Interrupt { id, target }) => {
                self.queues.interrupt(target);
                self.queues.interrupts.add(&self.queues, target);
                id
            }
            Ok(Role::Reset { id }) => {
                self.cancel_and_drain();
                id
            }
            // The session answers it as malformed.
            Err(_) => 0,
        };
        if self.serve(&self.inline, budget.patience(), &mut *exchange) == ServeOutcome::Done {
            // The client may reuse the message's memory once it has the reply.
            let log = self.stats.slow_log();
            let is_slow = || log.is_slow(&RequestTime::inline(budget.elapsed()));
            let sampled = log.sample();
            let recorded = (sampled || log.has_threshold() && is_slow()).then(|| {
                let target = self.target(&self.inline, &mut *exchange);
                let sent = exchange.split().1.len();
                Box::new(Answered {
                    target,
                    sent,
                    sampled,
                })
            });
            self.push_used(exchange);
            return InlineOutcome::Answered(recorded);
        }
        add(&self.stats.offloaded, 1);
        // The note belongs to an unfinished attempt.
        self.inline.take_outcome();
        let request = self.request(id, exchange);
        request.call.note_export(self.inline.export_number());
        match self.in_flight.begin_on_this_thread(&request) {
            true => InlineOutcome::MayBlock(request),
            false => InlineOutcome::Queued,
        }
    }

    fn request(
        self: &Arc<Self>,
        id: u64,
        mut exchange: Box<dyn Exchange>,
    ) -> Arc<Request<QueueMessage>> {
        let session = &self.queues.session;
        let thread = session.waiting_thread(exchange.split().0.bytes());
        Request::new(
            self.stats.start_time(),
            QueueMessage {
                lane: self.clone(),
                id,
                thread,
                exchange: Mutex::new(Some(exchange)),
                relocks_ring: AtomicBool::new(false),
                put_back: AtomicBool::new(false),
                client_cancels: AtomicBool::new(false),
                parked: AtomicBool::new(false),
            },
        )
    }

    /// Cancels the request `target` of `lane`, and answers `follower`, the request for that, after
    /// it.
    fn follow(&self, lane: &QueueLane, target: u64, follower: Arc<Request<QueueMessage>>) {
        let follower = self.in_flight.begin_follower(follower);
        if let Some(follower) = lane.in_flight.follow(target, follower) {
            complete_follower(follower, |request, _| QueueLane::reply(request, None));
        }
    }

    fn serve(&self, call: &Call, patience: Patience, exchange: &mut dyn Exchange) -> ServeOutcome {
        let (message, out) = exchange.split();
        let session = &*self.queues.session;
        match serve(session, call, patience, message, out, self.ring.name()) {
            Ok(answer) => answer,
            Err(malformed) => {
                tracing::debug!(queue = self.ring.name(), "malformed request: {malformed}");
                out.truncate(0);
                ServeOutcome::Done
            }
        }
    }

    /// Returns a request in flight to its ring, and serves it before unless it was `served`.
    fn reply(request: &Request<QueueMessage>, served: Option<Box<dyn Exchange>>) {
        let QueueMessage { lane, exchange, .. } = &request.job;
        let exchange = served.or_else(|| {
            let mut exchange = exchange.lock().take()?;
            if lane.serve(&request.call, Patience::Full, &mut *exchange) != ServeOutcome::Done {
                exchange.split().1.truncate(0);
            }
            Some(exchange)
        });
        if let Some(mut exchange) = exchange {
            let (stats, call) = (&lane.stats, &request.call);
            if let Some(recorded) = stats.record(call, || stats.sample(), || request.time()) {
                let (message, out) = exchange.split();
                let (received, sent) = (message.size(), out.len());
                let target = || lane.target(&request.call, &mut *exchange);
                lane.log(&recorded, received, sent, target);
            }
            lane.push_used(exchange);
            lane.ring.signal();
        }
    }

    /// Returns the object of a request for the log.
    fn target(&self, call: &Call, exchange: &mut dyn Exchange) -> RequestTarget {
        target(&*self.queues.session, call, exchange.split().0.bytes())
    }

    /// Logs a request, whose message and reply have these lengths.
    fn log(
        &self,
        recorded: &RecordedRequest,
        received: usize,
        sent: usize,
        target: impl FnOnce() -> RequestTarget,
    ) {
        let exchanged = Exchanged {
            client: self.queues.owner,
            peer: self.ring.name(),
            received,
            sent,
        };
        let words = self.queues.session.vocabulary();
        self.stats
            .slow_log()
            .record(words, recorded, &exchanged, target);
    }

    fn push_used(&self, mut exchange: Box<dyn Exchange>) {
        add(&self.stats.sent, exchange.split().1.len());
        self.ring.push_used(exchange);
    }

    /// Cancels the requests in flight, and waits until they are answered. No more can get in flight
    /// meanwhile, as the caller holds the consumer lock or no requests arrive any more.
    fn cancel_and_drain(&self) {
        self.in_flight.cancel_all();
        self.in_flight.wait_until_idle();
    }
}
