//! A node of the overlay: its parts in both trees, its attributes and permissions.

use std::collections::hash_map::Entry as Slot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use vfs::acl::{self, Acl};
use vfs::{
    Access, Attr, AttrMask, Cx, Errno, Kind, Name, Node, NodeId, Result, SetAttr, SetTime, perm,
};

use super::tree::{Tree, as_process};

pub(super) struct OverlayNode {
    pub(super) tree: Arc<Tree>,
    pub(super) id: NodeId,
    pub(super) kind: Kind,
    /// Whether it is the root, which is its own parent.
    pub(super) root: bool,
    state: RwLock<State>,
    /// Held during copy-up.
    pub(super) copying: Mutex<()>,
    /// Counts changes of a directory's names made here.
    epoch: AtomicU64,
    this: Weak<OverlayNode>,
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
    fn new(tree: &Arc<Tree>, id: NodeId, kind: Kind, state: State) -> Arc<OverlayNode> {
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

    /// Returns the node with number `id` and merges `state` into it, or creates it.
    pub(super) fn get_or_create(tree: &Arc<Tree>, id: NodeId, state: State) -> Arc<OverlayNode> {
        let real = state.upper.as_ref().or(state.lower.as_ref());
        let kind = real.expect("something was found").kind();
        // Dropped after the lock: its drop removes the node from the table.
        let known;
        let mut nodes = tree.nodes();
        let slot = nodes.entry(id);
        known = match &slot {
            Slot::Occupied(known) => known.get().upgrade(),
            Slot::Vacant(_) => None,
        };
        // The number of a deleted file may have been reused.
        if let Some(node) = known.as_ref().filter(|node| node.kind == kind) {
            drop(nodes);
            node.merge_state(state);
            return node.clone();
        }
        let node = OverlayNode::new(tree, id, kind, state);
        slot.insert_entry(Arc::downgrade(&node));
        node
    }

    /// Removes a node that was dropped from the table.
    fn forget(tree: &Tree, id: NodeId) {
        let mut nodes = tree.nodes();
        if nodes
            .get(&id)
            .is_some_and(|node| Weak::strong_count(node) == 0)
        {
            nodes.remove(&id);
        }
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
    fn merge_state(&self, found: State) {
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
            let is_it =
                |dentry: &Dentry| dentry.parent.id == dir.id && *dentry.name == *name.bytes();
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
}

/// Drops the chain of parents in a loop, to bound the recursion.
impl Drop for OverlayNode {
    fn drop(&mut self) {
        let parent = |node: &mut OverlayNode| {
            let dentry = node.state.get_mut().dentry.take();
            dentry.map(|dentry| dentry.parent)
        };
        OverlayNode::forget(&self.tree, self.id);
        let mut next = parent(self);
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = parent(&mut node);
        }
    }
}

/// Returns the node with this number, if it is in use.
pub(super) fn live_node(tree: &Tree, id: NodeId) -> Option<Arc<OverlayNode>> {
    tree.nodes().get(&id)?.upgrade()
}
