//! Look-up of a name in a directory: in the upper tree, the lower tree, or both.

use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Weak};

use vfs::{Attr, Cx, Entry, Errno, Kind, Name, Node, NodeId, Result, sip};

use super::handle::Origin;
use super::marks::is_whiteout;
use super::node::{OverlayNode, Place, State};
use super::{Found, Tree, ours};

/// The bit set in the numbers of nodes that exist in the upper tree only, and in no others.
const ABOVE: NodeId = 1 << 63;

/// The bit set in numbers of lower nodes that are hashes of a parent and a name.
const MADE: NodeId = 1 << 62;

/// The result of a look-up in an upper directory.
pub(super) enum Above {
    Nothing,
    Whiteout,
    There(Entry),
}

/// Looks up `name` in the upper directory `upper`.
pub(super) fn above(upper: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Above> {
    match upper.lookup(cx, name) {
        Ok(entry) if is_whiteout(&entry.attr) => Ok(Above::Whiteout),
        Ok(entry) => Ok(Above::There(entry)),
        Err(Errno::ENOENT) => Ok(Above::Nothing),
        Err(errno) => Err(errno),
    }
}

impl OverlayNode {
    /// Returns the child `name`, checking the caller's permissions. The caller holds the tree's
    /// names.
    pub(super) fn find(self: &Arc<Self>, cx: &Cx<'_>, name: Name<'_>) -> Result<Found> {
        let State { upper, lower, .. } = self.state();
        let Some(upper) = upper else {
            let lower = lower.ok_or(Errno::ENOENT)?;
            return self.found_below(lower.lookup(cx, name)?, name);
        };
        match above(&*upper, cx, name)? {
            Above::Whiteout => Err(Errno::ENOENT),
            Above::There(entry) => self.found_above(cx, entry, name),
            // The upper directory has checked search permission.
            Above::Nothing => match lower {
                Some(lower) => self.found_below(lower.lookup(&ours(cx), name)?, name),
                None => Err(Errno::ENOENT),
            },
        }
    }

    /// Returns the entry `name` of the lower directory, if there is one.
    pub(super) fn below(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let Some(lower) = self.state().lower else {
            return Ok(None);
        };
        match lower.lookup(&ours(cx), name) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn found_below(self: &Arc<Self>, entry: Entry, name: Name<'_>) -> Result<Found> {
        let Entry { node, attr } = entry;
        let id = self.id_below(&attr, name);
        let state = State {
            lower: Some(node),
            place: Some(self.place(name)),
            ..State::default()
        };
        let node = OverlayNode::enter(&self.tree, id, state);
        // If it has been copied up meanwhile, later attributes are the copy's.
        let attr = node.shown(attr);
        Ok(Found { node, attr })
    }

    /// Returns the number of a lower entry. Hard links are separate files here, so their numbers
    /// are hashes of their names; others keep the number of their node.
    pub(super) fn id_below(&self, attr: &Attr, name: Name<'_>) -> NodeId {
        if attr.nlink > 1 && attr.kind != Kind::Directory || attr.id & ABOVE != 0 {
            let mut place = self.id.to_le_bytes().to_vec();
            place.extend_from_slice(name.bytes());
            return sip::hash(&[0; 16], &place) & !ABOVE | MADE;
        }
        attr.id
    }

    /// Returns the node of `entry`, found in this directory's upper part.
    pub(super) fn found_above(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        entry: Entry,
        name: Name<'_>,
    ) -> Result<Found> {
        let cx = &ours(cx);
        let marked = self.tree.marks.of(&*entry.node, cx)?;
        let mut lower = None;
        if entry.node.kind() == Kind::Directory && !marked.opaque {
            let found = match &marked.redirect {
                Some(path) => self.redirected(cx, path)?,
                None => self.below(cx, name)?,
            };
            lower = found.filter(|found| found.node.kind() == Kind::Directory);
        }
        let origin = marked.origin.as_deref().and_then(Origin::read);
        let id = match (&lower, origin) {
            (Some(lower), _) => self.id_below(&lower.attr, name),
            (None, Some(origin)) => origin.id,
            (None, None) => id_above(entry.node.id()),
        };
        let origin = marked.origin.filter(|bytes| Origin::read(bytes).is_some());
        let state = State {
            upper: Some(entry.node),
            lower: lower.map(|lower| lower.node),
            place: Some(self.place(name)),
            origin,
        };
        let node = OverlayNode::enter(&self.tree, id, state);
        let attr = node.shown(entry.attr);
        Ok(Found { node, attr })
    }

    /// Follows a redirect to the lower directory, which the kernel sets on a rename.
    fn redirected(&self, cx: &Cx<'_>, path: &[u8]) -> Result<Option<Entry>> {
        let (mut node, path) = match path.strip_prefix(b"/") {
            Some(path) => (self.tree.lower.root(cx)?, path),
            None => match self.state().lower {
                Some(lower) => (lower, path),
                None => return Ok(None),
            },
        };
        let mut found = None;
        for name in path.split(|&byte| byte == b'/') {
            // An invalid path leads nowhere.
            let Ok(name) = Name::new(name) else {
                return Ok(None);
            };
            match node.lookup(cx, name) {
                Ok(entry) => {
                    node = entry.node.clone();
                    found = Some(entry);
                }
                Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        Ok(found)
    }

    fn place(self: &Arc<Self>, name: Name<'_>) -> Place {
        Place {
            parent: self.clone(),
            name: name.bytes().into(),
        }
    }

    /// Returns the node with number `id` and merges `state` into it, or creates it.
    pub(super) fn enter(tree: &Arc<Tree>, id: NodeId, state: State) -> Arc<OverlayNode> {
        let real = state.upper.as_ref().or(state.lower.as_ref());
        let kind = real.expect("something was found").kind();
        let mut nodes = tree.nodes();
        let slot = nodes.entry(id);
        if let Slot::Occupied(known) = &slot
            && let Some(node) = known.get().upgrade()
            // The number of a deleted file may have been reused.
            && node.kind == kind
        {
            drop(nodes);
            node.is_found(state);
            return node;
        }
        let node = OverlayNode::new(tree, id, kind, state);
        slot.insert_entry(Arc::downgrade(&node));
        node
    }

    /// Removes a node that was dropped from the table.
    pub(super) fn leave(tree: &Tree, id: NodeId) {
        let mut nodes = tree.nodes();
        if nodes
            .get(&id)
            .is_some_and(|node| Weak::strong_count(node) == 0)
        {
            nodes.remove(&id);
        }
    }
}

pub(super) fn id_above(id: NodeId) -> NodeId {
    id | ABOVE
}

/// Returns the node with this number, if it is in use.
pub(super) fn known(tree: &Tree, id: NodeId) -> Option<Arc<OverlayNode>> {
    tree.nodes().get(&id)?.upgrade()
}
