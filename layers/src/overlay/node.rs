//! A node of the overlay.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use vfs::acl::{self, Acl};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Cx, Entry, Errno, File, Handle, Kind, Mode, Name, NewNode, Node,
    NodeId, OpenFlags, RenameFlags, Result, SetAttr, SetTime, StatFs, XattrFlags, perm,
};

use super::file::OverlayFile;
use super::{Tree, as_process, handle};

pub(super) struct OverlayNode {
    pub(super) tree: Arc<Tree>,
    pub(super) id: NodeId,
    pub(super) kind: Kind,
    /// Whether it is the root, which is its own parent.
    root: bool,
    state: RwLock<State>,
    /// Held during copy-up.
    pub(super) copying: Mutex<()>,
    /// Counts changes of a directory's names made here.
    epoch: AtomicU64,
    this: std::sync::Weak<OverlayNode>,
}

/// The present parts of a node.
#[derive(Clone, Default)]
pub(super) struct State {
    /// The upper node. Once set, it remains.
    pub(super) upper: Option<Arc<dyn Node>>,
    /// The lower node: the origin of a copy, or the directory merged with the upper one.
    pub(super) lower: Option<Arc<dyn Node>>,
    /// One of its names; `None` for the root and for a file without names.
    pub(super) dentry: Option<Dentry>,
    /// Its handle as a lower node.
    pub(super) origin: Option<Vec<u8>>,
}

#[derive(Clone)]
pub(super) struct Dentry {
    pub(super) parent: Arc<OverlayNode>,
    pub(super) name: Box<[u8]>,
}

impl OverlayNode {
    pub(super) fn new(tree: &Arc<Tree>, id: NodeId, kind: Kind, state: State) -> Arc<OverlayNode> {
        Arc::new_cyclic(|this| OverlayNode {
            tree: tree.clone(),
            id,
            kind,
            root: false,
            state: RwLock::new(state),
            copying: Mutex::new(()),
            epoch: AtomicU64::new(0),
            this: this.clone(),
        })
    }

    pub(super) fn root(
        tree: &Arc<Tree>,
        upper: Arc<dyn Node>,
        lower: Arc<dyn Node>,
    ) -> Arc<OverlayNode> {
        let state = State {
            upper: Some(upper),
            lower: Some(lower.clone()),
            ..State::default()
        };
        let root = Arc::new_cyclic(|this| OverlayNode {
            tree: tree.clone(),
            id: lower.id(),
            kind: Kind::Directory,
            root: true,
            state: RwLock::new(state),
            copying: Mutex::new(()),
            epoch: AtomicU64::new(0),
            this: this.clone(),
        });
        tree.nodes().insert(root.id, Arc::downgrade(&root));
        root
    }

    pub(super) fn this(&self) -> Arc<OverlayNode> {
        self.this.upgrade().expect("whoever calls has it")
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    pub(super) fn state(&self) -> State {
        self.read().clone()
    }

    pub(super) fn upper(&self) -> Option<Arc<dyn Node>> {
        self.read().upper.clone()
    }

    /// Returns the upper node, or the lower one if there is none.
    pub(super) fn real(&self) -> Result<Arc<dyn Node>> {
        let state = self.read();
        let real = state.upper.as_ref().or(state.lower.as_ref());
        real.cloned().ok_or(Errno::ESTALE)
    }

    /// Changes the state.
    pub(super) fn update_state(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write());
    }

    /// Merges the result of a look-up into the state: what was found is as accurate as before, or
    /// more so.
    pub(super) fn merge_state(&self, found: State) {
        self.update_state(|state| {
            state.dentry = found.dentry.or(state.dentry.take());
            if found.upper.is_some() {
                state.upper = found.upper;
                state.lower = found.lower.or(state.lower.take());
                state.origin = found.origin.or(state.origin.take());
            }
        });
    }

    /// Removes the name `name` in `dir`.
    pub(super) fn remove_dentry(&self, dir: &OverlayNode, name: Name<'_>) {
        self.update_state(|state| {
            let is_it = |place: &Dentry| place.parent.id == dir.id && *place.name == *name.bytes();
            if state.dentry.as_ref().is_some_and(is_it) {
                state.dentry = None;
            }
        });
        dir.bump_epoch();
    }

