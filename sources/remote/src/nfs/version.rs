//! What the file-system traits ask of a version of NFS.

use std::sync::Arc;

use ::nfs::client::{Limits, Listed, Made, Stable, Written};
use vfs::lock::{HostLock, LockKind, LockRange, Outsider};
use vfs::{
    Access, Attr, Capabilities, CopyHow, Cx, Errno, Make, NodeId, OpenFlags, Result, Seek, SetAttr,
    Sink, StatFs, XattrFlags,
};

/// A file handle: what the server calls a node.
pub(super) type Handle = Arc<[u8]>;

/// A node as a server has it.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) handle: Handle,
    pub(super) attr: Attr,
}

/// A node that is asked for something.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) handle: &'a Handle,
    pub(super) id: NodeId,
    pub(super) directory: bool,
    /// Whether what is open shall be nobody else's: locks belong to it.
    pub(super) alone: bool,
    /// The directory and the name that it was found by.
    pub(super) place: Option<(&'a Handle, &'a [u8])>,
}

/// A file that is asked for something.
pub(super) struct Open<'a, V: Version> {
    pub(super) handle: &'a Handle,
    pub(super) state: &'a V::Open,
}

impl<V: Version> Clone for Open<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: Version> Copy for Open<'_, V> {}

/// What is wanted of a listing.
pub(super) struct List<'a> {
    pub(super) handle: &'a Handle,
    pub(super) cookie: u64,
    pub(super) verifier: [u8; 8],
    pub(super) plus: bool,
}

/// What came of a page of a listing.
pub(super) struct Paged {
    /// To go on with.
    pub(super) verifier: [u8; 8],
    /// Behind which entry.
    pub(super) cookie: u64,
    /// Whether there are no more entries, or no more are wanted.
    pub(super) end: bool,
}

/// A version of the protocol. Methods wait for the server. A version that lacks an operation leaves it at
/// the default: `EOPNOTSUPP`.
pub(super) trait Version: Send + Sync + Sized + 'static {
    /// What is open on the server.
    type Open: Send + Sync;

    /// A read or write in flight.
    type Flight;

    fn limits(&self) -> Limits;

    /// How often the connection was made anew. The server may have restarted between two values.
    fn connections(&self) -> u64;

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

    /// The node of a name; without one, the parent.
    fn lookup(&self, cx: &Cx<'_>, dir: &Handle, name: Option<&[u8]>) -> Result<Found>;

    fn make(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        what: Make<'_>,
        mode: u32,
    ) -> Result<Found>;

    fn link(&self, cx: &Cx<'_>, handle: &Handle, dir: &Handle, name: &[u8]) -> Result<Attr>;

    fn remove(&self, cx: &Cx<'_>, dir: &Handle, name: &[u8], directory: bool) -> Result<()>;

    fn rename(&self, cx: &Cx<'_>, from: (&Handle, &[u8]), to: (&Handle, &[u8])) -> Result<()>;

    /// Gives `each` some entries, until it wants no more (`false`).
    fn list(
        &self,
        cx: &Cx<'_>,
        list: &List<'_>,
        each: &mut dyn FnMut(Listed<'_>) -> Result<bool>,
    ) -> Result<Paged>;

    /// Opens a file, but does not cut it.
    fn open(&self, cx: &Cx<'_>, target: Target<'_>, flags: OpenFlags) -> Result<Self::Open>;

    /// Opens the file of a name, making it if there is none. Cuts it if it is asked for.
    fn create(
        &self,
        cx: &Cx<'_>,
        dir: &Handle,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(Found, Self::Open)>;

    /// Whether a read or write of `len` bytes may be begun beside those in flight.
    fn has_room(&self, len: usize) -> bool;

    /// Begins to read; nothing if that would have to wait for others first, and it may not.
    fn begin_read(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, Self>,
        offset: u64,
        count: u32,
        wait: bool,
    ) -> Result<Option<Self::Flight>>;

    /// What was read, and whether the file ends behind it.
    fn end_read(
        &self,
        cx: &Cx<'_>,
        flight: Self::Flight,
        open: Open<'_, Self>,
        offset: u64,
        count: u32,
        sink: &mut dyn Sink,
    ) -> Result<(usize, bool)>;

    /// Begins to write; nothing if that would have to wait for others first, and it may not.
    fn begin_write(
        &self,
        cx: &Cx<'_>,
        open: Open<'_, Self>,
        offset: u64,
        stable: Stable,
        data: &[u8],
        wait: bool,
    ) -> Result<Option<Self::Flight>>;

    fn end_write(
        &self,
        cx: &Cx<'_>,
        flight: Self::Flight,
        open: Open<'_, Self>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written>;

    /// Writes up to a message's bytes, by an open file or as an anonymous one.
    fn write(
        &self,
        cx: &Cx<'_>,
        handle: &Handle,
        open: Option<&Self::Open>,
        offset: u64,
        stable: Stable,
        data: &[u8],
    ) -> Result<Written>;

    /// Makes what was written durable; the verifier tells whether it was all there.
    fn commit(&self, cx: &Cx<'_>, handle: &Handle) -> Result<[u8; 8]>;

    /// Reserves space for a range, or makes a hole of it.
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

    /// Data or a hole at `offset` or behind it, nothing if there is none.
    fn seek(&self, _: &Cx<'_>, _: Open<'_, Self>, _: u64, _: Seek) -> Result<Option<u64>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Copies up to `len` bytes, which are durable then.
    #[allow(clippy::too_many_arguments)]
    fn copy(
        &self,
        _cx: &Cx<'_>,
        _from: Open<'_, Self>,
        _offset: u64,
        _to: Open<'_, Self>,
        _to_offset: u64,
        _len: u64,
        _how: CopyHow,
    ) -> Result<u64> {
        Err(Errno::EOPNOTSUPP)
    }

    fn xattr(&self, _: &Cx<'_>, _: &Handle, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }

    /// The names, each ended by a NUL.
    fn xattrs(&self, _: &Cx<'_>, _: &Handle) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }

    fn set_xattr(&self, _: &Cx<'_>, _: &Handle, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn remove_xattr(&self, _: &Cx<'_>, _: &Handle, _: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Whether files can be locked at all.
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
    ) -> Result<Option<Outsider>> {
        Err(Errno::EOPNOTSUPP)
    }
}

/// What a server has to tell of a node at least, asked for where it has not.
pub(super) fn whole(
    made: Made,
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
