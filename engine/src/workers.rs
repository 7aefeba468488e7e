//! A thread pool for requests that would block, shared by all lanes.
//!
//! The pool grows while there are more requests than idle threads, up to its limit, and shrinks
//! when idle. One thread always stays, or requests would wait forever if no other can be created.
//!
//! Clients take turns, and none has more than three quarters of what others leave, so that the next
//! one finds a worker. A request that runs longer than [`Workers::STUCK_AFTER`] may wait for an
//! event that never comes (a mounted file system that does not respond): it no longer counts, and
//! another thread takes its place, for each client at most as many times as the pool is large. So
//! hanging requests delay only their own client.
//!
//! If requests name one of several exports, the same holds for exports: one has three quarters of
//! what others leave, and half of the threads that may be stuck. Of the stuck requests of one
//! client, one export has at most half of what the client's other exports leave. So an export that
//! hangs delays no other, not even for the same client.
//!
//! A worker survives a panic of a request.
//!
//! Lock order: the queue alone; requests are run, woken and dropped without holding it.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use transports::Outbox;
use vfs::PeerKey;

/// A request of any lane, as the workers see it.
pub(crate) trait Run: Send + Sync {
    fn run(self: Arc<Self>, out: &mut Outbox);

    /// Reruns it if it is parked, or about to be.
    fn wake(self: Arc<Self>);

    /// Returns the owner of the share of the workers that it uses.
    fn owner(&self) -> PeerKey;

    /// Returns the number of its export; 0 if unknown.
    fn export(&self) -> u64 {
        0
    }
}

pub(crate) struct Workers {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Wakes the thread that checks for stuck requests.
    supervision: Condvar,
    max: usize,
    stuck_after: Duration,
}

#[derive(Default)]
struct Queue {
    ready: Ready,
    running: Vec<Running>,
    /// The number of the next request to run.
    next: u64,
    owners: HashMap<PeerKey, Counts>,
    claimants: HashMap<Claimant, Counts>,
    exports: Exports,
    timers: BinaryHeap<Reverse<Timer>>,
    threads: usize,
    /// The number of threads that wait for work, including those about to start.
    idle: usize,
    /// The number of threads whose requests are stuck.
    stuck: usize,
    /// Whether a thread checks for stuck requests.
    supervised: bool,
    /// Whether a failure to create a thread was logged.
    spawn_failure_logged: bool,
    /// Whether the pool is closed.
    closed: bool,
}

/// The owner of requests and their export.
type Claimant = (PeerKey, u64);

/// Requests queued for a worker, by claimant; claimants take turns.
#[derive(Default)]
struct Ready {
    by_claimant: HashMap<Claimant, VecDeque<Arc<dyn Run>>>,
    round_robin: VecDeque<Claimant>,
    len: usize,
}

/// The workers of each export.
#[derive(Default)]
struct Exports {
    counts: HashMap<u64, Counts>,
    /// The first export seen. As long as it is the only one, no workers are reserved for others.
    first: u64,
    several: bool,
}

impl Exports {
    fn note(&mut self, export: u64) {
        if export != 0 && !self.several {
            self.several = ![0, export].contains(&self.first);
            self.first = export;
        }
    }

    /// Returns whether another request for `export` may run, with `active` requests running in
    /// total, of `max`.
    fn may_run(&self, export: u64, active: usize, max: usize) -> bool {
        !self.divides(export) || self.counts.count(&export).may_run(active, max)
    }

    /// Returns whether another request for `export` may be stuck.
    fn may_be_stuck(&self, export: u64) -> bool {
        !self.divides(export) || self.counts.count(&export).stuck < Exports::MAX_STUCK
    }

    /// Returns whether `export` is one of several that are divided.
    fn divides(&self, export: u64) -> bool {
        export != 0 && self.several
    }

    /// The maximum number of stuck requests for one of several exports.
    const MAX_STUCK: usize = Workers::MAX_STUCK / 2;
}

/// A request that a worker runs.
struct Running {
    number: u64,
    claimant: Claimant,
    since: Instant,
    stuck: bool,
}

/// The number of workers that run requests of an owner, or for an export.
#[derive(Clone, Copy, Default)]
struct Counts {
    active: usize,
    stuck: usize,
}

