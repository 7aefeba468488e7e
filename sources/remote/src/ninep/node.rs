//! Nodes: a fid per user. A listed file has no fid until it is used. `node_ops` has the operations
//! of `vfs::Node`.
//!
//! Lock order: a node's state, never two at a time, and then the tables of files without fids; none
//! across a request.

use std::sync::{Arc, Weak};

use p9::Names;
use p9::client::attr;
use parking_lot::{Mutex, MutexGuard};
use vfs::{Attr, Cx, Entry, Errno, Kind, Name, Node, NodeId, Result};

use super::fid::{OwnedFid, Session};
use super::shared::Shared;

/// A node.
pub(super) struct RemoteNode {
    pub(super) shared: Arc<Shared>,
    pub(super) this: Weak<RemoteNode>,
    pub(super) id: NodeId,
    pub(super) kind: Kind,
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
        location: Option<Location>,
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
            listed: location.is_some() && fids.is_none(),
            state: Mutex::new(State {
                location,
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
        let location = name.and_then(|name| self.child_location(name));
        let fids = Fids::new(self.shared.user(cx.caller), held.into());
        let node = RemoteNode::new(&self.shared, (attr.id, attr.kind), location, Some(fids));
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
        let location = self.child_location(name);
        let node = RemoteNode::new(&self.shared, (attr.id, attr.kind), location, None);
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
        let location = state.location.as_ref();
        location.is_some_and(|location| location.parent.id == dir && *location.name == *name)
    }

    /// Records a rename through this client to `name` in the directory `to`.
    pub(super) fn record_rename(self: &Arc<Self>, to: &RemoteNode, name: Name<'_>) {
        let Some(location) = to.child_location(name) else {
            return;
        };
        let unpinned = &self.shared.unpinned;
        let old = self.state().location.replace(location);
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
        let mut location = self.location();
        let mut id = self.id;
        let mut from = loop {
            let Some(Location { parent: up, name }) = location else {
                if id == self.shared.root_id() {
                    break self.shared.root_of(cx, user)?;
                }
                return Err(Errno::ESTALE);
            };
            names.push(name);
            if let Some(held) = up.cached_fid(user) {
                break held;
            }
            (id, location) = (up.id, up.location());
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

    /// [`Node::attr`].
    pub(super) fn get_attr(&self, cx: &Cx<'_>) -> Result<Attr> {
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

    /// [`Node::lookup`].
    pub(super) fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.check_directory()?;
        let dir = self.fid(cx)?;
        let (held, attr) = self.session().walk_getattr(cx, dir.fid, &[name.bytes()])?;
        Ok(self.walked_entry(cx, Some(name), held, attr))
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
    pub(super) fn check_same_file(&self, attr: Attr) -> Result<Attr> {
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

/// Drops the chain of parents in a loop: a tree may be too deep for recursion.
impl Drop for RemoteNode {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let mut location = state.location.take();
        let has_fid = state.fids.is_some();
        if let (true, Some(Location { parent: up, name })) = (self.listed, &location) {
            self.shared.unpinned.remove(up.id, name, self);
        }
        if has_fid && self.kind != Kind::Directory {
            self.shared.unpinned.unpin(self.id);
        }
        while let Some(Location { parent: up, .. }) = location {
            let up = Arc::into_inner(up);
            location = up.and_then(|mut node| node.state.get_mut().location.take());
        }
    }
}
