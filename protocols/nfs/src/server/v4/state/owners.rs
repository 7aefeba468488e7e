//! The open owners and lock owners of a client.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use vfs::{Charge, Ranges};

use super::released::NodeKey;
use super::seqid::OwnerSeq;

/// Owners, by name and by number.
pub(super) struct Owners<O> {
    numbers: HashMap<Arc<[u8]>, u32>,
    owners: HashMap<u32, (Arc<[u8]>, O)>,
    last: u32,
}

pub(super) struct OpenOwner {
    pub(super) name: Arc<[u8]>,
    /// v4.0: the sequence of its requests.
    pub(super) seq: OwnerSeq,
    /// v4.0: whether OPEN_CONFIRM was received.
    pub(super) confirmed: bool,
    /// The serial numbers of its opens.
    pub(super) opens: HashMap<NodeKey, u32>,
    /// v4.0: the serial number of the open that it closed last.
    pub(super) closed: Option<u32>,
    /// The time of its last request.
    pub(super) used: Duration,
    _charge: Charge,
}

/// The bytes of an owner without its name, including the reply to its last request.
pub(super) const OWNER_BYTES: usize = 1 << 10;

/// The bytes of a lock state.
const LOCK_STATE_BYTES: usize = 256;

/// The bytes of a locked range.
const RANGE_BYTES: usize = 64;

pub(super) struct LockOwner {
    pub(super) name: Arc<[u8]>,
    /// v4.0: the sequence of its requests.
    pub(super) seq: OwnerSeq,
    /// The serial numbers of its lock states.
    pub(super) states: Vec<u32>,
    /// The ranges that it has locked.
    pub(super) locked: HashMap<NodeKey, Ranges>,
    /// The number of those ranges.
    ranges: usize,
    charge: Charge,
}

impl OpenOwner {
    /// Creates an owner. `charge` is for [`OWNER_BYTES`] and the name.
    pub(super) fn new(name: &Arc<[u8]>, now: Duration, charge: Charge) -> OpenOwner {
        OpenOwner {
            name: name.clone(),
            seq: OwnerSeq::default(),
            confirmed: false,
            opens: HashMap::new(),
            closed: None,
            used: now,
            _charge: charge,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.opens.is_empty() && !self.seq.is_busy()
    }
}

impl LockOwner {
    /// Returns the bytes of one more lock, for an owner that may be new.
    pub(super) fn bytes_of_one(name: &[u8]) -> usize {
        OWNER_BYTES + name.len() + LOCK_STATE_BYTES + RANGE_BYTES
    }

    /// Creates an owner. `charge` is for [`LockOwner::bytes_of_one`].
    pub(super) fn new(name: &Arc<[u8]>, charge: Charge) -> LockOwner {
        LockOwner {
            name: name.clone(),
            seq: OwnerSeq::default(),
            states: Vec::new(),
            locked: HashMap::new(),
            ranges: 0,
            charge,
        }
    }

    /// Adds to its charge, until the next change recomputes it.
    pub(super) fn charge(&mut self, more: Charge) {
        self.charge.join(more);
    }

    /// Changes its locked ranges of `key`.
    pub(super) fn change(&mut self, key: NodeKey, change: impl FnOnce(&mut Ranges)) {
        let held = self.locked.entry(key).or_default();
        let before = held.count();
        change(held);
        self.ranges = self.ranges + held.count() - before;
        self.count();
    }

    /// Removes and returns its locked ranges of `key`.
    pub(super) fn forget(&mut self, key: NodeKey) -> Option<Ranges> {
        let removed = self.locked.remove(&key)?;
        self.ranges -= removed.count();
        self.count();
        Some(removed)
    }

    fn count(&mut self) {
        let bytes = OWNER_BYTES
            + self.name.len()
            + self.states.len() * LOCK_STATE_BYTES
            + self.ranges * RANGE_BYTES;
        self.charge.set(bytes);
    }
}

impl<O> Default for Owners<O> {
    fn default() -> Owners<O> {
        Owners {
            numbers: HashMap::new(),
            owners: HashMap::new(),
            last: 0,
        }
    }
}

impl<O> Owners<O> {
    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    pub(super) fn get(&self, number: u32) -> Option<&O> {
        self.owners.get(&number).map(|(_, owner)| owner)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut O> {
        self.owners.get_mut(&number).map(|(_, owner)| owner)
    }

    pub(super) fn insert(&mut self, name: &Arc<[u8]>, owner: O) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if !self.owners.contains_key(&self.last) {
                break;
            }
        }
        self.numbers.insert(name.clone(), self.last);
        self.owners.insert(self.last, (name.clone(), owner));
        self.last
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<O> {
        let (name, owner) = self.owners.remove(&number)?;
        self.numbers.remove(&name);
        Some(owner)
    }

    /// Removes all owners. Their numbers are not reused soon.
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        self.owners.clear();
    }

    /// Returns the numbers of the owners that match `which`.
    pub(super) fn which(&self, which: impl Fn(&O) -> bool) -> Vec<u32> {
        let named = self.owners.iter().filter(|(_, (_, owner))| which(owner));
        named.map(|(&number, _)| number).collect()
    }

    /// Returns the owner with the least `key` among those that match `which`.
    pub(super) fn least<K: Ord>(
        &self,
        which: impl Fn(&O) -> bool,
        key: impl Fn(&O) -> K,
    ) -> Option<u32> {
        let named = self.owners.iter().filter(|(_, (_, owner))| which(owner));
        let least = named.min_by_key(|(_, (_, owner))| key(owner))?;
        Some(*least.0)
    }
}
