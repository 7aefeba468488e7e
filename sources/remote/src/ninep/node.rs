//! Nodes: a fid per user, and operations on them. A listed file has no fid until it is used.
//!
//! Lock order: a node's state, never two at a time, and then the tables of files without fids; none
//! across a request.

use std::any::Any;
use std::sync::{Arc, Weak};

use p9::client::{attr, request};
use p9::{Names, Rmessage, Tmessage};
use parking_lot::{Mutex, MutexGuard};
use vfs::lock::{ForeignLock, HostLock, LockKind, LockRange};
use vfs::{
    Access, Attr, AttrMask, Caller, Cx, Entry, Errno, File, Groups, Handle, Kind, Mode, Name,
    NewNode, Node, NodeId, OpenFlags, RenameFlags, Result, SetAttr, StatFs, XattrFlags,
};

use super::fid::{OwnedFid, Session};
use super::file::RemoteFile;
use super::fs::Shared;

/// A node.
pub(super) struct RemoteNode {
    pub(super) shared: Arc<Shared>,
    pub(super) this: Weak<RemoteNode>,
    id: NodeId,
    kind: Kind,
    /// Whether it was created without a fid, for [`Shared::unpinned`].
    listed: bool,
    state: Mutex<State>,
}

/// The mutable state, kept small as there may be one for every file of a tree.
struct State {
    /// The parent and name for users without a fid; `None` for the root and for nodes found without
    /// a name.
    location: Option<Location>,
    /// `None` for a listed file that has not been used.
    fids: Option<Box<Fids>>,
}

/// Fids by user.
struct Fids {
    first: (u32, Arc<OwnedFid>),
    others: Vec<(u32, Arc<OwnedFid>)>,
}

impl Fids {
    /// The most fids after the first.
    const MAX_OTHERS: usize = 63;

    fn new(user: u32, held: Arc<OwnedFid>) -> Fids {
        Fids {
            first: (user, held),
            others: Vec::new(),
        }
    }

    fn of(&self, user: u32) -> Option<&Arc<OwnedFid>> {
        let mut all = std::iter::once(&self.first).chain(&self.others);
        all.find(|(known, _)| *known == user).map(|(_, held)| held)
    }

    /// Adds a fid, and returns one that it displaces, if any.
    fn add(&mut self, user: u32, held: Arc<OwnedFid>) -> Option<(u32, Arc<OwnedFid>)> {
        let full = self.others.len() >= Fids::MAX_OTHERS;
        let extra = full.then(|| self.others.remove(0));
        self.others.push((user, held));
        extra
    }
}

#[derive(Clone)]
pub(super) struct Location {
    parent: Arc<RemoteNode>,
    name: Box<[u8]>,
}

impl RemoteNode {
    pub(super) fn root(shared: &Arc<Shared>, id: NodeId, kind: Kind) -> Arc<RemoteNode> {
        RemoteNode::new(shared, (id, kind), None, None)
    }

    fn new(
        shared: &Arc<Shared>,
        (id, kind): (NodeId, Kind),
        place: Option<Location>,
        fids: Option<Fids>,
    ) -> Arc<RemoteNode> {
        if fids.is_some() && kind != Kind::Directory {
            shared.unpinned.pin(id);
        }
        Arc::new_cyclic(|this| RemoteNode {
            shared: shared.clone(),
            this: this.clone(),
            id,
            kind,
            listed: place.is_some() && fids.is_none(),
            state: Mutex::new(State {
                location: place,
                fids: fids.map(Box::new),
            }),
        })
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.shared.session
    }

    /// Creates the node that a walk of the caller found.
    pub(super) fn walked_entry(
        &self,
        cx: &Cx<'_>,
        name: Option<Name<'_>>,
        held: impl Into<Arc<OwnedFid>>,
        attr: Attr,
    ) -> Entry {
        let place = name.and_then(|name| self.child_location(name));
        let fids = Fids::new(self.shared.user(cx.caller), held.into());
        let node = RemoteNode::new(&self.shared, (attr.id, attr.kind), place, Some(fids));
        Entry { node, attr }
    }

