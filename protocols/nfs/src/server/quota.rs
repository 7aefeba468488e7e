//! Quotas: how much of one kind of thing all peers together, and each of them, may have.
//!
//! Lock order: the one mutex here is the innermost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::peer::Key;

/// A bound on bytes or on a number of things, in total and for each peer.
pub(crate) struct Quota {
    total: usize,
    each: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    total: usize,
    by: HashMap<Key, usize>,
}

/// Why a quota has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// All peers together have what there is.
    Total,
    /// This peer has its share.
    Peer,
}

/// A part of a quota, which a peer has until this is dropped.
pub(crate) struct Charge {
    quota: Arc<Quota>,
    peer: Key,
    amount: usize,
}

impl Quota {
    /// `total` for all peers together, of which each has at most `each`.
    pub(crate) fn new(total: usize, each: usize) -> Arc<Quota> {
        Arc::new(Quota {
            total,
            each,
            used: Mutex::default(),
        })
    }

    /// Takes `amount` for `peer`.
    pub(crate) fn take(self: &Arc<Self>, peer: Key, amount: usize) -> Result<Charge, Full> {
        let mut used = self.used();
        if amount > self.each.saturating_sub(used.of(peer)) {
            return Err(Full::Peer);
        }
        if amount > self.total.saturating_sub(used.total) {
            return Err(Full::Total);
        }
        used.add(peer, amount);
        Ok(self.charge(peer, amount))
    }

    /// Takes at most `wanted` for `peer`, and no more than a quarter of what is left, so that
    /// others get something, too.
    pub(crate) fn take_some(self: &Arc<Self>, peer: Key, wanted: usize) -> Charge {
        let mut used = self.used();
        let left = self.total.saturating_sub(used.total).div_ceil(4);
        let amount = wanted
            .min(left)
            .min(self.each.saturating_sub(used.of(peer)));
        used.add(peer, amount);
        self.charge(peer, amount)
    }

    /// Whether `peer` could take `amount`.
    pub(crate) fn has_room(&self, peer: Key, amount: usize) -> bool {
        let used = self.used();
        amount <= self.each.saturating_sub(used.of(peer))
            && amount <= self.total.saturating_sub(used.total)
    }

    /// How much there is for all peers together.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// How much of it is used.
    pub(crate) fn in_use(&self) -> usize {
        self.used().total
    }

    fn charge(self: &Arc<Self>, peer: Key, amount: usize) -> Charge {
        Charge {
            quota: self.clone(),
            peer,
            amount,
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    fn of(&self, peer: Key) -> usize {
        self.by.get(&peer).copied().unwrap_or(0)
    }

    fn add(&mut self, peer: Key, amount: usize) {
        if amount > 0 {
            self.total += amount;
            *self.by.entry(peer).or_default() += amount;
        }
    }

    fn remove(&mut self, peer: Key, amount: usize) {
        if let Some(by) = self.by.get_mut(&peer) {
            self.total -= amount;
            *by -= amount;
            if *by == 0 {
                self.by.remove(&peer);
            }
        }
    }
}

impl Charge {
    /// How much it is.
    pub(crate) fn amount(&self) -> usize {
        self.amount
    }

    /// Takes `more`, of the same quota and peer, into this one.
    pub(crate) fn join(&mut self, mut more: Charge) {
        self.amount += std::mem::take(&mut more.amount);
    }

    /// Makes it `amount`, even beyond the quota: for what has become more without anybody asking.
    pub(crate) fn set(&mut self, amount: usize) {
        let mut used = self.quota.used();
        used.remove(self.peer, self.amount);
        used.add(self.peer, amount);
        self.amount = amount;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.quota.used().remove(self.peer, self.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::peer::of_addr;
    use super::*;

    #[test]
    fn a_peer_has_its_share_and_no_more_and_gives_it_back() {
        let quota = Quota::new(10, 6);
        let [one, two] = [1, 2].map(|last| of_addr([10, 0, 0, last].into()));
        let mut first = quota.take(one, 5).expect("room");
        assert_eq!(quota.take(one, 2).err(), Some(Full::Peer));
        let second = quota.take(two, 5).expect("room");
        assert_eq!(quota.take(one, 1).err(), Some(Full::Total));
        drop(second);
        first.join(quota.take(one, 1).expect("room"));
        assert_eq!((first.amount(), quota.in_use()), (6, 6));
        first.set(2);
        assert_eq!(quota.take_some(two, 9).amount(), 2, "a quarter of 8");
        assert_eq!(quota.take_some(one, 1).amount(), 1);
        drop(first);
        assert_eq!(quota.in_use(), 0);
        assert!(quota.used().by.is_empty());
    }
}
