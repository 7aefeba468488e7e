//! A node that stands for a removed object while an agent removes its name. It has attributes and
//! a handle; all other operations return `ESTALE`.

use std::any::Any;
use std::sync::Arc;

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Device, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode,
    Node, NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, Time, XattrFlags,
};

/// The first bytes of a handle, which no source's has.
const HANDLE_PREFIX: &[u8] = b"removed\0";

/// The node.
#[derive(Debug)]
pub(super) struct StandIn {
    id: NodeId,
    kind: Kind,
}

impl StandIn {
    /// Returns an entry with a new node. No other node has the number `id`.
    pub(super) fn entry(id: NodeId, kind: Kind) -> Entry {
        let node = StandIn { id, kind };
        let attr = node.attributes();
        Entry {
            node: Arc::new(node),
            attr,
        }
    }

    /// Returns its handle.
    pub(super) fn handle(&self) -> Handle {
        let bytes = [HANDLE_PREFIX, &self.id.to_le_bytes()].concat();
        Handle::new(&bytes).expect("16 bytes are less than a handle's")
    }

    fn attributes(&self) -> Attr {
        Attr {
            id: self.id,
            generation: 0,
            kind: self.kind,
            mode: match self.kind {
                Kind::Directory => 0o755,
                _ => 0o644,
            },
            nlink: match self.kind {
                Kind::Directory => 2,
                _ => 1,
            },
            uid: 0,
            gid: 0,
            rdev: Device::default(),
            size: 0,
            blksize: 4096,
            blocks: 0,
            atime: Time { sec: 0, nsec: 0 },
            mtime: Time { sec: 0, nsec: 0 },
            ctime: Time { sec: 0, nsec: 0 },
            btime: None,
            change: 0,
            device: 0,
        }
    }
}

impl Node for StandIn {
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
        Ok(StandIn::handle(self))
    }

    fn attr(&self, _: &Cx<'_>, _: AttrMask) -> Result<Attr> {
        Ok(self.attributes())
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
