//! Nodes of objects that are gone.

use core::any::Any;
use std::sync::Arc;

use crate::lock::{ForeignLock, HostLock, LockKind, LockRange};
use crate::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

/// A node of an object that is gone. Every operation returns `ESTALE`, except those that return
/// attributes and a handle, if these are known.
#[derive(Debug)]
pub struct StaleNode {
    id: NodeId,
    kind: Kind,
    known: Option<(Attr, Handle)>,
}

impl StaleNode {
    /// Returns a node with this number and kind.
    pub fn new(id: NodeId, kind: Kind) -> StaleNode {
        let known = None;
        StaleNode { id, kind, known }
    }

    /// Returns a node of an object that had these attributes and this handle.
    pub fn known(attr: Attr, handle: Handle) -> StaleNode {
        StaleNode {
            id: attr.id,
            kind: attr.kind,
            known: Some((attr, handle)),
        }
    }

    /// Returns the handle, if it is known.
    pub fn known_handle(&self) -> Option<Handle> {
        self.known.map(|(_, handle)| handle)
    }
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
        self.known_handle().ok_or(Errno::ESTALE)
    }

    fn attr(&self, _: &Cx<'_>, _: AttrMask) -> Result<Attr> {
        let known = self.known.as_ref();
        known.map(|(attr, _)| *attr).ok_or(Errno::ESTALE)
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
