//! The operations of a node, which implement [`Node`].

use std::any::Any;
use std::sync::Arc;

use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use crate::handle::handle_of;
use crate::node::{Body, MemNode};
use crate::pages::PAGE;
use crate::perm;

impl Node for MemNode {
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
        handle_of(self.id, self.shared.generation)
    }

    fn attr(&self, _cx: &Cx<'_>, _want: AttrMask) -> Result<Attr> {
        Ok(self.read().attr(self))
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.set(cx.caller, set, None)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        Ok(perm::allowed(&self.read().meta, self.kind, cx.caller) & want)
    }

    fn statfs(&self, _cx: &Cx<'_>) -> Result<StatFs> {
        /// `TMPFS_MAGIC`, by which programs recognise a file system in memory.
        const KIND: u32 = 0x0102_1994;
        let budget = &self.shared.budget;
        let free = budget.max_bytes.saturating_sub(budget.bytes()) / PAGE;
        Ok(StatFs {
            magic: KIND,
            bsize: PAGE as u32,
            blocks: budget.max_bytes / PAGE,
            bfree: free,
            bavail: free,
            files: budget.max_nodes,
            ffree: budget.max_nodes.saturating_sub(budget.nodes()),
            fsid: self.shared.generation,
            namelen: Name::MAX as u32,
            ..StatFs::default()
        })
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        self.open_file(cx, flags)
    }

    fn readlink(&self, _cx: &Cx<'_>) -> Result<Vec<u8>> {
        match &self.read().body {
            Body::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.find(cx.caller, name)
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        drop(self.search(cx.caller)?);
        Ok(self.parent_link().ok_or(Errno::ESTALE)?.entry())
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
        self.make_node(cx.caller, name, what, mode)
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        self.make_unnamed(cx.caller, flags, mode)
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        let target = self.of_same_tree(target).ok_or(Errno::EXDEV)?;
        self.add_link(cx.caller, name, target)
    }

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.remove(cx.caller, name, dir)
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.of_same_tree(to).ok_or(Errno::EXDEV)?;
        self.rename_child(cx.caller, name, to, to_name, flags)
    }

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        let state = self.read();
        state.xattrs.get(&state.meta, self.kind, cx.caller, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        Ok(self.read().xattrs.list(cx.caller))
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let now = self.shared.now();
        let mut guard = self.write();
        let state = &mut *guard;
        let (meta, xattrs) = (&state.meta, &mut state.xattrs);
        xattrs.set(meta, self.kind, cx.caller, name, value, flags)?;
        state.changed(now);
        Ok(())
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        let now = self.shared.now();
        let mut guard = self.write();
        let state = &mut *guard;
        let (meta, xattrs) = (&state.meta, &mut state.xattrs);
        xattrs.remove(meta, self.kind, cx.caller, name)?;
        state.changed(now);
        Ok(())
    }

    /// Succeeds: there are no lock holders outside barge.
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
