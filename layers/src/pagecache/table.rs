//! Which files there are in a cache.
//!
//! Lock order: its own mutex, before that of a file.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use vfs::{Attr, NodeId, Result};

use super::cached::{Cached, Use};
use super::core::Core;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Files that are open, or of which something is in the cache: no more than are open and there is memory of, and those whose errors
/// nobody was told of, which are never forgotten: nothing is written behind while there are [`Table::UNTOLD`], so they become no more than
/// that and what the memory had to be written.
pub(super) struct Table {
    pub(super) core: Arc<Core>,
    files: Mutex<Files>,
    /// How many are untold, for those who do not have the lock.
    untold: AtomicUsize,
}

#[derive(Default)]
struct Files {
    by_id: HashMap<NodeId, Arc<Cached>>,
    /// Those that were left with errors that nobody was told of.
    untold: HashSet<NodeId>,
}

impl Table {
    /// So many files may be left with errors that nobody was told of, which takes programs that close without asking, or write by memory
    /// maps. From there on whoever writes waits for it, and is told at once.
    const UNTOLD: usize = 1024;

    pub(super) fn new(core: Arc<Core>) -> Arc<Table> {
        Arc::new(Table {
            core,
            files: Mutex::default(),
            untold: AtomicUsize::new(0),
        })
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().expect("no panic holds it")
    }

    pub(super) fn find(&self, id: NodeId) -> Option<Arc<Cached>> {
        self.files().by_id.get(&id).cloned()
    }

    /// A file that was opened; see [`Cached::opened`].
    pub(super) fn open(&self, attr: &Attr, since: u64) -> Arc<Cached> {
        self.opened(attr.id, |file| file.opened(attr, since))
    }

    /// A file that was opened, and nobody was asked what it is.
    pub(super) fn join(&self, id: NodeId) -> Arc<Cached> {
        self.opened(id, Cached::joined)
    }

    fn opened(&self, id: NodeId, open: impl FnOnce(&Cached)) -> Arc<Cached> {
        let mut files = self.files();
        let new = || Cached::new(self.core.clone(), id);
        let file = files.by_id.entry(id).or_insert_with(new).clone();
        // Who has it open asks.
        files.untold.remove(&id);
        self.count(&files);
        // Before the table's lock is gone, lest somebody takes it for idle.
        open(&file);
        file
    }

    /// Forgets a file if there is no need of it any more.
    pub(super) fn leave(&self, file: &Arc<Cached>) {
        let mut files = self.files();
        let known = files.by_id.get(&file.id);
        if !known.is_some_and(|known| Arc::ptr_eq(known, file)) {
            return;
        }
        match file.used() {
            Use::Needed => {}
            Use::Untold => drop(files.untold.insert(file.id)),
            Use::Idle => {
                files.untold.remove(&file.id);
                files.by_id.remove(&file.id);
            }
        }
        self.count(&files);
    }

    fn count(&self, files: &Files) {
        let now = files.untold.len();
        let before = self.untold.swap(now, Ordering::Relaxed);
        if before < Table::UNTOLD && now >= Table::UNTOLD {
            tracing::warn!(
                "{now} files were written behind and lost, and nobody has asked: until somebody does nothing is written behind"
            );
        }
    }

    /// Whether there is room for more errors that nobody may ask for.
    pub(super) fn writes_behind(&self) -> bool {
        self.untold.load(Ordering::Relaxed) < Table::UNTOLD
    }

    /// Tells what was lost of files that nobody has open any more. Who opens them is told as well, unless there are too many to be
    /// remembered for that.
    pub(super) fn check(&self) -> Result<()> {
        let full = !self.writes_behind();
        let mut done = Ok(());
        for file in self.all() {
            done = done.and(file.owes(full));
            self.leave(&file);
        }
        done
    }

    /// Room for `bytes` more.
    pub(super) fn make_room(&self, bytes: u64) {
        self.core.memory.make_room(bytes, |file| self.leave(file));
    }

    pub(super) fn all(&self) -> Vec<Arc<Cached>> {
        self.files().by_id.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(id: NodeId) -> Attr {
        vfs_testkit::script::plain_attr(id, vfs::Kind::File)
    }

    /// One that was written, lost, and left without anybody asking.
    fn left(table: &Table, id: NodeId) {
        let file = table.open(&attr(id), 0);
        file.lose();
        table.leave(&file);
    }

    #[test]
    fn as_long_as_too_many_errors_are_untold_nothing_is_written_behind() {
        let table = Table::new(Core::new(1 << 20, 1).expect("a thread"));
        let most = Table::UNTOLD as NodeId;
        for id in 1..most {
            left(&table, id);
        }
        assert!(table.writes_behind());
        left(&table, most);
        left(&table, most + 1);
        assert!(!table.writes_behind());
        assert_eq!(table.all().len(), Table::UNTOLD + 1);
        // Who opens one is told, and then there is nothing to be known.
        let opened = |id| {
            let file = table.open(&attr(id), 0);
            assert!(file.lock().errors.check(&mut 0).is_err());
            file.lock().opens -= 1;
            table.leave(&file);
            assert!(table.find(id).is_none());
        };
        opened(1);
        opened(2);
        assert!(table.writes_behind());
        // Whoever asks for all is told of all, which is enough only where there is no room for more.
        assert!(table.check().is_err() && table.check().is_err());
        opened(3);
        left(&table, most + 2);
        left(&table, most + 3);
        assert!(!table.writes_behind());
        assert!(table.check().is_err() && table.check().is_ok());
        assert!(table.all().is_empty());
    }
}
