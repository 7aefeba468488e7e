//! The operations of a node, which implement [`Node`].

use std::any::Any;
use std::sync::Arc;

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags, perm,
};

use super::handle;
use super::node::OverlayNode;
use super::tree::as_process;

impl Node for OverlayNode {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.id
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn handle(&self, cx: &Cx<'_>) -> Result<Handle> {
        handle::of(self, cx)
    }

    fn attr(&self, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        Ok(self.overlay_attr(self.real()?.attr(cx, want)?))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if *set == SetAttr::default() {
            return self.attr(cx, AttrMask::STAT);
        }
        if set.size.is_some() && self.kind != Kind::File {
            return Err(match self.kind {
                Kind::Directory => Errno::EISDIR,
                _ => Errno::EINVAL,
            });
        }
        let upper = self.copied_up(cx, |attr| self.check_set(cx, set, attr))?;
        Ok(self.overlay_attr(upper.setattr(cx, set)?))
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        Ok(self.allowed(cx)? & want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.tree.staging.dir.statfs(cx)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(self.open_as(cx, flags)?)
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.real()?.readlink(cx)
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let dir = self.directory()?;
        let _names = self.tree.names_shared(cx)?;
        Ok(dir.find(cx, name)?.entry())
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        let dir = self.directory()?;
        let node = match self.state().dentry {
            Some(dentry) => dentry.parent,
            None if self.root => dir,
            None => return Err(Errno::ESTALE),
        };
        let attr = node.attr(cx, AttrMask::STAT)?;
        Ok(Entry { node, attr })
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        self.directory()?.create_in(cx, name, flags, mode)
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        self.directory()?.make_in(cx, name, what, mode)
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        self.directory()?.tmpfile_in(cx, flags, mode)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        let target = self.of_this_tree(target)?.this();
        self.directory()?.link_in(cx, name, &target)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.directory()?.unlink_in(cx, name, dir)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.of_this_tree(to)?.directory()?;
        self.directory()?.rename_in(cx, name, &to, to_name, flags)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.check_name(name)?;
        self.real()?.xattr(cx, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        let names = self.real()?.xattrs(cx)?;
        let shown = names.split_inclusive(|&byte| byte == 0);
        let shown = shown.filter(|name| !self.tree.xattrs.is_overlay_xattr(name));
        Ok(shown.flatten().copied().collect())
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.check_name(name)?;
        let upper = self.copied_up(cx, |attr| self.may_set_xattr(cx, attr))?;
        upper.set_xattr(cx, name, value, flags)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.check_name(name)?;
        let upper = self.copied_up(cx, |attr| {
            self.may_set_xattr(cx, attr)?;
            self.real()?.xattr(&as_process(cx), name).map(drop)
        })?;
        upper.remove_xattr(cx, name)
    }

    /// Succeeds: locks are not passed to the host, for the node may be a lower one, or become a
    /// copy.
    fn host_lock(&self, _: &Cx<'_>, _: LockRange, _: HostLock) -> Result<()> {
        Ok(())
    }

    fn host_lock_holder(
        &self,
        _: &Cx<'_>,
        _: LockRange,
        _: LockKind,
    ) -> Result<Option<ForeignLock>> {
        Ok(None)
    }
}

impl OverlayNode {
    fn directory(&self) -> Result<Arc<OverlayNode>> {
        match self.kind {
            Kind::Directory => Ok(self.this()),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Returns the upper node, after a copy-up if necessary. Before it, `may` checks permissions as
    /// far as possible.
    fn copied_up(
        &self,
        cx: &Cx<'_>,
        may: impl FnOnce(&Attr) -> Result<()>,
    ) -> Result<Arc<dyn Node>> {
        if let Some(upper) = self.upper() {
            return Ok(upper);
        }
        cx.check_may_block()?;
        may(&self.real()?.attr(&as_process(cx), AttrMask::STAT)?)?;
        self.copy_up(cx, u64::MAX)
    }

    /// Refuses attributes that are marks of the overlay, which are invisible to callers.
    fn check_name(&self, name: &[u8]) -> Result<()> {
        match self.tree.xattrs.is_overlay_xattr(name) {
            true => Err(Errno::EOPNOTSUPP),
            false => Ok(()),
        }
    }

    fn may_set_xattr(&self, cx: &Cx<'_>, attr: &Attr) -> Result<()> {
        match perm::owns(attr, cx.caller) {
            true => Ok(()),
            false => self.check(cx, Access::WRITE),
        }
    }

    fn of_this_tree<'a>(&self, node: &'a dyn Node) -> Result<&'a OverlayNode> {
        match node.as_any().downcast_ref::<OverlayNode>() {
            Some(node) if Arc::ptr_eq(&node.tree, &self.tree) => Ok(node),
            _ => Err(Errno::EXDEV),
        }
    }
}
