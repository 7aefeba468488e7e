//! Helpers for the tests of caches: calls as root, a file, and a layer that observes data.

#![allow(dead_code, reason = "each test has use for some of it")]

use std::sync::Arc;
use std::time::Duration;

use layers::fault::Fault;
use layers::pagecache::{self, PageCache};
use layers::{Layer, Opened, stack};
use memory::Memory;
use vfs::{
    Call, Caller, Cx, Entry, File, FileSystem, Mode, Name, Node, OpenFlags, Payload, Result, Sink,
};
use vfs_testkit::{TestPayload, clock};

pub(crate) const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

pub(crate) fn tried<T>(act: impl FnOnce(&Cx<'_>) -> Result<T>) -> Result<T> {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call))
}

pub(crate) fn with<T>(act: impl FnOnce(&Cx<'_>) -> Result<T>) -> T {
    tried(act).expect("works")
}

/// Creates the file `name` in the root.
pub(crate) fn create(fs: &dyn FileSystem, name: &str) -> Arc<dyn File> {
    let name = Name::new(name.as_bytes()).expect("a name");
    with(|cx| {
        fs.root(cx)?
            .create(cx, name, RW, Mode::without_umask(0o644))
    })
    .1
}

/// Opens the file `name` in the root.
pub(crate) fn open(fs: &dyn FileSystem, name: &str, flags: OpenFlags) -> Arc<dyn File> {
    let name = Name::new(name.as_bytes()).expect("a name");
    with(|cx| fs.root(cx)?.lookup(cx, name)?.node.open(cx, flags))
}

/// Writes all of `data`.
pub(crate) fn write(file: &dyn File, at: u64, data: &[u8]) {
    let written = with(|cx| file.write(cx, at, &mut TestPayload::new(data)));
    assert_eq!(written, data.len());
}

/// Continues a read in the layer below.
pub(crate) type Read<'a> = &'a mut dyn FnMut(&mut dyn Sink) -> Result<usize>;

/// Continues a write in the layer below.
pub(crate) type Write<'a> = &'a mut dyn FnMut(&mut dyn Payload) -> Result<usize>;

/// Observes the data that passes a layer, and continues each operation below it.
pub(crate) trait Passing: Send + Sync + 'static {
    fn read(&self, _at: u64, _len: usize, sink: &mut dyn Sink, below: Read<'_>) -> Result<usize> {
        below(sink)
    }

    fn write(&self, _at: u64, data: &mut dyn Payload, below: Write<'_>) -> Result<usize> {
        below(data)
    }

    /// Called after a name was looked up.
    fn found(&self) {}
}

/// A layer that passes data to `P`, and forwards everything else.
pub(crate) struct Data<P>(pub(crate) Arc<P>);

impl<P: Passing> Layer for Data<P> {
    layers::forward! { capabilities id above }

    layers::forward! { all but lookup read write }

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
        let mut below = |sink: &mut dyn Sink| inner.read(cx, at, len, sink);
        self.0.read(at, len, sink, &mut below)
    }

    fn write(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        at: u64,
        data: &mut dyn Payload,
    ) -> Result<usize> {
        let mut below = |data: &mut dyn Payload| inner.write(cx, at, data);
        self.0.write(at, data, &mut below)
    }
}

/// A page cache over a tree with other users, with faults and `P` in between.
pub(crate) struct Bed<P> {
    pub(crate) below: Arc<dyn FileSystem>,
    pub(crate) passing: Arc<P>,
    pub(crate) fault: Arc<Fault>,
    pub(crate) above: Arc<dyn FileSystem>,
}

impl<P: Passing> Bed<P> {
    pub(crate) fn new(mode: pagecache::Mode, memory: usize, passing: P) -> Bed<P> {
        let below: Arc<dyn FileSystem> = Memory::new(clock());
        let fault = Arc::new(Fault::new(3, Arc::new(|| Duration::ZERO)));
        let passing = Arc::new(passing);
        let cache = PageCache::new(pagecache::Options {
            mode,
            memory,
            threads: 2,
            ..pagecache::Options::default()
        });
        let over = stack(stack(below.clone(), fault.clone()), Data(passing.clone()));
        Bed {
            below,
            passing,
            fault,
            above: stack(over, cache.expect("a thread")),
        }
    }
}
