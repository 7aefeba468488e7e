//! What tests of the page cache have in common: calls of nobody in particular, a file, and a layer that sees data pass.

#![allow(dead_code, reason = "each test has use for some of it")]

use std::sync::Arc;

use layers::{Layer, Opened};
use vfs::{
    Call, Caller, Capabilities, Cx, Entry, File, FileSystem, Mode, Name, Node, OpenFlags, Payload,
    Result, Sink,
};

pub(crate) const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

pub(crate) fn tried<T>(act: impl FnOnce(&Cx<'_>) -> Result<T>) -> Result<T> {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call))
}

pub(crate) fn with<T>(act: impl FnOnce(&Cx<'_>) -> Result<T>) -> T {
    tried(act).expect("works")
}

/// Makes the file `name` in the root.
pub(crate) fn create(fs: &dyn FileSystem, name: &str) -> Arc<dyn File> {
    let name = Name::new(name.as_bytes()).expect("a name");
    with(|cx| fs.root(cx)?.create(cx, name, RW, Mode::exactly(0o644))).1
}

/// Opens the file `name` in the root.
pub(crate) fn open(fs: &dyn FileSystem, name: &str, flags: OpenFlags) -> Arc<dyn File> {
    let name = Name::new(name.as_bytes()).expect("a name");
    with(|cx| fs.root(cx)?.lookup(cx, name)?.node.open(cx, flags))
}

/// What somebody does with data that passes, and asks below for it.
pub(crate) trait Passing: Send + Sync + 'static {
    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        at: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        inner.read(cx, at, len, sink)
    }

    fn write(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        at: u64,
        data: &mut dyn Payload,
    ) -> Result<usize> {
        inner.write(cx, at, data)
    }

    /// A name was looked up.
    fn found(&self) {}
}

/// The layer of one who sees data pass: all else is passed on.
pub(crate) struct Data<P>(pub(crate) Arc<P>);

impl<P: Passing> Layer for Data<P> {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    layers::forward! {
        id above
        root resolve sync
        handle attr setattr access statfs open readlink parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr host_lock host_lock_holder
        file_attr file_setattr readdir fsync flush allocate seek extents copy lease
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let entry = inner.lookup(cx, name)?;
        self.0.found();
        Ok(entry)
    }

    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        at: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        self.0.read(inner, cx, at, len, sink)
    }

    fn write(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        at: u64,
        data: &mut dyn Payload,
    ) -> Result<usize> {
        self.0.write(inner, cx, at, data)
    }
}
