//! One bound on the memory that clients can take, shared out among them.
//!
//! Two kinds of memory are reserved in a [`MemoryBudget`]. *Messages* pass through: messages that
//! have come in part, requests that wait for workers, replies that are not sent. *State* stays
//! between requests until the client, time or an eviction ends it: replies that are kept for
//! retransmissions, fids, opens, locks, sessions and what open directories have read ahead.
//!
//! **Messages.** Where the budget has no room, the connection waits, unread, until others have given
//! back what they have. One client has at most half of what the others, and all state, leave, so
//! that the next one finds room; and each connection has a minimum of its own
//! ([`MemoryBudget::CONNECTION`]), which is set aside when it begins: small requests neither wait
//! nor cost more than a comparison. One request of a client may exceed its share, so that some
//! always get on, though there be many that each have a part of what they need.
//!
//! Replies are counted once they exist ([`Reservation::set`]), as only their source knows how long
//! they are: a client whose replies take more than its share waits before its next one is made. A
//! reply that may be large is claimed before it is made ([`Reservation::try_claim`]) if one for each
//! connection would take more than an eighth of the budget.
//!
//! **State** never waits: a table that is refused evicts, or answers its protocol's error
//! ([`crate::quota`]). All state together takes at most half of what the minima of connections
//! leave, so messages always find the other half, and one client's state at most half of what the
//! others' leaves of that.
//!
//! Lock order: the budget's lock is the last of all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::PeerKey;

/// The memory of an engine's clients, bytes.
pub struct MemoryBudget {
    limit: usize,
    /// Whether so much is reserved that clients may have to wait.
    tight: AtomicBool,
    connections: AtomicUsize,
    state: Mutex<State>,
    freed: Condvar,
}

/// The purpose of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Messages from a client, which can be left unread.
    Request,
    /// Replies to a client, which exist before their size is known.
    Reply,
    /// What a client makes the server keep between its requests.
    State,
}

/// The reservations of one client.
#[derive(Clone, Copy, Default)]
struct Reserved {
    requests: usize,
    replies: usize,
    state: usize,
    /// Whether one of its requests has been let in beyond its share.
    extra: bool,
}

impl Reserved {
    fn messages(self) -> usize {
        self.requests + self.replies
    }
}

#[derive(Default)]
struct State {
    /// Set aside for connections.
    minimum: usize,
    /// Reserved besides.
    used: usize,
    /// How much of that is state.
    kept: usize,
    by_client: HashMap<PeerKey, Reserved>,
    /// How many clients have a request beyond their share.
    extras: usize,
    /// How many wait for some to be given back.
    waiting: usize,
}

impl State {
    fn of(&self, client: PeerKey) -> Reserved {
        self.by_client.get(&client).copied().unwrap_or_default()
    }

    /// How much the messages of `client` may take: half of what the others, and all state, leave.
    fn share(&self, limit: usize, client: PeerKey) -> usize {
        let others = self.used - self.of(client).messages();
        limit.saturating_sub(self.minimum + others) / 2
    }

    /// How much the state of `client` may take: half of what the others' leaves of half of all.
    fn state_share(&self, limit: usize, client: PeerKey) -> usize {
        let own = self.of(client).state;
        let all = limit.saturating_sub(self.minimum);
        let for_state = (all / 2).saturating_sub(self.kept - own);
        for_state.min(all.saturating_sub(self.used - own)) / 2
    }
}

impl MemoryBudget {
    /// The bytes that a connection may use without a reservation: the buffers of small messages,
    /// and of their replies.
    pub const CONNECTION: usize = 32 << 10;

    /// How many clients at once may have a request beyond their share.
    const EXTRAS: usize = 4;

    /// The bytes that the replies to one client may take however little is left: one large reply,
    /// so that it makes progress.
    const REPLIES: usize = 1 << 20;

    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget {
            limit,
            tight: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            state: Mutex::default(),
            freed: Condvar::new(),
        })
    }

    /// The bound, bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes that are reserved now, the minima of connections included.
    pub fn used(&self) -> usize {
        let state = self.state();
        state.minimum + state.used
    }

    /// The bytes of those that are state.
    pub fn kept(&self) -> usize {
        self.state().kept
    }

    /// Sets the minimum of a connection aside; `None` if minima would take more than half of what
    /// state leaves.
    pub fn connect(self: &Arc<Self>) -> Option<Minimum> {
        let mut state = self.state();
        let most = self.limit.saturating_sub(state.kept) / 2;
        if state.minimum + MemoryBudget::CONNECTION > most {
            return None;
        }
        state.minimum += MemoryBudget::CONNECTION;
        self.connections.fetch_add(1, Ordering::Relaxed);
        Some(Minimum(self.clone()))
    }

    /// A reservation of nothing yet, on the account of `client`.
    pub fn reservation(self: &Arc<Self>, client: PeerKey, of: Use) -> Reservation {
        Reservation {
            budget: self.clone(),
            client,
            of,
            bytes: 0,
            extra: false,
        }
    }

    /// Whether the replies to `client` take more than its share. One look at a flag where memory is
    /// plenty.
    pub fn is_overdrawn(&self, client: PeerKey) -> bool {
        if !self.tight.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state();
        let share = state.share(self.limit, client).max(MemoryBudget::REPLIES);
        state.of(client).replies > share
    }

    /// The bytes from which on a reply is to be claimed before it is made: one of this size for each
    /// connection takes an eighth of the budget.
    pub fn large(&self) -> usize {
        let connections = self.connections.load(Ordering::Relaxed).max(1);
        (self.limit / 8 / connections).max(MemoryBudget::CONNECTION / 2) + 1
    }

    /// Waits until something has been given back, for `time` at most.
    pub fn wait(&self, time: Duration) {
        let mut state = self.state();
        state.waiting += 1;
        let waited = self.freed.wait_timeout(state, time);
        waited.expect("no panic holds it").0.waiting -= 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic holds it")
    }
}

