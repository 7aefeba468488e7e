//! Stacking a layer over a file system: wraps the objects below in results and unwraps them in
//! arguments, for all layers.
//!
//! The kind of a node cannot change, so layers are not asked for it.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use vfs::{
    Backing, Capabilities, Change, ChangeStream, CopyMode, Cx, DirSink, Entry, Errno, File,
    FileSystem, Handle, Kind, Mode, Name, NewNode, Node, NodeId, OpenFlags, ReaddirMode, RelaySink,
    RenameFlags, Result, Support,
};

use crate::{Layer, Opened, forward};

/// Returns `fs` with `layer` over it.
pub fn stack<L: Layer>(fs: Arc<dyn FileSystem>, layer: L) -> Arc<dyn FileSystem> {
    Arc::new(LayeredFs {
        inner: fs,
        layer: Arc::new(layer),
    })
}

struct LayeredFs<L> {
    inner: Arc<dyn FileSystem>,
    layer: Arc<L>,
}

struct LayeredNode<L> {
    inner: Arc<dyn Node>,
    layer: Arc<L>,
}

struct LayeredFile<L> {
    inner: Arc<dyn File>,
    /// Its node below.
    node: Arc<dyn Node>,
    layer: Arc<L>,
}

fn wrap_node<L: Layer>(layer: &Arc<L>, inner: Arc<dyn Node>) -> Arc<dyn Node> {
    Arc::new(LayeredNode {
        inner,
        layer: layer.clone(),
    })
}

fn wrap_entry<L: Layer>(layer: &Arc<L>, entry: Entry) -> Entry {
    Entry {
        node: wrap_node(layer, entry.node),
        attr: entry.attr,
    }
}

fn wrap_file<L: Layer>(layer: &Arc<L>, node: Arc<dyn Node>, inner: Arc<dyn File>) -> Arc<dyn File> {
    Arc::new(LayeredFile {
        inner,
        node,
        layer: layer.clone(),
    })
}

impl<L: Layer> FileSystem for LayeredFs<L> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn root(&self, cx: &Cx<'_>) -> Result<Arc<dyn Node>> {
        let node = self.layer.root(&*self.inner, cx)?;
        Ok(wrap_node(&self.layer, node))
    }

    fn resolve(&self, cx: &Cx<'_>, handle: &Handle) -> Result<Arc<dyn Node>> {
        let node = self.layer.resolve(&*self.inner, cx, handle)?;
        Ok(wrap_node(&self.layer, node))
    }

    fn adopt(&self, file: BorrowedFd<'_>) -> Result<Arc<dyn Node>> {
        Ok(wrap_node(&self.layer, self.inner.adopt(file)?))
    }

    fn below_layers(&self, node: &Arc<dyn Node>) -> Option<Arc<dyn Node>> {
        let node = node.as_any().downcast_ref::<LayeredNode<L>>()?;
        if !Arc::ptr_eq(&node.layer, &self.layer) {
            return None;
        }
        let below = self.inner.below_layers(&node.inner);
        Some(below.unwrap_or_else(|| node.inner.clone()))
    }

    fn with_layers(&self, node: Arc<dyn Node>) -> Arc<dyn Node> {
        wrap_node(&self.layer, self.inner.with_layers(node))
    }

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.layer.sync(&*self.inner, cx)
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }

    /// Passes on the changes below with the numbers of this layer, unless the layer has withdrawn
    /// the capability: names are the same above all layers.
    fn watch(&self, cx: &Cx<'_>) -> Result<Box<dyn ChangeStream>> {
        if self.capabilities().changes == Support::None {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(Box::new(LayeredChanges {
            layer: self.layer.clone(),
            inner: self.inner.watch(cx)?,
        }))
    }
}

/// A stream of changes with the numbers of a layer.
struct LayeredChanges<L> {
    layer: Arc<L>,
    inner: Box<dyn ChangeStream>,
}

impl<L: Layer> ChangeStream for LayeredChanges<L> {
    fn next(&mut self, time: Duration, each: &mut dyn FnMut(&Change<'_>)) -> Result<()> {
        let layer = &self.layer;
        self.inner
            .next(time, &mut |change| each(&change.map_ids(|id| layer.id(id))))
    }

    fn covers(&self, device: u64) -> bool {
        self.inner.covers(device)
    }
}

impl<L: Layer> LayeredNode<L> {
    fn below(&self) -> &dyn Node {
        &*self.inner
    }