impl Counts {
    /// Returns whether these leave a quarter of what others have left, with `active` requests
    /// running in total, of `max`.
    fn may_run(self, active: usize, max: usize) -> bool {
        let left = max - (active - self.active).min(max);
        self.active < (left * 3 / 4).max(1)
    }

    fn mark_stuck(&mut self) {
        self.active -= 1;
        self.stuck += 1;
    }

    /// Counts the end of a request. Returns whether it was the last.
    fn end(&mut self, stuck: bool) -> bool {
        match stuck {
            true => self.stuck -= 1,
            false => self.active -= 1,
        }
        self.active + self.stuck == 0
    }
}

struct Timer {
    due: Instant,
    request: Weak<dyn Run>,
}

impl Workers {
    /// The time for which a worker waits for work before it exits.
    const IDLE: Duration = Duration::from_secs(10);

    /// The time for which an idle worker keeps the memory of a large reply.
    const RETAIN: Duration = Duration::from_millis(100);

    /// The time after which a worker whose request still runs is replaced: longer than working
    /// disks and networks take.
    pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(1);

    /// The maximum number of threads with stuck requests: each costs some pages of stack.
    const MAX_STUCK: usize = 512;

    pub(crate) fn new(max: usize, stuck_after: Duration) -> io::Result<Arc<Workers>> {
        let workers = Arc::new(Workers {
            queue: Mutex::default(),
            work: Condvar::new(),
            supervision: Condvar::new(),
            max: max.max(2),
            stuck_after,
        });
        workers.spawn_worker(&mut workers.queue())?;
        Ok(workers)
    }

    /// Returns how many requests of one of a client's `lanes` may run at once: half of the pool. If
    /// there are several, all lanes together leave one worker for each that stands in for its
    /// thread, although all others are stuck: otherwise nobody would read a request again.
    pub(crate) fn share(&self, lanes: usize) -> usize {
        let half = self.max / 2;
        // Three quarters of the pool, and as many that are stuck as the pool has.
        let most = self.max * 3 / 4 + self.max;
        half.min((most / lanes.max(1)).saturating_sub(1)).max(1)
    }

    /// Runs `request` on a worker as soon as its owner's share allows.
    pub(crate) fn run(self: &Arc<Self>, request: Arc<dyn Run>) {
        let mut queue = self.queue();
        queue.exports.note(request.export());
        queue.ready.push(request);
        self.ensure_workers(&mut queue);
    }

    /// Removes `request` from those that wait for a worker if `takes` returns true. Returns whether
    /// it was removed.
    pub(crate) fn take(&self, request: Arc<dyn Run>, takes: impl FnOnce() -> bool) -> bool {
        self.queue().ready.take(&request, takes)
    }

    /// Wakes `request` after `time`, unless it is answered before.
    pub(crate) fn wake_after(self: &Arc<Self>, time: Duration, request: &Arc<dyn Run>) {
        let mut queue = self.queue();
        let due = Instant::now() + time;
        queue.timers.push(Reverse(Timer {
            due,
            request: Arc::downgrade(request),
        }));
        self.ensure_workers(&mut queue);
    }

    /// Closes the pool: its threads exit.
    pub(crate) fn close(&self) {
        self.queue().closed = true;
        self.work.notify_all();
        self.supervision.notify_all();
    }

    /// Ensures that there is a thread for each request that may run, and for the timers.
    fn ensure_workers(self: &Arc<Self>, queue: &mut Queue) {
        if queue.idle > 0 {
            self.work.notify_one();
        }
        let wanted = queue.ready.len + usize::from(!queue.timers.is_empty());
        if wanted <= queue.idle {
            return;
        }
        if queue.threads - queue.stuck >= self.max {
            return self.supervise(queue);
        }
        match self.spawn_worker(queue) {
            Err(error) if !std::mem::replace(&mut queue.spawn_failure_logged, true) => {
                let have = queue.threads;
                tracing::warn!(
                    "cannot start more than {have} workers, so requests may wait: {error}"
                );
            }
            _ => {}
        }
    }

    fn spawn_worker(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let workers = self.clone();
        std::thread::Builder::new()
            .name("barge-worker".into())
            .spawn(move || workers.work())?;
        queue.threads += 1;
        queue.idle += 1;
        Ok(())
    }