/// A connection's minimum, which it gives back when it ends.
pub struct Minimum(Arc<MemoryBudget>);

impl Drop for Minimum {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.minimum -= MemoryBudget::CONNECTION;
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        drop(state);
        self.0.freed.notify_one();
    }
}

/// Some bytes of a budget on a client's account. Dropping it gives them back.
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    client: PeerKey,
    of: Use,
    bytes: usize,
    /// Whether it is what its client has beyond its share.
    extra: bool,
}

impl Reservation {
    /// How many bytes it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether so much of its budget is reserved that clients may have to wait.
    pub fn is_scarce(&self) -> bool {
        self.budget.tight.load(Ordering::Relaxed)
    }

    /// Another one of nothing, on the same account.
    pub fn sibling(&self) -> Reservation {
        self.budget.reservation(self.client, self.of)
    }

    /// Makes it `bytes` large, if that is no more than it is, or there is room and the client's
    /// share allows it.
    #[must_use]
    pub fn try_set(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let budget = self.budget.clone();
        let mut state = budget.state();
        let reserved = state.of(self.client);
        let (own, share) = match self.of {
            Use::State => (reserved.state, state.state_share(budget.limit, self.client)),
            _ => (reserved.messages(), state.share(budget.limit, self.client)),
        };
        let beyond = bytes > self.bytes && own - self.bytes + bytes > share;
        if beyond && !self.extra {
            if self.of == Use::State || reserved.extra || state.extras >= MemoryBudget::EXTRAS {
                return false;
            }
            state.extras += 1;
            self.extra = true;
        }
        self.change(state, bytes);
        true
    }

    /// Makes it `bytes` large for a reply that is about to be made, unless the client's replies
    /// would take more than its share then. A client without any may always have one.
    #[must_use]
    pub fn try_claim(&mut self, bytes: usize) -> bool {
        let budget = self.budget.clone();
        let state = budget.state();
        let replies = state.of(self.client).replies;
        let share = state.share(budget.limit, self.client);
        if replies > 0 && replies + bytes > share.max(MemoryBudget::REPLIES) {
            return false;
        }
        self.change(state, bytes);
        true
    }

    /// Adds `more`, of the same client and use, to this one.
    pub fn join(&mut self, mut more: Reservation) {
        self.bytes += std::mem::take(&mut more.bytes);
    }

