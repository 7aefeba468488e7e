//! A layer over a file system: what is below is wrapped on its way out and unwrapped on its way
//! in, once for all layers.
//!
//! Kinds of nodes are nobody's to change, so no layer is asked for them.

use std::any::Any;
use std::sync::Arc;

use vfs::lock::{HostLock, LockKind, LockRange, Outsider};
use vfs::{
    Access, Allocate, Attr, Backing, Broken, Capabilities, CopyHow, Cx, DirSink, Entry, Errno,
    Extent, File, FileSystem, Handle, Kind, Lease, LeaseKind, Make, Mode, Name, Node, NodeId,
    OpenFlags, Payload, Plus, RelaySink, RenameFlags, Result, Seek, SetAttr, Sink, StatFs, Want,
    XattrFlags,
};

use crate::{Layer, Opened};

/// `fs` with `layer` over it.
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
    /// What it is of, below.
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

    fn sync(&self, cx: &Cx<'_>) -> Result<()> {
        self.layer.sync(&*self.inner, cx)
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }
}

impl<L: Layer> LayeredNode<L> {
    fn wrap(&self, entry: Entry) -> Entry {
        wrap_entry(&self.layer, entry)
    }

    fn wrap_both(&self, (entry, file): (Entry, Arc<dyn File>)) -> (Entry, Arc<dyn File>) {
        let file = wrap_file(&self.layer, entry.node.clone(), file);
        (self.wrap(entry), file)
    }

    /// What is below `node`, `EXDEV` if that is of another stack.
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

    fn handle(&self, cx: &Cx<'_>) -> Result<Handle> {
        self.layer.handle(&*self.inner, cx)
    }

    fn attr(&self, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        self.layer.attr(&*self.inner, cx, want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.layer.setattr(&*self.inner, cx, set)
    }

    fn access(&self, cx: &Cx<'_>, want: Access) -> Result<Access> {
        self.layer.access(&*self.inner, cx, want)
    }

    fn statfs(&self, cx: &Cx<'_>) -> Result<StatFs> {
        self.layer.statfs(&*self.inner, cx)
    }

    fn open(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let file = self.layer.open(&*self.inner, cx, flags)?;
        Ok(wrap_file(&self.layer, self.inner.clone(), file))
    }

    fn readlink(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.layer.readlink(&*self.inner, cx)
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

    fn make(&self, cx: &Cx<'_>, name: Name<'_>, what: Make<'_>, mode: Mode) -> Result<Entry> {
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

    fn unlink(&self, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        self.layer.unlink(&*self.inner, cx, name, dir)
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

    fn xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<Vec<u8>> {
        self.layer.xattr(&*self.inner, cx, name)
    }

    fn xattrs(&self, cx: &Cx<'_>) -> Result<Vec<u8>> {
        self.layer.xattrs(&*self.inner, cx)
    }

    fn set_xattr(&self, cx: &Cx<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        self.layer.set_xattr(&*self.inner, cx, name, value, flags)
    }

    fn remove_xattr(&self, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.layer.remove_xattr(&*self.inner, cx, name)
    }

    fn host_lock(&self, cx: &Cx<'_>, range: LockRange, state: HostLock) -> Result<()> {
        self.layer.host_lock(&*self.inner, cx, range, state)
    }

    fn host_lock_holder(
        &self,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<Outsider>> {
        self.layer.host_lock_holder(&*self.inner, cx, range, kind)
    }
}

impl<L: Layer> LayeredFile<L> {
    fn opened(&self) -> Opened<'_> {
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

    fn attr(&self, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        self.layer.file_attr(self.opened(), cx, want)
    }

    fn setattr(&self, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        self.layer.file_setattr(self.opened(), cx, set)
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
        self.layer.read(self.opened(), cx, offset, len, sink)
    }

    fn write(&self, cx: &Cx<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
        self.layer.write(self.opened(), cx, offset, data)
    }

    fn readdir(&self, cx: &Cx<'_>, cookie: u64, plus: Plus, sink: &mut dyn DirSink) -> Result<()> {
        let mut wrapping = RelaySink::new(sink, |sink, entry| {
            sink.entry(entry.map_entry(|entry| wrap_entry(&self.layer, entry)))
        });
        self.layer
            .readdir(self.opened(), cx, cookie, plus, &mut wrapping)
    }

    fn fsync(&self, cx: &Cx<'_>, datasync: bool) -> Result<()> {
        self.layer.fsync(self.opened(), cx, datasync)
    }

    fn flush(&self, cx: &Cx<'_>) -> Result<()> {
        self.layer.flush(self.opened(), cx)
    }

    fn allocate(&self, cx: &Cx<'_>, how: Allocate, offset: u64, len: u64) -> Result<()> {
        self.layer.allocate(self.opened(), cx, how, offset, len)
    }

    fn seek(&self, cx: &Cx<'_>, offset: u64, what: Seek) -> Result<u64> {
        self.layer.seek(self.opened(), cx, offset, what)
    }

    fn extents(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.layer.extents(self.opened(), cx, offset, len, each)
    }

    fn copy(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyHow,
    ) -> Result<u64> {
        let to = match to.as_any().downcast_ref::<LayeredFile<L>>() {
            Some(to) if Arc::ptr_eq(&to.layer, &self.layer) => &*to.inner,
            _ => return Err(Errno::EXDEV),
        };
        self.layer
            .copy(self.opened(), cx, offset, to, to_offset, len, how)
    }

    fn lease(&self, cx: &Cx<'_>, kind: LeaseKind, broken: &Broken) -> Result<Box<dyn Lease>> {
        self.layer.lease(self.opened(), cx, kind, broken)
    }

    fn backing(&self, cx: &Cx<'_>) -> Option<Arc<dyn Backing>> {
        match self.layer.leaves_contents() {
            true => self.inner.backing(cx),
            false => None,
        }
    }
}
