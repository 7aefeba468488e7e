//! The client's open files.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use vfs::{Account, Allotment, Errno, File, Kind, Node, OpenFlags, Portion, Quota, Result};

use super::io_modes::IoModeRef;
use super::lock::{MountLocks, UNKNOWN_HANDLE};
use super::table::{Entries, Incarnation, Table};
use super::takeover::{FileRecord, OpenNodes, OptionalRecords, Place, Records};

/// An open file or directory. Its locks are released before the file is dropped.
pub(super) struct Open {
    pub(super) locks: HandleLocks,
    pub(super) file: Arc<dyn File>,
    pub(super) flags: OpenFlags,
    /// The same file opened without append, if the client opened it to append.
    pub(super) in_place: Option<Arc<dyn File>>,
    /// The file's share in its node's I/O mode, if there are several modes.
    pub(super) io_mode: Option<IoModeRef>,
    /// The node's id.
    pub(super) nodeid: u64,
}

/// An open node, and the locks that were requested through this handle.
pub(super) struct HandleLocks {
    pub(super) node: Arc<dyn Node>,
    pub(super) mount_locks: Arc<MountLocks>,
    /// The handle's number after the first request.
    pub(super) requested: AtomicU64,
}

impl HandleLocks {
    /// Returns those of an open file of `node`, without locks.
    pub(super) fn new(node: Arc<dyn Node>, mount_locks: Arc<MountLocks>) -> HandleLocks {
        HandleLocks {
            node,
            mount_locks,
            requested: AtomicU64::new(UNKNOWN_HANDLE),
        }
    }
}

impl Open {
    pub(super) fn node(&self) -> &dyn Node {
        &*self.locks.node
    }

    pub(super) fn is_directory(&self) -> bool {
        self.node().kind() == Kind::Directory
    }

    /// Returns the file for a write at the end (`appends`) or at the write's own offset. A client
    /// may do either through a file that is open to append: Linux writes pages of a mapping through
    /// any file of the node that is open for writing, and fcntl(2) can clear `O_APPEND`. Returns
    /// `EIO` if the source refused to open the file without append.
    pub(super) fn writer(&self, appends: bool) -> Result<&dyn File> {
        if appends || !self.flags.contains(OpenFlags::APPEND) {
            return Ok(&*self.file);
        }
        self.in_place.as_deref().ok_or(Errno::EIO)
    }
}

/// The open files of a mount, by numbers that are never reused. They are bounded in number, and
/// their memory counts as guest state in the memory budget.
pub(super) struct Handles {
    table: Table<Handle>,
    next: AtomicU64,
    count: AtomicUsize,
    max: usize,
    /// The memory of the handles, on the client's account.
    bytes: OnceLock<Arc<Allotment>>,
    records: OptionalRecords,
    /// The open files of each node, for those that lose their last name.
    pub(super) open_nodes: OpenNodes,
}

/// The estimated size of an open file in bytes, with the source's part.
const OPEN_BYTES: usize = 640;

/// An entry of the table.
pub(super) struct Handle {
    open: Arc<Open>,
    /// The file's record, if it has one.
    record: Option<Place>,
    /// The [`OPEN_BYTES`] bytes.
    _charge: Portion,
}

/// A reserved slot for a handle, released when dropped.
pub(super) struct ReservedHandle<'a> {
    handles: &'a Handles,
    /// `None` after use.
    charge: Option<Portion>,
}

impl Handles {
    pub(super) fn new(most: usize) -> Handles {
        Handles {
            table: Table::new(),
            next: AtomicU64::new(1),
            count: AtomicUsize::new(0),
            max: most,
            bytes: OnceLock::new(),
            records: None,
            open_nodes: OpenNodes::default(),
        }
    }

    /// Records open files from now on.
    pub(super) fn set_records(&mut self, records: Arc<Records>) {
        self.records = Some(records);
    }

    /// Returns the open file `fh`, or `EBADF` if there is none.
    #[inline]
    pub(super) fn get(&self, incarnation: Incarnation, fh: u64) -> Result<Arc<Open>> {
        let shard = self.table.shard(incarnation, fh).ok_or(Errno::EBADF)?;
        let handle = shard.entries.get(fh).ok_or(Errno::EBADF)?;
        Ok(handle.open.clone())
    }

