//! What must survive the server so that clients may reclaim what they had.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::table::lock;

/// Which clients may reclaim after a restart (RFC 7530 section 9.6.3.4, RFC 8881 section 8.4.2.1): one
/// record, a few hundred bytes, for each that has opened anything. Called with locks of single
/// clients held, so it must not call back.
pub trait Stable: Send + Sync {
    /// All records.
    fn list(&self) -> Vec<Box<[u8]>>;

    /// Keeps `record`, durably by the time this returns. If it fails the client cannot reclaim.
    fn put(&self, record: &[u8]) -> vfs::Result<()>;

    /// Forgets `record`, durably by the time this returns. If it fails, what the client has is given to
    /// nobody else.
    fn remove(&self, record: &[u8]) -> vfs::Result<()>;
}

/// Records that survive nothing but a [`super::State`].
#[derive(Default)]
pub struct InMemory(Mutex<BTreeSet<Box<[u8]>>>);

impl Stable for InMemory {
    fn list(&self) -> Vec<Box<[u8]>> {
        lock(&self.0).iter().cloned().collect()
    }

    fn put(&self, record: &[u8]) -> vfs::Result<()> {
        lock(&self.0).insert(record.into());
        Ok(())
    }

    fn remove(&self, record: &[u8]) -> vfs::Result<()> {
        lock(&self.0).remove(record);
        Ok(())
    }
}