    /// Makes it `bytes` large, which exist already.
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            let budget = self.budget.clone();
            self.change(budget.state(), bytes);
        }
    }

    fn change(&mut self, mut state: MutexGuard<'_, State>, to: usize) {
        let budget = self.budget.clone();
        let less = to < self.bytes;
        let ends = less && self.extra;
        let reserved = state.by_client.entry(self.client).or_default();
        let part = match self.of {
            Use::Request => &mut reserved.requests,
            Use::Reply => &mut reserved.replies,
            Use::State => &mut reserved.state,
        };
        *part = *part - self.bytes + to;
        reserved.extra = (reserved.extra || self.extra) && !ends;
        if reserved.messages() + reserved.state == 0 {
            state.by_client.remove(&self.client);
        }
        state.used = state.used - self.bytes + to;
        if self.of == Use::State {
            state.kept = state.kept - self.bytes + to;
        }
        state.extras -= usize::from(ends);
        // State alone is no reason to wait.
        let messages = state.minimum + state.used - state.kept;
        let tight = messages > budget.limit.saturating_sub(state.kept) / 4;
        budget.tight.store(tight, Ordering::Relaxed);
        let wake = less && state.waiting > 0;
        drop(state);
        if wake {
            // The others look again by themselves after a while.
            budget.freed.notify_one();
        }
        self.extra &= !ends;
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
                let mut one = budget.reservation(client(number), Use::Request);
                if !one.try_set(MIB / 2) {
                    break;
                }
                all.push(one);
            }
            taken.push(all.len() - before);
        }
        // Half of what is left, and one beyond it for each of the first four.
        assert_eq!(taken, [65, 32, 16, 8, 3]);
        assert!(budget.used() <= budget.limit());
        all.clear();
        assert_eq!(budget.used(), 0);
        let state = budget.state();
        assert!(state.by_client.is_empty() && state.extras == 0);
    }

    #[test]
    fn one_request_of_a_client_may_exceed_its_share() {
        let budget = MemoryBudget::new(MIB);
        let request = || budget.reservation(client(1), Use::Request);
        let (mut first, mut second, mut third) = (request(), request(), request());
        assert!(first.try_set(MIB / 2));
        assert!(second.try_set(4 * MIB) && second.try_set(5 * MIB));
        assert!(!third.try_set(1));
        // While it is there only: then the next one may.
        drop(second);
        assert!(third.try_set(4 * MIB) && !request().try_set(1));
    }

    #[test]
    fn replies_count_once_they_exist_and_are_waited_for_before_the_next() {
        let budget = MemoryBudget::new(16 * MIB);
        let mut reply = budget.reservation(client(1), Use::Reply);
        reply.set(12 * MIB);
        assert!(budget.is_overdrawn(client(1)) && !budget.is_overdrawn(client(2)));
        // Another's share is half of what is left, and its replies may be a large one in any case.
        let mut other = budget.reservation(client(2), Use::Reply);
        other.set(2 * MIB);
        assert!(!budget.is_overdrawn(client(2)));
        other.set(2 * MIB + 1);
        assert!(budget.is_overdrawn(client(2)));
        reply.set(4 * MIB);
        assert!(!budget.is_overdrawn(client(1)) && !budget.is_overdrawn(client(2)));
        // What a client sends is no reason to keep its replies back.
        drop((reply, other));
        let mut request = budget.reservation(client(3), Use::Request);
        request.set(15 * MIB);
        assert!(!budget.is_overdrawn(client(3)));
    }

    #[test]
    fn replies_that_are_about_to_be_made_stay_within_a_share() {
        let budget = MemoryBudget::new(32 * MIB);
        let minima: Vec<_> = (0..100).filter_map(|_| budget.connect()).collect();
        assert!((16 << 10..4 * MIB).contains(&budget.large()));
        let mut claims = Vec::new();
        loop {
            let mut claim = budget.reservation(client(1), Use::Reply);
            if !claim.try_claim(4 * MIB) {
                break;
            }
            claims.push(claim);
        }
        assert_eq!(claims.len(), 3, "of half of what minima leave");
        let mut other = budget.reservation(client(2), Use::Reply);
        assert!(other.try_claim(20 * MIB), "a client's only one");
        claims.pop();
        drop(minima);
        assert!(budget.large() > 4 * MIB - 1);
    }

    #[test]
    fn state_takes_half_of_all_and_each_client_leaves_half_of_that_to_the_next() {
        let budget = MemoryBudget::new(64 * MIB);
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        for number in 0..4 {
            let before = all.len();
            loop {
                let mut one = budget.reservation(client(number), Use::State);
                if !one.try_set(MIB / 2) {
                    break;
                }
                all.push(one);
            }
            taken.push(all.len() - before);
        }
        assert_eq!(taken, [32, 16, 8, 4]);
        assert_eq!(budget.kept(), 30 * MIB);
        // A client that has its share of state may send and receive as before.
        let mut request = budget.reservation(client(0), Use::Request);
        assert!(!request.is_scarce(), "state alone");
        assert!(request.try_set(17 * MIB) && !request.extra);
        assert!(request.is_scarce());
        assert!(!budget.is_overdrawn(client(0)));
        // Messages leave less room for state, but no more state than that goes away.
        let mut other = budget.reservation(client(5), Use::State);
        assert!(!other.try_set(2 * MIB));
        all.clear();
        drop(request);
        assert!(other.try_set(16 * MIB) && !other.try_set(16 * MIB + 1));
        let mut more = other.sibling();
        assert!(!more.try_set(1));
        other.set(MIB);
        assert!(more.try_set(MIB));
        other.join(more);
        assert_eq!((other.bytes(), budget.kept()), (2 * MIB, 2 * MIB));
        drop(other);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn minima_take_half_of_all_at_most() {
        let budget = MemoryBudget::new(8 * MemoryBudget::CONNECTION);
        let minima: Vec<_> = std::iter::from_fn(|| budget.connect()).collect();
        assert_eq!(minima.len(), 4);
        drop(minima);
        assert_eq!(budget.used(), 0);
        // State leaves less of it, so that messages find some room in any case.
        let mut state = budget.reservation(client(1), Use::State);
        state.set(4 * MemoryBudget::CONNECTION);
        let minima: Vec<_> = std::iter::from_fn(|| budget.connect()).collect();
        assert_eq!(minima.len(), 2);
    }

    #[test]
    fn who_waits_is_woken_when_something_is_given_back() {
        let budget = MemoryBudget::new(8 * MIB);
        let mut taken = budget.reservation(client(1), Use::Request);
        assert!(taken.try_set(4 * MIB));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| budget.wait(Duration::MAX));
            while budget.state().waiting == 0 {
                std::thread::yield_now();
            }
            drop(taken);
            waits.join().expect("no panic");
        });
    }
}
