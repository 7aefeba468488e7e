//! The interface between the file-system traits and a version of NFS.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;

use ::nfs::client::{DirPage, Limits, ListedEntry, NodeInfo, Stable, Written};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, Capabilities, CopyMode, Cx, Errno, Name, NewNode, NodeId, OpenFlags, Result,
    SetAttr, Sink, StatFs, Whence, XattrFlags,
};

pub(super) use super::handle::Handle;

/// A node's handle and attributes.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) handle: Handle,
    pub(super) attr: Attr,
}

/// A node to operate on.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) handle: &'a Handle,
    pub(super) id: NodeId,
    pub(super) directory: bool,
    /// Whether the open must be exclusive to this caller, as locks belong to it.
    pub(super) exclusive: bool,
    /// The directory and name it was found at, for a version that [opens by
    /// name](ProtocolVersion::opens_by_name).
    pub(super) location: Option<(&'a Handle, &'a [u8])>,
    pub(super) place: Option<Place>,
}

/// A number for the directory and name that a node was found at. Two places may have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(NonZeroU32);

impl Place {
    pub(super) fn new(dir: &Handle, name: &[u8]) -> Place {
        let mut hasher = DefaultHasher::new();
        (dir, name).hash(&mut hasher);
        Place(NonZeroU32::new(hasher.finish() as u32).unwrap_or(NonZeroU32::MIN))
    }
}

/// An open file to operate on.
pub(super) struct Open<'a, V: ProtocolVersion> {
    pub(super) handle: &'a Handle,
    pub(super) state: &'a V::Open,
}

impl<V: ProtocolVersion> Clone for Open<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ProtocolVersion> Copy for Open<'_, V> {}

/// A request for a page of a listing.
pub(super) struct List<'a> {
    pub(super) handle: &'a Handle,
    pub(super) cookie: u64,
    pub(super) verifier: [u8; 8],
    pub(super) plus: bool,
}

/// The result of a page of a listing.
pub(super) struct PageEnd {
    /// The cookie verifier for the next page.
    pub(super) verifier: [u8; 8],
    /// The cookie of the last entry.
    pub(super) cookie: u64,
    /// Whether the listing is complete or the caller wants no more.
    pub(super) end: bool,
}

