//! Files that were listed and keep no fid, by their directories and names.
//!
//! Such a file is found by walking to its name, so a rename through this client has to tell it the
//! new one, and an unlink gives it a fid while there still is one. A file of which another node has
//! a fid, because it was looked up or opened, is listed with a fid as well: a node without one
//! must not take the place of a node that outlives its name.
//!
//! Lock order: the tables alone; no node is dropped while they are locked.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use vfs::NodeId;

use super::node::RemoteNode;

/// See the module.
#[derive(Default)]
pub(super) struct Unpinned {
    hash: RandomState,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    /// By the hash of directory and name. Of two with the same hash, the later one is known.
    nodes: HashMap<u64, Weak<RemoteNode>>,
    /// How many nodes of each file have fids.
    pins: HashMap<NodeId, usize>,
}

impl Unpinned {
    /// Adds `node`, which is at `name` in the directory `dir`.
    pub(super) fn insert(&self, dir: NodeId, name: &[u8], node: &Arc<RemoteNode>) {
        let key = self.key(dir, name);
        self.tables().nodes.insert(key, Arc::downgrade(node));
    }

    /// The node at `name` in the directory `dir`.
    pub(super) fn get(&self, dir: NodeId, name: &[u8]) -> Option<Arc<RemoteNode>> {
        let key = self.key(dir, name);
        let node = self.tables().nodes.get(&key).and_then(Weak::upgrade)?;
        node.is_at(dir, name).then_some(node)
    }

    /// Removes `node`, which was at `name` in the directory `dir`.
    pub(super) fn remove(&self, dir: NodeId, name: &[u8], node: &RemoteNode) {
        let mut tables = self.tables();
        if let Entry::Occupied(known) = tables.nodes.entry(self.key(dir, name))
            && std::ptr::eq(known.get().as_ptr(), node)
        {
            known.remove();
        }
    }

    /// A node of `file` has got a fid.
    pub(super) fn pin(&self, file: NodeId) {
        *self.tables().pins.entry(file).or_default() += 1;
    }

    /// A node of `file` that had a fid is gone.
    pub(super) fn unpin(&self, file: NodeId) {
        if let Entry::Occupied(mut pins) = self.tables().pins.entry(file) {
            *pins.get_mut() -= 1;
            if *pins.get() == 0 {
                pins.remove();
            }
        }
    }

    /// Whether a node of `file` has a fid.
    pub(super) fn is_pinned(&self, file: NodeId) -> bool {
        self.tables().pins.contains_key(&file)
    }

    fn key(&self, dir: NodeId, name: &[u8]) -> u64 {
        self.hash.hash_one((dir, name))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().expect("no panic holds it")
    }
}
