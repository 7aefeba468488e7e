//! Look-up of a name in a directory: in the upper tree, the lower tree, or both.

use std::sync::Arc;

use vfs::{Attr, Cx, Entry, Errno, Kind, Name, Node, NodeId, Result, siphash};

use super::node::{Dentry, OverlayNode, State};
use super::origin::Origin;
use super::tree::as_process;
use super::xattrs::is_whiteout;

/// The bit set in the numbers of nodes that exist in the upper tree only, and in no others.
const UPPER_BIT: NodeId = 1 << 63;

/// The bit set in numbers of lower nodes that are hashes of a parent and a name.
const HASHED_BIT: NodeId = 1 << 62;

/// The result of a look-up.
pub(super) struct Found {
    pub(super) node: Arc<OverlayNode>,
    pub(super) attr: Attr,
}

impl Found {
    pub(super) fn entry(self) -> Entry {
        Entry {
            node: self.node,
            attr: self.attr,
        }
    }
}

/// The result of a look-up in an upper directory.
pub(super) enum UpperEntry {
    Absent,
    Whiteout,
    Found(Entry),
}

/// Looks up `name` in the upper directory `upper`.
pub(super) fn look_up_upper(upper: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<UpperEntry> {
    match upper.lookup(cx, name) {
        Ok(entry) if is_whiteout(&entry.attr) => Ok(UpperEntry::Whiteout),
        Ok(entry) => Ok(UpperEntry::Found(entry)),
        Err(Errno::ENOENT) => Ok(UpperEntry::Absent),
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
            return self.found_lower(lower.lookup(cx, name)?, name);
        };
        match look_up_upper(&*upper, cx, name)? {
            UpperEntry::Whiteout => Err(Errno::ENOENT),
            UpperEntry::Found(entry) => self.found_upper(cx, entry, name),
            // The upper directory has checked search permission.
            UpperEntry::Absent => match lower {
                Some(lower) => self.found_lower(lower.lookup(&as_process(cx), name)?, name),
                None => Err(Errno::ENOENT),
            },
        }
    }

    /// Returns the entry `name` of the lower directory, if there is one.
    pub(super) fn lower_entry(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Entry>> {
        let Some(lower) = self.state().lower else {
            return Ok(None);
        };
        match lower.lookup(&as_process(cx), name) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn found_lower(self: &Arc<Self>, entry: Entry, name: Name<'_>) -> Result<Found> {
        let Entry { node, attr } = entry;
        let id = self.lower_id(&attr, name);
        let state = State {
            lower: Some(node),
            dentry: Some(self.dentry(name)),
            ..State::default()
        };
        let node = OverlayNode::get_or_create(&self.tree, id, state);
        // If it has been copied up meanwhile, later attributes are the copy's.
        let attr = node.overlay_attr(attr);
        Ok(Found { node, attr })
    }

    /// Returns the number of a lower entry. Hard links are separate files here, so their numbers
    /// are hashes of their names; others keep the number of their node.
    pub(super) fn lower_id(&self, attr: &Attr, name: Name<'_>) -> NodeId {
        if attr.nlink > 1 && attr.kind != Kind::Directory || attr.id & UPPER_BIT != 0 {
            let mut key = self.id.to_le_bytes().to_vec();
            key.extend_from_slice(name.bytes());
            return siphash::hash(&[0; 16], &key) & !UPPER_BIT | HASHED_BIT;
        }
        attr.id
    }

    /// Returns the node of `entry`, found in this directory's upper part.
    pub(super) fn found_upper(
        self: &Arc<Self>,
        cx: &Cx<'_>,
        entry: Entry,
        name: Name<'_>,
    ) -> Result<Found> {
        let cx = &as_process(cx);
        let marked = self.tree.xattrs.of(&*entry.node, cx)?;
        let mut lower = None;
        if entry.node.kind() == Kind::Directory && !marked.opaque {
            let found = match &marked.redirect {
                Some(path) => self.redirected(cx, path)?,
                None => self.lower_entry(cx, name)?,
            };
            lower = found.filter(|found| found.node.kind() == Kind::Directory);
        }
        let origin = marked.origin.as_deref().and_then(Origin::read);
        let id = match (&lower, origin) {
            (Some(lower), _) => self.lower_id(&lower.attr, name),
            (None, Some(origin)) => origin.id,
            (None, None) => upper_id(entry.node.id()),
        };
        let origin = marked.origin.filter(|bytes| Origin::read(bytes).is_some());
        let state = State {
            upper: Some(entry.node),
            lower: lower.map(|lower| lower.node),
            dentry: Some(self.dentry(name)),
            origin,
        };
        let node = OverlayNode::get_or_create(&self.tree, id, state);
        let attr = node.overlay_attr(entry.attr);
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

    fn dentry(self: &Arc<Self>, name: Name<'_>) -> Dentry {
        Dentry {
            parent: self.clone(),
            name: name.bytes().into(),
        }
    }
}

pub(super) fn upper_id(id: NodeId) -> NodeId {
    id | UPPER_BIT
}
