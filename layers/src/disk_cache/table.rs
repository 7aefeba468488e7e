//! The table of open files.
//!
//! Lock order: its own mutex, alone; then that of a file.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use vfs::{Attr, NodeId};

use super::cached_copy::CachedCopy;
use super::partial_copy::PartialCopy;
use super::version::Version;

/// An open file.
pub(super) struct Entry {
    pub(super) id: NodeId,
    /// Incremented when copies become invalid for the current opens.
    epoch: AtomicU64,
    /// The number of opens for writing.
    writers: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) copy: Option<Arc<CachedCopy>>,
    pub(super) filling: Option<Arc<PartialCopy>>,
    /// The version that readers of a copy take the file to have.
    pub(super) version: Option<Version>,
}

impl Entry {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Returns whether the file is open for writing.
    pub(super) fn has_writers(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    /// Sends all current opens back to the source.
    pub(super) fn invalidate(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let old = std::mem::take(&mut *self.state());
        if let Some(filling) = &old.filling {
            filling.cancel();
        }
    }

    /// Checks new attributes, requested with all of [`vfs::AttrMask::STAT`], for a change.
    pub(super) fn revalidate(&self, attr: &Attr) {
        let version = self.state().version;
        if version.is_some_and(|version| !version.matches(attr)) {
            self.invalidate();
        }
    }
}

#[derive(Default)]
pub(super) struct Table(Mutex<HashMap<NodeId, (Arc<Entry>, usize)>>);

impl Table {
    fn entries(&self) -> MutexGuard<'_, HashMap<NodeId, (Arc<Entry>, usize)>> {
        self.0.lock()
    }

    pub(super) fn find(&self, id: NodeId) -> Option<Arc<Entry>> {
        self.entries().get(&id).map(|(entry, _)| entry.clone())
    }

    /// Counts an open of the file, perhaps for writing.
    pub(super) fn open(&self, id: NodeId, writes: bool) -> Arc<Entry> {
        let mut entries = self.entries();
        let (entry, opens) = entries.entry(id).or_insert_with(|| {
            let entry = Entry {
                id,
                epoch: AtomicU64::new(0),
                writers: AtomicUsize::new(0),
                state: Mutex::default(),
            };
            (Arc::new(entry), 0)
        });
        *opens += 1;
        if writes {
            entry.writers.fetch_add(1, Ordering::SeqCst);
        }
        entry.clone()
    }

    /// Counts a close. The last one returns the copy that was being filled.
    pub(super) fn close(&self, entry: &Entry, writes: bool) -> Option<Arc<PartialCopy>> {
        let mut entries = self.entries();
        if writes {
            entry.writers.fetch_sub(1, Ordering::SeqCst);
        }
        let (_, opens) = entries.get_mut(&entry.id)?;
        *opens -= 1;
        if *opens > 0 {
            return None;
        }
        entries.remove(&entry.id);
        entry.state().filling.take()
    }
}
