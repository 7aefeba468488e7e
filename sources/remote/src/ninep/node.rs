//! Nodes, which are found by name again if their fid was given up ([`HeldFids`]). `node_ops` has
//! the operations of `vfs::Node`.
//!
//! A million of them have to fit: a node is 72 bytes (see the test), its slot in the table some 10
//! to 20.
//!
//! Lock order: a node's location, never two at a time, after the tables of nodes; none across a
//! request.
//!
//! [`HeldFids`]: super::held_fids::HeldFids

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use p9::client::attr;
use p9::{CompactName, Names};
use parking_lot::{Mutex, MutexGuard};
use vfs::{Attr, Cx, Entry, Errno, Kind, Name, Node, NodeId, Result};

use super::fid::{OwnedFid, Session};
use super::shared::Shared;

/// A node.
pub(super) struct RemoteNode {
    pub(super) shared: Arc<Shared>,
    pub(super) id: NodeId,
    pub(super) kind: Kind,
    flags: AtomicU8,
    /// The hash of the location, for [`Shared::places`].
    hash: AtomicU32,
    /// The parent and name; `None` for the root and for nodes found without a name.
    location: Mutex<Option<Location>>,
}

/// Has, or had, a fid.
const HAS_FIDS: u8 = 1;

pub(super) struct Location {
    parent: Arc<RemoteNode>,
    name: CompactName,
}

impl RemoteNode {
    /// Returns a node without a name.
    pub(super) fn nameless(shared: &Arc<Shared>, id: NodeId, kind: Kind) -> Arc<RemoteNode> {
        let hash = shared.places.hash(id, b"");
        let node = RemoteNode::new(shared, (id, kind), None, hash);
        shared.places.insert(&node);
        node
    }

    fn new(
        shared: &Arc<Shared>,
        (id, kind): (NodeId, Kind),
        location: Option<Location>,
        hash: u32,
    ) -> Arc<RemoteNode> {
        Arc::new(RemoteNode {
            shared: shared.clone(),
            id,
            kind,
            flags: AtomicU8::new(0),
            hash: AtomicU32::new(hash),
            location: Mutex::new(location),
        })
    }

    /// Returns the node of the object at `name` in this directory.
    fn child(&self, name: Name<'_>, attr: &Attr) -> Arc<RemoteNode> {
        let Some(parent) = self.shared_node() else {
            return RemoteNode::nameless(&self.shared, attr.id, attr.kind);
        };
        let object = (attr.id, attr.kind);
        let make = |hash| {
            let name = CompactName::new(name);
            RemoteNode::new(&self.shared, object, Some(Location { parent, name }), hash)
        };
        let place = (self.id, name.bytes());
        self.shared.places.get_or_insert(place, object, make)
    }

    /// Returns the `Arc` of this node.
    pub(super) fn shared_node(&self) -> Option<Arc<RemoteNode>> {
        self.shared.places.shared(self)
    }

    pub(super) fn hash(&self) -> u32 {
        self.hash.load(Ordering::Relaxed)
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.shared.session
    }

    /// Returns the node that a walk of the caller found.
    pub(super) fn walked_entry(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        held: impl Into<Arc<OwnedFid>>,
        attr: Attr,
    ) -> Entry {
        let node = self.child(name, &attr);
        node.set_fid(self.shared.user(cx.caller), held.into());
        Entry { node, attr }
    }

    /// Returns the node of a listed entry. Only directories, whose entries are likely to be used
    /// next, keep their fid.
    pub(super) fn listed_entry(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        held: OwnedFid,
        attr: Attr,
    ) -> Entry {
        if attr.kind == Kind::Directory {
            return self.walked_entry(cx, name, held, attr);
        }
        let node = self.child(name, &attr);
        Entry { node, attr }
    }

    /// [`Node::parent`] of a directory that is not the root.
    pub(super) fn parent_entry(&self, cx: &Cx<'_>, held: OwnedFid, attr: Attr) -> Entry {
        let known = self.location().map(|(parent, _)| parent);
        let node = match known.filter(|parent| (parent.id, parent.kind) == (attr.id, attr.kind)) {
            Some(parent) => parent,
            None => {
                let node = RemoteNode::nameless(&self.shared, attr.id, attr.kind);
                node.keep_fid(self.shared.user(cx.caller), held.into());
                node
            }
        };
        Entry { node, attr }
    }

