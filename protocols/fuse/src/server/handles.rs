//! What the client has open.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use vfs::{Account, Allotment, Errno, File, Kind, Node, OpenFlags, Portion, Quota, Result};

use super::lock::Lockers;
use super::shards::{Life, Shard, Shards};
use super::ways::Goer;

/// An open file or directory. What was locked through it goes before the file does.
pub(super) struct Open {
    pub(super) locked: Locked,
    pub(super) file: Arc<dyn File>,
    pub(super) flags: OpenFlags,
    /// The same file not open to append, if the client opened it to append.
    pub(super) in_place: Option<Arc<dyn File>>,
    /// Which way it goes, if there are several.
    pub(super) goer: Option<Goer>,
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

    /// The file that a write goes to, at the end or at its own offset. A client may do either
    /// through a file that is open to append: Linux writes pages of a mapping through any file of
    /// the node that is open for writing, and fcntl(2) takes `O_APPEND` away. `EIO` if the source
    /// did not let it be opened for that.
    pub(super) fn writer(&self, appends: bool) -> Result<&dyn File> {
        if appends || !self.flags.contains(OpenFlags::APPEND) {
            return Ok(&*self.file);
        }
        self.in_place.as_deref().ok_or(Errno::EIO)
    }
}

/// The open files of a mount, by numbers that are never used again. They are bounded in number,
/// and their bytes are state of the guest in the memory budget.
pub(super) struct Handles {
    table: Shards<Handle>,
    next: AtomicU64,
    count: AtomicUsize,
    most: usize,
    /// The bytes of the handles, on the client's account.
    bytes: OnceLock<Arc<Allotment>>,
}

/// The bytes that an open file takes, by estimate, with the source's.
const OPEN: usize = 640;

/// An entry of the table.
pub(super) struct Handle {
    open: Arc<Open>,
    /// For [`OPEN`].
    _room: Portion,
}

/// A place for one more, given back when dropped.
pub(super) struct Reserved<'a> {
    handles: &'a Handles,
    /// `None` once it is used.
    room: Option<Portion>,
}

impl Handles {
    pub(super) fn new(most: usize) -> Handles {
        Handles {
            table: Shards::new(),
            next: AtomicU64::new(1),
            count: AtomicUsize::new(0),
            most,
            bytes: OnceLock::new(),
        }
    }

    /// What is open as `fh`, `EBADF` if nothing is.
    #[inline]
    pub(super) fn get(&self, life: Life, fh: u64) -> Result<Arc<Open>> {
        let part = self.table.of(life, fh).ok_or(Errno::EBADF)?;
        let handle = part.table.get(&fh).ok_or(Errno::EBADF)?;
        Ok(handle.open.clone())
    }

    /// Keeps a place free, `ENFILE` if there is none, or no memory for it on `account`, which is
    /// the same for all requests of a mount.
    pub(super) fn reserve(&self, account: &Account) -> Result<Reserved<'_>> {
        let bytes = self.bytes.get_or_init(|| {
            // The number of handles is the bound of this table itself.
            Allotment::new(&Quota::shared(usize::MAX, 1), account)
        });
        let room = bytes.take(OPEN).map_err(|_| Errno::ENFILE)?;
        let reserved = Reserved {
            handles: self,
            room: Some(room),
        };
        match self.count.fetch_add(1, Ordering::Relaxed) < self.most {
            true => Ok(reserved),
            false => Err(Errno::ENFILE),
        }
    }

    /// Ends what is open as `fh`, once no other request uses it; `EBADF` if nothing is.
    pub(super) fn remove(&self, life: Life, fh: u64) -> Result<Arc<Open>> {
        let mut part = self.table.of(life, fh).ok_or(Errno::EBADF)?;
        let removed = part.table.remove(&fh).ok_or(Errno::EBADF)?;
        drop(part);
        self.count.fetch_sub(1, Ordering::Relaxed);
        Ok(removed.open)
    }

    /// A life begins, without any. Those of the one before are to be closed.
    pub(super) fn begin(&self, life: Life) -> Vec<Shard<Handle>> {
        let past = self.table.begin(life);
        let count = past.iter().map(Shard::len).sum();
        self.count.fetch_sub(count, Ordering::Relaxed);
        past
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Reserved<'_> {
    /// Puts `open` there, and says what it is open as; `ESTALE` if its life is over.
    pub(super) fn keep(mut self, life: Life, open: Open) -> Result<u64> {
        let handles = self.handles;
        let fh = handles.next.fetch_add(1, Ordering::Relaxed);
        let mut part = handles.table.of(life, fh).ok_or(Errno::ESTALE)?;
        let room = self.room.take().ok_or(Errno::ESTALE)?;
        let open = Arc::new(open);
        part.table.insert(fh, Handle { open, _room: room });
        Ok(fh)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.room.is_some() {
            self.handles.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
