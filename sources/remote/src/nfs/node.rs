//! Nodes: file handles. `node_ops` has the operations of `vfs::Node`.
//!
//! A million of them have to fit: a node with the two counters of its `Arc` is 88 bytes, which is
//! what a block of malloc(3) of 96 bytes holds.

use std::sync::Arc;

use p9::CompactName;
use vfs::{Access, Attr, Cx, Entry, Errno, Kind, Name, Node, NodeId, Result, SetAttr};

use super::shared::Shared;
use super::version::{Found, Handle, Place, ProtocolVersion, Target};

/// A node.
pub(super) struct NfsNode<V: ProtocolVersion> {
    pub(super) shared: Arc<Shared<V>>,
    pub(super) id: NodeId,
    pub(super) kind: Kind,
    place: Option<Place>,
    identity: Identity,
}

/// A node's handle and, for a version that opens by name, its location.
#[derive(Clone)]
enum Identity {
    Handle(Handle),
    Located(Arc<Located>),
}

struct Located {
    handle: Handle,
    /// The directory and name.
    at: Option<(Arc<Located>, CompactName)>,
}

/// Drops the chain of directories in a loop: a tree may be too deep for recursion.
impl Drop for Located {
    fn drop(&mut self) {
        let mut at = self.at.take();
        while let Some((dir, _)) = at {
            at = Arc::into_inner(dir).and_then(|mut dir| dir.at.take());
        }
    }
}

impl<V: ProtocolVersion> NfsNode<V> {
    pub(super) fn new(
        shared: &Arc<Shared<V>>,
        found: &Found,
        location: Option<(&NfsNode<V>, Name<'_>)>,
    ) -> Arc<NfsNode<V>> {
        let handle = found.handle.clone();
        let identity = if shared.version.opens_by_name() {
            let at = location.and_then(|(dir, name)| match &dir.identity {
                Identity::Handle(_) => None,
                Identity::Located(dir) => Some((dir.clone(), CompactName::new(name))),
            });
            Identity::Located(Arc::new(Located { handle, at }))
        } else {
            Identity::Handle(handle)
        };
        Arc::new(NfsNode {
            shared: shared.clone(),
            id: found.attr.id,
            kind: found.attr.kind,
            place: location.map(|(dir, name)| Place::new(dir.handle(), name.bytes())),
            identity,
        })
    }

    /// Returns another node of the same object.
    pub(super) fn duplicate(&self) -> Arc<NfsNode<V>> {
        Arc::new(NfsNode {
            shared: self.shared.clone(),
            id: self.id,
            kind: self.kind,
            place: self.place,
            identity: self.identity.clone(),
        })
    }

    pub(super) fn handle(&self) -> &Handle {
        match &self.identity {
            Identity::Handle(handle) => handle,
            Identity::Located(located) => &located.handle,
        }
    }

    fn location(&self) -> Option<(&Handle, &[u8])> {
        match &self.identity {
            Identity::Handle(_) => None,
            Identity::Located(located) => {
                let (dir, name) = located.at.as_ref()?;
                Some((&dir.handle, name.bytes()))
            }
        }
    }

    /// Creates the node that was found at `name` in this directory.
    pub(super) fn child_entry(&self, name: Name<'_>, found: Found) -> Entry {
        let node = NfsNode::new(&self.shared, &found, Some((self, name)));
        let attr = found.attr;
        Entry { node, attr }
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target {
            handle: self.handle(),
            id: self.id,
            directory: self.kind == Kind::Directory,
            exclusive: false,
            location: self.location(),
            place: self.place,
        }
    }

    /// Returns `ESTALE` if the attributes are another node's.
    pub(super) fn check_same_file(&self, attr: Attr) -> Result<Attr> {
        match (attr.id, attr.kind) == (self.id, self.kind) {
            true => Ok(self.shared.open_files.without_hidden(attr)),
            false => Err(Errno::ESTALE),
        }
    }

    /// [`Node::attr`].
    pub(super) fn get_attr(&self, cx: &Cx<'_>) -> Result<Attr> {
        cx.check_may_block()?;
        self.shared.recommit_after_reconnect(cx);
        self.check_same_file(self.shared.version.attr(cx, self.handle())?)
    }

    /// Sets attributes, with the state of an open file if there is one.
    pub(super) fn set_attr_with(
        &self,
        cx: &Cx<'_>,
        open: Option<&V::Open>,
        set: &SetAttr,
    ) -> Result<Attr> {
        cx.check_may_block()?;
        match self.kind {
            Kind::File => {}
            Kind::Directory if set.size.is_some() => return Err(Errno::EISDIR),
            _ if set.size.is_some() => return Err(Errno::EINVAL),
            _ => {}
        }
        let version = &self.shared.version;
        let mut set = *set;
        if std::mem::take(&mut set.kill_priv) && set.mode.is_none() && self.kind == Kind::File {
            let mode = version.attr(cx, self.handle())?.mode;
            let less = Kind::File.mode_without_set_id(mode);
            set.mode = (less != mode).then_some(less);
        }
        // NFS cannot set the ctime alone: setting the mode to its current value updates it.
        if std::mem::take(&mut set.ctime) && set == SetAttr::default() {
            set.mode = Some(version.attr(cx, self.handle())?.mode);
        }
        let change = match set.size {
            Some(size) => Some((self.shared.change(cx, self.handle())?, size)),
            None => None,
        };
        let attr = match set == SetAttr::default() {
            true => version.attr(cx, self.handle())?,
            false => version.set_attr(cx, self.handle(), open, &set)?,
        };
        if let Some((change, size)) = change {
            change.replaced(size, u64::MAX);
        }
        self.check_same_file(attr)
    }

    /// [`Node::access`].
    pub(super) fn allowed_access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        cx.check_may_block()?;
        let directory = self.kind == Kind::Directory;
        self.shared
            .version
            .access(cx, self.handle(), directory, want)
    }

    /// [`Node::lookup`].
    pub(super) fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.check_directory()?;
        cx.check_may_block()?;
        self.shared.recommit_after_reconnect(cx);
        let found = self
            .shared
            .version
            .lookup(cx, self.handle(), Some(name.bytes()))?;
        Ok(self.child_entry(name, found))
    }

    pub(super) fn check_directory(&self) -> Result<()> {
        match self.kind {
            Kind::Directory => Ok(()),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Downcasts a node of this mount. Returns `EXDEV` for other nodes.
    pub(super) fn of_same<'a>(&self, node: &'a dyn Node) -> Result<&'a NfsNode<V>> {
        node.as_any()
            .downcast_ref::<NfsNode<V>>()
            .filter(|node| Arc::ptr_eq(&node.shared, &self.shared))
            .ok_or(Errno::EXDEV)
    }
}

#[cfg(test)]
mod tests {
    use super::super::v3::V3;
    use super::*;

    #[test]
    fn a_node_is_small() {
        // After the two counters of the `Arc`.
        assert_eq!(size_of::<NfsNode<V3>>(), 72);
    }
}
