//! A budget for the memory of all clients, shared fairly among them.
//!
//! Two kinds of memory are reserved in a [`MemoryBudget`]. *Messages* are transient: partly
//! received messages, requests that wait for workers, unsent replies. *State* stays between
//! requests until the client, a timeout or an eviction ends it: cached replies for retransmissions,
//! fids, opens, locks, sessions and the read-ahead of open directories.
//!
//! **Messages.** If the budget has no room, the connection waits, unread, until others have
//! returned memory ([`MemoryBudget::wait`]). A client has at most half of what the other clients'
//! messages and all state leave, so that the next one finds room; a quarter is kept for state in
//! any case, as large messages are no reason to refuse an open. Each connection has a minimum
//! ([`MemoryBudget::CONNECTION`]), set aside when it starts, for its thread and its small messages
//! ([`MemoryBudget::SMALL_MESSAGES`]): they neither wait nor cost more than a comparison. One
//! request of a client may exceed its share, so that some always make progress even if many clients
//! each hold a part of what they need.
//!
//! Replies are counted once they exist ([`Reservation::set`]), as only their source knows their
//! length: a client whose replies exceed its share waits before its next request is served. A
//! potentially large reply is reserved in advance ([`Reservation::try_claim`]) if one per
//! connection would take more than an eighth of the budget.
//!
//! **State** never waits: a table that is refused a reservation evicts, or returns its protocol's
//! error ([`crate::quota`]). All state together takes at most half of what the connections' minima
//! leave, so messages always find the other half. One client's state takes at most half of what the
//! others' state leaves of that.
//!
//! Lock order: the budget's lock is the last of all.

mod waiters;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

pub use self::waiters::Need;
use self::waiters::{Waiter, Waiters};
use crate::PeerKey;

/// The memory budget of an engine's clients, in bytes.
pub struct MemoryBudget {
    limit: usize,
    /// Whether so much is reserved that clients may have to wait.
    tight: AtomicBool,
    connections: AtomicUsize,
    state: Mutex<State>,
}

/// The purpose of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Messages from a client, which can be left unread.
    Request,
    /// Replies to a client, which exist before their size is known.
    Reply,
    /// State that the server keeps for a client between its requests.
    State,
}

/// The reservations of one client.
#[derive(Clone, Copy, Default)]
struct Reserved {
    requests: usize,
    replies: usize,
    state: usize,
    /// Whether one of its requests was admitted beyond its share.
    overcommitted: bool,
}

impl Reserved {
    fn messages(self) -> usize {
        self.requests + self.replies
    }
}

#[derive(Default)]
struct State {
    /// The minima of all connections.
    minimum: usize,
    /// Bytes reserved in addition.
    used: usize,
    /// The part of `used` that is state.
    state_bytes: usize,
    by_client: HashMap<PeerKey, Reserved>,
    /// The number of clients with a request beyond their share.
    overcommitted: usize,
    waiters: Waiters,
    /// Whether the budget is closed, so that waits return at once.
    closed: bool,
}

impl State {
    fn of(&self, client: PeerKey) -> Reserved {
        self.by_client.get(&client).copied().unwrap_or_default()
    }

    /// Returns the bound on the messages of `client`: half of what other clients' messages and all
    /// state, or the part kept for it, leave.
    fn share(&self, limit: usize, client: PeerKey) -> usize {
        let all = limit.saturating_sub(self.minimum);
        let others = self.used - self.state_bytes - self.of(client).messages();
        all.saturating_sub(others + self.state_bytes.max(all / 4)) / 2
    }

    /// Returns the bound on the state of `client`: half of what the others' state leaves of half of
    /// all, and no more than is left.
    fn state_share(&self, limit: usize, client: PeerKey) -> usize {
        let own = self.of(client).state;
        let all = limit.saturating_sub(self.minimum);
        let for_state = (all / 2).saturating_sub(self.state_bytes - own);
        (for_state / 2).min(all.saturating_sub(self.used - own))
    }

