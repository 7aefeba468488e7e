//! One bound on the memory that clients can take, shared out among them.
//!
//! What grows with what a client sends is reserved: messages that have come in part, requests that wait for workers,
//! replies that are not sent. Where the budget has no room, the connection waits, unread, until others have given back
//! what they have. One client has at most half of what the others leave, so that the next one finds room; and each
//! connection has a minimum of its own ([`MemoryBudget::CONNECTION`]), which is set aside when it begins: small
//! requests neither wait nor cost more than a comparison.
//!
//! What already exists is counted even beyond the bound ([`Reservation::set`]): a reply whose size only its source
//! knew. Then the client waits before its next one.
//!
//! Lock order: the budget's lock is the last of all.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use vfs::peer::PeerKey;

/// The memory of an engine's clients, bytes.
pub struct MemoryBudget {
    limit: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    /// Set aside for connections.
    minimum: usize,
    /// Reserved besides.
    used: usize,
    by_client: HashMap<PeerKey, usize>,
    /// How many wait for some to be given back.
    waiting: usize,
}

impl State {
    fn of(&self, client: PeerKey) -> usize {
        self.by_client.get(&client).copied().unwrap_or(0)
    }

    /// How much `client` may have, as much as the others have.
    fn share(&self, limit: usize, client: PeerKey) -> usize {
        let others = self.used - self.of(client);
        limit.saturating_sub(self.minimum + others) / 2
    }

    /// Counts `to` bytes instead of `from`.
    fn change(&mut self, client: PeerKey, from: usize, to: usize) {
        self.used = self.used - from + to;
        match self.by_client.entry(client) {
            Entry::Occupied(mut own) => {
                *own.get_mut() = *own.get() - from + to;
                if *own.get() == 0 {
                    own.remove();
                }
            }
            Entry::Vacant(none) if to > 0 => drop(none.insert(to)),
            Entry::Vacant(_) => {}
        }
    }
}

impl MemoryBudget {
    /// What a connection may have without asking: the buffers of small messages, and of their replies.
    pub const CONNECTION: usize = 32 << 10;

    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget {
            limit,
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

    /// Sets the minimum of a connection aside; nothing if minima would take more than half of all.
    pub(crate) fn connect(self: &Arc<Self>) -> Option<Minimum> {
        let mut state = self.state();
        if state.minimum + MemoryBudget::CONNECTION > self.limit / 2 {
            return None;
        }
        state.minimum += MemoryBudget::CONNECTION;
        Some(Minimum(self.clone()))
    }

    /// A reservation of nothing yet, on the account of `client`.
    pub fn reservation(self: &Arc<Self>, client: PeerKey) -> Reservation {
        Reservation {
            budget: self.clone(),
            client,
            bytes: 0,
        }
    }

    /// Whether `client` has more than its share.
    pub(crate) fn is_overdrawn(&self, client: PeerKey) -> bool {
        let state = self.state();
        state.of(client) > state.share(self.limit, client)
    }

    /// Waits until something has been given back, for `time` at most.
    pub(crate) fn wait(&self, time: Duration) {
        let mut state = self.state();
        state.waiting += 1;
        let waited = self.freed.wait_timeout(state, time);
        waited.expect("no panic holds it").0.waiting -= 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic holds it")
    }

    /// Counts `to` bytes instead of `from` for `client`.
    fn change(&self, mut state: MutexGuard<'_, State>, client: PeerKey, from: usize, to: usize) {
        state.change(client, from, to);
        let wake = to < from && state.waiting > 0;
        drop(state);
        if wake {
            self.freed.notify_all();
        }
    }
}

/// A connection's minimum, which it gives back when it ends.
pub(crate) struct Minimum(Arc<MemoryBudget>);

impl Drop for Minimum {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.minimum -= MemoryBudget::CONNECTION;
        drop(state);
        self.0.freed.notify_all();
    }
}

/// Some bytes of a budget on a client's account. Dropping it gives them back.
pub struct Reservation {
    budget: Arc<MemoryBudget>,
    client: PeerKey,
    bytes: usize,
}

impl Reservation {
    /// How many bytes it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Another one of nothing, on the same account.
    pub fn sibling(&self) -> Reservation {
        self.budget.reservation(self.client)
    }

    /// Makes it `bytes` large, if that is no more than it is, or there is room and the client's share allows it.
    #[must_use]
    pub fn try_set(&mut self, bytes: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let state = self.budget.state();
        let own = state.of(self.client) - self.bytes + bytes;
        if bytes > self.bytes && own > state.share(self.budget.limit, self.client) {
            // A single one that is larger than the share, where nobody else has anything: or it would wait for ever.
            let alone = state.used == self.bytes;
            if !alone {
                return false;
            }
        }
        self.budget.change(state, self.client, self.bytes, bytes);
        self.bytes = bytes;
        true
    }

    /// Makes it `bytes` large, which exist already.
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            let state = self.budget.state();
            self.budget.change(state, self.client, self.bytes, bytes);
            self.bytes = bytes;
        }
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
        let mut all = Vec::new();
        for number in 0..5 {
            let mut taken = 0;
            loop {
                let mut one = budget.reservation(client(number));
                if !one.try_set(MIB / 2) {
                    break;
                }
                taken += one.bytes();
                all.push(one);
            }
            assert_eq!(taken, (32 * MIB) >> number);
        }
        assert!(budget.used() <= budget.limit());
        all.clear();
        assert_eq!(budget.used(), 0);
        assert!(budget.state().by_client.is_empty());
    }

    #[test]
    fn what_exists_counts_beyond_the_share_until_it_is_given_back() {
        let budget = MemoryBudget::new(8 * MIB);
        let mut reply = budget.reservation(client(1));
        reply.set(6 * MIB);
        assert!(budget.is_overdrawn(client(1)) && !budget.is_overdrawn(client(2)));
        assert!(!reply.sibling().try_set(1));
        let mut other = budget.reservation(client(2));
        assert!(other.try_set(MIB) && !other.try_set(2 * MIB));
        assert_eq!(other.bytes(), MIB);
        reply.set(MIB);
        assert!(!budget.is_overdrawn(client(1)) && other.try_set(2 * MIB));
    }

    #[test]
    fn one_that_is_larger_than_all_shares_is_let_in_alone() {
        let budget = MemoryBudget::new(MIB);
        let (mut small, mut large) = (budget.reservation(client(1)), budget.reservation(client(2)));
        assert!(small.try_set(1) && !large.try_set(4 * MIB));
        drop(small);
        assert!(large.try_set(4 * MIB));
    }

    #[test]
    fn minima_take_half_of_all_at_most() {
        let budget = MemoryBudget::new(8 * MemoryBudget::CONNECTION);
        let minima: Vec<_> = std::iter::from_fn(|| budget.connect()).collect();
        assert_eq!(minima.len(), 4);
        drop(minima);
        assert_eq!(budget.used(), 0);
        assert!(budget.connect().is_some());
    }

    #[test]
    fn who_waits_is_woken_when_something_is_given_back() {
        let budget = MemoryBudget::new(8 * MIB);
        let mut taken = budget.reservation(client(1));
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
