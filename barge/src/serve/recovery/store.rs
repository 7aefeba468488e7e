//! The interface of the storage of a server's state, and its records as the protocol sees them.

use std::io;
use std::sync::Arc;

use nfs::server::v4::state::Stable;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use vfs::Errno;

use crate::status::Problem;

/// A list of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::serve) enum RecordList {
    /// The v4 clients that may reclaim.
    Clients,
    /// The v3 clients to notify of a restart.
    Monitored,
}

/// The identity of a server for one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::serve) struct Boot {
    /// The server's name, the same in each run: owner and scope of v4.1.
    pub(in crate::serve) name: String,
    /// A number that no earlier run had: neither 0, 1 nor `u32::MAX`.
    pub(in crate::serve) number: u32,
}

/// Storage of the state that survives a run of the server. Its methods may be called from several
/// threads, and wait until a change is durable. They do not call back.
pub(in crate::serve) trait StateStore: Send + Sync {
    /// Begins a run, of which there is one at a time.
    fn begin(&self) -> io::Result<Boot>;

    /// Returns all records of `list`, in any order.
    fn list(&self, list: RecordList) -> io::Result<Vec<Box<[u8]>>>;

    /// Adds `record` to `list`. Unless the store is shared, succeeds also if the record is to be
    /// added later.
    fn put(&self, list: RecordList, record: &[u8]) -> io::Result<()>;

    /// Removes `record` from `list`. A record that is not there is no error. After an error the
    /// record is removed later, unless the store is shared.
    fn remove(&self, list: RecordList, record: &[u8]) -> io::Result<()>;

    /// Returns whether another server may take over at any time.
    fn is_shared(&self) -> bool {
        false
    }
}

/// A list of records in a store.
pub(super) struct StoredRecords {
    store: Arc<dyn StateStore>,
    list: RecordList,
    problem: Problem,
    /// The records at the start, until [`Stable::list`] returns them.
    first: Mutex<Option<Vec<Box<[u8]>>>>,
}

impl StoredRecords {
    /// Returns the records of `list` in `store`. If they cannot be read, no client may reclaim
    /// state, unless the store is shared: then that is an error, as locks that other clients hold
    /// would be granted at once.
    pub(super) fn open(
        store: &Arc<dyn StateStore>,
        list: RecordList,
        problem: &Problem,
    ) -> io::Result<Arc<dyn Stable>> {
        let first = match store.is_shared() {
            true => Some(store.list(list)?),
            false => None,
        };
        Ok(Arc::new(StoredRecords {
            store: store.clone(),
            list,
            problem: problem.clone(),
            first: Mutex::new(first),
        }))
    }

    /// Reports the result of a change of a shared store. A file reports its problems itself.
    fn report(&self, result: io::Result<()>) -> vfs::Result<()> {
        if self.store.is_shared() {
            match &result {
                Ok(()) => self.problem.end(),
                Err(error) => self.problem.begin(&error.to_string()),
            }
        }
        result.map_err(|_| Errno::EIO)
    }
}

impl Stable for StoredRecords {
    fn list(&self) -> Vec<Box<[u8]>> {
        if let Some(first) = self.first.lock().take() {
            return first;
        }
        self.store.list(self.list).unwrap_or_else(|error| {
            tracing::warn!("no client may reclaim state: {error}");
            Vec::new()
        })
    }

    fn put(&self, record: &[u8]) -> vfs::Result<()> {
        self.report(self.store.put(self.list, record))
    }

    fn remove(&self, record: &[u8]) -> vfs::Result<()> {
        self.report(self.store.remove(self.list, record))
    }

    fn is_required(&self) -> bool {
        self.store.is_shared()
    }
}
