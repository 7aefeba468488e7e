//! Listed files without a fid, by directory and name.
//!
//! Such a file is found by walking to its name, so a rename through this client updates the name,
//! and an unlink first walks a fid to the file. A file of which another node has a fid, because it
//! was looked up or opened, is listed with a fid as well: a node without one must not take the
//! place of a node that outlives its name.
//!
//! Lock order: the tables alone; no node is dropped while they are locked.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use vfs::NodeId;

use super::node::RemoteNode;

/// The tables of this module.
#[derive(Default)]
pub(super) struct Unpinned {
    hash: RandomState,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    /// Keyed by the hash of directory and name. On a collision, the later node replaces the
    /// earlier.
    nodes: HashMap<u64, Weak<RemoteNode>>,
    /// The number of nodes with fids per file.
    pins: HashMap<NodeId, usize>,
}

impl Unpinned {
    /// Adds `node`, which is at `name` in the directory `dir`.
    pub(super) fn insert(&self, dir: NodeId, name: &[u8], node: &Arc<RemoteNode>) {
        let key = self.key(dir, name);
        self.tables().nodes.insert(key, Arc::downgrade(node));
    }

    /// Returns the node at `name` in the directory `dir`.
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

    /// Counts a node of `file` that has got a fid.
    pub(super) fn pin(&self, file: NodeId) {
        *self.tables().pins.entry(file).or_default() += 1;
    }

    /// Uncounts a node of `file` that had a fid and was dropped.
    pub(super) fn unpin(&self, file: NodeId) {
        if let Entry::Occupied(mut pins) = self.tables().pins.entry(file) {
            *pins.get_mut() -= 1;
            if *pins.get() == 0 {
                pins.remove();
            }
        }
    }

    /// Returns whether a node of `file` has a fid.
    pub(super) fn is_pinned(&self, file: NodeId) -> bool {
        self.tables().pins.contains_key(&file)
    }

    fn key(&self, dir: NodeId, name: &[u8]) -> u64 {
        self.hash.hash_one((dir, name))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock()
    }
}
