//! A virtqueue's lane: one thread that pops requests, serves those it can, and returns them as
//! used.
//!
//! The thread also serves requests that may take long, but enables the ring's notifications
//! meanwhile: if more requests arrive, a worker stands in for it ([`crate::watch`]). The consumer
//! of the ring holds a lock, the wheel.
//!
//! Lock order: the wheel is taken and released while no other lock is held; the flights' lock is
//! held briefly.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use tracing::trace_span;
use transports::{Exchange, Outbox, Poller, Ring};
use vfs::{Call, Patience, PeerKey};
use wire::{Answer, Facts, Role, Session, Vocabulary};

use crate::look::{Seen, seen};
use crate::pace::Pace;
use crate::request::{Job, Ran, Request, Run, named};
use crate::serve::serve;
use crate::server::Engine;
use crate::share::Share;
use crate::stats::{Account, Stats, add};
use crate::watch::Post;
use crate::wheel::Wheel;
use crate::workers::Workers;

/// A queue served by its own thread.
pub struct Driven {
    thread: JoinHandle<()>,
    lane: Arc<QueueLane>,
}

impl Driven {
    /// Waits until its thread ends, which it does once its ring is stopped.
    pub fn wait(self) {
        // It panics only if a source does, which was logged then.
        let _ = self.thread.join();
    }

    /// Cancels the requests in flight, and waits until they are answered and the thread ends, which
    /// it does once its ring is stopped.
    pub fn join(self) {
        self.lane.end();
        self.wait();
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
    lanes: Mutex<Vec<Weak<QueueLane>>>,
}

impl Engine {
    /// Creates the queues of a device that `session` serves.
    pub fn queues(self: &Arc<Self>, session: Arc<dyn Session>) -> Arc<Queues> {
        let owner = self.next_device();
        Arc::new(Queues {
            engine: self.clone(),
            session,
            owner,
            account: vfs::Account::at(self.budget(), owner),
            lanes: Mutex::default(),
        })
    }
}

impl Queues {
    /// Serves the requests of `ring` with a new thread, pinned to `processor` if given.
    pub fn drive(
        self: &Arc<Self>,
        ring: Arc<dyn Ring>,
        processor: Option<usize>,
    ) -> io::Result<Driven> {
        let lane = Arc::new(QueueLane {
            queues: self.clone(),
            ring,
            stats: self.engine.tally().open(self.session.vocabulary()),
            inline: Call::detached().on_account(self.account.clone()),
            wheel: Wheel::default(),
            post: OnceLock::new(),
            armed: AtomicBool::new(false),
            called: AtomicBool::new(false),
            flights: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            quiet: Condvar::new(),
        });
        lane.stats.shown_by(seen(&lane));
        let mut lanes = self.lanes();
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(&lane));
        drop(lanes);
        let stand_in = Arc::downgrade(&lane);
        let post = self.engine.watch().enter(lane.ring.bell(), stand_in)?;
        lane.post.get_or_init(|| post);
        let driven = lane.clone();
        let thread = std::thread::Builder::new()
            .name("barge-queue".into())
            .spawn(move || {
                if let Some(processor) = processor {
                    keep_to(processor, driven.ring.name());
                }
                driven.drive();
            })?;
        Ok(Driven { thread, lane })
    }

