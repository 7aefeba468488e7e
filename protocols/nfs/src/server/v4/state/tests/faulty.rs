//! Storage whose writes can fail, for tests of the state and of the server.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{InMemory, Stable};

/// Records in memory, which cannot be changed while `fails` is set.
pub(super) struct Faulty {
    pub(super) records: InMemory,
    pub(super) fails: AtomicBool,
    is_required: bool,
}

impl Faulty {
    /// Returns storage without records, whose writes fail.
    pub(super) fn new(is_required: bool) -> Faulty {
        Faulty {
            records: InMemory::default(),
            fails: AtomicBool::new(true),
            is_required,
        }
    }

    fn check(&self) -> vfs::Result<()> {
        match self.fails.load(Ordering::SeqCst) {
            true => Err(vfs::Errno::EIO),
            false => Ok(()),
        }
    }
}

impl Stable for Faulty {
    fn list(&self) -> Vec<Box<[u8]>> {
        self.records.list()
    }

    fn put(&self, record: &[u8]) -> vfs::Result<()> {
        self.check()?;
        self.records.put(record)
    }

    fn remove(&self, record: &[u8]) -> vfs::Result<()> {
        self.check()?;
        self.records.remove(record)
    }

    fn is_required(&self) -> bool {
        self.is_required
    }
}
