//! Which files there are in a cache.
//!
//! Lock order: its own mutex, before that of a file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use vfs::{Attr, NodeId};

use super::cached::Cached;
use super::core::Core;

/// Files that are open, or of which something is in the cache: no more than are open and there is memory of.
pub(super) struct Table {
    pub(super) core: Arc<Core>,
    files: Mutex<HashMap<NodeId, Arc<Cached>>>,
}

impl Table {
    pub(super) fn new(core: Arc<Core>) -> Arc<Table> {
        Arc::new(Table {
            core,
            files: Mutex::default(),
        })
    }

    fn files(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<Cached>>> {
        self.files.lock().expect("no panic holds it")
    }

    pub(super) fn find(&self, id: NodeId) -> Option<Arc<Cached>> {
        self.files().get(&id).cloned()
    }

    /// A file that was opened; see [`Cached::opened`].
    pub(super) fn open(&self, attr: &Attr, since: u64) -> Arc<Cached> {
        let mut files = self.files();
        let new = || Cached::new(self.core.clone(), attr.id, attr);
        let file = files.entry(attr.id).or_insert_with(new).clone();
        // Before the table's lock is gone, lest somebody takes it for idle.
        file.opened(attr, since);
        file
    }

    /// Forgets a file if there is no need of it any more.
    pub(super) fn leave(&self, file: &Arc<Cached>) {
        let mut files = self.files();
        let known = files.get(&file.id);
        if known.is_some_and(|known| Arc::ptr_eq(known, file)) && file.is_idle() {
            files.remove(&file.id);
        }
    }

    /// Room for `bytes` more.
    pub(super) fn make_room(&self, bytes: u64) {
        self.core.memory.make_room(bytes, |file| self.leave(file));
    }

    pub(super) fn all(&self) -> Vec<Arc<Cached>> {
        self.files().values().cloned().collect()
    }
}
