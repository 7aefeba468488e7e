//! A node, and its operations except those on names: attributes, opening, file system statistics.

use std::any::Any;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Caller, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode,
    Node, NodeId, OpenFlags, RenameFlags, Result, SetAttr, SetTime, StatFs, XattrFlags,
};

use crate::budget::NodeCharge;
use crate::dir::Dir;
use crate::file::OpenFile;
use crate::pages::{MAX_SIZE, PAGE};
use crate::state::{Body, Meta, State};
use crate::xattr::{self, Xattrs};
use crate::{Options, Shared, handle_of, perm};

/// A node. Directories own their children; children refer to their directory weakly.
pub(crate) struct MemNode {
    pub(crate) shared: Arc<Shared>,
    pub(crate) this: Weak<MemNode>,
    pub(crate) id: NodeId,
    pub(crate) kind: Kind,
    /// The parent of a directory: the root's is itself, a removed one has none.
    parent: Mutex<Weak<MemNode>>,
    state: RwLock<State>,
    _charge: NodeCharge,
}

/// The parameters of a new node.
pub(crate) struct NodeParams {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) body: Body,
    /// The parent of a directory.
    pub(crate) parent: Weak<MemNode>,
}

impl MemNode {
    /// Creates the root of a new tree.
    pub(crate) fn root(shared: &Arc<Shared>, options: &Options) -> Arc<MemNode> {
        let dir = Dir::new(&shared.budget).expect("nothing is charged yet");
        let new = NodeParams {
            kind: Kind::Directory,
            mode: options.mode & 0o7777,
            uid: options.uid,
            gid: options.gid,
            body: Body::Directory(dir),
            parent: Weak::new(),
        };
        let root = MemNode::new(shared, new).expect("a budget has room for the root");
        root.set_parent(root.this.clone());
        root
    }

    /// Creates a node without a name.
    pub(crate) fn new(shared: &Arc<Shared>, new: NodeParams) -> Result<Arc<MemNode>> {
        let extra = match &new.body {
            Body::Symlink(target) => target.len(),
            _ => 0,
        };
        let charge = NodeCharge::new(&shared.budget, extra)?;
        let now = shared.now();
        let state = State {
            meta: Meta {
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                nlink: if new.kind == Kind::Directory { 2 } else { 1 },
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
                change: 1,
            },
            xattrs: Xattrs::new(&shared.budget)?,
            body: new.body,
            linkable: false,
        };
        let node = Arc::new_cyclic(|this| MemNode {
            shared: shared.clone(),
            this: this.clone(),
            id: shared.new_id(),
            kind: new.kind,
            parent: Mutex::new(new.parent),
            state: RwLock::new(state),
            _charge: charge,
        });
        let weak = node.this.clone();
        shared.nodes(node.id).insert(node.id, weak);
        Ok(node)
    }

