//! The requests of a lane that are in flight: those that its thread did not answer inline.
//!
//! A request begins, runs on a worker as soon as the lane's share of the workers allows, and
//! completes once its reply is sent. The table cancels requests by their ids, keeps the order that
//! protocols demand (the reply to a cancellation follows that to the request), bounds number and
//! size of the requests, and reports when none is left.
//!
//! A lane without requests in flight costs a request that it serves inline at most a load of
//! [`InFlight::count`].
//!
//! Lock order: the table, then what [`Entry::may_start`] locks, or the queue of the workers. Tables
//! of two lanes are never locked at the same time. Requests are cancelled, and waiting threads
//! woken, without the lock.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use vfs::cx::thread_waker;

use crate::request::{Job, Request};
use crate::stats::add;
use crate::workers::Workers;

/// A request that a table holds.
pub(crate) trait Entry: Job {
    /// Returns the table of its lane.
    fn in_flight(&self) -> &InFlight<Self>;

    /// Returns the id that the peer gave it.
    fn id(&self) -> u64;

    /// Returns the size that counts towards the lane's limit, in bytes.
    fn bytes(&self) -> usize {
        0
    }

    /// Returns whether it may start now, if the share allows; see [`InFlight::start_queued`].
    fn may_start(&self) -> bool {
        true
    }
}

/// The limits of a table, beyond which its lane waits before it begins a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The maximum number of requests.
    pub(crate) requests: usize,
    /// The maximum total size of the requests in bytes.
    pub(crate) bytes: usize,
}

/// The requests of a lane that are in flight.
pub(crate) struct InFlight<J> {
    workers: Arc<Workers>,
    limits: Limits,
    count: AtomicUsize,
    bytes: AtomicUsize,
    table: Mutex<Table<J>>,
}

struct Table<J> {
    /// The latest request of each id.
    by_id: HashMap<u64, Flight<J>>,
    /// Requests whose ids the peer has reused before they were complete.
    displaced: Vec<Flight<J>>,
    /// Requests that wait for a part of the share.
    queued: VecDeque<Arc<Request<J>>>,
    /// The number of requests that have a part of the share.
    running: usize,
    /// Whether new requests are cancelled at once.
    cancels: bool,
    /// The wakers of [`InFlight::wake_on_completion`].
    wakers: Vec<Waker>,
}

struct Flight<J> {
    request: Arc<Request<J>>,
    /// Whether its reply is about to be sent: the peer may already have it and reuse the id.
    answered: bool,
    /// The number of a follower, 0 for others: a follower follows only those with lower numbers, so
    /// that none follows itself, not even through requests whose ids a peer has reused.
    number: u64,
    /// The requests to answer right after it: those that cancelled it.
    followers: Vec<Arc<Request<J>>>,
}

/// A request that has begun in the table of its lane and is to follow another one.
pub(crate) struct Follower<J> {
    request: Arc<Request<J>>,
    number: u64,
}

/// The number of the next follower, of any table: a request may follow one of another lane.
static NEXT_FOLLOWER: AtomicU64 = AtomicU64::new(1);

impl<J: Entry> InFlight<J> {
    pub(crate) fn new(workers: Arc<Workers>, limits: Limits) -> InFlight<J> {
        InFlight {
            workers,
            limits,
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            table: Mutex::new(Table {
                by_id: HashMap::new(),
                displaced: Vec::new(),
                queued: VecDeque::new(),
                running: 0,
                cancels: false,
                wakers: Vec::new(),
            }),
        }
    }

