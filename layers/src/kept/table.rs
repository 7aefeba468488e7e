//! Which files are open.
//!
//! Lock order: its own mutex, alone; then that of a file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use vfs::{Attr, NodeId};

use super::copy::Copy;
use super::filling::Filling;
use super::version::Version;

/// A file that somebody has open.
pub(super) struct Entry {
    pub(super) id: NodeId,
    /// Moves when no copy is what the file has any more, for those who have it open.
    epoch: AtomicU64,
    /// How many may write to it.
    writers: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) copy: Option<Arc<Copy>>,
    pub(super) filling: Option<Arc<Filling>>,
    /// What whoever reads a copy believes the file to be.
    pub(super) version: Option<Version>,
}

impl Entry {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic holds it")
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Whether somebody may write to it.
    pub(super) fn is_written(&self) -> bool {
        self.writers.load(Ordering::SeqCst) > 0
    }

    /// Whoever has it open reads the source from now on.
    pub(super) fn doubt(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let old = std::mem::take(&mut *self.state());
        if let Some(filling) = &old.filling {
            filling.cancel();
        }
    }

    /// Attributes have come, of which all of [`vfs::Want::STAT`] was asked for.
    pub(super) fn meet(&self, attr: &Attr) {
        let version = self.state().version;
        if version.is_some_and(|version| !version.is_of(attr)) {
            self.doubt();
        }
    }
}

#[derive(Default)]
pub(super) struct Table(Mutex<HashMap<NodeId, (Arc<Entry>, usize)>>);

impl Table {
    fn entries(&self) -> MutexGuard<'_, HashMap<NodeId, (Arc<Entry>, usize)>> {
        self.0.lock().expect("no panic holds it")
    }

    pub(super) fn find(&self, id: NodeId) -> Option<Arc<Entry>> {
        self.entries().get(&id).map(|(entry, _)| entry.clone())
    }

    /// One more has the file open, perhaps to write to it.
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

    /// One has it no more; the copy that was being made if he was the last.
    pub(super) fn close(&self, entry: &Entry, writes: bool) -> Option<Arc<Filling>> {
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