    fn wrap(&self, entry: Entry) -> Entry {
        wrap_entry(&self.layer, entry)
    }

    fn wrap_both(&self, (entry, file): (Entry, Arc<dyn File>)) -> (Entry, Arc<dyn File>) {
        let file = wrap_file(&self.layer, entry.node.clone(), file);
        (self.wrap(entry), file)
    }

    /// Returns the node below `node`, `EXDEV` if it is of another stack.
    fn unwrap<'a>(&self, node: &'a dyn Node) -> Result<&'a dyn Node> {
        match node.as_any().downcast_ref::<LayeredNode<L>>() {
            Some(node) if Arc::ptr_eq(&node.layer, &self.layer) => Ok(&*node.inner),
            _ => Err(Errno::EXDEV),
        }
    }
}

impl<L: Layer> Node for LayeredNode<L> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> NodeId {
        self.layer.id(self.inner.id())
    }

    fn kind(&self) -> Kind {
        self.inner.kind()
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let file = self.layer.open(&*self.inner, cx, flags)?;
        Ok(wrap_file(&self.layer, self.inner.clone(), file))
    }

    fn lookup(&self, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        Ok(self.wrap(self.layer.lookup(&*self.inner, cx, name)?))
    }

    fn parent(&self, cx: &Cx<'_>) -> Result<Entry> {
        match self.layer.above(&*self.inner, cx)? {
            Some(above) => Ok(above),
            None => Ok(self.wrap(self.layer.parent(&*self.inner, cx)?)),
        }
    }

    fn create(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let made = self.layer.create(&*self.inner, cx, name, flags, mode)?;
        Ok(self.wrap_both(made))
    }

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: NewNode<'_>, mode: Mode) -> Result<Entry> {
        let made = self.layer.make(&*self.inner, cx, name, what, mode)?;
        Ok(self.wrap(made))
    }

    fn tmpfile(&self, cx: &Cx<'_>, flags: OpenFlags, mode: Mode) -> Result<(Entry, Arc<dyn File>)> {
        let made = self.layer.tmpfile(&*self.inner, cx, flags, mode)?;
        Ok(self.wrap_both(made))
    }

    fn link(&self, cx: &Cx<'_>, name: Name<'_>, target: &dyn Node) -> Result<Entry> {
        let target = self.unwrap(target)?;
        Ok(self.wrap(self.layer.link(&*self.inner, cx, name, target)?))
    }

    fn rename(
        &self,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let to = self.unwrap(to)?;
        self.layer
            .rename(&*self.inner, cx, name, to, to_name, flags)
    }

    forward! { layered:
        handle attr setattr access statfs readlink unlink xattr xattrs set_xattr remove_xattr
        host_lock host_lock_holder
    }
}

impl<L: Layer> LayeredFile<L> {
    fn below(&self) -> Opened<'_> {
        Opened {
            file: &*self.inner,
            node: &*self.node,
        }
    }
}

impl<L: Layer> File for LayeredFile<L> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn readdir(
        &self,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let mut wrapping = RelaySink::new(sink, |sink, entry| {
            sink.entry(entry.map_entry(|entry| wrap_entry(&self.layer, entry)))
        });
        self.layer
            .readdir(self.below(), cx, cookie, plus, &mut wrapping)
    }

    fn copy(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        let to = match to.as_any().downcast_ref::<LayeredFile<L>>() {
            Some(to) if Arc::ptr_eq(&to.layer, &self.layer) => &*to.inner,
            _ => return Err(Errno::EXDEV),
        };
        self.layer
            .copy(self.below(), cx, offset, to, to_offset, len, how)
    }

    forward! { layered:
        file_attr file_setattr read write fsync flush allocate seek extents lease
    }

    fn backing(&self, cx: &Cx<'_>) -> Option<Arc<dyn Backing>> {
        match self.layer.allows_passthrough() {
            true => self.inner.backing(cx),
            false => None,
        }
    }
}
