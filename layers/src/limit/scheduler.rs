//! The order in which a share's waiting requests are admitted: fair queueing by client.
//!
//! Each client has two queues, of requests that move bytes and of others, so that `ls` does not
//! wait for the copies of the same user. Requests of a queue are admitted in their order. Among
//! clients it is start-time fair queueing (Goyal, Vin and Cheng, 1996): a request costs the time
//! that it uses of the share's rates, and the client whose requests have cost the least so far
//! comes next. A client with small requests therefore gets as much of the rates as one with many
//! large ones. A client that waits for its own limit delays no other.
//!
//! No clock and no threads: callers pass the time, and wake the requests that are admitted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;
use std::time::Duration;

use vfs::PeerKey;

use super::Limits;
use super::bucket::{Buckets, Need};

/// The state of a share's limits.
pub(super) struct Scheduler {
    limits: Limits,
    share: Buckets,
    clients: HashMap<u64, Client, BuildHasherDefault<NumberHasher>>,
    /// The number of each client; `None` stands for the clients for which there was no room.
    numbers: HashMap<Option<PeerKey>, u64>,
    next_client: u64,
    next_ticket: u64,
    /// The start of the latest admission, in nanoseconds of use of the share's rates.
    virtual_time: u128,
    /// The queues that wait for the share, by the need of their next request, and by the client's
    /// start and the request's age.
    ready: [BTreeSet<(u128, Ticket)>; Need::ALL.len()],
    /// The queues that wait for their client's limit, by its end.
    limited: BTreeSet<(Duration, Ticket)>,
    /// The number of waiting requests.
    waiting: usize,
    /// The number of clients at which those are dropped that need no state.
    sweep_at: usize,
    /// The time when that was done last.
    swept: Duration,
    totals: Totals,
}

/// A hash of numbers that clients cannot choose.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, number: u64) {
        // The golden ratio's fraction spreads successive numbers over all bits.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Sums over all requests that had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Their number.
    pub(super) delayed: u64,
    /// The time that they waited.
    pub(super) waited: Duration,
}

struct Client {
    key: Option<PeerKey>,
    buckets: Buckets,
    /// The end of its latest admission, in the unit of [`Scheduler::virtual_time`].
    finish: u128,
    /// Those of requests that move no bytes, and of those that do.
    queues: [Queue; 2],
}

/// A queue of a client.
#[derive(Default)]
struct Queue {
    /// The waiting requests by ticket, oldest first.
    waiting: BTreeMap<u64, Waiting>,
    place: QueueState,
}

struct Waiting {
    ops: u64,
    bytes: u64,
    waker: Waker,
    since: Duration,
}

/// The set that a queue is in.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum QueueState {
    /// None: it is empty.
    #[default]
    Idle,
    /// The one of [`Scheduler::ready`] for this need, with this entry.
    Ready(Need, (u128, Ticket)),
    /// [`Scheduler::limited`], with this entry.
    Limited((Duration, Ticket)),
}

/// A request to admit.
pub(super) struct Arrival<'a> {
    pub(super) client: PeerKey,
    /// 1, or 0 if it was charged as an operation before.
    pub(super) ops: u64,
    /// The bytes that it moves, as far as known; 0 if it moves none.
    pub(super) bytes: u64,
    pub(super) wait: Wait<'a>,
}

/// The treatment of a request that cannot be admitted at once.
pub(super) enum Wait<'a> {
    /// It does not wait.
    Refuse,
    /// It is admitted, and leaves a debt.
    Never,
    /// It waits until this waker is woken.
    Until(&'a Waker),
}

/// The result of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Admitted,
    Refused,
    /// It waits with this ticket.
    Waits(Ticket),
}

/// The position of a waiting request: the lower, the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    number: u64,
    client: u64,
    moves_bytes: bool,
}

/// The maximum number of clients with a state of their own, about 400 bytes each; further ones
/// share one state.
pub(super) const MAX_CLIENTS: usize = 4096;

