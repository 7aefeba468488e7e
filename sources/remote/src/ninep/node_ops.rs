//! The operations of nodes: `vfs::Node`.

use std::any::Any;
use std::sync::Arc;

use p9::{Rmessage, Tmessage};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use super::attr::{allowed, set_attr};
use super::file::RemoteFile;
use super::legacy;
use super::node::RemoteNode;

impl Node for RemoteNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.id
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, _cx: &Cx<'_>) -> Result<Handle> {
        Err(Errno::EOPNOTSUPP)
    }

    fn attr(&self, cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        self.get_attr(cx)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let held = self.fid(cx)?;
        self.check_same_file(set_attr(self.session(), cx, held.fid, self.kind, set)?)
    }

    /// Checks the permission bits, as 9P has no access request.
    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let attr = self.get_attr(cx)?;
        Ok(allowed(&attr, cx.caller) & want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        let held = self.fid(cx)?;
        if !self.session().is_linux() {
            return Ok(legacy::statfs());
        }
        let reply = self
            .session()
            .call(cx, &Tmessage::Statfs { fid: held.fid })?;
        match reply.message()? {
            Rmessage::Statfs {
                kind,
                bsize,
                blocks,
                bfree,
                bavail,
                files,
                ffree,
                fsid,
                namelen,
            } => Ok(StatFs {
                magic: kind,
                bsize,
                blocks,
                bfree,
                bavail,
                files,
                ffree,
                fsid,
                namelen,
                ..StatFs::default()
            }),
            _ => Err(Errno::EIO),
        }
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        vfs::open_by_owner(self, cx, flags, |cx, flags| {
            RemoteFile::open(self, cx, flags)
        })
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        if self.kind != Kind::Symlink {
            return Err(Errno::EINVAL);
        }
        let held = self.fid(cx)?;
        if !self.session().is_linux() {
            return legacy::readlink(self.session(), cx, held.fid);
        }
        let reply = self
            .session()
            .call(cx, &Tmessage::Readlink { fid: held.fid })?;
        match reply.message()? {
            Rmessage::Readlink { target } => Ok(target.to_vec()),
            _ => Err(Errno::EIO),
        }
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.find(cx, name)
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        self.check_directory()?;
        let dir = self.fid(cx)?;
        // Not every server stops at the root of the attach.
        if self.id == self.shared.root_id() {
            let attr = self.session().attr(cx, dir.fid)?;
            let node = RemoteNode::nameless(&self.shared, attr.id, attr.kind);
            return Ok(Entry { node, attr });
        }
        let (held, attr) = self.session().walk_getattr(cx, dir.fid, &[b".."])?;
        Ok(self.parent_entry(cx, held, attr))
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.create_file(cx, name, flags, mode)
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        self.make_node(cx, name, what, mode)
    }

    fn tmpfile(
        &self,
        _cx: &Cx<'_>,
        _flags: OpenFlags,
        _mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::EOPNOTSUPP)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        self.add_link(cx, name, self.of_same(target)?)
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
        let to = self.of_same(to)?;
        if !flags.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.move_name(cx, name, to, to_name)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr(cx, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.list_xattrs(cx)
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.put_xattr(cx, name, value, flags)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.take_xattr(cx, name)
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        self.shared.mirrors.lock(self, cx, range, state)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        self.shared.mirrors.holder(self, cx, range, kind)
    }
}