    /// Returns whether the share of `client` has room for `more` bytes.
    fn fits(&self, limit: usize, client: PeerKey, of: Purpose, more: usize) -> bool {
        let own = self.of(client);
        match of {
            Purpose::State => own.state + more <= self.state_share(limit, client),
            _ => own.messages() + more <= self.share(limit, client),
        }
    }

    /// Returns whether `client` may have a request beyond its share.
    fn may_exceed(&self, client: PeerKey) -> bool {
        !self.of(client).overcommitted && self.overcommitted < MemoryBudget::MAX_OVERCOMMITTED
    }

    /// Returns the bound on the replies to `client`: what its requests leave of its share.
    fn reply_share(&self, limit: usize, client: PeerKey) -> usize {
        let left = self
            .share(limit, client)
            .saturating_sub(self.of(client).requests);
        left.max(MemoryBudget::MIN_REPLY_SHARE)
    }

    /// Returns whether a reply of `bytes` may be made: a client without unsent replies may always
    /// have one.
    fn may_reply(&self, limit: usize, client: PeerKey, bytes: usize) -> bool {
        let replies = self.of(client).replies;
        replies == 0 || replies + bytes <= self.reply_share(limit, client)
    }

    /// Returns whether so many messages are reserved that clients may have to wait. State alone
    /// does not count.
    fn is_tight(&self, limit: usize) -> bool {
        let messages = self.minimum + self.used - self.state_bytes;
        messages > limit.saturating_sub(self.state_bytes) / 4
    }

    fn is_overdrawn(&self, limit: usize, client: PeerKey) -> bool {
        self.is_tight(limit) && self.of(client).replies > self.reply_share(limit, client)
    }

    fn allows(&self, limit: usize, client: PeerKey, need: Need) -> bool {
        match need {
            Need::Request(more) => {
                self.fits(limit, client, Purpose::Request, more) || self.may_exceed(client)
            }
            Need::Reply(bytes) => self.may_reply(limit, client, bytes),
            Need::WithinShare => !self.is_overdrawn(limit, client),
        }
    }

    /// Removes and returns the waiters whose need the budget allows.
    fn take_waiters(&mut self, limit: usize) -> Vec<Arc<Waiter>> {
        let mut waiters = std::mem::take(&mut self.waiters);
        let taken = waiters.take(|client, need| self.allows(limit, client, need));
        self.waiters = waiters;
        taken
    }
}

impl MemoryBudget {
    /// The bytes that a connection may use without a reservation: the buffers of small messages and
    /// their replies.
    pub const SMALL_MESSAGES: usize = 32 << 10;

    /// The minimum of a connection: its small messages, and the stack that the kernel has for its
    /// thread (16 KiB on x86-64 and arm64).
    pub const CONNECTION: usize = MemoryBudget::SMALL_MESSAGES + (16 << 10);

    /// The maximum number of clients with a request beyond their share.
    const MAX_OVERCOMMITTED: usize = 4;

