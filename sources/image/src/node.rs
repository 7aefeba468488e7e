//! A node of any format.
//!
//! A guest may know a million of them: a node has its item only, from which its attributes are
//! computed.

use std::any::Any;
use std::sync::{Arc, Weak};

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use crate::file::OpenFile;
use crate::format::{Format, Tree};

/// A node.
pub(crate) struct ImageNode<F: Format> {
    pub(crate) format: Arc<F>,
    pub(crate) item: F::Item,
    this: Weak<ImageNode<F>>,
}

impl<F: Format> Tree<F> {
    pub(crate) fn node(&self, item: F::Item) -> Arc<ImageNode<F>> {
        ImageNode::new(&self.0, item)
    }
}

impl<F: Format> ImageNode<F> {
    pub(crate) fn new(format: &Arc<F>, item: F::Item) -> Arc<ImageNode<F>> {
        Arc::new_cyclic(|this| ImageNode {
            format: format.clone(),
            item,
            this: this.clone(),
        })
    }

    pub(crate) fn attr(&self) -> Attr {
        self.format.attr(&self.item)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.attr().kind == Kind::Directory
    }

    /// Returns the access that the caller would have on a writable file system.
    fn allowed(&self, cx: &Cx<'_>) -> Result<Access> {
        let acl = self.format.acl(&self.item, cx.patience)?;
        Ok(vfs::perm::allowed(&self.attr(), acl.as_ref(), cx.caller))
    }

    /// Returns `EACCES` unless the caller has all of `want`.
    pub(crate) fn check(&self, cx: &Cx<'_>, want: Access) -> Result<()> {
        match self.allowed(cx)?.contains(want) {
            true => Ok(()),
            false => Err(Errno::EACCES),
        }
    }

    pub(crate) fn entry(self: Arc<ImageNode<F>>) -> Entry {
        let attr = self.attr();
        Entry { node: self, attr }
    }

    /// Returns the child `name`, after checking that the caller may search this directory.
    fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Arc<ImageNode<F>>> {
        self.check_search(cx)?;
        let item = self.format.find(&self.item, name.bytes(), cx.patience)?;
        Ok(ImageNode::new(&self.format, item))
    }

    fn check_search(&self, cx: &Cx<'_>) -> Result<()> {
        match self.is_directory() {
            true => self.check(cx, Access::EXEC),
            false => Err(Errno::ENOTDIR),
        }
    }

    fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
        match self.attr().kind {
            Kind::File if writes => return Err(Errno::EROFS),
            Kind::File => {}
            Kind::Directory if writes => return Err(Errno::EISDIR),
            Kind::Directory if flags.contains(OpenFlags::EXEC) => return Err(Errno::EACCES),
            Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        for (flag, want) in [
            (OpenFlags::READ, Access::READ),
            (OpenFlags::EXEC, Access::EXEC),
        ] {
            if flags.contains(flag) {
                self.check(cx, want)?;
            }
        }
        if flags.contains(OpenFlags::NOATIME) && !vfs::perm::owns(&self.attr(), cx.caller) {
            return Err(Errno::EPERM);
        }
        self.format.load_extents(&self.item, cx.patience)?;
        let node = self.this.upgrade().expect("a node lives in an Arc");
        Ok(Arc::new(OpenFile::new(node, flags)))
    }

    /// Refuses to create `name`: `EEXIST` if it exists, otherwise `EROFS`.
    fn refuse_to_make<T>(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<T> {
        match self.find(cx, name) {
            Ok(_) => Err(Errno::EEXIST),
            Err(Errno::ENOENT) => Err(Errno::EROFS),
            Err(errno) => Err(errno),
        }
    }
}

impl<F: Format> Node for ImageNode<F> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.attr().id
    }

    fn kind(&self) -> Kind {
        self.attr().kind
    }

    fn handle(&self, _cx: &Cx<'_>) -> Result<Handle> {
        self.format.handle(&self.item)
    }

    fn attr(&self, _cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        Ok(self.attr())
    }

    fn setattr(&self, _cx: &Cx<'_>, _set: &SetAttr) -> Result<Attr> {
        Err(Errno::EROFS)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let kind = self.attr().kind;
        let contained = matches!(kind, Kind::File | Kind::Directory | Kind::Symlink);
        let refused = match contained {
            true => Access::WRITE,
            false => Access::empty(),
        };
        Ok(self.allowed(cx)? & (want - refused))
    }

    fn statfs(&self, _cx: &Cx<'_>) -> Result<StatFs> {
        Ok(self.format.statfs())
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        vfs::open_by_owner(self, cx, flags, |cx, flags| self.open_file(cx, flags))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        match self.attr().kind {
            Kind::Symlink => self.format.target(&self.item, cx.patience),
            _ => Err(Errno::EINVAL),
        }
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        Ok(self.find(cx, name)?.entry())
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        self.check_search(cx)?;
        let item = self.format.parent(&self.item, cx.patience)?;
        Ok(ImageNode::new(&self.format, item).entry())
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        _mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        if flags.contains(OpenFlags::EXCL) {
            return self.refuse_to_make(cx, name);
        }
        let node = match self.find(cx, name) {
            Err(Errno::ENOENT) => return Err(Errno::EROFS),
            found => found?,
        };
        if node.is_directory() {
            return Err(Errno::EISDIR);
        }
        let file = node.open(cx, flags)?;
        Ok((node.entry(), file))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, _what: NewNode<'_>, _mode: Mode) -> Result<Entry> {
        self.refuse_to_make(cx, name)
    }

    fn tmpfile(&self, _: &Cx<'_>, _: OpenFlags, _: Mode) -> Result<(Entry, Arc<dyn File>)> {
        Err(Errno::EROFS)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, _target: &dyn Node) -> Result<Entry> {
        self.refuse_to_make(cx, name)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, _dir: bool) -> Result<()> {
        self.find(cx, name)?;
        Err(Errno::EROFS)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        _to: &dyn Node,
        _to_name: Name<'_>,
        _flags: RenameFlags,
    ) -> Result<()> {
        self.find(cx, name)?;
        Err(Errno::EROFS)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.get_xattr(cx, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.list_xattrs(cx)
    }

    fn set_xattr(&self, _: &Cx<'_>, _: &[u8], _: &[u8], _: XattrFlags) -> Result<()> {
        Err(Errno::EROFS)
    }

    fn remove_xattr(&self, _: &Cx<'_>, _: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    /// Always succeeds: no other process can lock the image's files.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::erofs::Erofs;

    #[test]
    fn a_node_is_small() {
        // After the two counters of the `Arc`.
        assert!(size_of::<ImageNode<Erofs>>() <= 120);
    }
}
