//! Storage for the records that survive a restart so that clients may reclaim their state.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// The list of the clients that may reclaim after a restart (RFC 7530 section 9.6.3.4, RFC 8881
/// section 8.4.2.1): one record, of a few hundred bytes, for each client that has opened a file. It
/// is called with locks of single clients held, so it must not call back.
pub trait Stable: Send + Sync {
    /// Returns all records.
    fn list(&self) -> Vec<Box<[u8]>>;

    /// Stores `record`, durably when this returns; unless [`Stable::is_required`], a storage that
    /// fails now may do so later, and the client cannot reclaim until then. If this fails, the
    /// client cannot reclaim, and gets no open or lock if [`Stable::is_required`].
    fn put(&self, record: &[u8]) -> vfs::Result<()>;

    /// Removes `record`, durably when this returns. If it fails, the record may still be stored,
    /// and may be removed later: the client's state is not given to other clients, and if the
    /// client keeps it, the record has to be put again.
    fn remove(&self, record: &[u8]) -> vfs::Result<()>;

    /// Returns whether clients whose records cannot be stored get neither opens nor locks: another
    /// server, which takes over at any time, would grant the same to others.
    fn is_required(&self) -> bool {
        false
    }
}

/// Records in memory, with the lifetime of the [`super::State`].
#[derive(Default)]
pub struct InMemory(Mutex<BTreeSet<Box<[u8]>>>);

impl Stable for InMemory {
    fn list(&self) -> Vec<Box<[u8]>> {
        self.0.lock().iter().cloned().collect()
    }

    fn put(&self, record: &[u8]) -> vfs::Result<()> {
        self.0.lock().insert(record.into());
        Ok(())
    }

    fn remove(&self, record: &[u8]) -> vfs::Result<()> {
        self.0.lock().remove(record);
        Ok(())
    }
}