    /// Returns whether the node was found at `name` in the directory `dir`.
    pub(super) fn is_at(&self, dir: NodeId, name: &[u8]) -> bool {
        let location = self.place();
        let location = location.as_ref();
        location.is_some_and(|location| location.parent.id == dir && location.name.bytes() == name)
    }

    /// Records a rename through this client to `name` in the directory `to`.
    pub(super) fn record_rename(self: &Arc<Self>, to: &RemoteNode, name: Name<'_>) {
        if let Some(parent) = to.shared_node() {
            let hash = self.shared.places.hash(to.id, name.bytes());
            let name = CompactName::new(name);
            self.relocate(Some(Location { parent, name }), hash);
        }
    }

    /// Records that the name was removed through this client: `held` is the only way to the object.
    pub(super) fn record_removal(self: &Arc<Self>, user: u32, held: Arc<OwnedFid>) {
        self.keep_fid(user, held);
        self.relocate(None, self.shared.places.hash(self.id, b""));
    }

    fn relocate(self: &Arc<Self>, location: Option<Location>, hash: u32) {
        let mut old = location;
        self.shared.places.relocate(self, hash, || {
            std::mem::swap(&mut *self.place(), &mut old);
            self.hash.store(hash, Ordering::Relaxed);
        });
        drop(old);
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
            let Some((up, name)) = location else {
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
        if names.is_empty() {
            return Ok(from);
        }
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
        self.set_fid(user, from.clone());
        Ok(from)
    }

    /// [`Node::attr`].
    pub(super) fn get_attr(&self, cx: &Cx<'_>) -> Result<Attr> {
        cx.check_may_block()?;
        let user = self.shared.user(cx.caller);
        if self.cached_fid(user).is_none()
            && let Some((up, name)) = self.location()
        {
            // Sends the walk and the attribute request in one flight.
            let dir = up.fid(cx)?;
            let (held, attr) = self
                .session()
                .walk_getattr(cx, dir.fid, &[&name])
                .map_err(stale_if_missing)?;
            let attr = self.check_same_file(attr)?;
            self.set_fid(user, held.into());
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
        Ok(self.walked_entry(cx, name, held, attr))
    }

    /// Sets the fid for `user`, which may be given up later.
    pub(super) fn set_fid(&self, user: u32, held: Arc<OwnedFid>) {
        if let Some(node) = self.shared_node() {
            self.flags.fetch_or(HAS_FIDS, Ordering::Relaxed);
            self.session().held_fids.set(&node, user, held);
        }
    }

    /// Sets the fid for `user`, and keeps all fids until the node is dropped.
    fn keep_fid(self: &Arc<Self>, user: u32, held: Arc<OwnedFid>) {
        self.flags.fetch_or(HAS_FIDS, Ordering::Relaxed);
        self.session().held_fids.keep(self, user, held);
    }

    /// Returns a fid that the node has, for any user.
    pub(super) fn any_fid(&self) -> Option<Arc<OwnedFid>> {
        if self.flags.load(Ordering::Relaxed) & HAS_FIDS == 0 {
            return None;
        }
        self.session().held_fids.any(self)
    }

    fn cached_fid(&self, user: u32) -> Option<Arc<OwnedFid>> {
        if self.flags.load(Ordering::Relaxed) & HAS_FIDS == 0 {
            return None;
        }
        self.session().held_fids.get(self, user)
    }

    fn location(&self) -> Option<(Arc<RemoteNode>, Box<[u8]>)> {
        let location = self.place();
        let location = location.as_ref()?;
        Some((location.parent.clone(), location.name.bytes().into()))
    }

    fn place(&self) -> MutexGuard<'_, Option<Location>> {
        self.location.lock()
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
        self.shared.places.remove(self);
        if *self.flags.get_mut() & HAS_FIDS != 0 {
            self.shared.session.held_fids.remove(self);
        }
        let mut location = self.location.get_mut().take();
        while let Some(Location { parent: up, .. }) = location {
            let up = Arc::into_inner(up);
            location = up.and_then(|mut node| node.location.get_mut().take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_small() {
        // After the two counters of the `Arc`: 72, for which malloc uses 80.
        assert_eq!(size_of::<RemoteNode>(), 56);
    }
}
