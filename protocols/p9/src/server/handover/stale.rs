//! A node that is gone, and an open file that could not be opened again.

use core::any::Any;
use std::sync::Arc;

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, AllocateMode, Attr, AttrMask, BreakCallback, CopyMode, Cx, DirSink, Entry, Errno,
    Extent, File, Handle, Kind, Lease, LeaseKind, Mode, Name, NewNode, Node, NodeId, OpenFlags,
    Payload, ReaddirMode, RenameFlags, Result, SetAttr, Sink, StatFs, Whence, XattrFlags,
};

/// A node that did not exist any more when its session was continued. Every operation returns
/// `ESTALE`.
pub(super) struct StaleNode {
    pub(super) id: NodeId,
    pub(super) kind: Kind,
}

impl Node for StaleNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.id
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, _: &Cx<'_>) -> Result<Handle> {
        Err(Errno::ESTALE)
    }

    fn attr(&self, _: &Cx<'_>, _: AttrMask) -> Result<Attr> {
        Err(Errno::ESTALE)
    }

    fn setattr(&self, _: &Cx<'_>, _: &SetAttr) -> Result<Attr> {
        Err(Errno::ESTALE)
    }

    fn access(&self, _: &Cx<'_>, _: Access) -> Result<Access> {
        Err(Errno::ESTALE)
    }

    fn statfs(&self, _: &Cx<'_>) -> Result<StatFs> {
        Err(Errno::ESTALE)
    }

    fn open(&self, _: &Cx<'_>, _: OpenFlags) -> Result<Arc<dyn File>> {
        Err(Errno::ESTALE)
    }

    fn readlink(&self, _: &Cx<'_>) -> Result<Vec<u8>> {
        Err(Errno::ESTALE)
    }

    fn lookup(&self, _: &Cx<'_>, _: Name<'_>) -> Result<Entry> {
        Err(Errno::ESTALE)
    }

    fn parent(&self, _: &Cx<'_>) -> Result<Entry> {
        Err(Errno::ESTALE)
    }

    fn create(
        &self,
        _: &Cx<'_>,
        _: Name<'_>,
        _: OpenFlags,
        _: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::ESTALE)
    }

    fn make(&self, _: &Cx<'_>, _: Name<'_>, _: NewNode<'_>, _: Mode) -> Result<Entry> {
        Err(Errno::ESTALE)
    }

    fn tmpfile(&self, _: &Cx<'_>, _: OpenFlags, _: Mode) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::ESTALE)
    }

    fn link(&self, _: &Cx<'_>, _: Name<'_>, _: &dyn Node) -> Result<Entry> {
        Err(Errno::ESTALE)
    }

    fn unlink(&self, _: &Cx<'_>, _: Name<'_>, _: bool) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn rename(
        &self,
        _: &Cx<'_>,
        _: Name<'_>,
        _: &dyn Node,
        _: Name<'_>,
        _: RenameFlags,
    ) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn xattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::ESTALE)
    }

    fn xattrs(&self, _: &Cx<'_>) -> Result<Vec<u8>> {
        Err(Errno::ESTALE)
    }

    fn set_xattr(&self, _: &Cx<'_>, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn remove_xattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn host_lock(&self, _: &Cx<'_>, _: LockRange, _: HostLock) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn host_lock_holder(
        &self,
        _: &Cx<'_>,
        _: LockRange,
        _: LockKind,
    ) -> Result<Option<ForeignLock>> {
        Err(Errno::ESTALE)
    }
}

/// An open file that could not be opened again when its session was continued. Every operation
/// returns `ESTALE`, except that of a clunk, for which nothing is left to do.
pub(super) struct StaleFile;

impl File for StaleFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn attr(&self, _: &Cx<'_>, _: AttrMask) -> Result<Attr> {
        Err(Errno::ESTALE)
    }

    fn setattr(&self, _: &Cx<'_>, _: &SetAttr) -> Result<Attr> {
        Err(Errno::ESTALE)
    }

    fn read(&self, _: &Cx<'_>, _: u64, _: usize, _: &mut dyn Sink) -> Result<usize> {
        Err(Errno::ESTALE)
    }

    fn write(&self, _: &Cx<'_>, _: u64, _: &mut dyn Payload) -> Result<usize> {
        Err(Errno::ESTALE)
    }

    fn readdir(&self, _: &Cx<'_>, _: u64, _: ReaddirMode, _: &mut dyn DirSink) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn fsync(&self, _: &Cx<'_>, _: bool) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn flush(&self, _: &Cx<'_>) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _: &Cx<'_>, _: AllocateMode, _: u64, _: u64) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn seek(&self, _: &Cx<'_>, _: u64, _: Whence) -> Result<u64> {
        Err(Errno::ESTALE)
    }

    fn extents(&self, _: &Cx<'_>, _: u64, _: u64, _: &mut dyn FnMut(Extent) -> bool) -> Result<()> {
        Err(Errno::ESTALE)
    }

    fn copy(&self, _: &Cx<'_>, _: u64, _: &dyn File, _: u64, _: u64, _: CopyMode) -> Result<u64> {
        Err(Errno::ESTALE)
    }

    fn lease(&self, _: &Cx<'_>, _: LeaseKind, _: &BreakCallback) -> Result<Box<dyn Lease>> {
        Err(Errno::ESTALE)
    }
}