    /// Cancels the request `target`, and answers `follower`, the request for that, after it.
    /// Returns the follower if the target is not in flight, or, after cancelling the target, if the
    /// follower has no room for a reply, so that the order does not matter.
    fn cancel(&self, target: u64, mut follower: Follower) -> Option<Follower> {
        let lanes: Vec<_> = self.lanes().iter().filter_map(Weak::upgrade).collect();
        for lane in lanes {
            let mut flights = lane.flights();
            let Some(flight) = flights.all.iter_mut().find(|flight| flight.is(target)) else {
                continue;
            };
            let request = flight.request.clone();
            let waits = follower.exchange.split().1.room() > 0;
            let left = if waits {
                follower.lane.outstanding.fetch_add(1, Ordering::SeqCst);
                flight.followers.push(follower);
                None
            } else {
                Some(follower)
            };
            drop(flights);
            lane.cancel(&request);
            return left;
        }
        Some(follower)
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Weak<QueueLane>>> {
        self.lanes.lock().expect("no panic holds it")
    }
}

/// Pins the calling thread to one processor.
fn keep_to(processor: usize, queue: &str) {
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
    stats: Account,
    /// The call of requests that the consumer of the ring serves inline, which cannot be cancelled.
    inline: Call,
    wheel: Wheel,
    /// The registration that wakes a stand-in. Set before the first request.
    post: OnceLock<Post>,
    /// Whether a stand-in was requested and the request was not withdrawn since.
    armed: AtomicBool,
    /// Whether a stand-in was started without a kick, and has not begun.
    called: AtomicBool,
    flights: Mutex<Flights>,
    outstanding: AtomicUsize,
    /// Notified when no request is in flight any more.
    quiet: Condvar,
}

/// A request in flight, and the requests to cancel it.
struct Flight {
    request: Arc<Request<Queued>>,
    followers: Vec<Follower>,
}

impl Flight {
    /// Returns whether the request or one of its followers has this id.
    fn is(&self, id: u64) -> bool {
        self.request.job.id == id || self.followers.iter().any(|follower| follower.id == id)
    }
}

/// A request to cancel another one, answered after that.
struct Follower {
    id: u64,
    lane: Arc<QueueLane>,
    exchange: Box<dyn Exchange>,
}

#[derive(Default)]
struct Flights {
    all: Vec<Flight>,
    share: Share<Queued>,
    /// Whether new requests in flight are cancelled at once.
    over: bool,
}

/// The state of a request after the attempt to serve it inline.
enum Begun {
    /// Answered and returned to the ring.
    Given,
    /// Queued for a worker.
    Left,
    /// Allowed to run now, and may take long.
    Lasts(Arc<Request<Queued>>),
}

/// The next step of a stand-in.
enum Next {
    More,
    Leave,
    Stopped,
}

/// Standing in: done by a worker after a kick, or if the ring had more requests when its thread
/// left.
impl Run for QueueLane {
    fn run(self: Arc<Self>, _: &mut Outbox) {
        self.called.store(false, Ordering::SeqCst);
        if !self.wheel.try_take() {
            return;
        }
        if self.stand_in().is_err() {
            // The queue's own thread encounters the error, too.
            self.wheel.release();
        }
    }

    fn wake(self: Arc<Self>) {}

    fn owner(&self) -> PeerKey {
        self.queues.owner
    }
}

impl Seen for QueueLane {
    fn peer(&self) -> String {
        self.ring.name().to_owned()
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        self.queues.session.vocabulary()
    }

    fn facts(&self) -> Facts {
        self.queues.session.facts()
    }

    fn in_flight(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }
}

/// A request from a queue.
struct Queued {
    lane: Arc<QueueLane>,
    id: u64,
    /// Present until it is answered.
    exchange: Mutex<Option<Box<dyn Exchange>>>,
    /// Whether the thread that runs it next takes the wheel again afterwards.
    comes_back: AtomicBool,
}

impl Job for Queued {
    fn run(request: &Arc<Request<Queued>>, _: &mut Outbox) -> Ran {
        let Queued { lane, exchange, .. } = &request.job;
        // Only once: if it is parked, a worker runs it next.
        let comes_back = request.job.comes_back.swap(false, Ordering::Relaxed);
        let mut held = exchange.lock().expect("no panic holds it");
        let Some(mut exchange) = held.take() else {
            return Ran::Answered;
        };
        if lane.serve(&request.call, Patience::Full, &mut *exchange) == Answer::Parked {
            *held = Some(exchange);
            return Ran::Parked;
        }
        drop(held);
        if comes_back {
            // The client may send more after the reply before this thread is back, which needs no
            // stand-in.
            lane.disarm();
        }
        lane.land(request, exchange);
        Ran::Answered
    }

    fn schedule(request: Arc<Request<Queued>>) {
        let lane = request.job.lane.clone();
        let mut flights = lane.flights();
        flights.share.wait(request);
        lane.start(&mut flights);
    }

    fn leave_worker(&self) {
        let mut flights = self.lane.flights();
        flights.share.leave();
        self.lane.start(&mut flights);
    }

    fn workers(&self) -> &Arc<Workers> {
        self.lane.queues.engine.workers()
    }

    fn stats(&self) -> &Stats {
        &self.lane.stats
    }

    fn owner(&self) -> PeerKey {
        self.lane.queues.owner
    }

    fn made_for(&self, call: Call) -> Call {
        call.on_account(self.lane.queues.account.clone())
    }
}

impl QueueLane {
    /// The maximum number of requests that are answered before the peer is signalled.
    const BATCH: usize = 16;