    /// Returns the number of requests in flight.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns the workers that run the requests.
    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// Returns whether another request of `bytes` may begin. One request always may.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        match self.count() {
            0 => true,
            count => {
                count < self.limits.requests
                    && self.bytes.load(Ordering::SeqCst) + bytes <= self.limits.bytes
            }
        }
    }

    /// Returns whether a request with this id is in flight and not answered yet, so that the peer
    /// must not reuse the id.
    pub(crate) fn uses(&self, id: u64) -> bool {
        self.count() > 0
            && self
                .table()
                .by_id
                .get(&id)
                .is_some_and(|flight| !flight.answered)
    }

    /// Returns whether [`InFlight::follow`] would find a request with this id.
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.count() > 0 && self.table().by_id.contains_key(&id)
    }

    /// Begins a request that a worker runs as soon as the share allows.
    pub(crate) fn begin_on_worker(&self, request: Arc<Request<J>>) {
        let mut table = self.table();
        let cancels = self.insert(&mut table, &request, 0);
        table.queued.push_back(request.clone());
        self.start(&mut table);
        drop(table);
        if cancels {
            cancel(&request);
        }
    }

    /// Begins a request, and returns whether the calling thread may run it like a worker, at once.
    /// Otherwise a worker does, as soon as the share allows.
    pub(crate) fn begin_here(&self, request: &Arc<Request<J>>) -> bool {
        let mut table = self.table();
        let cancels = self.insert(&mut table, request, 0);
        let here = table.running < self.workers.share();
        match here {
            true => table.running += 1,
            false => table.queued.push_back(request.clone()),
        }
        drop(table);
        if cancels {
            cancel(request);
        }
        here
    }

    /// Begins a request that is to follow another one: see [`InFlight::follow`].
    pub(crate) fn begin_follower(&self, request: Arc<Request<J>>) -> Follower<J> {
        let number = NEXT_FOLLOWER.fetch_add(1, Ordering::Relaxed);
        self.insert(&mut self.table(), &request, number);
        Follower { request, number }
    }

    /// Adds a request. Returns whether it is to be cancelled at once.
    fn insert(&self, table: &mut Table<J>, request: &Arc<Request<J>>, number: u64) -> bool {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(request.job.bytes(), Ordering::SeqCst);
        let flight = Flight {
            request: request.clone(),
            answered: false,
            number,
            followers: Vec::new(),
        };
        if let Some(displaced) = table.by_id.insert(request.job.id(), flight) {
            table.displaced.push(displaced);
        }
        table.cancels
    }

    /// Cancels the request `target`, and makes `follower` follow it: [`complete`] answers it after
    /// the target. Returns the follower, for [`complete_follower`], if the target is not in flight
    /// any more.
    pub(crate) fn follow(&self, target: u64, follower: Follower<J>) -> Option<Follower<J>> {
        let mut table = self.table();
        let Some(flight) = table
            .by_id
            .get_mut(&target)
            .filter(|flight| flight.number < follower.number)
        else {
            return Some(follower);
        };
        flight.followers.push(follower.request);
        let target = flight.request.clone();
        drop(table);
        cancel(&target);
        None
    }

    /// Cancels the request `target`, if it is in flight.
    pub(crate) fn cancel(&self, target: u64) {
        let table = self.table();
        let target = table
            .by_id
            .get(&target)
            .map(|flight| flight.request.clone());
        drop(table);
        target.iter().for_each(cancel);
    }

    /// Cancels all requests in flight.
    pub(crate) fn cancel_all(&self) {
        let table = self.table();
        let flights = table.by_id.values().chain(&table.displaced);
        let requests: Vec<_> = flights.map(|flight| flight.request.clone()).collect();
        drop(table);
        requests.iter().for_each(cancel);
    }

    /// Cancels all requests in flight, and from now on each that begins.
    pub(crate) fn cancel_all_from_now_on(&self) {
        self.table().cancels = true;
        self.cancel_all();
    }

    /// Runs a request that was parked on a worker, as soon as the share allows.
    pub(crate) fn schedule(&self, request: Arc<Request<J>>) {
        let mut table = self.table();
        table.queued.push_back(request);
        self.start(&mut table);
    }

    /// Notes that a request left its worker, but is still in flight.
    pub(crate) fn leave_worker(&self) {
        let mut table = self.table();
        table.running -= 1;
        self.start(&mut table);
    }

    /// Starts queued requests, as far as the share and [`Entry::may_start`] allow. The table does so
    /// itself whenever the share allows more; a lane calls it when its requests may start again.
    pub(crate) fn start_queued(&self) {
        self.start(&mut self.table());
    }

    fn start(&self, table: &mut Table<J>) {
        while table.running < self.workers.share()
            && table
                .queued
                .front()
                .is_some_and(|next| next.job.may_start())
            && let Some(request) = table.queued.pop_front()
        {
            table.running += 1;
            self.workers.run(request);
        }
    }

    /// Notes that the reply to `request` is about to be sent.
    fn answered(&self, request: &Arc<Request<J>>, ran: bool) {
        let mut table = self.table();
        if let Some(flight) = table.by_id.get_mut(&request.job.id()) {
            flight.answered |= Arc::ptr_eq(&flight.request, request);
        }
        if ran {
            table.running -= 1;
            self.start(&mut table);
        }
    }

    /// Removes an answered request, and returns those that follow it.
    fn remove(&self, request: &Arc<Request<J>>) -> Vec<Arc<Request<J>>> {
        let is_it = |flight: &Flight<J>| Arc::ptr_eq(&flight.request, request);
        let mut table = self.table();
        let flight = match table.by_id.entry(request.job.id()) {
            Slot::Occupied(entry) if is_it(entry.get()) => Some(entry.remove()),
            _ => {
                let at = table.displaced.iter().position(is_it);
                at.map(|at| table.displaced.swap_remove(at))
            }
        };
        self.bytes.fetch_sub(request.job.bytes(), Ordering::SeqCst);
        // Under the lock: a thread that waits has either set its waker before, or sees the change.
        self.count.fetch_sub(1, Ordering::SeqCst);
        let wakers = table.wakers.clone();
        drop(table);
        wakers.iter().for_each(Waker::wake_by_ref);
        flight.map_or_else(Vec::new, |flight| flight.followers)
    }

    /// Wakes `waker` each time that a request completes, until the result is dropped.
    pub(crate) fn wake_on_completion(&self, waker: Waker) -> Wakes<'_, J> {
        self.table().wakers.push(waker.clone());
        Wakes { of: self, waker }
    }

    /// Waits until no request is in flight.
    pub(crate) fn await_quiet(&self) {
        let _wakes = self.wake_on_completion(thread_waker());
        while self.count() > 0 {
            std::thread::park();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table<J>> {
        self.table.lock().expect("no panic holds it")
    }
}

fn cancel<J: Job>(request: &Arc<Request<J>>) {
    add(
        &request.job.stats().cancelled,
        usize::from(request.cancel()),
    );
}

/// Completes `request`, which the calling thread has run with a part of the share: calls `reply` to
/// send its reply, and then for each request that follows it. See [`complete_follower`].
pub(crate) fn complete<J: Entry>(
    request: &Arc<Request<J>>,
    mut reply: impl FnMut(&Arc<Request<J>>, Follows),
) {
    request.job.in_flight().answered(request, true);
    reply(request, Follows::No);
    complete_followers(request.job.in_flight().remove(request).into(), reply);
}

/// Completes a request that was to follow another one, which was not in flight any more: calls
/// `reply` to answer it, and then for each request that follows it.
pub(crate) fn complete_follower<J: Entry>(
    follower: Follower<J>,
    reply: impl FnMut(&Arc<Request<J>>, Follows),
) {
    complete_followers([follower.request].into(), reply);
}

fn complete_followers<J: Entry>(
    mut followers: VecDeque<Arc<Request<J>>>,
    mut reply: impl FnMut(&Arc<Request<J>>, Follows),
) {
    while let Some(follower) = followers.pop_front() {
        let table = follower.job.in_flight();
        table.answered(&follower, false);
        reply(&follower, Follows::Yes);
        followers.extend(table.remove(&follower));
    }
}

/// Whether a request to reply to follows another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    /// It was served already.
    No,
    /// It is yet to be served.
    Yes,
}

