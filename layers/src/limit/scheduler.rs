//! The order in which a share's waiting requests are admitted: fair queueing by client.
//!
//! Each client's requests are admitted in their order. Among clients it is start-time fair
//! queueing (Goyal, Vin and Cheng, 1996): a request costs the time that it uses of the share's
//! rates, and the client whose requests have cost the least so far comes next. A client with small
//! requests therefore gets as much of the rates as one with many large ones. A client that waits
//! for its own limit delays no other.
//!
//! No clock and no threads: callers pass the time, and wake the requests that are admitted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::task::Waker;
use std::time::Duration;

use vfs::PeerKey;

use super::Limits;
use super::bucket::{Buckets, Need};

/// The state of a share's limits.
pub(super) struct Scheduler {
    limits: Limits,
    share: Buckets,
    clients: HashMap<u64, Client>,
    /// The number of each client; `None` stands for the clients for which there was no room.
    numbers: HashMap<Option<PeerKey>, u64>,
    next_client: u64,
    next_ticket: u64,
    /// The start of the latest admission, in nanoseconds of use of the share's rates.
    virtual_time: u128,
    /// The clients that wait for the share, by the need of their next request and by start.
    ready: [BTreeSet<(u128, u64)>; Need::ALL.len()],
    /// The clients that wait for their own limit, by its end.
    limited: BTreeSet<(Duration, u64)>,
    /// The number of waiting requests.
    waiting: usize,
    /// The number of clients at which those are dropped that need no state.
    sweep_at: usize,
    /// The time when that was done last.
    swept: Duration,
    totals: Totals,
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
    /// Its waiting requests by ticket, oldest first.
    queue: BTreeMap<u64, Waiting>,
    place: Place,
}

struct Waiting {
    ops: u64,
    bytes: u64,
    waker: Waker,
    since: Duration,
}

/// The set that a client is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// None: it has no waiting request.
    Idle,
    /// The one of [`Scheduler::ready`] for this need, with its start.
    Ready(Need, u128),
    /// [`Scheduler::limited`], until this time.
    Limited(Duration),
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

/// The position of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    client: u64,
    number: u64,
}

/// The maximum number of clients with a state of their own; further ones share one state. It takes
/// about a MiB.
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
            clients: HashMap::new(),
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

    /// Returns whether a request of the client `number` may be admitted before all of its own that
    /// wait, which is so if there is none, and its limit allows it.
    fn may_pass(&mut self, number: u64, need: Need, now: Duration) -> bool {
        self.clients.get_mut(&number).is_none_or(|client| {
            client.buckets.refill(now);
            client.queue.is_empty() && client.buckets.admits(need)
        })
    }

    fn enqueue(&mut self, client: u64, request: Waiting, now: Duration) -> Ticket {
        let number = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let virtual_time = self.virtual_time;
        if let Some(state) = self.clients.get_mut(&client) {
            if state.queue.is_empty() {
                // A client saves nothing up while it does not wait.
                state.finish = state.finish.max(virtual_time);
            }
            state.queue.insert(number, request);
        }
        self.place(client, now);
        Ticket { client, number }
    }

    /// Returns whether the request with `ticket` still waits: otherwise it was admitted.
    pub(super) fn is_waiting(&self, ticket: Ticket) -> bool {
        let client = self.clients.get(&ticket.client);
        client.is_some_and(|client| client.queue.contains_key(&ticket.number))
    }

    /// Removes a request that waits. Returns false if it was admitted before.
    pub(super) fn cancel(&mut self, ticket: Ticket, now: Duration) -> bool {
        let client = self.clients.get_mut(&ticket.client);
        let removed = client.and_then(|client| client.queue.remove(&ticket.number));
        if removed.is_none() {
            return false;
        }
        self.waiting -= 1;
        self.place(ticket.client, now);
        true
    }

    /// Charges `client` for bytes that it moved beyond those that it was charged for.
    pub(super) fn charge(&mut self, client: PeerKey, bytes: u64, now: Duration) {
        let number = self.number_of(client);
        self.take(number, 0, bytes);
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
            if client.queue.is_empty() {
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
        while let Some(&(due, number)) = self.limited.first()
            && due <= now
        {
            self.place(number, now);
        }
        self.share.refill(now);
        while let Some(number) = self.next_ready() {
            let Some(client) = self.clients.get_mut(&number) else {
                return;
            };
            let Some((_, request)) = client.queue.pop_first() else {
                return;
            };
            self.virtual_time = self.virtual_time.max(client.finish);
            self.waiting -= 1;
            self.totals.delayed += 1;
            self.totals.waited += now.saturating_sub(request.since);
            woken.push(request.waker);
            self.take(Some(number), request.ops, request.bytes);
            self.place(number, now);
        }
    }

    /// Returns the client whose next request comes next, if the share admits any.
    fn next_ready(&self) -> Option<u64> {
        let first = |need: Need| {
            let first = self.ready[need as usize].first().copied()?;
            self.share.admits(need).then_some(first)
        };
        let next = Need::ALL.into_iter().filter_map(first).min();
        next.map(|(_, number)| number)
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

    /// Puts a client into the set that its oldest waiting request belongs to.
    fn place(&mut self, number: u64, now: Duration) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        match client.place {
            Place::Idle => {}
            Place::Ready(need, start) => {
                self.ready[need as usize].remove(&(start, number));
            }
            Place::Limited(due) => {
                self.limited.remove(&(due, number));
            }
        }
        let was_limited = matches!(client.place, Place::Limited(_));
        client.place = Place::Idle;
        let Some((_, next)) = client.queue.first_key_value() else {
            return;
        };
        let need = Need::of(next.ops, next.bytes);
        client.buckets.refill(now);
        let wait = client.buckets.wait(need);
        if !wait.is_zero() {
            let due = now + wait;
            client.place = Place::Limited(due);
            self.limited.insert((due, number));
            return;
        }
        if was_limited {
            // Nor does it while it waits for its own limit.
            client.finish = client.finish.max(self.virtual_time);
        }
        client.place = Place::Ready(need, client.finish);
        self.ready[need as usize].insert((client.finish, number));
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
                queue: BTreeMap::new(),
                place: Place::Idle,
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
            let is_new = client.queue.is_empty()
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

#[cfg(test)]
mod tests;