    /// Starts the thread that checks for stuck requests, as requests are queued that no worker may
    /// run.
    fn supervise(self: &Arc<Self>, queue: &mut Queue) {
        if queue.supervised || queue.ready.len == 0 || queue.closed {
            return;
        }
        let workers = self.clone();
        let spawned = std::thread::Builder::new()
            .name("barge-pool".into())
            .spawn(move || workers.replace_stuck());
        match spawned {
            Ok(_) => queue.supervised = true,
            Err(error) => {
                tracing::debug!("cannot start the thread that replaces stuck workers: {error}")
            }
        }
    }

    /// Replaces workers whose requests are stuck, as long as requests are queued.
    fn replace_stuck(self: &Arc<Self>) {
        let mut queue = self.queue();
        while queue.ready.len > 0 && !queue.closed {
            let now = Instant::now();
            let next = queue.mark_stuck(now, self.stuck_after, self.max);
            self.ensure_workers(&mut queue);
            let rest = next.map_or(self.stuck_after, |due| due - now);
            self.supervision.wait_for(&mut queue, rest);
        }
        queue.supervised = false;
    }

    fn work(self: Arc<Self>) {
        self.queue().idle -= 1;
        let mut out = Outbox::default();
        let mut done = None;
        while let Some((number, request)) = self.next(done.take(), &mut out) {
            let run = AssertUnwindSafe(|| request.run(&mut out));
            if catch_unwind(run).is_err() {
                // The panic hook has written the message to standard error.
                tracing::error!("a request panicked on a worker");
                out = Outbox::default();
            }
            out.clear();
            if out.is_scarce() {
                out.shrink();
            }
            done = Some(number);
        }
    }