    fn drive(self: &Arc<Self>) {
        let mut poller = Poller::new(self.queues.engine.tuning().poll);
        let mut pace = Pace::default();
        self.wheel.take();
        loop {
            let more = self
                .serve_all(&mut pace, true)
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
        self.wheel.release();
        self.await_quiet();
    }

    /// Serves requests while the lane's own thread is busy.
    fn stand_in(self: &Arc<Self>) -> io::Result<()> {
        let mut poller = Poller::new(self.queues.engine.tuning().poll);
        let mut pace = Pace::default();
        self.ring.come_back()?;
        loop {
            if !self.serve_all(&mut pace, false)? {
                return Ok(());
            }
            let next = poller.wait(|wait| {
                let there = self.ring.wait(false);
                let leave = wait || self.wheel.is_awaited();
                match there {
                    Ok(false) => Ok(Next::Stopped),
                    Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
                    _ if leave => Ok(Next::Leave),
                    there => there.map(|_| Next::More),
                }
            });
            match next? {
                Next::More => {}
                Next::Leave => {
                    let more = self.ring.leave()?;
                    if !more || self.wheel.is_awaited() {
                        break;
                    }
                    self.ring.come_back()?;
                }
                // Its notifier would be readable forever.
                Next::Stopped => break,
            }
        }
        self.wheel.release();
        self.arm();
        Ok(())
    }

    /// Serves all available requests, on its own thread or a stand-in's. Returns false if another
    /// thread has taken the wheel meanwhile.
    fn serve_all(self: &Arc<Self>, pace: &mut Pace, own: bool) -> io::Result<bool> {
        let frame = |head: &[u8]| self.queues.session.frame(head).unwrap_or(Some(head.len()));
        pace.begin();
        let mut untold = 0;
        while let Some(mut exchange) = self.ring.take(&frame)? {
            let len = exchange.split().0.size();
            match self.begin(exchange, pace.patience()) {
                Begun::Given => untold += 1,
                Begun::Left => {}
                Begun::Lasts(request) => {
                    if untold > 0 {
                        self.ring.tell();
                        untold = 0;
                    }
                    if !self.go_away(request, own)? {
                        return Ok(false);
                    }
                    pace.begin();
                    continue;
                }
            }
            let took = pace.step(len);
            self.stats.enter(&self.inline, || took);
            if untold == QueueLane::BATCH {
                self.ring.tell();
                untold = 0;
            }
        }
        if untold > 0 {
            self.ring.tell();
        }
        Ok(true)
    }

    /// Serves a request that may take long, and releases the wheel meanwhile. Returns whether this
    /// thread has the wheel again.
    fn go_away(self: &Arc<Self>, request: Arc<Request<Queued>>, own: bool) -> io::Result<bool> {
        let left = self.ring.leave();
        self.wheel.release();
        match left {
            Ok(true) => self.call_stand_in(),
            _ => self.arm(),
        }
        request.job.comes_back.store(true, Ordering::Relaxed);
        request.run(&mut Outbox::default());
        if own {
            self.wheel.take();
        } else if !self.wheel.try_take() {
            return Ok(false);
        }
        self.disarm();
        left.and_then(|_| self.ring.come_back())?;
        Ok(true)
    }

    /// Starts a stand-in at once, without a kick.
    fn call_stand_in(self: &Arc<Self>) {
        if !self.called.swap(true, Ordering::SeqCst) {
            self.queues.engine.workers().run(self.clone());
        }
    }

    fn arm(&self) {
        if let Some(post) = self.post.get() {
            self.armed.store(true, Ordering::SeqCst);
            post.arm();
        }
    }

    fn disarm(&self) {
        if let Some(post) = self.post.get()
            && self.armed.swap(false, Ordering::SeqCst)
        {
            post.disarm();
        }
    }

    /// Serves a request, if that is possible with `patience`.
    fn begin(self: &Arc<Self>, mut exchange: Box<dyn Exchange>, patience: Patience) -> Begun {
        let message = exchange.split().0;
        add(&self.stats.requests, 1);
        let _span = named(|| {
            let id = self.stats.requests.load(Ordering::Relaxed);
            trace_span!("request", queue = self.ring.name(), id)
        });
        add(&self.stats.received, message.size());
        let id = match self.queues.session.role(message.bytes()) {
            Ok(Role::Request { id }) => id,
            Ok(Role::Cancel { id, target }) => {
                let lane = self.clone();
                let follower = Follower { id, lane, exchange };
                match self.queues.cancel(target, follower) {
                    None => return Begun::Left,
                    Some(back) => exchange = back.exchange,
                }
                id
            }
            Ok(Role::Reset { id }) => {
                self.await_quiet();
                id
            }
            // The session answers it as malformed.
            Err(_) => 0,
        };
        if self.serve(&self.inline, patience, &mut *exchange) == Answer::Done {
            self.give(exchange);
            return Begun::Given;
        }
        add(&self.stats.offloaded, 1);
        // The note belongs to an unfinished attempt.
        self.inline.take_noted();
        let request = Request::new(
            self.stats.begins(),
            Queued {
                lane: self.clone(),
                id,
                exchange: Mutex::new(Some(exchange)),
                comes_back: AtomicBool::new(false),
            },
        );
        request.call.note_share(self.inline.share());
        self.outstanding.fetch_add(1, Ordering::SeqCst);
        let mut flights = self.flights();
        flights.all.push(Flight {
            request: request.clone(),
            followers: Vec::new(),
        });
        if flights.over {
            self.cancel(&request);
        }
        match flights.share.take(self.queues.engine.workers()) {
            true => Begun::Lasts(request),
            false => {
                flights.share.wait(request);
                Begun::Left
            }
        }
    }

    fn serve(&self, call: &Call, patience: Patience, exchange: &mut dyn Exchange) -> Answer {
        let (message, out) = exchange.split();
        let session = &*self.queues.session;
        match serve(session, call, patience, message, out, self.ring.name()) {
            Ok(answer) => answer,
            Err(malformed) => {
                tracing::debug!(queue = self.ring.name(), "malformed request: {malformed}");
                out.truncate(0);
                Answer::Done
            }
        }
    }

    /// Returns a request that a worker answered to the ring, and then its followers.
    fn land(&self, request: &Arc<Request<Queued>>, exchange: Box<dyn Exchange>) {
        self.stats.enter(&request.call, || request.age());
        let mut flights = self.flights();
        let is_it = |flight: &Flight| Arc::ptr_eq(&flight.request, request);
        let at = flights.all.iter().position(is_it);
        let followers = at.map(|at| flights.all.swap_remove(at).followers);
        flights.share.leave();
        self.start(&mut flights);
        drop(flights);
        self.give_last(exchange);
        for mut follower in followers.unwrap_or_default() {
            let (lane, exchange) = (follower.lane, &mut *follower.exchange);
            let call = Call::detached().on_account(lane.queues.account.clone());
            if lane.serve(&call, Patience::Full, exchange) != Answer::Done {
                exchange.split().1.truncate(0);
            }
            lane.stats.enter(&call, Duration::default);
            lane.give_last(follower.exchange);
        }
    }

    /// Returns the reply of a request in flight to the ring.
    fn give_last(&self, exchange: Box<dyn Exchange>) {
        self.give(exchange);
        self.ring.tell();
        if self.outstanding.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Under the lock, so that no waiter misses it between its check and its sleep.
            let _flights = self.flights();
            self.quiet.notify_all();
        }
    }

