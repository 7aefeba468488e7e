//! The operations of a node.
//!
//! The order in each: patience, then the descriptors of all nodes involved (which may have to be
//! reopened, as the server), then switching to the caller's identity, then the system calls. An
//! operation that returns `WOULD_BLOCK` does so before the first call with an effect.

use std::any::Any;
use std::os::fd::AsFd;
use std::sync::Arc;

use sys::errno;
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use crate::attr::{self, Target};
use crate::descriptors::Fd;
use crate::locks::LockedObject;
use crate::node::HostNode;
use crate::{handles, open, xattr};

impl Node for HostNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.number()
    }

    fn kind(&self) -> Kind {
        self.kind()
    }

    fn handle(&self, cx: &Cx<'_>) -> Result<Handle> {
        handles::handle(self, cx.patience)
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        self.device().allow_cached(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        attr::read(self.device(), fd.as_fd(), want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.device().allow_brief(cx.patience)?;
        self.tree().leases.clear(cx, self.number(), None)?;
        let fd = self.fd(cx.patience)?;
        attr::set(self.device(), cx, Target::Path(fd.as_fd()), set)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        self.device().allow_cached(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        self.host().identity.assume(cx)?;
        open::access(fd.as_fd(), want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.device().allow_brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        let stat = rustix::fs::fstatvfs(&*fd).map_err(errno)?;
        Ok(StatFs {
            magic: self.device().magic as u32,
            // The unit of the counts. Linux's own f_bsize, the preferred I/O size, is the same on
            // all relevant file systems.
            bsize: stat.f_frsize as u32,
            blocks: stat.f_blocks,
            bfree: stat.f_bfree,
            bavail: stat.f_bavail,
            files: stat.f_files,
            ffree: stat.f_ffree,
            fsid: stat.f_fsid,
            namelen: stat.f_namemax as u32,
            ..StatFs::default()
        })
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let opened = vfs::open_by_owner(self, cx, flags, |cx, flags| self.open_file(cx, flags));
        Ok(Arc::new(opened?))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.kind() != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        self.device().allow_brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        let target = rustix::fs::readlinkat(&*fd, c"", Vec::with_capacity(256)).map_err(errno)?;
        Ok(target.into_bytes())
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.look_up(cx, name).map(entry)
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        self.parent_directory(cx).map(entry)
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let (node, attr, file) = self.create_file(cx, name, flags, mode)?;
        Ok((entry((node, attr)), Arc::new(file)))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        self.make_child(cx, name, what, mode).map(entry)
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        let (node, attr, file) = self.make_tmpfile(cx, flags, mode)?;
        Ok((entry((node, attr)), Arc::new(file)))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        self.link_to(cx, name, target).map(entry)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.remove_name(cx, name, dir)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.move_name(cx, name, to, to_name, flags)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.device().allow_brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        xattr::get(&self.host().identity, cx, fd.as_fd(), name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.device().allow_brief(cx.patience)?;
        let fd = self.fd(cx.patience)?;
        xattr::list(&self.host().identity, cx, fd.as_fd())
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.device().allow_brief(cx.patience)?;
        self.tree().leases.clear(cx, self.number(), None)?;
        let fd = self.fd(cx.patience)?;
        xattr::set(&self.host().identity, cx, fd.as_fd(), name, value, flags)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.device().allow_brief(cx.patience)?;
        self.tree().leases.clear(cx, self.number(), None)?;
        let fd = self.fd(cx.patience)?;
        xattr::remove(&self.host().identity, cx, fd.as_fd(), name)
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        self.device().allow_brief(cx.patience)?;
        self.set_mirrored();
        let object = lock_object(self, cx);
        self.tree().mirrors.set(&object, cx, range, state)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        self.device().allow_brief(cx.patience)?;
        self.set_mirrored();
        let object = lock_object(self, cx);
        self.tree().mirrors.holder(&object, cx, range, kind)
    }
}

fn entry((node, attr): (Arc<HostNode>, Attr)) -> Entry {
    Entry { node, attr }
}

/// Returns `node` as an object whose locks are mirrored.
fn lock_object<'n>(
    node: &'n HostNode,
    cx: &Cx<'_>,
) -> LockedObject<'n, impl Fn() -> Result<Arc<Fd>>> {
    let patience = cx.patience;
    LockedObject {
        node: node.number(),
        kind: node.kind(),
        device: node.device(),
        leases: &node.tree().leases,
        fd: move || node.fd(patience),
    }
}