/// A version of the protocol. Methods wait for the server. For an operation that the version lacks,
/// the default returns `EOPNOTSUPP`.
pub(super) trait ProtocolVersion: Send + Sync + Sized + 'static {
    /// The open state on the server.
    type Open: Send + Sync;

    /// A read or write in flight.
    type PendingIo;

    fn limits(&self) -> Limits;

    /// The number of reconnections. The server may have restarted between two values.
    fn reconnections(&self) -> u64;

    fn capabilities(&self) -> Capabilities;

    fn attr(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Attr>;

    fn set_attr(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        open: Option<&Self::Open>,
        set: &SetAttr,
    ) -> Result<Attr>;

    fn access(&self, cx: &Cx<'_>, handle: &Handle, directory: bool, want: Access)
    -> Result<Access>;

    fn statfs(&self, cx: &Cx<'_>, handle: &Handle) -> Result<StatFs>;

    fn readlink(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Vec<u8>>;

    /// Looks up a name or, without one, the parent.
    fn lookup(&self, cx: &Cx<'_>, dir: &Handle, name: Option<&[u8]>) -> Result<Found>;

    fn make(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        what: NewNode<'_>,
        mode: u32,
    ) -> Result<Found>;

    fn link(&self, cx: &Cx<'_>, handle: &Handle, dir: &Handle, name: &[u8]) -> Result<Attr>;

    fn remove(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8], directory: bool) -> Result<()>;

    fn rename(&self, cx: &Cx<'_>, from: (&Handle, &[u8]), to: (&Handle, &[u8])) -> Result<()>;

    /// Passes a page of entries to `each`, until it returns `false`.
    fn list(
        &self,
        cx: &Cx<'_>,
        list: &List<'_>,
        each: &mut dyn FnMut(ListedEntry<'_>) -> Result<bool>,
    ) -> Result<PageEnd>;

    /// Returns whether the server has promised to keep the file of an open without a name.
    fn preserves_unlinked(&self, _: &Self::Open) -> bool {
        false
    }

    /// Returns whether files are opened by the names that they were found at.
    fn opens_by_name(&self) -> bool {
        false
    }

    /// Opens a file without truncating it.
    fn open(&self, cx: &Cx<'_>, target: Target<'_>, flags: OpenFlags) -> Result<Arc<Self::Open>>;

    /// Opens the file of a name, creating it if needed, and truncates it if the flags say so.
    fn create(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(Found, Arc<Self::Open>)>;

    /// Returns whether a read or write of `len` bytes may be begun in addition to those in flight.
    fn has_room(&self, len: usize) -> bool;

    /// Begins a read. Without `wait`, returns `None` if it would have to wait for others.
    fn begin_read(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, Self>,
        offset: u64,
        count: u32,
        wait: bool,
    ) -> Result<Option<Self::PendingIo>>;

    /// Returns the number of bytes read, and whether the file ends after them.
    fn end_read(
        &self,
        cx: &Cx<'_>,
        pending: Self::PendingIo,
        open: Open<'_, Self>,
        offset: u64,
        count: u32,
        sink: &mut dyn Sink,
    ) -> Result<(usize, bool)>;

    /// Begins a write. Without `wait`, returns `None` if it would have to wait for others.
    fn begin_write(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, Self>,
        offset: u64,
        stable: Stable,
        data: &[u8],
        wait: bool,
    ) -> Result<Option<Self::PendingIo>>;

    fn end_write(
        &self,
        cx: &Cx<'_>,
        pending: Self::PendingIo,
        open: Open<'_, Self>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written>;

    /// Writes up to one message's bytes, with the state of an open file or the anonymous stateid.
    fn write(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        open: Option<&Self::Open>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written>;

    /// Makes written data durable, and returns the verifier, which shows whether any was lost.
    fn commit(&self, cx: &Cx<'_>, handle: &Handle) -> Result<[u8; 8]>;

    /// Reserves space for a range, or punches a hole.
    fn allocate(
        &self,
        _cx: &Cx<'_>,
        _open: Open<'_, Self>,
        _offset: u64,
        _len: u64,
        _hole: bool,
    ) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Finds data or a hole at or after `offset`.
    fn seek(&self, _: &Cx<'_>, _: Open<'_, Self>, _: u64, _: Whence) -> Result<Option<u64>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Copies up to `len` bytes durably.
    #[allow(clippy::too_many_arguments)]
    fn copy(
        &self,
        _cx: &Cx<'_>,
        _from: Open<'_, Self>,
        _offset: u64,
        _to: Open<'_, Self>,
        _to_offset: u64,
        _len: u64,
        _how: CopyMode,
    ) -> Result<u64> {
        Err(Errno::EOPNOTSUPP)
    }

    fn xattr(&self, _: &Cx<'_>, _: &Handle, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The names, each terminated by a NUL.
    fn xattrs(&self, _: &Cx<'_>, _: &Handle) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }

    fn set_xattr(&self, _: &Cx<'_>, _: &Handle, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn remove_xattr(&self, _: &Cx<'_>, _: &Handle, _: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns whether files can be locked.
    fn has_locks(&self) -> bool {
        false
    }

    fn set_lock(&self, _: &Cx<'_>, _: Open<'_, Self>, _: &LockRange, _: HostLock) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn find_lock(
        &self,
        _: &Cx<'_>,
        _: Open<'_, Self>,
        _: &LockRange,
        _: LockKind,
    ) -> Result<Option<ForeignLock>> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// Completes a node, with further requests if the server's reply lacked the handle or attributes.
pub(super) fn complete_node(
    made: NodeInfo,
    handle: impl FnOnce() -> Result<Box<[u8]>>,
    attr: impl FnOnce(&Handle) -> Result<Attr>,
) -> Result<Found> {
    let handle: Handle = match made.handle {
        Some(handle) => handle.into(),
        None => handle()?.into(),
    };
    if handle.is_empty() {
        return Err(Errno::EIO);
    }
    let attr = match made.attr {
        Some(attr) => attr,
        None => attr(&handle)?,
    };
    Ok(Found { handle, attr })
}

/// Passes the entries of a page to `each`, except `.` and `..`.
pub(super) fn pass_entries(
    page: DirPage<'_>,
    list: &List<'_>,
    each: &mut dyn FnMut(ListedEntry<'_>) -> Result<bool>,
) -> Result<PageEnd> {
    let mut paged = PageEnd {
        verifier: page.verifier,
        cookie: list.cookie,
        end: page.eof,
    };
    for listed in page.entries {
        paged.cookie = listed.cookie;
        // Skips invalid names that the server may send.
        if Name::new(listed.name).is_ok() && !each(listed)? {
            paged.end = true;
            return Ok(paged);
        }
    }
    Ok(paged)
}
