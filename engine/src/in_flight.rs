//! The requests of a lane that are in flight: those that its thread did not answer inline.
//!
//! A request begins, runs on a worker as soon as the lane's share of the workers allows, and
//! completes once its reply is sent. Over a connection, each export has a share of its own: one
//! that hangs holds up no other. The table cancels requests by their ids, keeps the order that
//! protocols demand (the reply to a cancellation follows that to the request), bounds number and
//! size of the requests, and reports when none is left.
//!
//! Requests that are served inline are not in the table: they cost at most a load of
//! [`InFlight::count`].
//!
//! Lock order: the table, then what [`Entry::may_start`] locks, or the queue of the workers. Tables
//! of two lanes are never locked at the same time. Requests are cancelled, and waiting threads
//! woken, without the lock.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};
use vfs::cx::thread_waker;

use crate::request::{Job, Request};
use crate::stats::add;
use crate::workers::Workers;

#[cfg(test)]
mod tests;

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

    /// Asks that it be put back into its ring, and not answered, if that is possible, because its
    /// lane ends. Called before its cancellation, so that a run that sees the latter sees both.
    fn put_back(&self) {}

    /// Notes that its client cancels it, so that it is answered in any case. Called before its
    /// cancellation.
    fn note_client_cancel(&self) {}

    /// Returns whether it is answered at once if it was cancelled and is not running.
    fn ends_at_once(&self) -> bool {
        false
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
    /// The number of lanes that share the workers of one client, if it is not only this one.
    lanes: Option<Arc<AtomicUsize>>,
    limits: Limits,
    count: AtomicUsize,
    bytes: AtomicUsize,
    table: Mutex<Table<J>>,
}

struct Table<J> {
    /// The latest request of each id.
    by_id: HashMap<u64, InFlightEntry<J>, BuildHasherDefault<IdHasher>>,
    /// Requests whose ids the peer has reused before they were complete.
    displaced: Vec<InFlightEntry<J>>,
    /// Requests that wait for a part of the share.
    queued: VecDeque<Arc<Request<J>>>,
    /// The number of requests that have a part of a share, by export ([`InFlight::export_of`]).
    running: Vec<(u64, usize)>,
    /// Whether new requests are cancelled at once.
    cancels: bool,
    /// The wakers of [`InFlight::wake_on_completion`].
    wakers: Vec<Waker>,
}

/// A hash of ids that costs a multiplication. A peer may choose ids that collide, which slows down
/// only its own lane: by as many steps as it may have requests in flight.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, id: u64) {
        // An odd number without a pattern: the golden ratio's fraction.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ id).wrapping_mul(FACTOR.into());
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct InFlightEntry<J> {
    request: Arc<Request<J>>,
    /// Whether its reply is about to be sent: the peer may already have it and reuse the id.
    answered: bool,
    /// The number of a follower, 0 for others: a follower follows only those with lower numbers, so
    /// that none follows itself, not even through requests whose ids a peer has reused.
    number: u64,
    /// The requests to answer right after it: those that cancelled it.
    followers: Vec<Arc<Request<J>>>,
}

