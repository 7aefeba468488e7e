//! The nodes by directory and name.
//!
//! A node whose fid was given up is found by walking to its name again, so a rename through this
//! client updates the name, and an unlink first walks a fid to the file. A node that was found at a
//! name again is the same one.
//!
//! Lock order: a shard, and then a node's location; no node is dropped while a shard is locked.

use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

use concurrency::{FastRandomState, Shards};
use hashbrown::HashTable;
use vfs::{Kind, NodeId};

use super::node::RemoteNode;

/// The nodes of a tree. The table does not keep them alive: a node removes itself when it is
/// dropped.
#[derive(Default)]
pub(super) struct Places {
    hasher: FastRandomState,
    shards: Shards<HashTable<Weak<RemoteNode>>, SHARDS>,
}

/// More than the threads that work for one mount.
const SHARDS: usize = 64;

/// Nodes that were accessed under a shard's lock, to be dropped after it: the last reference to a
/// node removes it from its shard.
type DroppedLater = Vec<Arc<RemoteNode>>;

impl Places {
    /// A shard of fewer nodes does not shrink.
    const MIN_SHRINK: usize = 64;

    /// Returns the hash of a place.
    pub(super) fn hash(&self, dir: NodeId, name: &[u8]) -> u32 {
        self.hasher.hash_one((dir, name)) as u32
    }

    /// Returns the node of the object `id` at `name` in the directory `dir`, or inserts the one
    /// that `make` returns, whose hash is that of the place.
    pub(super) fn get_or_insert(
        &self,
        (dir, name): (NodeId, &[u8]),
        (id, kind): (NodeId, Kind),
        make: impl FnOnce(u32) -> Arc<RemoteNode>,
    ) -> Arc<RemoteNode> {
        let mut later = DroppedLater::new();
        let hash = self.hash(dir, name);
        let mut shard = self.shards.lock(&hash);
        for node in shard.iter_hash(spread(hash)).filter_map(Weak::upgrade) {
            if (node.id, node.kind) == (id, kind) && node.is_at(dir, name) {
                return node;
            }
            later.push(node);
        }
        let node = make(hash);
        insert(&mut shard, &node, &mut later);
        drop(shard);
        node
    }

    /// Inserts a new node.
    pub(super) fn insert(&self, node: &Arc<RemoteNode>) {
        let mut later = DroppedLater::new();
        let mut shard = self.shards.lock(&node.hash());
        insert(&mut shard, node, &mut later);
        drop(shard);
    }

    /// Returns the nodes at `name` in the directory `dir`: more than one if the object there was
    /// replaced by another client.
    pub(super) fn at(&self, dir: NodeId, name: &[u8]) -> Vec<Arc<RemoteNode>> {
        let hash = self.hash(dir, name);
        let shard = self.shards.lock(&hash);
        let found = shard.iter_hash(spread(hash)).filter_map(Weak::upgrade);
        let mut found: Vec<_> = found.collect();
        drop(shard);
        found.retain(|node| node.is_at(dir, name));
        found
    }

    /// Returns the `Arc` of a node. `None` means that it is being dropped.
    pub(super) fn shared(&self, node: &RemoteNode) -> Option<Arc<RemoteNode>> {
        /// Another thread may be moving the node from one shard to another, which takes no call.
        const TRIES: usize = 100_000;
        for _ in 0..TRIES {
            let hash = node.hash();
            let shard = self.shards.lock(&hash);
            if let Some(found) = shard.find(spread(hash), is(node)) {
                return found.upgrade();
            }
            drop(shard);
            std::thread::yield_now();
        }
        None
    }

    /// Removes a node that is dropped or moved.
    pub(super) fn remove(&self, node: &RemoteNode) {
        let mut later = DroppedLater::new();
        let hash = node.hash();
        let mut shard = self.shards.lock(&hash);
        if let Ok(entry) = shard.find_entry(spread(hash), is(node)) {
            entry.remove();
            let (len, capacity) = (shard.len(), shard.capacity());
            if capacity >= Places::MIN_SHRINK && len <= capacity / 4 {
                prepare_rehash(&mut shard, &mut later);
                shard.shrink_to(len * 2, rehash);
            }
        }
        drop(shard);
    }
}

fn insert(
    shard: &mut HashTable<Weak<RemoteNode>>,
    node: &Arc<RemoteNode>,
    later: &mut DroppedLater,
) {
    if shard.len() == shard.capacity() {
        prepare_rehash(shard, later);
    }
    shard.insert_unique(spread(node.hash()), Arc::downgrade(node), rehash);
}

/// Keeps the nodes of a shard alive, whose hashes are in them, and removes dropped ones.
fn prepare_rehash(shard: &mut HashTable<Weak<RemoteNode>>, later: &mut DroppedLater) {
    later.extend(shard.iter().filter_map(Weak::upgrade));
    shard.retain(|node| node.strong_count() > 0);
}

fn rehash(node: &Weak<RemoteNode>) -> u64 {
    node.upgrade().map_or(0, |node| spread(node.hash()))
}

fn is(node: &RemoteNode) -> impl Fn(&Weak<RemoteNode>) -> bool {
    move |other| std::ptr::eq(other.as_ptr(), node)
}

/// Spreads a hash over the bits that a table uses, the lowest and the top seven.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(hash)
}