    /// The minimum of the bound on replies to a client, however little is left, also by its
    /// requests: one large reply, so that the client makes progress.
    const MIN_REPLY_SHARE: usize = 1 << 20;

    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget {
            limit,
            tight: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            state: Mutex::default(),
        })
    }

    /// Returns the limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of reserved bytes, including the minima of connections.
    pub fn used(&self) -> usize {
        let state = self.state();
        state.minimum + state.used
    }

    /// Returns the number of reserved bytes that are state.
    pub fn state_bytes(&self) -> usize {
        self.state().state_bytes
    }

    /// Reserves the minimum of a connection. Returns `None` if the minima would take more than half
    /// of what state leaves.
    pub fn connect(self: &Arc<Self>) -> Option<Minimum> {
        let mut state = self.state();
        let most = self.limit.saturating_sub(state.state_bytes) / 2;
        if state.minimum + MemoryBudget::CONNECTION > most {
            return None;
        }
        state.minimum += MemoryBudget::CONNECTION;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Some(Minimum(self.clone()))
    }

    /// Creates an empty reservation on the account of `client`.
    pub fn reservation(self: &Arc<Self>, client: PeerKey, of: Purpose) -> Reservation {
        Reservation {
            budget: self.clone(),
            client,
            purpose: of,
            bytes: 0,
            overcommitted: false,
        }
    }

    /// Returns whether the replies to `client` exceed its share. Costs one load of a flag while
    /// memory is plentiful.
    pub fn is_overdrawn(&self, client: PeerKey) -> bool {
        if !self.tight.load(Ordering::Relaxed) {
            return false;
        }
        self.state().is_overdrawn(self.limit, client)
    }

    /// Returns the size in bytes from which on a reply must be reserved in advance: one of this
    /// size for each connection takes an eighth of the budget.
    pub fn large_reply(&self) -> usize {
        let connections = self.connections.load(Ordering::Relaxed).max(1);
        (self.limit / 8 / connections).max(MemoryBudget::SMALL_MESSAGES / 2) + 1
    }

    /// Waits for `time` at most until there may be room for the `need` of a connection of `client`.
    /// Returns at once if there is room already, or the budget is closed.
    ///
    /// Clients take turns, and the connections of one are woken in FIFO order, each when its need
    /// can be met. A woken connection retries: another one may have been faster.
    pub fn wait(&self, client: PeerKey, need: Need, time: Duration) {
        let mut state = self.state();
        if state.closed || state.allows(self.limit, client, need) {
            return;
        }
        let waiter = Waiter::new(need);
        state.waiters.push(client, waiter.clone());
        waiter.wait(&mut state, time);
        if !waiter.is_woken() {
            state.waiters.remove(client, &waiter);
        }
    }

    /// Wakes all waiters, and makes later waits return at once.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let all = state.waiters.take_all();
        drop(state);
        all.iter().for_each(|waiter| waiter.notify());
    }

    /// Wakes the waiters that the last change made room for.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        if state.waiters.is_empty() {
            return;
        }
        let taken = state.take_waiters(self.limit);
        drop(state);
        taken.iter().for_each(|waiter| waiter.notify());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// A connection's minimum, returned to the budget when dropped.
pub struct Minimum(Arc<MemoryBudget>);

impl Drop for Minimum {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.minimum -= MemoryBudget::CONNECTION;
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.wake(state);
    }
}

/// A number of bytes of a budget on a client's account, returned when dropped.
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    client: PeerKey,
    purpose: Purpose,
    bytes: usize,
    /// Whether it is the client's reservation beyond its share.
    overcommitted: bool,
}

impl Reservation {
    /// Returns its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether so much of its budget is reserved that clients may have to wait.
    pub fn is_scarce(&self) -> bool {
        self.budget.tight.load(Ordering::Relaxed)
    }

    /// Creates an empty reservation on the same account.
    pub fn sibling(&self) -> Reservation {
        self.budget.reservation(self.client, self.purpose)
    }

    /// Resizes it to `bytes` if that is a reduction or the client's share has room; returns whether
    /// it did.
    #[must_use]
    pub fn try_set(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let budget = self.budget.clone();
        let mut state = budget.state();
        let more = bytes.checked_sub(self.bytes);
        let fits =
            more.is_none_or(|more| state.fits(budget.limit, self.client, self.purpose, more));
        if !fits && !self.overcommitted {
            if self.purpose == Purpose::State || !state.may_exceed(self.client) {
                return false;
            }
            state.overcommitted += 1;
            self.overcommitted = true;
        }
        self.change(state, bytes);
        true
    }

    /// Resizes it to `bytes` for a reply that is about to be made, unless the client's replies
    /// would exceed its share; returns whether it did. A client without unsent replies may always
    /// have one.
    #[must_use]
    pub fn try_claim(&mut self, bytes: usize) -> bool {
        let budget = self.budget.clone();
        let state = budget.state();
        if !state.may_reply(budget.limit, self.client, bytes) {
            return false;
        }
        self.change(state, bytes);
        true
    }

