//! The nodes by number, and the choice of descriptors to evict.
//!
//! The table does not keep nodes alive: a node removes itself when it is dropped. The same shards
//! hold the ring of nodes that have a descriptor, for a clock algorithm.
//!
//! Lock order: a shard is locked last and held for memory only; two are never held at once.

use std::hash::BuildHasher;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use concurrency::{FastRandomState, Shards};
use hashbrown::HashTable;
use parking_lot::MutexGuard;
use vfs::NodeId;

use crate::clock::ClockRing;

/// Enough that two cores rarely contend; each costs 200 bytes when empty.
pub(crate) const SHARDS: usize = 64;

/// The nodes of an export.
pub(crate) struct NodeTable<N> {
    shards: Shards<Shard<N>, SHARDS>,
    next: AtomicUsize,
}

/// A node, as the table sees it.
pub(crate) trait TableEntry {
    /// Returns its number.
    fn number(&self) -> NodeId;
    /// Returns its position in its shard's ring.
    fn ring_slot(&self) -> &RingSlot;
}

struct Shard<N> {
    nodes: Nodes<N>,
    ring: ClockRing<NonZeroU64>,
}

/// Nodes by their numbers, which are stored in the nodes: an entry takes nine bytes.
struct Nodes<N> {
    table: HashTable<Weak<N>>,
    hasher: FastRandomState,
}

/// Nodes that were accessed under a shard's lock, to be dropped after it: the last reference to a
/// node removes it from its shard.
type DroppedLater<N> = Vec<Arc<N>>;

/// A node's position in its shard's ring.
pub(crate) struct RingSlot(AtomicU32);

/// The result of a look-up that inserts if necessary.
pub(crate) enum Found<N> {
    /// The new node was inserted into the table and the ring.
    Inserted(Arc<N>),
    /// The existing node.
    Existing(Arc<N>),
}

impl<N: TableEntry> NodeTable<N> {
    pub(crate) fn new() -> NodeTable<N> {
        NodeTable {
            shards: Shards::new(Shard::new),
            next: AtomicUsize::new(0),
        }
    }

    /// Returns the live node with this number.
    pub(crate) fn get(&self, id: NodeId) -> Option<Arc<N>> {
        let mut dropped_later = DroppedLater::new();
        self.shard(id).nodes.get(id, &mut dropped_later)
    }

    /// Returns the live node with this number, unless it is `not`; otherwise inserts the node from
    /// `make`, which has a descriptor and takes over that number.
    pub(crate) fn get_or_insert(
        &self,
        id: NodeId,
        not: Option<&Arc<N>>,
        make: impl FnOnce() -> Arc<N>,
    ) -> Found<N> {
        let mut dropped_later = DroppedLater::new();
        let mut shard = self.shard(id);
        if let Some(node) = shard.nodes.get(id, &mut dropped_later) {
            // Pointer equality is reliable, since both nodes are live.
            if !not.is_some_and(|not| Arc::ptr_eq(not, &node)) {
                return Found::Existing(node);
            }
            shard.nodes.remove(&node);
        }
        let node = make();
        shard.nodes.insert(&node, &mut dropped_later);
        shard.insert_into_ring(id, node.ring_slot());
        Found::Inserted(node)
    }

    /// Inserts a node that has a descriptor again into the ring.
    pub(crate) fn insert_into_ring(&self, node: &N) {
        self.shard(node.number())
            .insert_into_ring(node.number(), node.ring_slot());
    }

    /// Removes a node without a descriptor from the ring.
    pub(crate) fn remove_from_ring(&self, node: &N) {
        self.shard(node.number()).remove_from_ring(node.ring_slot());
    }

    /// Removes a node that is being dropped.
    pub(crate) fn remove(&self, node: &N) {
        let mut shard = self.shard(node.number());
        shard.remove_from_ring(node.ring_slot());
        shard.nodes.remove(node);
    }

    /// Returns the next node with a descriptor in the rings, whose hands may be anywhere.
    pub(crate) fn next_in_ring(&self) -> Option<Arc<N>> {
        for _ in 0..SHARDS {
            let mut dropped_later = DroppedLater::new();
            let shard_index = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut shard = self.shards.all()[shard_index].lock();
            for _ in 0..shard.ring.len() {
                let Some(id) = shard.ring.advance().copied() else {
                    continue;
                };
                if let Some(node) = shard.nodes.get(id.get(), &mut dropped_later) {
                    return Some(node);
                }
            }
        }
        None
    }

    fn shard(&self, id: NodeId) -> MutexGuard<'_, Shard<N>> {
        self.shards.lock(&id)
    }
}

impl<N> Shard<N> {
    fn new() -> Shard<N> {
        Shard {
            nodes: Nodes {
                table: HashTable::new(),
                hasher: FastRandomState::default(),
            },
            ring: ClockRing::default(),
        }
    }

    fn insert_into_ring(&mut self, id: NodeId, slot: &RingSlot) {
        if slot.0.load(Ordering::Relaxed) == RingSlot::ABSENT
            && let Some(id) = NonZeroU64::new(id)
        {
            slot.0.store(self.ring.insert(id), Ordering::Relaxed);
        }
    }

    fn remove_from_ring(&mut self, slot: &RingSlot) {
        let at = slot.0.swap(RingSlot::ABSENT, Ordering::Relaxed);
        if at != RingSlot::ABSENT {
            self.ring.remove(at);
        }
    }
}

impl<N: TableEntry> Nodes<N> {
    fn get(&self, id: NodeId, dropped_later: &mut DroppedLater<N>) -> Option<Arc<N>> {
        let mut found = None;
        self.table
            .find(self.hasher.hash_one(id), |node| match node.upgrade() {
                Some(node) if node.number() == id => {
                    found = Some(node);
                    true
                }
                Some(other) => {
                    dropped_later.push(other);
                    false
                }
                None => false,
            });
        found
    }

    fn insert(&mut self, node: &Arc<N>, dropped_later: &mut DroppedLater<N>) {
        let (table, hasher) = (&mut self.table, &self.hasher);
        let hash = |node: &N| hasher.hash_one(node.number());
        if table.len() == table.capacity() {
            // Growing reads the nodes' numbers, so they must not be dropped meanwhile. Entries of
            // dropped nodes are removed.
            dropped_later.extend(table.iter().filter_map(Weak::upgrade));
            table.retain(|node| node.strong_count() > 0);
        }
        let rehash = |node: &Weak<N>| node.upgrade().map_or(0, |node| hash(&node));
        table.insert_unique(hash(node), Arc::downgrade(node), rehash);
    }

    /// Removes `node` itself: another node may have taken over its number.
    fn remove(&mut self, node: &N) {
        let is = |other: &Weak<N>| std::ptr::eq(other.as_ptr(), node);
        let hash = self.hasher.hash_one(node.number());
        if let Ok(entry) = self.table.find_entry(hash, is) {
            entry.remove();
        }
    }
}

impl RingSlot {
    const ABSENT: u32 = u32::MAX;

    pub(crate) fn new() -> RingSlot {
        RingSlot(AtomicU32::new(RingSlot::ABSENT))
    }
}
