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
    attr: Attr,
    handle: Handle,
}

impl StandIn {
    /// Returns an entry with a new node of an object that no client knows. No other node has the
    /// number `id`.
    pub(super) fn unknown(id: NodeId, kind: Kind) -> Entry {
        let none = Time { sec: 0, nsec: 0 };
        let (mode, nlink) = match kind {
            Kind::Directory => (0o755, 2),
            _ => (0o644, 1),
        };
        let attr = Attr {
            id,
            generation: 0,
            kind,
            mode,
            nlink,
            uid: 0,
            gid: 0,
            rdev: Device::default(),
            size: 0,
            blksize: 4096,
            blocks: 0,
            atime: none,
            mtime: none,
            ctime: none,
            btime: None,
            change: 0,
            device: 0,
        };
        StandIn::of(attr, None)
    }

    /// Returns an entry with a new node of an object that had these attributes, and this handle.
    pub(super) fn of(attr: Attr, handle: Option<Handle>) -> Entry {
        let own = || {
            let bytes = [HANDLE_PREFIX, &attr.id.to_le_bytes()].concat();
            Handle::new(&bytes).expect("16 bytes are less than a handle's")
        };
        let handle = handle.unwrap_or_else(own);
        Entry {
            node: Arc::new(StandIn { attr, handle }),
            attr,
        }
    }

    /// Returns its handle.
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Node for StandIn {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.attr.id
    }

    fn kind(&self) -> Kind {
        self.attr.kind
    }

    fn handle(&self, _: &Cx<'_>) -> Result<Handle> {
        Ok(StandIn::handle(self))
    }

    fn attr(&self, _: &Cx<'_>, _: AttrMask) -> Result<Attr> {
        Ok(self.attr)
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