    /// Merges `more`, of the same client and use, into this one.
    pub fn join(&mut self, mut more: Reservation) {
        self.bytes += std::mem::take(&mut more.bytes);
    }

    /// Resizes it to `bytes`, which are in use already.
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            let budget = self.budget.clone();
            self.change(budget.state(), bytes);
        }
    }

    fn change(&mut self, mut state: MutexGuard<'_, State>, to: usize) {
        let budget = self.budget.clone();
        let ends = to < self.bytes && self.overcommitted;
        let reserved = state.by_client.entry(self.client).or_default();
        let part = match self.purpose {
            Purpose::Request => &mut reserved.requests,
            Purpose::Reply => &mut reserved.replies,
            Purpose::State => &mut reserved.state,
        };
        *part = *part - self.bytes + to;
        reserved.overcommitted = (reserved.overcommitted || self.overcommitted) && !ends;
        if reserved.messages() + reserved.state == 0 {
            state.by_client.remove(&self.client);
        }
        state.used = state.used - self.bytes + to;
        if self.purpose == Purpose::State {
            state.state_bytes = state.state_bytes - self.bytes + to;
        }
        state.overcommitted -= usize::from(ends);
        let tight = state.is_tight(budget.limit);
        budget.tight.store(tight, Ordering::Relaxed);
        budget.wake(state);
        self.overcommitted &= !ends;
        self.bytes = to;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn client(number: u32) -> PeerKey {
        PeerKey::User(number)
    }

    #[test]
    fn each_client_leaves_half_to_the_next() {
        let budget = MemoryBudget::new(64 * MIB);
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        for number in 0..5 {
            let before = all.len();
            loop {
                let mut one = budget.reservation(client(number), Purpose::Request);
                if !one.try_set(MIB / 2) {
                    break;
                }
                all.push(one);
            }
            taken.push(all.len() - before);
        }
        // Half of what is left beside the quarter for state, and one request beyond it for each of
        // the first four.
        assert_eq!(taken, [49, 24, 12, 6, 2]);
        assert!(budget.used() <= budget.limit());
        all.clear();
        assert_eq!(budget.used(), 0);
        let state = budget.state();
        assert!(state.by_client.is_empty() && state.overcommitted == 0);
    }

    #[test]
    fn one_request_of_a_client_may_exceed_its_share() {
        let budget = MemoryBudget::new(MIB);
        let request = || budget.reservation(client(1), Purpose::Request);
        let (mut first, mut second, mut third) = (request(), request(), request());
        assert!(first.try_set(3 * MIB / 8));
        assert!(second.try_set(4 * MIB) && second.try_set(5 * MIB));
        assert!(!third.try_set(1));
        // Only while it exists: then the next one may.
        drop(second);
        assert!(third.try_set(4 * MIB) && !request().try_set(1));
    }

    #[test]
    fn replies_count_once_they_exist_and_are_waited_for_before_the_next() {
        let budget = MemoryBudget::new(16 * MIB);
        let mut reply = budget.reservation(client(1), Purpose::Reply);
        reply.set(8 * MIB);
        assert!(budget.is_overdrawn(client(1)) && !budget.is_overdrawn(client(2)));
        // The other client's share is half of what is left without the part for state, and one
        // large reply is allowed in any case.
        let mut other = budget.reservation(client(2), Purpose::Reply);
        other.set(2 * MIB);
        assert!(!budget.is_overdrawn(client(2)));
        other.set(2 * MIB + 1);
        assert!(budget.is_overdrawn(client(2)));
        reply.set(4 * MIB);
        assert!(!budget.is_overdrawn(client(1)) && !budget.is_overdrawn(client(2)));
        // Requests of a client do not delay its replies.
        drop((reply, other));
        let mut request = budget.reservation(client(3), Purpose::Request);
        request.set(15 * MIB);
        assert!(!budget.is_overdrawn(client(3)));
    }

    #[test]
    fn replies_that_are_about_to_be_made_stay_within_a_share() {
        let budget = MemoryBudget::new(32 * MIB);
        let minima: Vec<_> = (0..100).filter_map(|_| budget.connect()).collect();
        assert!((16 << 10..4 * MIB).contains(&budget.large_reply()));
        let mut claims = Vec::new();
        loop {
            let mut claim = budget.reservation(client(1), Purpose::Reply);
            if !claim.try_claim(4 * MIB) {
                break;
            }
            claims.push(claim);
        }
        assert_eq!(claims.len(), 2, "of half of what minima and state leave");
        let mut other = budget.reservation(client(2), Purpose::Reply);
        assert!(other.try_claim(20 * MIB), "a client's only one");
        claims.pop();
        drop(minima);
        assert!(budget.large_reply() > 4 * MIB - 1);
    }

    #[test]
    fn requests_and_replies_of_a_client_share_its_half() {
        let budget = MemoryBudget::new(64 * MIB);
        let mut requests = budget.reservation(client(1), Purpose::Request);
        assert!(requests.try_set(22 * MIB));
        let mut replies = budget.reservation(client(1), Purpose::Reply);
        assert!(replies.try_claim(MIB), "a client's only one");
        let mut more = budget.reservation(client(1), Purpose::Reply);
        assert!(more.try_claim(MIB), "what requests leave");
        assert!(!more.try_claim(2 * MIB));
        replies.set(2 * MIB);
        assert!(budget.is_overdrawn(client(1)));
        requests.set(MIB);
        assert!(!budget.is_overdrawn(client(1)) && more.try_claim(20 * MIB));
    }

    #[test]
    fn state_takes_half_of_all_and_each_client_leaves_half_of_that_to_the_next() {
        let budget = MemoryBudget::new(64 * MIB);
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        for number in 0..4 {
            let before = all.len();
            loop {
                let mut one = budget.reservation(client(number), Purpose::State);
                if !one.try_set(MIB / 2) {
                    break;
                }
                all.push(one);
            }
            taken.push(all.len() - before);
        }
        assert_eq!(taken, [32, 16, 8, 4]);
        assert_eq!(budget.state_bytes(), 30 * MIB);
        // A client at its limit of state may send and receive as before.
        let mut request = budget.reservation(client(0), Purpose::Request);
        assert!(!request.is_scarce(), "state alone");
        assert!(request.try_set(17 * MIB) && !request.overcommitted);
        assert!(request.is_scarce());
        assert!(!budget.is_overdrawn(client(0)));
        // Messages leave less room for more state, but do not evict existing state.
        let mut other = budget.reservation(client(5), Purpose::State);
        assert!(!other.try_set(2 * MIB));
        all.clear();
        drop(request);
        assert!(other.try_set(16 * MIB) && !other.try_set(16 * MIB + 1));
        let mut more = other.sibling();
        assert!(!more.try_set(1));
        other.set(MIB);
        assert!(more.try_set(MIB));
        other.join(more);
        assert_eq!((other.bytes(), budget.state_bytes()), (2 * MIB, 2 * MIB));
        drop(other);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn messages_leave_a_quarter_to_state() {
        let budget = MemoryBudget::new(64 * MIB);
        let mut all = Vec::new();
        for number in 0..8 {
            let mut requests = budget.reservation(client(number), Purpose::Request);
            let mut bytes = 0;
            while !requests.overcommitted && requests.try_set(bytes + MIB / 4) {
                bytes += MIB / 4;
            }
            all.push(requests);
        }
        assert!(budget.used() > 47 * MIB);
        let mut state = budget.reservation(client(0), Purpose::State);
        assert!(state.try_set(14 * MIB));
        assert!(budget.used() <= budget.limit());
    }

    #[test]
    fn minima_take_half_of_all_at_most() {
        let budget = MemoryBudget::new(8 * MemoryBudget::CONNECTION);
        let minima: Vec<_> = std::iter::from_fn(|| budget.connect()).collect();
        assert_eq!(minima.len(), 4);
        drop(minima);
        assert_eq!(budget.used(), 0);
        // State leaves less room for minima, so that messages find some room in any case.
        let mut state = budget.reservation(client(1), Purpose::State);
        state.set(4 * MemoryBudget::CONNECTION);
        let minima: Vec<_> = std::iter::from_fn(|| budget.connect()).collect();
        assert_eq!(minima.len(), 2);
    }

    /// Waits on a new thread; returns once that thread waits.
    fn waits<'scope, 'env>(
        scope: &'scope std::thread::Scope<'scope, 'env>,
        budget: &'env MemoryBudget,
        client: PeerKey,
        need: Need,
    ) -> std::thread::ScopedJoinHandle<'scope, ()> {
        let count = || budget.state().waiters.len(client);
        let before = count();
        let waits = scope.spawn(move || budget.wait(client, need, Duration::MAX));
        while count() == before && !waits.is_finished() {
            std::thread::yield_now();
        }
        waits
    }

    #[test]
    fn a_connection_is_woken_when_there_is_what_it_waits_for() {
        let budget = MemoryBudget::new(11 * MIB);
        let request = || budget.reservation(client(1), Purpose::Request);
        let (mut first, mut second, mut beyond) = (request(), request(), request());
        assert!(first.try_set(3 * MIB) && second.try_set(MIB) && beyond.try_set(MIB));
        std::thread::scope(|scope| {
            let large = waits(scope, &budget, client(1), Need::Request(2 * MIB));
            let small = waits(scope, &budget, client(1), Need::Request(MIB));
            second.set(MIB - 1);
            assert_eq!(
                budget.state().waiters.len(client(1)),
                2,
                "a byte is no reason to wake"
            );
            // There is room for the first one, and then for the next, which came later.
            drop(first);
            large.join().expect("no panic");
            assert_eq!(budget.state().waiters.len(client(1)), 1);
            drop(second);
            small.join().expect("no panic");
        });
    }

    #[test]
    fn clients_that_wait_take_turns() {
        let budget = MemoryBudget::new(8 * MIB);
        let mut replies = [1, 2].map(|number| budget.reservation(client(number), Purpose::Reply));
        for reply in &mut replies {
            reply.set(4 * MIB);
        }
        std::thread::scope(|scope| {
            let need = Need::Reply(MIB);
            let many: Vec<_> = (0..3)
                .map(|_| waits(scope, &budget, client(1), need))
                .collect();
            let one = waits(scope, &budget, client(2), need);
            drop(replies);
            one.join().expect("no panic");
            // Each change wakes one waiter of a client; a resumed connection is a change, too.
            while !many.iter().all(|waits| waits.is_finished()) {
                budget.reservation(client(1), Purpose::Reply).set(1);
            }
            assert!(budget.state().waiters.is_empty());
        });
    }

    #[test]
    fn a_closed_budget_lets_nobody_wait() {
        let budget = MemoryBudget::new(8 * MIB);
        let mut reply = budget.reservation(client(1), Purpose::Reply);
        reply.set(8 * MIB);
        std::thread::scope(|scope| {
            let waits = waits(scope, &budget, client(1), Need::WithinShare);
            budget.close();
            waits.join().expect("no panic");
            budget.wait(client(1), Need::WithinShare, Duration::MAX);
        });
    }

    #[test]
    fn a_wait_that_is_over_leaves_nothing() {
        let budget = MemoryBudget::new(8 * MIB);
        let mut reply = budget.reservation(client(1), Purpose::Reply);
        reply.set(8 * MIB);
        budget.wait(client(1), Need::Reply(1), Duration::ZERO);
        assert!(budget.state().waiters.is_empty());
    }
}
