//! What the client has open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use vfs::{Errno, File, Kind, Node, OpenFlags, Result};

use super::lock::Lockers;
use super::shards::Shards;

/// An open file or directory. What was locked through it goes before the file does.
pub(super) struct Open {
    pub(super) locked: Locked,
    pub(super) file: Arc<dyn File>,
    pub(super) flags: OpenFlags,
}

/// A node that is open, and whether it was locked so.
pub(super) struct Locked {
    pub(super) node: Arc<dyn Node>,
    pub(super) lockers: Arc<Lockers>,
    pub(super) any: AtomicBool,
}

impl Open {
    pub(super) fn node(&self) -> &dyn Node {
        &*self.locked.node
    }

    pub(super) fn is_directory(&self) -> bool {
        self.node().kind() == Kind::Directory
    }
}

/// The open files of a mount, by numbers that are never used again.
pub(super) struct Handles {
    table: Shards<Arc<Open>>,
    next: AtomicU64,
    count: AtomicUsize,
    most: usize,
}

/// A place for one more, given back when dropped.
pub(super) struct Reserved<'a>(Option<&'a Handles>);

impl Handles {
    pub(super) fn new(most: usize) -> Handles {
        Handles {
            table: Shards::new(),
            next: AtomicU64::new(1),
            count: AtomicUsize::new(0),
            most,
        }
    }

    /// What is open as `fh`, `EBADF` if nothing is.
    #[inline]
    pub(super) fn get(&self, fh: u64) -> Result<Arc<Open>> {
        self.table.of(fh).get(&fh).cloned().ok_or(Errno::EBADF)
    }

    /// Keeps a place free, `ENFILE` if there is none.
    pub(super) fn reserve(&self) -> Result<Reserved<'_>> {
        let reserved = Reserved(Some(self));
        match self.count.fetch_add(1, Ordering::Relaxed) < self.most {
            true => Ok(reserved),
            false => Err(Errno::ENFILE),
        }
    }

    /// Ends what is open as `fh`, once no other request uses it; `EBADF` if nothing is.
    pub(super) fn remove(&self, fh: u64) -> Result<Arc<Open>> {
        let removed = self.table.of(fh).remove(&fh).ok_or(Errno::EBADF)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Ok(removed)
    }

    /// Closes them all.
    pub(super) fn clear(&self) {
        for shard in self.table.take() {
            self.count.fetch_sub(shard.len(), Ordering::Relaxed);
        }
    }
}

impl Reserved<'_> {
    /// Puts `open` there, and says what it is open as.
    pub(super) fn keep(mut self, open: Open) -> u64 {
        let Some(handles) = self.0.take() else {
            return 0;
        };
        let fh = handles.next.fetch_add(1, Ordering::Relaxed);
        handles.table.of(fh).insert(fh, Arc::new(open));
        fh
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(handles) = self.0 {
            handles.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