/// The registration of a waker, until dropped.
pub(crate) struct Wakes<'a, J: Entry> {
    of: &'a InFlight<J>,
    waker: Waker,
}

impl<J: Entry> Drop for Wakes<'_, J> {
    fn drop(&mut self) {
        let mut table = self.of.table();
        let ours = |waker: &Waker| waker.will_wake(&self.waker);
        if let Some(at) = table.wakers.iter().position(ours) {
            table.wakers.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    use transports::Outbox;
    use vfs::PeerKey;
    use wire::Vocabulary;

    use super::*;
    use crate::request::Ran;
    use crate::stats::{LaneStats, Stats, Tally};
    use crate::workers::Run;

    struct Lane {
        in_flight: InFlight<Test>,
        stats: LaneStats,
        /// Whether requests may start.
        open: AtomicBool,
        /// The ids of answered requests, in order.
        answered: Mutex<Vec<u64>>,
    }

    impl Lane {
        /// A lane's share is half of them.
        const WORKERS: usize = 4;

        fn new() -> Arc<Lane> {
            let workers = Workers::new(Lane::WORKERS, Workers::STUCK).expect("a thread");
            let limits = Limits {
                requests: 3,
                bytes: 100,
            };
            Arc::new(Lane {
                in_flight: InFlight::new(workers, limits),
                stats: Tally::new(false).open(Vocabulary::none()),
                open: AtomicBool::new(true),
                answered: Mutex::default(),
            })
        }

        fn request(self: &Arc<Self>, id: u64, parks: bool) -> Arc<Request<Test>> {
            let lane = self.clone();
            Request::new(None, Test { lane, id, parks })
        }

        /// Begins a request that the calling thread is to run.
        fn begin(self: &Arc<Self>, id: u64) -> Arc<Request<Test>> {
            let request = self.request(id, false);
            assert!(self.in_flight.begin_here(&request));
            request
        }

        fn begin_follower(self: &Arc<Self>, id: u64) -> Follower<Test> {
            self.in_flight.begin_follower(self.request(id, false))
        }

        fn answered(&self) -> Vec<u64> {
            std::mem::take(&mut *self.answered.lock().expect("no panic holds it"))
        }
    }

    impl Drop for Lane {
        fn drop(&mut self) {
            self.in_flight.workers().close();
        }
    }

    /// A request that is answered at once, or parks until it is cancelled.
    struct Test {
        lane: Arc<Lane>,
        id: u64,
        parks: bool,
    }

    impl Job for Test {
        fn run(request: &Arc<Request<Test>>, _: &mut Outbox) -> Ran {
            if request.job.parks && request.call.check().is_ok() {
                return Ran::Parked;
            }
            complete(request, reply);
            Ran::Answered
        }

        fn schedule(request: Arc<Request<Test>>) {
            request.job.lane.clone().in_flight.schedule(request);
        }

        fn leave_worker(&self) {
            self.lane.in_flight.leave_worker();
        }

        fn workers(&self) -> &Arc<Workers> {
            self.lane.in_flight.workers()
        }

        fn stats(&self) -> &Stats {
            &self.lane.stats
        }

        fn owner(&self) -> PeerKey {
            PeerKey::Device(0)
        }
    }

    impl Entry for Test {
        fn in_flight(&self) -> &InFlight<Test> {
            &self.lane.in_flight
        }

        fn id(&self) -> u64 {
            self.id
        }

        fn bytes(&self) -> usize {
            40
        }

        fn may_start(&self) -> bool {
            self.lane.open.load(Ordering::SeqCst)
        }
    }

    fn reply(request: &Arc<Request<Test>>, _: Follows) {
        let mut answered = request.job.lane.answered.lock().expect("no panic holds it");
        answered.push(request.job.id);
    }

    fn run(request: &Arc<Request<Test>>) {
        request.clone().run(&mut Outbox::default());
    }

    #[test]
    fn followers_are_answered_after_their_targets() {
        let (lane, other) = (Lane::new(), Lane::new());
        let target = lane.begin(1);
        for (id, of) in [(2, 1), (3, 2), (4, 1)] {
            let follower = lane.begin_follower(id);
            assert!(lane.in_flight.follow(of, follower).is_none());
        }
        let far = other.begin_follower(5);
        assert!(lane.in_flight.follow(1, far).is_none());
        assert_eq!((lane.in_flight.count(), other.in_flight.count()), (4, 1));
        assert!(target.call.check().is_err());
        run(&target);
        assert_eq!(lane.answered(), [1, 2, 4, 3]);
        assert_eq!(other.answered(), [5]);
        assert_eq!((lane.in_flight.count(), other.in_flight.count()), (0, 0));
        assert!(!lane.in_flight.contains(1));
        assert_eq!(lane.stats.totals().cancelled, 2);
    }

    #[test]
    fn an_id_may_be_reused_once_its_reply_is_sent_and_no_follower_is_lost() {
        let lane = Lane::new();
        let first = lane.begin(1);
        assert!(lane.in_flight.uses(1));
        let mut second = None;
        complete(&first, |request, follows| {
            if follows == Follows::No {
                assert!(lane.in_flight.contains(1) && !lane.in_flight.uses(1));
                let late = lane.begin_follower(2);
                assert!(lane.in_flight.follow(1, late).is_none());
                second = Some(lane.begin(1));
            } else {
                assert!(!lane.in_flight.uses(2));
            }
            reply(request, follows);
        });
        assert_eq!(lane.answered(), [1, 2]);
        assert!(lane.in_flight.uses(1));
        run(&second.expect("begun"));
        assert_eq!((lane.answered(), lane.in_flight.count()), (vec![1], 0));
    }

    #[test]
    fn no_follower_follows_itself_whatever_its_id() {
        let lane = Lane::new();
        let targets = [lane.begin(1), lane.begin(2)];
        let (one, two, three) = (
            lane.begin_follower(1),
            lane.begin_follower(2),
            lane.begin_follower(3),
        );
        for (target, follower) in [(2, one), (1, two), (3, three)] {
            let refused = lane.in_flight.follow(target, follower);
            complete_follower(refused.expect("refused"), reply);
        }
        lane.in_flight.cancel_all();
        for target in &targets {
            assert!(target.call.check().is_err());
            run(target);
        }
        assert_eq!(lane.in_flight.count(), 0);
        let mut all = lane.answered();
        all.sort_unstable();
        assert_eq!(all, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn number_and_size_are_limited_except_for_a_single_request() {
        let lane = Lane::new();
        assert!(lane.in_flight.has_room(1000));
        let first = lane.begin(1);
        assert!(lane.in_flight.has_room(60) && !lane.in_flight.has_room(61));
        let second = lane.begin(2);
        assert!(lane.in_flight.has_room(20) && !lane.in_flight.has_room(21));
        let third = lane.request(3, true);
        assert!(!lane.in_flight.begin_here(&third), "the share is used up");
        assert!(!lane.in_flight.has_room(0));
        lane.in_flight.cancel(3);
        run(&first);
        run(&second);
        lane.in_flight.await_quiet();
        assert!(lane.in_flight.has_room(1000));
    }

    #[test]
    fn queued_requests_start_when_share_and_lane_allow() {
        let lane = Lane::new();
        let [first, second] = [1, 2].map(|id| lane.begin(id));
        lane.in_flight.begin_on_worker(lane.request(3, false));
        lane.open.store(false, Ordering::SeqCst);
        run(&first);
        run(&second);
        assert_eq!((lane.answered(), lane.in_flight.count()), (vec![1, 2], 1));
        lane.open.store(true, Ordering::SeqCst);
        lane.in_flight.start_queued();
        lane.in_flight.await_quiet();
        assert_eq!(lane.answered(), [3]);
    }

    #[test]
    fn completions_wake_until_the_registration_is_dropped() {
        struct Counts(AtomicUsize);
        impl Wake for Counts {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let lane = Lane::new();
        let counts = Arc::new(Counts(AtomicUsize::new(0)));
        let wakes = lane.in_flight.wake_on_completion(counts.clone().into());
        run(&lane.begin(1));
        run(&lane.begin(2));
        assert_eq!(counts.0.load(Ordering::SeqCst), 2);
        drop(wakes);
        run(&lane.begin(3));
        assert_eq!(counts.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn cancelling_while_a_request_completes_loses_no_reply() {
        let lane = Lane::new();
        for _ in 0..2000 {
            let target = lane.begin(1);
            let follows = std::thread::scope(|scope| {
                scope.spawn(|| run(&target));
                let follows = lane.in_flight.contains(1);
                if follows {
                    let follower = lane.begin_follower(2);
                    if let Some(follower) = lane.in_flight.follow(1, follower) {
                        complete_follower(follower, reply);
                    }
                }
                follows
            });
            assert_eq!(lane.in_flight.count(), 0);
            assert_eq!(
                lane.answered(),
                [&[1][..], &[2][..usize::from(follows)]].concat()
            );
        }
    }

    #[test]
    fn a_parked_request_is_answered_whenever_it_is_cancelled() {
        let lane = Lane::new();
        for _ in 0..1000 {
            lane.in_flight.begin_on_worker(lane.request(1, true));
            lane.in_flight.cancel(1);
            lane.in_flight.await_quiet();
            assert_eq!(lane.answered(), [1]);
        }
    }

    #[test]
    fn a_table_becomes_quiet_although_requests_begin_while_it_is_cancelled() {
        const COUNT: u64 = 20;
        for _ in 0..200 {
            let lane = Lane::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for id in 0..COUNT {
                        lane.in_flight.begin_on_worker(lane.request(id, true));
                    }
                });
                scope.spawn(|| lane.in_flight.cancel_all_from_now_on());
            });
            std::thread::scope(|scope| {
                scope.spawn(|| lane.in_flight.await_quiet());
                lane.in_flight.await_quiet();
            });
            assert_eq!(lane.in_flight.count(), 0);
            assert_eq!(lane.answered().len() as u64, COUNT);
        }
    }
}
