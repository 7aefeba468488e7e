//! The table of files in a cache.
//!
//! Lock order: its own mutex, before that of a file.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use vfs::{Attr, NodeId, Result};

use super::cached::{Cached, Core, FileUse};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Files that are open or have data in the cache, a number bounded by the open files and the
/// memory, and files with unreported write-back errors. The latter are never dropped; while there
/// are [`Table::MAX_UNREPORTED`] of them, writes are not delayed, so there are no more than that
/// plus the files whose data was dirty then.
pub(super) struct Table {
    pub(super) core: Arc<Core>,
    files: Mutex<Files>,
    /// The size of `Files::unreported`, readable without the lock.
    unreported: AtomicUsize,
}

#[derive(Default)]
struct Files {
    by_id: HashMap<NodeId, Arc<Cached>>,
    /// Closed files with unreported errors.
    unreported: HashSet<NodeId>,
}

impl Table {
    /// The maximum number of closed files with unreported errors, left by programs that ignore the
    /// result of close, or write through memory maps. Beyond it writes are synchronous and report
    /// their errors at once.
    const MAX_UNREPORTED: usize = 1024;

    pub(super) fn new(core: Arc<Core>) -> Arc<Table> {
        Arc::new(Table {
            core,
            files: Mutex::default(),
            unreported: AtomicUsize::new(0),
        })
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock()
    }

    pub(super) fn find(&self, id: NodeId) -> Option<Arc<Cached>> {
        self.files().by_id.get(&id).cloned()
    }

    /// Adds an open of a file; see [`Cached::opened`].
    pub(super) fn open(&self, attr: &Attr, since: u64) -> Arc<Cached> {
        self.opened(attr.id, |file| file.opened(attr, since))
    }

    /// Adds an open of a file whose attributes were not read.
    pub(super) fn open_unchanged(&self, id: NodeId) -> Arc<Cached> {
        self.opened(id, Cached::opened_unchanged)
    }

    fn opened(&self, id: NodeId, open: impl FnOnce(&Cached)) -> Arc<Cached> {
        let mut files = self.files();
        let new = || Cached::new(self.core.clone(), id);
        let file = files.by_id.entry(id).or_insert_with(new).clone();
        // The new open reports the error.
        files.unreported.remove(&id);
        self.count(&files);
        // Before the table's lock is released, so that the file does not count as idle.
        open(&file);
        file
    }

    /// Drops a file that is no longer needed.
    pub(super) fn release(&self, file: &Arc<Cached>) {
        let mut files = self.files();
        let known = files.by_id.get(&file.id);
        if !known.is_some_and(|known| Arc::ptr_eq(known, file)) {
            return;
        }
        match file.file_use() {
            FileUse::InUse => {}
            FileUse::Unreported => drop(files.unreported.insert(file.id)),
            FileUse::Idle => {
                files.unreported.remove(&file.id);
                files.by_id.remove(&file.id);
            }
        }
        self.count(&files);
    }

    fn count(&self, files: &Files) {
        let now = files.unreported.len();
        let before = self.unreported.swap(now, Ordering::Relaxed);
        if before < Table::MAX_UNREPORTED && now >= Table::MAX_UNREPORTED {
            tracing::warn!(
                "write-back is off until programs have read the write errors of {now} files (fsync, close)"
            );
        }
    }

    /// Returns whether writes may be delayed: whether there is room for more unreported errors.
    pub(super) fn may_delay_writes(&self) -> bool {
        self.unreported.load(Ordering::Relaxed) < Table::MAX_UNREPORTED
    }

    /// Reports write-back errors of files that are not open. Later opens report them, too, unless
    /// there are too many files to remember for that.
    pub(super) fn check(&self) -> Result<()> {
        let full = !self.may_delay_writes();
        let mut done = Ok(());
        for file in self.all() {
            done = done.and(file.unreported_error(full));
            self.release(&file);
        }
        done
    }

    /// Makes room for `bytes` more.
    pub(super) fn make_room(&self, bytes: u64) {
        self.core.memory.make_room(bytes, |file| self.release(file));
    }

    pub(super) fn all(&self) -> Vec<Arc<Cached>> {
        self.files().by_id.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagecache::cached::Workers;

    fn attr(id: NodeId) -> Attr {
        vfs_testkit::script::default_attr(id, vfs::Kind::File)
    }

    /// Leaves a file with a write-back error that was not reported.
    fn left(table: &Table, id: NodeId) {
        let file = table.open(&attr(id), 0);
        file.lose();
        table.release(&file);
    }

    #[test]
    fn as_long_as_too_many_errors_are_untold_nothing_is_written_behind() {
        let table = Table::new(Core::new(
            1 << 20,
            1 << 20,
            Workers::new(1).expect("a thread"),
        ));
        let most = Table::MAX_UNREPORTED as NodeId;
        for id in 1..most {
            left(&table, id);
        }
        assert!(table.may_delay_writes());
        left(&table, most);
        left(&table, most + 1);
        assert!(!table.may_delay_writes());
        assert_eq!(table.all().len(), Table::MAX_UNREPORTED + 1);
        // The next open reports the error, and the table then drops the file.
        let opened = |id| {
            let file = table.open(&attr(id), 0);
            assert!(file.lock().errors.check(&mut 0).is_err());
            file.lock().opens -= 1;
            table.release(&file);
            assert!(table.find(id).is_none());
        };
        opened(1);
        opened(2);
        assert!(table.may_delay_writes());
        // A sync reports the errors of all files, and clears them only if there are too many to
        // remember.
        assert!(table.check().is_err() && table.check().is_err());
        opened(3);
        left(&table, most + 2);
        left(&table, most + 3);
        assert!(!table.may_delay_writes());
        assert!(table.check().is_err() && table.check().is_ok());
        assert!(table.all().is_empty());
    }
}
