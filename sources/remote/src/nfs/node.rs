//! Nodes: file handles. `node_ops` has the operations of `vfs::Node`, `compact_node` the nodes as
//! they are kept.

use std::sync::Arc;

use p9::CompactName;
use vfs::{Access, Attr, Cx, Entry, Errno, Kind, Name, Node, NodeId, Result, SetAttr};

use super::shared::Shared;
use super::version::{Found, Handle, Place, ProtocolVersion, Target};

/// A node, for the time of a request or while it is open.
pub(super) struct NfsNode<V: ProtocolVersion> {
    pub(super) shared: Arc<Shared<V>>,
    pub(super) id: NodeId,
    pub(super) kind: Kind,
    pub(super) place: Option<Place>,
    pub(super) handle: Handle,
    /// For a version that opens by name: the handle of the directory that it was found in, or its
    /// own if it is a directory.
    pub(super) dir: Option<Arc<Handle>>,
    /// The name of a file in that directory.
    pub(super) name: Option<CompactName>,
}

impl<V: ProtocolVersion> Clone for NfsNode<V> {
    fn clone(&self) -> Self {
        NfsNode {
            shared: self.shared.clone(),
            id: self.id,
            kind: self.kind,
            place: self.place,
            handle: self.handle.clone(),
            dir: self.dir.clone(),
            name: self.name.clone(),
        }
    }
}

impl<V: ProtocolVersion> NfsNode<V> {
    pub(super) fn new(
        shared: &Arc<Shared<V>>,
        found: &Found,
        location: Option<(&NfsNode<V>, Name<'_>)>,
    ) -> NfsNode<V> {
        let (handle, kind) = (found.handle.clone(), found.attr.kind);
        let (dir, name) = match (shared.version.opens_by_name(), kind, location) {
            (false, ..) => (None, None),
            (true, Kind::Directory, _) => (Some(Arc::new(handle.clone())), None),
            (true, _, Some((dir, name))) => (dir.dir.clone(), Some(CompactName::new(name))),
            (true, _, None) => (None, None),
        };
        NfsNode {
            shared: shared.clone(),
            id: found.attr.id,
            kind,
            place: location.map(|(dir, name)| Place::new(dir.handle(), name.bytes())),
            handle,
            dir,
            name,
        }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    fn location(&self) -> Option<(&Handle, &[u8])> {
        let (dir, name) = (self.dir.as_ref()?, self.name.as_ref()?);
        Some((dir, name.bytes()))
    }

    /// Creates the node that was found at `name` in this directory.
    pub(super) fn child_entry(&self, name: Name<'_>, found: Found) -> Entry {
        let node = NfsNode::new(&self.shared, &found, Some((self, name))).compact();
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

    /// Returns a node of this mount. Returns `EXDEV` for other nodes.
    pub(super) fn of_same(&self, node: &dyn Node) -> Result<NfsNode<V>> {
        NfsNode::of(node)
            .filter(|node| Arc::ptr_eq(&node.shared, &self.shared))
            .ok_or(Errno::EXDEV)
    }
}