    /// Creates the node of a listed entry. Only directories, and files of which another node has a
    /// fid, keep theirs.
    pub(super) fn listed_entry(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        held: OwnedFid,
        attr: Attr,
    ) -> Entry {
        let unpinned = &self.shared.unpinned;
        if attr.kind == Kind::Directory || unpinned.is_pinned(attr.id) {
            return self.walked_entry(cx, Some(name), held, attr);
        }
        drop(held);
        if let Some(node) = unpinned.get(self.id, name.bytes())
            && (node.id, node.kind) == (attr.id, attr.kind)
        {
            return Entry { node, attr };
        }
        let place = self.child_location(name);
        let node = RemoteNode::new(&self.shared, (attr.id, attr.kind), place, None);
        unpinned.insert(self.id, name.bytes(), &node);
        Entry { node, attr }
    }

    fn child_location(&self, name: Name<'_>) -> Option<Location> {
        let up = self.this.upgrade()?;
        let name = name.bytes().into();
        Some(Location { parent: up, name })
    }

    /// Returns whether the node was found at `name` in the directory `dir`.
    pub(super) fn is_at(&self, dir: NodeId, name: &[u8]) -> bool {
        let state = self.state();
        let place = state.location.as_ref();
        place.is_some_and(|place| place.parent.id == dir && *place.name == *name)
    }

    /// Records a rename through this client to `name` in the directory `to`.
    pub(super) fn record_rename(self: &Arc<Self>, to: &RemoteNode, name: Name<'_>) {
        let Some(place) = to.child_location(name) else {
            return;
        };
        let unpinned = &self.shared.unpinned;
        let old = self.state().location.replace(place);
        if let Some(old) = old {
            unpinned.remove(old.parent.id, &old.name, self);
        }
        unpinned.insert(to.id, name.bytes(), self);
    }

    /// Returns the caller's fid. For a user without one, walks to the place where the node was
    /// found, and returns `ESTALE` if the file there is gone or another.
    pub(super) fn fid(&self, cx: &Cx<'_>) -> Result<Arc<OwnedFid>> {
        cx.check_may_block()?;
        let user = self.shared.user(cx.caller);
        if let Some(held) = self.cached_fid(user) {
            return Ok(held);
        }
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut place = self.location();
        let mut id = self.id;
        let mut from = loop {
            let Some(Location { parent: up, name }) = place else {
                if id == self.shared.root_id() {
                    break self.shared.root_of(cx, user)?;
                }
                return Err(Errno::ESTALE);
            };
            names.push(name);
            if let Some(held) = up.cached_fid(user) {
                break held;
            }
            (id, place) = (up.id, up.location());
        };
        names.reverse();
        let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let mut last = None;
        for names in names.chunks(Names::MAX) {
            let (held, qid) = self
                .session()
                .walk(cx, from.fid, names)
                .map_err(stale_if_missing)?;
            (from, last) = (Arc::new(held), qid);
        }
        if last.is_some_and(|qid| attr::id_of(&qid) != self.id) {
            return Err(Errno::ESTALE);
        }
        self.add_fid(user, from.clone());
        Ok(from)
    }

    /// Adds a fid.
    pub(super) fn add_fid(&self, user: u32, held: Arc<OwnedFid>) {
        let mut state = self.state();
        let extra = match &mut state.fids {
            Some(fids) => fids.add(user, held),
            none => {
                if self.kind != Kind::Directory {
                    self.shared.unpinned.pin(self.id);
                }
                *none = Some(Box::new(Fids::new(user, held)));
                None
            }
        };
        drop(state);
        drop(extra);
    }

    /// Returns whether the node has a fid.
    pub(super) fn has_fid(&self) -> bool {
        self.state().fids.is_some()
    }

    fn cached_fid(&self, user: u32) -> Option<Arc<OwnedFid>> {
        self.state().fids.as_ref()?.of(user).cloned()
    }

    fn location(&self) -> Option<Location> {
        self.state().location.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Downcasts a node of this connection. Returns `EXDEV` for other nodes.
    pub(super) fn of_same<'a>(&self, node: &'a dyn Node) -> Result<&'a RemoteNode> {
        node.as_any()
            .downcast_ref::<RemoteNode>()
            .filter(|node| Arc::ptr_eq(&node.shared, &self.shared))
            .ok_or(Errno::EXDEV)
    }

    pub(super) fn check_directory(&self) -> Result<()> {
        match self.kind {
            Kind::Directory => Ok(()),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Returns `ESTALE` if the attributes are another node's.
    fn check_same_file(&self, attr: Attr) -> Result<Attr> {
        if (attr.id, attr.kind) == (self.id, self.kind) {
            Ok(attr)
        } else {
            Err(Errno::ESTALE)
        }
    }
}

/// Translates the error of a lookup by a node's own name: the node is stale if the name is gone.
fn stale_if_missing(errno: Errno) -> Errno {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR => Errno::ESTALE,
        errno => errno,
    }
}

