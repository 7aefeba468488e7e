//! The objects of a quota that operations change at the moment, and those without a name.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vfs::{Node, NodeId};

use super::Amount;
use super::usage::Usage;

/// The objects that operations change at the moment, and those without a name.
#[derive(Default)]
pub(super) struct Objects {
    table: HashMap<NodeId, Object>,
    /// The objects without a name, those that were checked least recently first.
    unlinked: VecDeque<NodeId>,
}

#[derive(Default)]
struct Object {
    /// The number of operations that change it at the moment.
    changes: usize,
    /// The number of them that remove a name.
    removals: usize,
    /// The bytes that are counted for it, once it has been measured.
    charged: Arc<Mutex<Option<u64>>>,
    /// The node, if it has no name.
    unlinked: Option<Weak<dyn Node>>,
    /// Whether it is in [`Objects::unlinked`].
    queued: bool,
}

impl Objects {
    /// Begins a change of the object `id`, and returns its charge.
    pub(super) fn enter(&mut self, id: NodeId, usage: &Usage) -> Arc<Mutex<Option<u64>>> {
        self.release_one(id, usage);
        let object = self.table.entry(id).or_default();
        object.changes += 1;
        object.charged.clone()
    }

    /// Ends a change of the object `id`.
    pub(super) fn leave(&mut self, id: NodeId) {
        if let Some(object) = self.table.get_mut(&id) {
            object.changes -= 1;
            if object.is_unneeded() {
                self.table.remove(&id);
            }
        }
    }

    /// Begins the removal of a name of the object `id`, which is being changed.
    pub(super) fn begin_removal(&mut self, id: NodeId) {
        if let Some(object) = self.table.get_mut(&id) {
            object.removals += 1;
        }
    }

    /// Ends the removal of a name of the object `id`, which is being changed.
    pub(super) fn end_removal(&mut self, id: NodeId) {
        if let Some(object) = self.table.get_mut(&id) {
            object.removals -= 1;
        }
    }

    /// Notes that `node` is in use, whose object is being changed and has no name. Returns whether
    /// the object was released.
    pub(super) fn note_use(&mut self, node: &Arc<dyn Node>) -> bool {
        let id = node.id();
        let Some(object) = self.table.get(&id) else {
            return false;
        };
        let counts = object.removals > 0 || object.unlinked.is_some();
        if object.removals == 0 {
            self.set_unlinked(id, Some(Arc::downgrade(node)));
        }
        !counts
    }

    /// Notes that the object `id`, which is being changed, is a node without a name, or that it
    /// has one.
    pub(super) fn set_unlinked(&mut self, id: NodeId, unlinked: Option<Weak<dyn Node>>) {
        let Some(object) = self.table.get_mut(&id) else {
            return;
        };
        object.unlinked = unlinked;
        if object.unlinked.is_some() && !object.queued {
            object.queued = true;
            self.unlinked.push_back(id);
        }
    }

    /// Returns the space of up to `count` objects that have neither a name nor a user.
    pub(super) fn release(&mut self, usage: &Usage, count: usize) {
        for _ in 0..count.min(self.unlinked.len()) {
            let Some(id) = self.unlinked.pop_front() else {
                return;
            };
            self.release_one(id, usage);
            let Some(object) = self.table.get_mut(&id) else {
                continue;
            };
            object.queued = object.unlinked.is_some();
            if object.queued {
                self.unlinked.push_back(id);
            } else if object.is_unneeded() {
                self.table.remove(&id);
            }
        }
    }

    /// Returns the space of the object `id` if it has neither a name nor a user. Its number may
    /// then be that of another object.
    fn release_one(&mut self, id: NodeId, usage: &Usage) {
        let Some(object) = self.table.get(&id) else {
            return;
        };
        let is_gone = |node: &Weak<dyn Node>| node.strong_count() == 0;
        if object.changes == 0 && object.unlinked.as_ref().is_some_and(is_gone) {
            usage.subtract(Amount {
                bytes: object.charged.lock().unwrap_or(0),
                inodes: 1,
            });
            self.table.remove(&id);
        }
    }
}

impl Object {
    /// Returns whether the table need not have it.
    fn is_unneeded(&self) -> bool {
        self.changes == 0 && self.unlinked.is_none() && !self.queued
    }
}