impl<J> InFlightEntry<J> {
    /// Returns the request, unless it is too late to cancel it.
    fn unanswered(&self) -> Option<Arc<Request<J>>> {
        (!self.answered).then(|| self.request.clone())
    }
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
            lanes: None,
            limits,
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            table: Mutex::new(Table {
                by_id: HashMap::default(),
                displaced: Vec::new(),
                queued: VecDeque::new(),
                running: Vec::new(),
                cancels: false,
                wakers: Vec::new(),
            }),
        }
    }

    /// Returns the table of one of several lanes of a device, of which there are `lanes` at a time.
    pub(crate) fn with_lanes(self, lanes: Arc<AtomicUsize>) -> InFlight<J> {
        InFlight {
            lanes: Some(lanes),
            ..self
        }
    }

    /// Returns the export whose share `request` uses: of a device's lanes all requests have one.
    fn export_of(&self, request: &Request<J>) -> u64 {
        match &self.lanes {
            Some(_) => 0,
            None => request.call.export_number(),
        }
    }

    /// Gives `request` a part of its share, if there is one left.
    fn try_give_part(&self, table: &mut Table<J>, request: &Request<J>) -> bool {
        let export = self.export_of(request);
        let fits = table.running(export) < self.share();
        if fits {
            table.give_part(export, request);
        }
        fits
    }

    /// Returns how many requests of a share may run at once.
    fn share(&self) -> usize {
        let lanes = self.lanes.as_ref();
        let lanes = lanes.map_or(1, |lanes| lanes.load(Ordering::Relaxed));
        self.workers.share(lanes)
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
                .is_some_and(|entry| !entry.answered)
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
            stop(&request);
        }
    }

    /// Begins a request, and returns whether the calling thread may run it like a worker, at once.
    /// Otherwise a worker does, as soon as the share allows.
    pub(crate) fn begin_on_this_thread(&self, request: &Arc<Request<J>>) -> bool {
        let mut table = self.table();
        let cancels = self.insert(&mut table, request, 0);
        let here = self.try_give_part(&mut table, request);
        if !here {
            table.queued.push_back(request.clone());
        }
        drop(table);
        if cancels {
            stop(request);
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
        let entry = InFlightEntry {
            request: request.clone(),
            answered: false,
            number,
            followers: Vec::new(),
        };
        if let Some(displaced) = table.by_id.insert(request.job.id(), entry) {
            table.displaced.push(displaced);
        }
        table.cancels
    }

    /// Cancels the request `target`, and makes `follower` follow it: [`complete`] answers it after
    /// the target. Returns the follower, for [`complete_follower`], if the target is not in flight
    /// any more.
    pub(crate) fn follow(&self, target: u64, follower: Follower<J>) -> Option<Follower<J>> {
        let mut table = self.table();
        let Some(entry) = table
            .by_id
            .get_mut(&target)
            .filter(|entry| entry.number < follower.number)
        else {
            return Some(follower);
        };
        entry.followers.push(follower.request);
        let target = entry.unanswered();
        drop(table);
        target.iter().for_each(cancel);
        None
    }

    /// Cancels the request `target`, if it is in flight.
    pub(crate) fn cancel(&self, target: u64) {
        let table = self.table();
        let target = table.by_id.get(&target).and_then(InFlightEntry::unanswered);
        drop(table);
        target.iter().for_each(cancel);
    }

    /// Returns the request `id`, if it is in flight and can still be cancelled.
    pub(crate) fn find(&self, id: u64) -> Option<Arc<Request<J>>> {
        let table = self.table();
        table.by_id.get(&id).and_then(InFlightEntry::unanswered)
    }

    /// Cancels `request` for its client. Returns whether the calling thread is to run it, like a
    /// worker: it waited for one, and [ends at once](Entry::ends_at_once).
    pub(crate) fn cancel_and_take(&self, request: &Arc<Request<J>>) -> bool {
        cancel(request);
        let mut table = self.table();
        let queued = |one: &Arc<Request<J>>| Arc::ptr_eq(one, request);
        if let Some(at) = table.queued.iter().position(queued) {
            let ends = request.job.ends_at_once();
            if ends {
                table.queued.remove(at);
                table.give_part(self.export_of(request), request);
            }
            return ends;
        }
        drop(table);
        self.workers
            .take(request.clone(), || request.job.ends_at_once())
    }

    /// Cancels all requests in flight.
    pub(crate) fn cancel_all(&self) {
        self.unanswered().iter().for_each(cancel);
    }

    /// Cancels all requests in flight, and from now on each that begins.
    /// See [`Entry::put_back`].
    pub(crate) fn cancel_all_from_now_on(&self) {
        self.table().cancels = true;
        self.unanswered().iter().for_each(stop);
    }

    /// Returns the requests in flight that can still be cancelled.
    pub(crate) fn unanswered(&self) -> Vec<Arc<Request<J>>> {
        let table = self.table();
        let flights = table.by_id.values().chain(&table.displaced);
        flights.filter_map(InFlightEntry::unanswered).collect()
    }

    /// Runs a request that was parked on a worker, as soon as the share allows.
    pub(crate) fn schedule(&self, request: Arc<Request<J>>) {
        let mut table = self.table();
        table.queued.push_back(request);
        self.start(&mut table);
    }

    /// Notes that `request` left its worker, but is still in flight.
    pub(crate) fn leave_worker(&self, request: &Request<J>) {
        let mut table = self.table();
        table.take_part(request);
        self.start(&mut table);
    }

    /// Starts queued requests, as far as the share and [`Entry::may_start`] allow. The table does
    /// so itself whenever the share allows more; a lane calls it when its requests may start
    /// again.
    pub(crate) fn start_queued(&self) {
        self.start(&mut self.table());
    }

    fn start(&self, table: &mut Table<J>) {
        let share = self.share();
        let may = |table: &Table<J>, request: &Request<J>| {
            table.running(self.export_of(request)) < share && request.job.may_start()
        };
        while let Some(next) = table.queued.iter().position(|it| may(table, it))
            && let Some(request) = table.queued.remove(next)
        {
            table.give_part(self.export_of(&request), &request);
            self.workers.run(request);
        }
    }

    /// Notes that the reply to `request` is about to be sent.
    fn answered(&self, request: &Arc<Request<J>>, ran: bool) {
        let mut table = self.table();
        if let Some(entry) = table.by_id.get_mut(&request.job.id()) {
            entry.answered |= Arc::ptr_eq(&entry.request, request);
        }
        if ran {
            table.take_part(request);
            self.start(&mut table);
        }
    }

    /// Removes an answered request, and returns those that follow it.
    fn remove(&self, request: &Arc<Request<J>>) -> Vec<Arc<Request<J>>> {
        let is_it = |entry: &InFlightEntry<J>| Arc::ptr_eq(&entry.request, request);
        let mut table = self.table();
        let entry = match table.by_id.entry(request.job.id()) {
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
        entry.map_or_else(Vec::new, |entry| entry.followers)
    }

    /// Wakes `waker` each time that a request completes, until the result is dropped.
    pub(crate) fn wake_on_completion(&self, waker: Waker) -> CompletionWaker<'_, J> {
        self.table().wakers.push(waker.clone());
        CompletionWaker {
            in_flight: self,
            waker,
        }
    }

    /// Waits until no request is in flight.
    pub(crate) fn wait_until_idle(&self) {
        let _wakes = self.wake_on_completion(thread_waker());
        while self.count() > 0 {
            std::thread::park();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table<J>> {
        self.table.lock()
    }
}

impl<J> Table<J> {
    /// Returns how many requests have a part of the share of `export`.
    fn running(&self, export: u64) -> usize {
        let mut all = self.running.iter();
        all.find(|(of, _)| *of == export)
            .map_or(0, |(_, count)| *count)
    }

    /// Gives `request` a part of the share of `export`.
    fn give_part(&mut self, export: u64, request: &Request<J>) {
        // The request may note another export while it runs.
        request.shares_with.store(export, Ordering::Relaxed);
        match self.running.iter_mut().find(|(of, _)| *of == export) {
            Some((_, count)) => *count += 1,
            None => self.running.push((export, 1)),
        }
    }

    /// Takes the part of `request` back.
    fn take_part(&mut self, request: &Request<J>) {
        let export = request.shares_with.load(Ordering::Relaxed);
        let at = self.running.iter().position(|(of, _)| *of == export);
        let at = at.expect("it has a part");
        self.running[at].1 -= 1;
        if self.running[at].1 == 0 {
            self.running.swap_remove(at);
        }
    }
}

/// Cancels a request because its lane ends.
fn stop<J: Entry>(request: &Arc<Request<J>>) {
    request.job.put_back();
    add(
        &request.job.stats().cancelled,
        usize::from(request.cancel()),
    );
}

/// Cancels a request for its client.
fn cancel<J: Entry>(request: &Arc<Request<J>>) {
    request.job.note_client_cancel();
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
pub(crate) struct CompletionWaker<'a, J: Entry> {
    in_flight: &'a InFlight<J>,
    waker: Waker,
}

impl<J: Entry> Drop for CompletionWaker<'_, J> {
    fn drop(&mut self) {
        let mut table = self.in_flight.table();
        let ours = |waker: &Waker| waker.will_wake(&self.waker);
        if let Some(at) = table.wakers.iter().position(ours) {
            table.wakers.swap_remove(at);
        }
    }
}