    /// Returns the next request for the calling worker, which has run the request `done` before.
    /// Releases the memory of a large `out` if there is none for a while.
    fn next(self: &Arc<Self>, done: Option<u64>, out: &mut Outbox) -> Option<(u64, Arc<dyn Run>)> {
        let mut queue = self.queue();
        if let Some(done) = done {
            queue.end(done);
        }
        let mut expired = false;
        loop {
            let now = Instant::now();
            while let Some(timer) = queue.timers.pop_if_due(now) {
                if let Some(request) = timer.request.upgrade() {
                    drop(queue);
                    request.wake();
                    queue = self.queue();
                }
            }
            if let Some(next) = queue.begin(now, self.max) {
                if !queue.timers.is_empty() || queue.ready.len > 0 {
                    self.ensure_workers(&mut queue);
                }
                return Some(next);
            }
            let spare = queue.threads - queue.stuck > self.max;
            if expired || queue.closed || spare {
                queue.threads -= 1;
                return None;
            }
            // No queued request may run: perhaps because some are stuck.
            self.supervise(&mut queue);
            let rest = match queue.timers.peek() {
                Some(Reverse(timer)) => timer.due - now,
                None if queue.threads > 1 => Workers::IDLE,
                None => Duration::MAX,
            };
            let large = out.is_large();
            let rest = if large {
                rest.min(Workers::RETAIN)
            } else {
                rest
            };
            queue.idle += 1;
            let slept = self.work.wait_for(&mut queue, rest);
            queue.idle -= 1;
            if large && slept.timed_out() {
                out.shrink();
                continue;
            }
            expired = slept.timed_out() && queue.timers.is_empty() && queue.threads > 1;
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

/// The number of requests of each key.
trait Tally<K> {
    fn count(&self, key: &K) -> Counts;

    fn begin(&mut self, key: K);

    fn mark_stuck(&mut self, key: K);

    fn end(&mut self, key: K, stuck: bool);
}

impl<K: Eq + Hash> Tally<K> for HashMap<K, Counts> {
    fn count(&self, key: &K) -> Counts {
        self.get(key).copied().unwrap_or_default()
    }

    fn begin(&mut self, key: K) {
        self.entry(key).or_default().active += 1;
    }

    fn mark_stuck(&mut self, key: K) {
        self.entry(key).or_default().mark_stuck();
    }

    fn end(&mut self, key: K, stuck: bool) {
        if let Entry::Occupied(mut counts) = self.entry(key)
            && counts.get_mut().end(stuck)
        {
            counts.remove();
        }
    }
}

impl Queue {
    /// Returns whether another request of a claimant may be stuck, of `max` of one client.
    fn may_be_stuck(&self, claimant: &Claimant, max: usize) -> bool {
        let (owner, export) = claimant;
        let all = self.owners.count(owner).stuck;
        let own = self.claimants.count(claimant).stuck;
        let most = match self.exports.divides(*export) {
            true => (max.saturating_sub(all - own) / 2).max(1),
            false => max,
        };
        all < max && own < most && self.exports.may_be_stuck(*export)
    }

    /// Returns the next request that may run, and marks it as running.
    fn begin(&mut self, now: Instant, max: usize) -> Option<(u64, Arc<dyn Run>)> {
        let active = self.running.len() - self.stuck;
        let may = |claimant: &Claimant| {
            let (owner, export) = claimant;
            self.owners.count(owner).may_run(active, max)
                && self.exports.may_run(*export, active, max)
                && self.may_be_stuck(claimant, max)
        };
        if active >= max {
            return None;
        }
        let next = self.ready.next(may)?;
        let (claimant, request) = self.ready.pop(next)?;
        self.owners.begin(claimant.0);
        self.claimants.begin(claimant);
        self.exports.counts.begin(claimant.1);
        let number = self.next;
        self.next += 1;
        self.running.push(Running {
            number,
            claimant,
            since: now,
            stuck: false,
        });
        Some((number, request))
    }

    /// Marks the request `number` as ended.
    fn end(&mut self, number: u64) {
        let is_it = |running: &Running| running.number == number;
        let Some(at) = self.running.iter().position(is_it) else {
            return;
        };
        let Running {
            claimant, stuck, ..
        } = self.running.swap_remove(at);
        self.stuck -= usize::from(stuck);
        self.owners.end(claimant.0, stuck);
        self.claimants.end(claimant, stuck);
        self.exports.counts.end(claimant.1, stuck);
    }

    /// Marks requests as stuck that have run for `after` at `now`, within the limits of the pool
    /// and of each claimant. Returns when the next one is due, if any.
    fn mark_stuck(&mut self, now: Instant, after: Duration, max: usize) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for at in 0..self.running.len() {
            let Running {
                claimant,
                since,
                stuck,
                ..
            } = self.running[at];
            let due = since + after;
            if stuck {
                continue;
            }
            if due > now {
                next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            }
            if self.stuck < Workers::MAX_STUCK && self.may_be_stuck(&claimant, max) {
                self.running[at].stuck = true;
                self.stuck += 1;
                self.owners.mark_stuck(claimant.0);
                self.claimants.mark_stuck(claimant);
                self.exports.counts.mark_stuck(claimant.1);
            }
        }
        next
    }
}

impl Ready {
    fn push(&mut self, request: Arc<dyn Run>) {
        let claimant = (request.owner(), request.export());
        self.len += 1;
        match self.by_claimant.entry(claimant) {
            Entry::Occupied(mut waiting) => waiting.get_mut().push_back(request),
            Entry::Vacant(none) => {
                none.insert([request].into());
                self.round_robin.push_back(claimant);
            }
        }
    }

    /// Removes `request` if it is here and `takes` returns true.
    fn take(&mut self, request: &Arc<dyn Run>, takes: impl FnOnce() -> bool) -> bool {
        let claimant = (request.owner(), request.export());
        let Entry::Occupied(mut waiting) = self.by_claimant.entry(claimant) else {
            return false;
        };
        let is_it = |one: &Arc<dyn Run>| Arc::ptr_eq(one, request);
        let at = waiting.get().iter().position(is_it);
        let Some(at) = at.filter(|_| takes()) else {
            return false;
        };
        waiting.get_mut().remove(at);
        self.len -= 1;
        if waiting.get().is_empty() {
            waiting.remove();
            self.round_robin.retain(|one| *one != claimant);
        }
        true
    }

    /// Returns the turn of the next claimant that `may` run a request.
    fn next(&self, may: impl Fn(&Claimant) -> bool) -> Option<usize> {
        self.round_robin.iter().position(may)
    }

    /// Returns the first request of the claimant whose turn is `at`.
    fn pop(&mut self, at: usize) -> Option<(Claimant, Arc<dyn Run>)> {
        let claimant = self.round_robin.remove(at)?;
        let Entry::Occupied(mut waiting) = self.by_claimant.entry(claimant) else {
            return None;
        };
        let request = waiting.get_mut().pop_front()?;
        self.len -= 1;
        match waiting.get().is_empty() {
            true => drop(waiting.remove()),
            false => self.round_robin.push_back(claimant),
        }
        Some((claimant, request))
    }
}

trait PopIfDue {
    fn pop_if_due(&mut self, now: Instant) -> Option<Timer>;
}

impl PopIfDue for BinaryHeap<Reverse<Timer>> {
    fn pop_if_due(&mut self, now: Instant) -> Option<Timer> {
        if self.peek()?.0.due > now {
            return None;
        }
        self.pop().map(|Reverse(timer)| timer)
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.due == other.due
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

#[cfg(test)]
mod tests {
    use vfs_testkit::wait_until;

    use super::*;

    #[test]
    fn the_last_worker_stays_while_there_is_work() {
        struct Done(std::sync::mpsc::Sender<()>);
        impl Run for Done {
            fn run(self: Arc<Self>, _: &mut Outbox) {
                self.0.send(()).expect("awaited");
            }

            fn wake(self: Arc<Self>) {}

            fn owner(&self) -> PeerKey {
                PeerKey::Device(0)
            }
        }
        let workers = Workers::new(2, Workers::STUCK_AFTER).expect("a thread");
        let (done, all) = std::sync::mpsc::channel();
        for _ in 0..10 {
            workers.run(Arc::new(Done(done.clone())));
        }
        assert_eq!(all.iter().take(10).count(), 10);
        assert!((1..=2).contains(&workers.queue().threads));
        workers.close();
        wait_until("the threads have ended", || workers.queue().threads == 0);
    }
    /// A request of `owner` that reports that it runs, then waits until the other end of a channel
    /// is dropped.
    struct Hangs {
        owner: PeerKey,
        export: u64,
        runs: std::sync::mpsc::Sender<Claimant>,
        until: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
    }

    impl Run for Hangs {
        fn run(self: Arc<Self>, _: &mut Outbox) {
            self.runs.send((self.owner, self.export)).expect("awaited");
            let mut open = true;
            while open {
                let ended = self.until.lock().try_recv();
                open = ended != Err(std::sync::mpsc::TryRecvError::Disconnected);
                std::thread::yield_now();
            }
        }

        fn wake(self: Arc<Self>) {}

        fn owner(&self) -> PeerKey {
            self.owner
        }

        fn export(&self) -> u64 {
            self.export
        }
    }

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn owners_whose_requests_hang_leave_workers_to_others_each_time() {
        let workers = Workers::new(8, Duration::from_millis(1)).expect("a thread");
        let (runs, all) = std::sync::mpsc::channel();
        let (end, until) = std::sync::mpsc::channel::<()>();
        let until = Arc::new(Mutex::new(until));
        let hang = |owner, export| {
            workers.run(Arc::new(Hangs {
                owner,
                export,
                runs: runs.clone(),
                until: until.clone(),
            }));
        };
        // Each owner has far more requests than the pool is large; the next one gets its turn all
        // the same. So does the next export of an owner.
        for (owner, export) in [(0, 0), (1, 0), (2, 0), (3, 1), (3, 2), (3, 3), (4, 1)] {
            let claimant = (PeerKey::Device(owner), export);
            (0..100).for_each(|_| hang(claimant.0, export));
            let mut started = std::iter::from_fn(|| all.recv_timeout(SOON).ok());
            assert!(started.any(|started| started == claimant), "{claimant:?}");
        }
        {
            let queue = workers.queue();
            assert!(queue.owners.values().all(|own| own.stuck <= workers.max));
            assert!(queue.threads <= workers.max + queue.stuck + 1);
        }
        drop(end);
        wait_until("no request is left", || {
            all.try_iter().for_each(drop);
            workers.queue().ready.len == 0 && workers.queue().running.is_empty()
        });
        assert!(workers.queue().owners.is_empty());
        assert!(workers.queue().claimants.is_empty());
        workers.close();
    }

    #[test]
    fn one_owner_leaves_a_quarter_of_the_pool_and_of_what_is_left() {
        let mut queue = Queue::default();
        let (runs, _all) = std::sync::mpsc::channel();
        let (_end, until) = std::sync::mpsc::channel::<()>();
        let until = Arc::new(Mutex::new(until));
        for owner in [0, 1, 2].map(PeerKey::Device) {
            for _ in 0..16 {
                let (runs, until) = (runs.clone(), until.clone());
                let export = 0;
                queue.ready.push(Arc::new(Hangs {
                    owner,
                    export,
                    runs,
                    until,
                }));
            }
        }
        // In turns: none has more than the others, and a fourth would find two.
        let (now, mut started) = (Instant::now(), 0);
        while queue.begin(now, 16).is_some() {
            started += 1;
        }
        let active = |owner| {
            queue
                .owners
                .get(&PeerKey::Device(owner))
                .map_or(0, |own| own.active)
        };
        assert_eq!((started, [0, 1, 2].map(active)), (14, [5, 5, 4]));
        // Alone: three quarters.
        let mut queue = Queue::default();
        for _ in 0..16 {
            let (runs, until) = (runs.clone(), until.clone());
            let owner = PeerKey::Device(0);
            let export = 0;
            queue.ready.push(Arc::new(Hangs {
                owner,
                export,
                runs,
                until,
            }));
        }
        let started = std::iter::from_fn(|| queue.begin(now, 16)).count();
        assert_eq!(started, 12);
    }

    /// A request without an effect.
    struct Idle {
        owner: PeerKey,
        export: u64,
    }

    impl Run for Idle {
        fn run(self: Arc<Self>, _: &mut Outbox) {}

        fn wake(self: Arc<Self>) {}

        fn owner(&self) -> PeerKey {
            self.owner
        }

        fn export(&self) -> u64 {
            self.export
        }
    }

    #[test]
    fn an_export_that_hangs_leaves_workers_to_others_though_many_clients_wait_for_it() {
        const MAX: usize = 16;
        let mut queue = Queue::default();
        let enqueue = |queue: &mut Queue, clients: std::ops::Range<u64>, export| {
            queue.exports.note(export);
            for owner in clients.map(PeerKey::Device) {
                for _ in 0..MAX {
                    queue.ready.push(Arc::new(Idle { owner, export }));
                }
            }
        };
        let begin = |queue: &mut Queue, now| std::iter::from_fn(|| queue.begin(now, MAX)).count();
        let mut now = Instant::now();
        // Alone it may use all of them.
        enqueue(&mut queue, 0..20, 1);
        assert_eq!(begin(&mut queue, now), MAX);
        // With a second export it leaves some, though its requests count as stuck after a while.
        enqueue(&mut queue, 20..1000, 1);
        queue.exports.note(2);
        for _ in 0..100 {
            now += Workers::STUCK_AFTER;
            queue.mark_stuck(now, Workers::STUCK_AFTER, MAX);
            begin(&mut queue, now);
        }
        assert_eq!(queue.exports.counts[&1].stuck, Exports::MAX_STUCK);
        assert!(queue.running.len() - queue.stuck <= MAX * 3 / 4);
        enqueue(&mut queue, 1000..1001, 2);
        assert!(begin(&mut queue, now) > 0, "the other one's");
        let running: Vec<_> = queue.running.iter().map(|one| one.number).collect();
        running.into_iter().for_each(|number| queue.end(number));
        assert!(queue.exports.counts.is_empty() && queue.owners.is_empty());
    }

    #[test]
    fn a_worker_that_panics_goes_on() {
        struct Panics(std::sync::mpsc::Sender<()>);
        impl Run for Panics {
            fn run(self: Arc<Self>, _: &mut Outbox) {
                self.0.send(()).expect("awaited");
                panic!("as a test wants it");
            }

            fn wake(self: Arc<Self>) {}

            fn owner(&self) -> PeerKey {
                PeerKey::Device(0)
            }
        }
        let workers = Workers::new(2, Workers::STUCK_AFTER).expect("a thread");
        let (run, runs) = std::sync::mpsc::channel();
        for _ in 0..10 {
            workers.run(Arc::new(Panics(run.clone())));
        }
        assert_eq!(runs.iter().take(10).count(), 10);
        wait_until("no request runs", || workers.queue().running.is_empty());
        assert!((1..=2).contains(&workers.queue().threads));
        workers.close();
    }
}
