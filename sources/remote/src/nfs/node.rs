//! Nodes: file handles. `node_ops` has the operations of `vfs::Node`.

use std::sync::{Arc, Weak};

use vfs::{Access, Attr, Cx, Entry, Errno, Kind, Name, Node, NodeId, Result, SetAttr};

use super::shared::Shared;
use super::version::{Found, Handle, ProtocolVersion, Target};

/// A node.
pub(super) struct NfsNode<V: ProtocolVersion> {
    pub(super) shared: Arc<Shared<V>>,
    pub(super) this: Weak<NfsNode<V>>,
    pub(super) handle: Handle,
    pub(super) id: NodeId,
    pub(super) kind: Kind,
    /// The directory and name it was found at, which v4.0's OPEN needs.
    location: Option<(Handle, Box<[u8]>)>,
}

impl<V: ProtocolVersion> NfsNode<V> {
    pub(super) fn new(
        shared: &Arc<Shared<V>>,
        found: &Found,
        location: Option<(Handle, Box<[u8]>)>,
    ) -> Arc<NfsNode<V>> {
        Arc::new_cyclic(|this| NfsNode {
            shared: shared.clone(),
            this: this.clone(),
            handle: found.handle.clone(),
            id: found.attr.id,
            kind: found.attr.kind,
            location,
        })
    }

    /// Creates the node that was found at `name` in this directory.
    pub(super) fn child_entry(&self, name: &[u8], found: Found) -> Entry {
        let location = (self.handle.clone(), name.into());
        let node = NfsNode::new(&self.shared, &found, Some(location));
        let attr = found.attr;
        Entry { node, attr }
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target {
            handle: &self.handle,
            id: self.id,
            directory: self.kind == Kind::Directory,
            exclusive: false,
            location: self.location.as_ref().map(|(dir, name)| (dir, &**name)),
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
        self.check_same_file(self.shared.version.attr(cx, &self.handle)?)
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
            let mode = version.attr(cx, &self.handle)?.mode;
            let less = Kind::File.mode_without_set_id(mode);
            set.mode = (less != mode).then_some(less);
        }
        // NFS cannot set the ctime alone: setting the mode to its current value updates it.
        if std::mem::take(&mut set.ctime) && set == SetAttr::default() {
            set.mode = Some(version.attr(cx, &self.handle)?.mode);
        }
        let change = match set.size {
            Some(size) => Some((self.shared.change(cx, &self.handle)?, size)),
            None => None,
        };
        let attr = match set == SetAttr::default() {
            true => version.attr(cx, &self.handle)?,
            false => version.set_attr(cx, &self.handle, open, &set)?,
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
            .access(cx, &self.handle, directory, want)
    }

    /// [`Node::lookup`].
    pub(super) fn find(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        self.check_directory()?;
        cx.check_may_block()?;
        self.shared.recommit_after_reconnect(cx);
        let name = name.bytes();
        let found = self.shared.version.lookup(cx, &self.handle, Some(name))?;
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
