//! Which files there are in a cache.
//!
//! Lock order: its own mutex, before that of a file.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use vfs::{Attr, NodeId};

use super::cached::{Cached, Use};
use super::core::Core;
use crate::sync::{Mutex, MutexGuard};

/// Files that are open, or of which something is in the cache: no more than are open and there is memory of, and some whose errors
/// nobody was told of.
pub(super) struct Table {
    pub(super) core: Arc<Core>,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    by_id: HashMap<NodeId, Arc<Cached>>,
    /// Those that were left with errors that nobody was told of; perhaps somebody was since.
    untold: VecDeque<NodeId>,
}

impl Files {
    /// Files whose errors nobody was told of are known up to so many: whoever opens none of them again will never ask.
    const UNTOLD: usize = 1024;

    fn remove_if(&mut self, id: NodeId, of: Use) -> bool {
        let known = self.by_id.get(&id);
        let is = known.is_some_and(|known| known.used() == of);
        if is {
            self.by_id.remove(&id);
        }
        is
    }

    /// Remembers one that was left, and forgets the oldest if there are too many.
    fn remember(&mut self, id: NodeId) {
        if !self.untold.contains(&id) {
            self.untold.push_back(id);
        }
        if self.untold.len() > Files::UNTOLD
            && let Some(oldest) = self.untold.pop_front()
            && self.remove_if(oldest, Use::Untold)
        {
            tracing::warn!(
                "nobody has asked what became of a file that was written behind and lost"
            );
        }
    }
}

impl Table {
    pub(super) fn new(core: Arc<Core>) -> Arc<Table> {
        Arc::new(Table {
            core,
            files: Mutex::default(),
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
        let mut files = self.files();
        let new = || Cached::new(self.core.clone(), attr.id, attr);
        let file = files.by_id.entry(attr.id).or_insert_with(new).clone();
        // Before the table's lock is gone, lest somebody takes it for idle.
        file.opened(attr, since);
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
            Use::Untold => files.remember(file.id),
            Use::Idle => drop(files.by_id.remove(&file.id)),
        }
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
    fn files_whose_errors_nobody_was_told_of_are_not_known_for_ever() {
        let table = Table::new(Core::new(1 << 20, 1).expect("a thread"));
        let most = Files::UNTOLD as NodeId;
        for id in 1..=most {
            left(&table, id);
        }
        assert_eq!(table.all().len(), Files::UNTOLD);
        // Who opens one is told, and then there is nothing to be known.
        let file = table.open(&attr(2), 0);
        assert!(file.lock().errors.check(&mut 0).is_err());
        file.lock().opens -= 1;
        table.leave(&file);
        left(&table, most + 1);
        left(&table, most + 2);
        let known = [1, 2, 3, most + 2].map(|id| table.find(id).is_some());
        assert_eq!(known, [false, false, true, true]);
    }
}