/// Changes attributes of a fid, whose file has kind `kind`.
pub(super) fn set_attr(
    wire: &Arc<Session>,
    cx: &Cx<'_>,
    fid: p9::Fid,
    kind: Kind,
    set: &SetAttr,
) -> Result<Attr> {
    let mut set = *set;
    if set.kill_priv {
        set.kill_priv = false;
        if set.mode.is_none() && kind == Kind::File {
            let mode = wire.attr(cx, fid)?.mode;
            let less = Kind::File.mode_without_set_id(mode);
            set.mode = (less != mode).then_some(less);
        }
    }
    if set == SetAttr::default() {
        return wire.attr(cx, fid);
    }
    if wire.is_linux() {
        wire.call(cx, &request::setattr(fid, &set))?;
    } else {
        super::legacy::setattr(wire, cx, fid, kind, &set)?;
    }
    wire.attr(cx, fid)
}

/// Returns the access that the permission bits grant a caller, as Linux decides it; unknown
/// supplementary groups do not count.
pub(super) fn allowed(attr: &Attr, caller: &Caller) -> Access {
    if caller.uid == 0 {
        let exec = attr.kind == Kind::Directory || attr.mode & 0o111 != 0;
        let mut all = Access::READ | Access::WRITE;
        all.set(Access::EXEC, exec);
        return all;
    }
    let in_group = caller.gid == attr.gid
        || matches!(&caller.groups, Groups::Known(groups) if groups.contains(&attr.gid));
    let shift = match () {
        () if caller.uid == attr.uid => 6,
        () if in_group => 3,
        () => 0,
    };
    Access::from_bits_truncate(attr.mode >> shift & 7)
}

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
        cx.check_may_block()?;
        let user = self.shared.user(cx.caller);
        if self.cached_fid(user).is_none()
            && let Some(Location { parent: up, name }) = self.location()
        {
            // Sends the walk and the attribute request in one flight.
            let dir = up.fid(cx)?;
            let (held, attr) = self
                .session()
                .walk_getattr(cx, dir.fid, &[&name])
                .map_err(stale_if_missing)?;
            let attr = self.check_same_file(attr)?;
            self.add_fid(user, held.into());
            return Ok(attr);
        }
        let held = self.fid(cx)?;
        self.check_same_file(self.session().attr(cx, held.fid)?)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        let held = self.fid(cx)?;
        self.check_same_file(set_attr(self.session(), cx, held.fid, self.kind, set)?)
    }

    /// Checks the permission bits, as 9P has no access request.
    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        let attr = self.attr(cx, AttrMask::BASIC)?;
        Ok(allowed(&attr, cx.caller) & want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        let held = self.fid(cx)?;
        if !self.session().is_linux() {
            return Ok(super::legacy::statfs());
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
            return super::legacy::readlink(self.session(), cx, held.fid);
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
        self.check_directory()?;
        let dir = self.fid(cx)?;
        let (held, attr) = self.session().walk_getattr(cx, dir.fid, &[name.bytes()])?;
        Ok(self.walked_entry(cx, Some(name), held, attr))
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        self.check_directory()?;
        let dir = self.fid(cx)?;
        // Not every server stops at the root of the attach.
        let names: &[&[u8]] = match self.id == self.shared.root_id() {
            true => &[],
            false => &[b".."],
        };
        let (held, attr) = self.session().walk_getattr(cx, dir.fid, names)?;
        Ok(self.walked_entry(cx, None, held, attr))
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

/// Drops the chain of parents in a loop: a tree may be too deep for recursion.
impl Drop for RemoteNode {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let mut place = state.location.take();
        let has_fid = state.fids.is_some();
        if let (true, Some(Location { parent: up, name })) = (self.listed, &place) {
            self.shared.unpinned.remove(up.id, name, self);
        }
        if has_fid && self.kind != Kind::Directory {
            self.shared.unpinned.unpin(self.id);
        }
        while let Some(Location { parent: up, .. }) = place {
            let up = Arc::into_inner(up);
            place = up.and_then(|mut node| node.state.get_mut().location.take());
        }
    }
}