/// The number of clients below which none is dropped.
const MIN_SWEEP: usize = 64;

/// The minimum time between two sweeps of a full table.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Scheduler {
    pub(super) fn new(limits: Limits, now: Duration) -> Scheduler {
        Scheduler {
            limits,
            share: Buckets::new(limits.share, now),
            clients: HashMap::default(),
            numbers: HashMap::new(),
            next_client: 0,
            next_ticket: 0,
            virtual_time: 0,
            ready: Default::default(),
            limited: BTreeSet::new(),
            waiting: 0,
            sweep_at: MIN_SWEEP,
            swept: now,
            totals: Totals::default(),
        }
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Admits a request, or adds it to those that wait.
    pub(super) fn arrive(
        &mut self,
        arrival: &Arrival<'_>,
        now: Duration,
        woken: &mut Vec<Waker>,
    ) -> Decision {
        // First those that could have been admitted before.
        self.pump(now, woken);
        let Arrival { ops, bytes, .. } = *arrival;
        let need = Need::of(ops, bytes);
        self.share.refill(now);
        let has_own_limit = !self.limits.client.is_unlimited();
        let known = match has_own_limit {
            true => Some(self.client(arrival.client, now)),
            false => self.number_of(arrival.client),
        };
        let may =
            self.share.admits(need) && known.is_none_or(|number| self.may_pass(number, need, now));
        match arrival.wait {
            _ if may => {}
            Wait::Never => {}
            Wait::Refuse => return Decision::Refused,
            Wait::Until(waker) => {
                let client = known.unwrap_or_else(|| self.client(arrival.client, now));
                let request = Waiting {
                    ops,
                    bytes,
                    waker: waker.clone(),
                    since: now,
                };
                return Decision::Waits(self.enqueue(client, request, now));
            }
        }
        self.take(known, ops, bytes);
        if let Some(number) = known.filter(|_| self.waiting > 0) {
            self.place(number, now);
        }
        Decision::Admitted
    }

    /// Returns whether the queue of the client `number` for a request with this need is empty, and
    /// its limit admits the request.
    fn may_pass(&mut self, number: u64, need: Need, now: Duration) -> bool {
        self.clients.get_mut(&number).is_none_or(|client| {
            client.buckets.refill(now);
            let queue = &client.queues[usize::from(need.moves_bytes())];
            queue.waiting.is_empty() && client.buckets.admits(need)
        })
    }

    fn enqueue(&mut self, client: u64, request: Waiting, now: Duration) -> Ticket {
        let ticket = Ticket {
            number: self.next_ticket,
            client,
            moves_bytes: request.bytes > 0,
        };
        self.next_ticket += 1;
        self.waiting += 1;
        let virtual_time = self.virtual_time;
        if let Some(state) = self.clients.get_mut(&client) {
            if !state.waits() {
                // A client saves nothing up while it does not wait.
                state.finish = state.finish.max(virtual_time);
            }
            let queue = &mut state.queues[usize::from(ticket.moves_bytes)];
            queue.waiting.insert(ticket.number, request);
        }
        self.place(client, now);
        ticket
    }

    /// Returns whether the request with `ticket` still waits: otherwise it was admitted.
    pub(super) fn is_waiting(&self, ticket: Ticket) -> bool {
        self.clients.get(&ticket.client).is_some_and(|client| {
            let queue = &client.queues[usize::from(ticket.moves_bytes)];
            queue.waiting.contains_key(&ticket.number)
        })
    }

    /// Removes a request from its queue.
    fn remove(&mut self, ticket: Ticket) -> Option<Waiting> {
        let client = self.clients.get_mut(&ticket.client)?;
        let queue = &mut client.queues[usize::from(ticket.moves_bytes)];
        let removed = queue.waiting.remove(&ticket.number)?;
        self.waiting -= 1;
        Some(removed)
    }

    /// Removes a request that waits. Returns false if it was admitted before.
    pub(super) fn cancel(&mut self, ticket: Ticket, now: Duration) -> bool {
        let removed = self.remove(ticket);
        if removed.is_none() {
            return false;
        }
        self.place(ticket.client, now);
        true
    }

    /// Charges `client` for operations and bytes beyond those that it was charged for when it was
    /// admitted.
    pub(super) fn charge(&mut self, client: PeerKey, ops: u64, bytes: u64, now: Duration) {
        let number = self.number_of(client);
        self.take(number, ops, bytes);
        if let Some(number) = number {
            self.place(number, now);
        }
    }

    /// Returns to `client` a part of what it was charged for.
    pub(super) fn refund(&mut self, client: PeerKey, ops: u64, bytes: u64, now: Duration) {
        let cost = self.share.nanos_of(ops, bytes);
        self.share.put_back(ops, bytes);
        let Some(number) = self.number_of(client) else {
            return;
        };
        if let Some(client) = self.clients.get_mut(&number) {
            client.buckets.put_back(ops, bytes);
            client.finish = client.finish.saturating_sub(cost);
        }
        self.place(number, now);
    }

    /// Takes tokens of the share and of the client `number`.
    fn take(&mut self, number: Option<u64>, ops: u64, bytes: u64) {
        let cost = self.share.nanos_of(ops, bytes);
        self.share.take(ops, bytes);
        let virtual_time = self.virtual_time;
        if let Some(client) = number.and_then(|number| self.clients.get_mut(&number)) {
            client.buckets.take(ops, bytes);
            if !client.waits() {
                client.finish = client.finish.max(virtual_time);
            }
            client.finish = client.finish.saturating_add(cost);
        }
    }

    /// Replaces the limits, and admits the requests that may pass with the new ones.
    pub(super) fn set(&mut self, limits: Limits, now: Duration, woken: &mut Vec<Waker>) {
        self.share.refill(now);
        self.share.set(limits.share, now);
        self.limits = limits;
        let numbers: Vec<_> = self.clients.keys().copied().collect();
        for number in numbers {
            if let Some(client) = self.clients.get_mut(&number) {
                client.buckets.refill(now);
                client.buckets.set(limits.client, now);
            }
            self.place(number, now);
        }
        self.pump(now, woken);
    }

    /// Admits all waiting requests that may pass, and adds their wakers to `woken`.
    pub(super) fn pump(&mut self, now: Duration, woken: &mut Vec<Waker>) {
        if self.waiting == 0 {
            return;
        }
        while let Some(&(due, ticket)) = self.limited.first()
            && due <= now
        {
            self.place(ticket.client, now);
        }
        self.share.refill(now);
        while let Some((start, ticket)) = self.next_ready()
            && let Some(request) = self.remove(ticket)
        {
            self.virtual_time = self.virtual_time.max(start);
            self.totals.delayed += 1;
            self.totals.waited += now.saturating_sub(request.since);
            woken.push(request.waker);
            self.take(Some(ticket.client), request.ops, request.bytes);
            self.place(ticket.client, now);
        }
    }

    /// Returns the request that comes next, with its client's start, if the share admits any.
    fn next_ready(&self) -> Option<(u128, Ticket)> {
        let first = |need: Need| {
            let first = self.ready[need as usize].first().copied()?;
            self.share.admits(need).then_some(first)
        };
        Need::ALL.into_iter().filter_map(first).min()
    }

    /// Returns the time at which [`Scheduler::pump`] will admit a request; `None` if none waits.
    pub(super) fn next_due(&mut self, now: Duration) -> Option<Duration> {
        self.share.refill(now);
        let own = self.limited.first().map(|&(due, _)| due);
        let of_share = |need: Need| {
            let waits = !self.ready[need as usize].is_empty();
            waits.then(|| now + self.share.wait(need))
        };
        let of_share = Need::ALL.into_iter().filter_map(of_share);
        own.into_iter().chain(of_share).min()
    }

    /// Puts the queues of a client into the sets that their oldest requests belong to.
    fn place(&mut self, number: u64, now: Duration) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.buckets.refill(now);
        let mut was_limited = false;
        for queue in &mut client.queues {
            match std::mem::take(&mut queue.place) {
                QueueState::Idle => {}
                QueueState::Ready(need, entry) => {
                    self.ready[need as usize].remove(&entry);
                }
                QueueState::Limited(entry) => {
                    self.limited.remove(&entry);
                    was_limited = true;
                }
            }
        }
        let wait_of = |buckets: &Buckets, queue: &Queue| {
            let (ticket, next) = queue.waiting.first_key_value()?;
            let need = Need::of(next.ops, next.bytes);
            let ticket = Ticket {
                number: *ticket,
                client: number,
                moves_bytes: need.moves_bytes(),
            };
            Some((ticket, need, buckets.wait(need)))
        };
        let heads = (client.queues.each_ref()).map(|queue| wait_of(&client.buckets, queue));
        let is_ready = |head: &(Ticket, Need, Duration)| head.2.is_zero();
        if was_limited && heads.iter().flatten().any(is_ready) {
            // Nor does it save up while it waits for its own limit.
            client.finish = client.finish.max(self.virtual_time);
        }
        for (queue, head) in client.queues.iter_mut().zip(heads) {
            queue.place = match head {
                None => QueueState::Idle,
                Some((ticket, need, Duration::ZERO)) => {
                    let entry = (client.finish, ticket);
                    self.ready[need as usize].insert(entry);
                    QueueState::Ready(need, entry)
                }
                Some((ticket, _, wait)) => {
                    let entry = (now + wait, ticket);
                    self.limited.insert(entry);
                    QueueState::Limited(entry)
                }
            };
        }
    }

    fn number_of(&self, key: PeerKey) -> Option<u64> {
        let own = self.numbers.get(&Some(key));
        own.or_else(|| self.numbers.get(&None)).copied()
    }

    /// Returns the number of a client, or of all for which there is no room.
    fn client(&mut self, key: PeerKey, now: Duration) -> u64 {
        if let Some(number) = self.numbers.get(&Some(key)) {
            return *number;
        }
        let is_full = self.clients.len() >= MAX_CLIENTS;
        let may_sweep = is_full && now.saturating_sub(self.swept) >= SWEEP_INTERVAL;
        if may_sweep || !is_full && self.clients.len() >= self.sweep_at {
            self.sweep(now);
        }
        let key = (self.clients.len() < MAX_CLIENTS).then_some(key);
        let next = self.next_client;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.next_client += 1;
            let client = Client {
                key,
                buckets: Buckets::new(self.limits.client, now),
                finish: self.virtual_time,
                queues: Default::default(),
            };
            self.clients.insert(number, client);
        }
        number
    }

    /// Drops the clients whose state is that of a new one.
    fn sweep(&mut self, now: Duration) {
        let (virtual_time, waiting) = (self.virtual_time, self.waiting);
        let numbers = &mut self.numbers;
        self.clients.retain(|_, client| {
            client.buckets.refill(now);
            let is_new = !client.waits()
                && client.buckets.is_full()
                && (client.finish <= virtual_time || waiting == 0);
            if is_new {
                numbers.remove(&client.key);
            }
            !is_new
        });
        // Each sweep of a table that is not full is paid for by as many new clients.
        self.sweep_at = (2 * self.clients.len()).max(MIN_SWEEP);
        self.swept = now;
    }

    /// Returns the number of clients with a state.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }
}

impl Client {
    /// Returns whether one of its requests waits.
    fn waits(&self) -> bool {
        self.queues.iter().any(|queue| !queue.waiting.is_empty())
    }
}

#[cfg(test)]
mod tests;