    /// Reserves a slot. Returns `ENFILE` if the table is full or `account`, which is the same for
    /// all requests of a mount, has no memory left.
    pub(super) fn reserve(&self, account: &Account) -> Result<ReservedHandle<'_>> {
        let bytes = self.bytes.get_or_init(|| {
            // The table itself bounds the number of handles.
            Allotment::new(&Quota::shared(usize::MAX, 1), account)
        });
        let charge = bytes.take(OPEN_BYTES).map_err(|_| Errno::ENFILE)?;
        let reserved = ReservedHandle {
            handles: self,
            charge: Some(charge),
        };
        match self.count.fetch_add(1, Ordering::Relaxed) < self.max {
            true => Ok(reserved),
            false => Err(Errno::ENFILE),
        }
    }

    /// Removes `fh`, whose file is closed when no other request uses it. Returns `EBADF` if it is
    /// not open.
    pub(super) fn remove(&self, incarnation: Incarnation, fh: u64) -> Result<Arc<Open>> {
        let mut shard = self.table.shard(incarnation, fh).ok_or(Errno::EBADF)?;
        let removed = shard.entries.remove(fh).ok_or(Errno::EBADF)?;
        drop(shard);
        if let (Some(records), Some(record)) = (&self.records, removed.record) {
            records.remove_file(record);
        }
        self.open_nodes.remove(removed.open.nodeid, fh);
        self.count.fetch_sub(1, Ordering::Relaxed);
        Ok(removed.open)
    }

    /// Returns the results of `map` for all handles.
    pub(super) fn snapshot<T>(
        &self,
        incarnation: Incarnation,
        map: impl Fn(u64, &Arc<Open>) -> T,
    ) -> Vec<T> {
        self.table
            .snapshot(incarnation, |fh, handle| map(fh, &handle.open))
    }

    /// Returns the number of the next handle.
    pub(super) fn next(&self) -> u64 {
        match &self.records {
            Some(records) => records.peek_next_file(),
            None => self.next.load(Ordering::Relaxed),
        }
    }

    /// Lets numbers continue at `next` or later.
    pub(super) fn set_next(&self, next: u64) {
        match &self.records {
            Some(records) => records.continue_files_at(next),
            None => drop(self.next.fetch_max(next, Ordering::Relaxed)),
        }
    }

    /// Begins an incarnation with an empty table, and returns the previous one's handles to be
    /// closed.
    pub(super) fn begin(&self, incarnation: Incarnation) -> Vec<Entries<Handle>> {
        let past = self.table.begin(incarnation);
        let count = past.iter().map(Entries::len).sum();
        self.count.fetch_sub(count, Ordering::Relaxed);
        self.open_nodes.clear();
        past
    }

    /// Returns the number of handles.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl ReservedHandle<'_> {
    /// Stores `open` and returns its handle, or `ESTALE` if its incarnation is over. `unique` is
    /// the request that opened it.
    pub(super) fn store(self, incarnation: Incarnation, open: Open, unique: u64) -> Result<u64> {
        let handles = self.handles;
        let Some(records) = &handles.records else {
            let fh = handles.next.fetch_add(1, Ordering::Relaxed);
            self.insert(incarnation, fh, open, None)?;
            return Ok(fh);
        };
        let fh = records.next_file();
        self.insert_recorded(incarnation, fh, open, unique)?;
        Ok(fh)
    }

    /// Stores `open` as the handle `fh`, with a record if files are recorded. Otherwise as
    /// [`ReservedHandle::insert`].
    pub(super) fn insert_recorded(
        self,
        incarnation: Incarnation,
        fh: u64,
        open: Open,
        unique: u64,
    ) -> Result<()> {
        let Some(records) = &self.handles.records else {
            return self.insert(incarnation, fh, open, None);
        };
        let place = records.add_file(&FileRecord::new(fh, &open, unique));
        if place.is_none() {
            records.set_incomplete();
        }
        self.insert(incarnation, fh, open, place).inspect_err(|_| {
            if let Some(place) = place {
                records.remove_file(place);
            }
        })
    }

    /// Stores `open` as the handle `fh`, with its record. Returns `EEXIST` if the handle exists,
    /// and `ESTALE` if its incarnation is over.
    pub(super) fn insert(
        mut self,
        incarnation: Incarnation,
        fh: u64,
        open: Open,
        record: Option<Place>,
    ) -> Result<()> {
        let (handles, nodeid) = (self.handles, open.nodeid);
        // Not under the shard's lock.
        handles.open_nodes.add(nodeid, fh);
        let Some(mut shard) = handles.table.shard(incarnation, fh) else {
            handles.open_nodes.remove(nodeid, fh);
            return Err(Errno::ESTALE);
        };
        if let Some(found) = shard.entries.get(fh) {
            let is_same = found.open.nodeid == nodeid;
            drop(shard);
            if !is_same {
                handles.open_nodes.remove(nodeid, fh);
            }
            return Err(Errno::EEXIST);
        }
        let charge = self.charge.take().ok_or(Errno::ESTALE)?;
        let open = Arc::new(open);
        shard.entries.insert(
            fh,
            Handle {
                open,
                record,
                _charge: charge,
            },
        );
        Ok(())
    }
}

impl Drop for ReservedHandle<'_> {
    fn drop(&mut self) {
        if self.charge.is_some() {
            self.handles.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