    fn give(&self, mut exchange: Box<dyn Exchange>) {
        add(&self.stats.sent, exchange.split().1.len());
        self.ring.give(exchange);
    }

    fn start(&self, flights: &mut Flights) {
        flights.share.start(self.queues.engine.workers(), || true);
    }

    /// Cancels the requests in flight, and waits until they are answered. No more can get in flight
    /// meanwhile, as the caller holds the wheel or no requests arrive any more.
    fn await_quiet(&self) {
        self.cancel_all();
        let busy = |_: &mut Flights| self.outstanding.load(Ordering::SeqCst) > 0;
        let quiet = self.quiet.wait_while(self.flights(), busy);
        drop(quiet.expect("no panic holds it"));
    }

    /// Cancels all requests in flight, now and in the future.
    fn end(&self) {
        self.flights().over = true;
        self.cancel_all();
    }

    fn cancel_all(&self) {
        let flights = self.flights();
        let requests: Vec<_> = flights.all.iter().map(|all| all.request.clone()).collect();
        drop(flights);
        requests.iter().for_each(|request| self.cancel(request));
    }

    fn cancel(&self, request: &Arc<Request<Queued>>) {
        add(&self.stats.cancelled, usize::from(request.cancel()));
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().expect("no panic holds it")
    }
}