    /// Counts a change of its names.
    pub(super) fn bump_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns whether this is a directory in both trees.
    fn is_merged(&self) -> bool {
        let state = self.read();
        self.kind == Kind::Directory && state.upper.is_some() && state.lower.is_some()
    }

    /// Converts attributes of the topmost node to those of this node.
    pub(super) fn overlay_attr(&self, mut attr: Attr) -> Attr {
        attr.id = self.id;
        attr.generation = 0;
        attr.device = 0;
        if self.is_merged() {
            // Its subdirectories are not counted: that would take a listing.
            attr.nlink = 1;
        }
        let state = self.read();
        // A lower name is never removed.
        if state.upper.is_none() && state.dentry.is_none() {
            attr.nlink = 0;
        }
        attr
    }

    /// Returns the caller's permissions, as if everything were writable.
    pub(super) fn allowed(&self, cx: &Cx<'_>) -> Result<Access> {
        let State { upper, lower, .. } = self.state();
        if let Some(upper) = upper {
            return upper.access(cx, Access::all());
        }
        let lower = lower.ok_or(Errno::ESTALE)?;
        let acl = match lower.xattr(&as_process(cx), acl::ACCESS) {
            Ok(value) => Some(Acl::read(&value)?),
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => None,
            Err(errno) => return Err(errno),
        };
        let attr = lower.attr(&as_process(cx), AttrMask::BASIC)?;
        Ok(perm::allowed(&attr, acl.as_ref(), cx.caller))
    }

    /// Returns `EACCES` unless the caller has all permissions in `want`.
    pub(super) fn check(&self, cx: &Cx<'_>, want: Access) -> Result<()> {
        match self.allowed(cx)?.contains(want) {
            true => Ok(()),
            false => Err(Errno::EACCES),
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

    /// Returns whether the caller may probably make the change `set`. The upper tree decides after
    /// the copy-up; this check avoids useless copies.
    pub(super) fn check_set(&self, cx: &Cx<'_>, set: &SetAttr, attr: &Attr) -> Result<()> {
        let exact = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let owners = set.changes_access() || exact(set.atime) || exact(set.mtime);
        let owns = perm::owns(attr, cx.caller);
        match () {
            () if owners && !owns => Err(Errno::EPERM),
            () if set.size.is_some() => self.check(cx, Access::WRITE),
            () if !owns && *set != SetAttr::default() => self.check(cx, Access::WRITE),
            () => Ok(()),
        }
    }

    /// Refuses attributes that are marks of the overlay, which are invisible to callers.
    fn check_name(&self, name: &[u8]) -> Result<()> {
        match self.tree.xattrs.is_overlay_xattr(name) {
            true => Err(Errno::EOPNOTSUPP),
            false => Ok(()),
        }
    }

    /// Opens the topmost node, after a copy-up if `flags` permit changes.
    pub(super) fn open_as(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<OverlayFile>> {
        let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC);
        if writes && self.kind == Kind::File && self.upper().is_none() {
            cx.check_may_block()?;
            let mut want = Access::WRITE;
            want.set(Access::READ, flags.contains(OpenFlags::READ));
            let attr = self.real()?.attr(&as_process(cx), AttrMask::STAT)?;
            let is_owner = flags.contains(OpenFlags::OWNER) && attr.uid == cx.caller.uid;
            if !is_owner {
                self.check(cx, want)?;
            }
            let keep = match flags.contains(OpenFlags::TRUNC) {
                true => 0,
                false => u64::MAX,
            };
            self.copy_up(cx, keep)?;
        }
        let upper = self.upper();
        let is_above = upper.is_some();
        let real = upper.map_or_else(|| self.real(), Ok)?;
        let file = real.open(cx, flags)?;
        Ok(Arc::new(OverlayFile::new(
            self.this(),
            flags,
            file,
            is_above,
        )))
    }

    fn directory(&self) -> Result<Arc<OverlayNode>> {
        match self.kind {
            Kind::Directory => Ok(self.this()),
            _ => Err(Errno::ENOTDIR),
        }
    }
}

/// Drops the chain of parents in a loop, to bound the recursion.
impl Drop for OverlayNode {
    fn drop(&mut self) {
        let parent = |node: &mut OverlayNode| {
            let place = node.state.get_mut().dentry.take();
            place.map(|place| place.parent)
        };
        OverlayNode::forget(&self.tree, self.id);
        let mut next = parent(self);
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = parent(&mut node);
        }
    }
}

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
            Some(place) => place.parent,
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