    /// Returns the node of a trait object, `None` if it is of another tree.
    pub(crate) fn of_same_tree<'a>(&self, node: &'a dyn Node) -> Option<&'a MemNode> {
        node.as_any()
            .downcast_ref::<MemNode>()
            .filter(|node| Arc::ptr_eq(&node.shared, &self.shared))
    }

    pub(crate) fn arc(&self) -> Arc<MemNode> {
        self.this.upgrade().expect("a node lives in an Arc")
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    pub(crate) fn parent_link(&self) -> Option<Arc<MemNode>> {
        self.lock_parent().upgrade()
    }

    pub(crate) fn set_parent(&self, parent: Weak<MemNode>) {
        *self.lock_parent() = parent;
    }

    fn lock_parent(&self) -> MutexGuard<'_, Weak<MemNode>> {
        self.parent.lock()
    }

    pub(crate) fn entry(self: Arc<MemNode>) -> Entry {
        let attr = self.read().attr(&self);
        Entry { node: self, attr }
    }

    /// Implements [`Node::setattr`] and, for the open `file`, its counterpart.
    pub(crate) fn set(
        &self,
        caller: &Caller,
        set: &SetAttr,
        file: Option<&OpenFile>,
    ) -> Result<Attr> {
        let now = self.shared.now();
        let mut state = self.write();
        self.may_set(&state, caller, set, file)?;
        if let Some(size) = set.size {
            let pages = state.pages_mut().expect("may_set saw a file");
            pages.resize(size);
            state.modified(now);
            state.drop_privileges(caller);
        }
        if set.uid.is_some() || set.gid.is_some() {
            state.meta.uid = set.uid.unwrap_or(state.meta.uid);
            state.meta.gid = set.gid.unwrap_or(state.meta.gid);
            if self.kind != Kind::Directory {
                state.drop_set_id();
                state.xattrs.remove(xattr::CAPABILITY);
            }
        }
        // As for a chown: a directory's set-gid bit is no privilege.
        if set.kill_priv && self.kind != Kind::Directory {
            state.drop_set_id();
            state.xattrs.remove(xattr::CAPABILITY);
        }
        if let Some(mode) = set.mode {
            state.meta.mode = perm::chmod_bits(mode, state.meta.gid, caller);
        }
        let moment = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        state.meta.atime = set.atime.map_or(state.meta.atime, moment);
        state.meta.mtime = set.mtime.map_or(state.meta.mtime, moment);
        if *set != SetAttr::default() {
            state.changed(now);
        }
        Ok(state.attr(self))
    }

    /// Checks permissions as Linux's `setattr_prepare` does, and before it truncate(2) and
    /// ftruncate(2).
    fn may_set(
        &self,
        state: &State,
        caller: &Caller,
        set: &SetAttr,
        file: Option<&OpenFile>,
    ) -> Result<()> {
        let meta = &state.meta;
        let owns = perm::owns(meta, caller);
        if let Some(size) = set.size {
            match (self.kind, file) {
                (Kind::File, Some(file)) if !file.writes() => return Err(Errno::EINVAL),
                (Kind::File, Some(_)) => {}
                (Kind::File, None) => perm::check(meta, self.kind, caller, Access::WRITE)?,
                (Kind::Directory, None) => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            }
            if size > MAX_SIZE {
                return Err(Errno::EFBIG);
            }
        }
        // Only the owner may set them, even to the same values.
        let keeps_uid = |uid| owns && uid == meta.uid;
        let keeps_gid = |gid| owns && (gid == meta.gid || perm::in_group(caller, gid));
        let keeps = set.uid.is_none_or(keeps_uid) && set.gid.is_none_or(keeps_gid);
        if !(keeps || perm::is_root(caller)) {
            return Err(Errno::EPERM);
        }
        if set.mode.is_some() {
            if self.kind == Kind::Symlink {
                return Err(Errno::EOPNOTSUPP);
            }
            if !owns {
                return Err(Errno::EPERM);
            }
        }
        for time in [set.atime, set.mtime].into_iter().flatten() {
            match time {
                _ if owns => {}
                SetTime::At(_) => return Err(Errno::EPERM),
                SetTime::Now => perm::check(meta, self.kind, caller, Access::WRITE)?,
            }
        }
        Ok(())
    }

    fn open_file(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if flags.contains(OpenFlags::TRUNC) {
            let now = self.shared.now();
            let mut state = self.write();
            self.open_flags_allowed(&state, cx.caller, flags)?;
            if let Some(pages) = state.pages_mut() {
                pages.resize(0);
                state.modified(now);
                state.drop_privileges(cx.caller);
            }
        } else {
            self.open_flags_allowed(&self.read(), cx.caller, flags)?;
        }
        Ok(Arc::new(OpenFile::new(self.arc(), flags)))
    }

    fn open_flags_allowed(&self, state: &State, caller: &Caller, flags: OpenFlags) -> Result<()> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
        match self.kind {
            Kind::File => {}
            Kind::Directory if writes => return Err(Errno::EISDIR),
            Kind::Directory if flags.contains(OpenFlags::EXEC) => return Err(Errno::EACCES),
            Kind::Directory => {}
            Kind::Symlink => return Err(Errno::ELOOP),
            _ => return Err(Errno::ENXIO),
        }
        for (flag, want) in [
            (flags.contains(OpenFlags::READ), Access::READ),
            (writes, Access::WRITE),
            (flags.contains(OpenFlags::EXEC), Access::EXEC),
        ] {
            if flag {
                perm::check(&state.meta, self.kind, caller, want)?;
            }
        }
        if flags.contains(OpenFlags::NOATIME) && !perm::owns(&state.meta, caller) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }
}

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
        })
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        vfs::open_by_owner(self, cx, flags, |cx, flags| self.open_file(cx, flags))
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
        self.read().xattr(self.kind, cx.caller, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        Ok(self.read().list_xattrs(cx.caller))
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        let now = self.shared.now();
        let mut state = self.write();
        state.set_xattr(self.kind, cx.caller, name, value, flags)?;
        state.changed(now);
        Ok(())
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        let now = self.shared.now();
        let mut state = self.write();
        state.remove_xattr(self.kind, cx.caller, name)?;
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

impl Drop for MemNode {
    /// Drops descendants in a loop: a client may have created directories nested deeper than the
    /// stack allows.
    fn drop(&mut self) {
        self.shared.nodes(self.id).remove(&self.id);
        let mut below = self.take_children();
        while let Some(node) = below.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                below.append(&mut node.take_children());
            }
        }
    }
}

impl MemNode {
    fn take_children(&mut self) -> Vec<Arc<MemNode>> {
        let state = self.state.get_mut();
        state
            .dir_mut()
            .map(|dir| dir.drain().collect())
            .unwrap_or_default()
    }
}
