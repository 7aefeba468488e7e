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
        loop {
            let hash = node.hash();
            let shard = self.shards.lock(&hash);
            if let Some(found) = shard.find(spread(hash), is(node)) {
                return found.upgrade();
            }
            // Otherwise another thread has moved the node to another shard meanwhile.
            if node.hash() == hash {
                return None;
            }
        }
    }

    /// Moves a node to the place with this hash. `update` sets the node's hash and location.
    pub(super) fn relocate(&self, node: &Arc<RemoteNode>, hash: u32, update: impl FnOnce()) {
        let mut later = DroppedLater::new();
        loop {
            let old = node.hash();
            // Both at once: the node is in the shard of its hash at all times.
            let (mut from, mut to) = self.shards.lock_both(&old, &hash);
            if node.hash() != old {
                continue;
            }
            remove(&mut from, node, &mut later);
            update();
            insert(to.as_mut().unwrap_or(&mut from), node, &mut later);
            return;
        }
    }

    /// Removes a node that is dropped.
    pub(super) fn remove(&self, node: &RemoteNode) {
        let mut later = DroppedLater::new();
        let mut shard = self.shards.lock(&node.hash());
        remove(&mut shard, node, &mut later);
        drop(shard);
    }
}

fn remove(shard: &mut HashTable<Weak<RemoteNode>>, node: &RemoteNode, later: &mut DroppedLater) {
    let Ok(entry) = shard.find_entry(spread(node.hash()), is(node)) else {
        return;
    };
    entry.remove();
    let (len, capacity) = (shard.len(), shard.capacity());
    if capacity >= Places::MIN_SHRINK && len <= capacity / 4 {
        prepare_rehash(shard, later);
        shard.shrink_to(len * 2, rehash);
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
