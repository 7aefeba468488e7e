//! A page cache that coalesces small reads and writes into large ones below.
//!
//! - **Reads**: sequential reads trigger read-ahead, in windows that grow; a small random read also
//!   fetches the pages around it (read-around) as long as that pays. The caller of a read fetches
//!   what it misses itself; threads do the read-ahead.
//! - **Write-back**: written data stays here until a whole message of adjacent bytes is dirty,
//!   until too much is, until it is some seconds old, or until it must be below: for fsync, close,
//!   a change of size or attributes, an unlock. It is written in the order of offsets. Errors are
//!   reported by fsync and close, once to each open file.
//! - **Coherence** is close-to-open: an open compares the change counter, and drops what was read
//!   if the counter has changed, or if it is meaningless because the file was written here.
//!   Acquiring a lock does the same. Attributes that pass through reveal other clients' changes
//!   earlier. A write past the cache (`O_DIRECT`, `O_APPEND`, `O_SYNC`) is visible to all who have
//!   the file open here.
//!
//! Deliberately absent: caching of names and attributes (the client that mounts caches these),
//! directories, memory maps.
//!
//! Lock order: the table of files, then a file's state, then memory's and the workers'; none across
//! a call below. A stream's lock is taken alone; that of the errors seen comes before the file's
//! state.

mod cached;
mod file;
mod memory;
mod pages;
mod payload;
mod read_around;
mod readahead;
mod table;
mod units;
mod workers;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::lock::{HostLock, LockRange};
use vfs::source_stats::CacheStats;
use vfs::{
    Attr, AttrMask, Capabilities, CopyMode, Cx, DirSink, Entry, File, FileSystem, Kind, Node,
    OpenFlags, ReaddirMode, RelaySink, Result, SetAttr, Support,
};

use self::cached::{Cached, Core, Workers};
use self::file::CachedFile;
use self::table::Table;
use crate::{Layer, Opened, forward};

/// The data to cache, by the names of Linux's 9P client (`Documentation/filesystems/9p.rst`). Its
/// `none` corresponds to a stack without this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Data that was read, with read-ahead; writes go below at once.
    ReadAhead,
    /// Also data that was written, until the file is closed.
    Mmap,
    /// Pages around small random reads, while the file is open: everything else is cached by the
    /// client above, which assumes that there are no other writers.
    Loose,
}

/// Configuration of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The data to cache.
    pub mode: Mode,
    /// The memory in bytes, excluding data in flight; at most half of it is dirty.
    pub memory: usize,
    /// The most bytes of a write-back message, of which each thread and caller that writes has a
    /// copy. A source with smaller messages splits it, and sends the parts concurrently.
    pub message: usize,
    /// The number of threads, and of concurrent messages in addition to those that callers wait
    /// for.
    pub threads: usize,
}

impl Default for Options {
    /// Returns memory for a few streams with the largest windows, and enough threads to keep
    /// messages of 1 MiB in flight on a fast connection.
    fn default() -> Options {
        Options {
            mode: Mode::Mmap,
            memory: 64 << 20,
            message: 1 << 20,
            threads: 4,
        }
    }
}

/// The layer.
pub struct PageCache {
    table: Arc<Table>,
    mode: Mode,
}

impl PageCache {
    /// Creates an empty cache. Returns an error if not even one thread can be started.
    pub fn new(options: Options) -> io::Result<PageCache> {
        let workers = Workers::new(options.threads.max(1))?;
        Ok(PageCache {
            table: Table::new(Core::new(options.memory, options.message, workers)),
            mode: options.mode,
        })
    }

    /// Returns the statistics so far; a lookup is a read.
    pub fn stats(&self) -> CacheStats {
        let core = &self.table.core;
        CacheStats {
            hits: core.hits.load(Ordering::Relaxed),
            misses: core.misses.load(Ordering::Relaxed),
            bytes: core.memory.used(),
            limit: core.memory.bytes(),
            evicted: core.memory.evicted(),
        }
    }

    fn write_epoch(&self) -> u64 {
        self.table.core.write_epoch()
    }

    /// Reconciles the entry of a name, requested when [`Core::write_epoch`] was `since`, with the
    /// cache.
    fn revalidated(&self, mut entry: Entry, since: u64) -> Entry {
        if let Some(file) = self.table.find(entry.attr.id) {
            file.revalidate(&mut entry.attr, since);
        }
        entry
    }

    /// Wraps `file`, a regular file that was opened with `flags`.
    fn wrap(
        &self,
        file: Arc<dyn File>,
        flags: OpenFlags,
        attr: &Attr,
        since: u64,
    ) -> Arc<dyn File> {
        Arc::new(self.cached_file(file, self.table.open(attr, since), flags))
    }

    fn cached_file(
        &self,
        file: Arc<dyn File>,
        cached: Arc<Cached>,
        flags: OpenFlags,
    ) -> CachedFile {
        CachedFile::new(file, self.table.clone(), cached, (self.mode, flags))
    }

    /// Wraps the result of a create, whose file may be new or not.
    fn wrap_created(
        &self,
        (entry, file): (Entry, Arc<dyn File>),
        flags: OpenFlags,
        cx: &Cx<'_>,
        since: u64,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let entry = self.revalidated(entry, since);
        let file = self.wrap(file, flags, &entry.attr, since);
        if flags.contains(OpenFlags::TRUNC) && entry.attr.size > 0 {
            // Delayed writes to the file arrived after it was truncated.
            let cut = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            let attr = file.setattr(cx, &cut)?;
            return Ok((Entry { attr, ..entry }, file));
        }
        Ok((entry, file))
    }
}

impl Layer for PageCache {
    /// No data is cached of an open file that the host reads and writes directly.
    fn allows_passthrough(&self) -> bool {
        self.mode != Mode::Loose
    }

    /// Without changes: they would be reported before this cache knows of them.
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities {
            changes: Support::None,
            ..inner
        }
    }

    forward! {
        id above
        root resolve
        handle access statfs readlink parent unlink rename xattr xattrs set_xattr remove_xattr
        host_lock_holder
        file_attr file_setattr read write fsync flush allocate seek extents lease
    }

    fn sync(&self, inner: &dyn FileSystem, cx: &Cx<'_>) -> Result<()> {
        for file in self.table.all() {
            file.flush(cx)?;
        }
        let synced = inner.sync(cx);
        self.table.check().and(synced)
    }

    fn attr(&self, inner: &dyn Node, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        match self.table.find(inner.id()) {
            Some(file) => file.attr(cx, want, || inner.attr(cx, want)),
            None => inner.attr(cx, want),
        }
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        match self.table.find(inner.id()) {
            Some(file) => file.setattr(cx, set, || inner.setattr(cx, set)),
            None => inner.setattr(cx, set),
        }
    }

    fn open(&self, inner: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if inner.kind() != Kind::File {
            return inner.open(cx, flags);
        }
        if self.mode == Mode::Loose {
            let file = inner.open(cx, flags)?;
            let cached = self.table.open_unchanged(inner.id());
            if flags.contains(OpenFlags::TRUNC) {
                cached.truncated(0);
            }
            return Ok(Arc::new(self.cached_file(file, cached, flags)));
        }
        // The operation takes several calls below.
        cx.check_may_block()?;
        let known = self.table.find(inner.id());
        let known = known.filter(|_| flags.contains(OpenFlags::TRUNC));
        let exclusive = known.as_ref().map(|file| file.exclusive(cx)).transpose()?;
        let since = self.write_epoch();
        let file = inner.open(cx, flags)?;
        let attr = file.attr(cx, AttrMask::STAT | AttrMask::GENERATION)?;
        if let Some(known) = &known {
            known.truncated(attr.size);
        }
        drop(exclusive);
        Ok(self.wrap(file, flags, &attr, since))
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: vfs::Name<'_>) -> Result<Entry> {
        let since = self.write_epoch();
        let entry = inner.lookup(cx, name)?;
        match self.table.find(entry.attr.id) {
            // Its times must include writes made here, which may have arrived since.
            Some(file) if !file.is_newer_than_writes(&file.lock(), since) => {
                let attr = file.attr(cx, AttrMask::STAT, || entry.node.attr(cx, AttrMask::STAT))?;
                Ok(Entry { attr, ..entry })
            }
            _ => Ok(self.revalidated(entry, since)),
        }
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: vfs::Name<'_>,
        flags: OpenFlags,
        mode: vfs::Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        cx.check_may_block()?;
        let since = self.write_epoch();
        let made = inner.create(cx, name, flags, mode)?;
        self.wrap_created(made, flags, cx, since)
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: vfs::Name<'_>,
        what: vfs::NewNode<'_>,
        mode: vfs::Mode,
    ) -> Result<Entry> {
        let since = self.write_epoch();
        let entry = inner.make(cx, name, what, mode)?;
        Ok(self.revalidated(entry, since))
    }

    fn tmpfile(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: vfs::Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        cx.check_may_block()?;
        let since = self.write_epoch();
        let made = inner.tmpfile(cx, flags, mode)?;
        self.wrap_created(made, flags, cx, since)
    }

    fn link(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: vfs::Name<'_>,
        target: &dyn Node,
    ) -> Result<Entry> {
        if let Some(file) = self.table.find(target.id()) {
            file.flush(cx)?;
        }
        let since = self.write_epoch();
        let entry = inner.link(cx, name, target)?;
        Ok(self.revalidated(entry, since))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let since = self.write_epoch();
        let mut meeting = RelaySink::new(sink, |sink, entry| {
            sink.entry(entry.map_entry(|entry| self.revalidated(entry, since)))
        });
        inner.readdir(cx, cookie, plus, &mut meeting)
    }

    fn copy(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        to: &dyn File,
        to_offset: u64,
        len: u64,
        how: CopyMode,
    ) -> Result<u64> {
        match inner.as_any().downcast_ref::<CachedFile>() {
            Some(file) => file.copy(cx, offset, to, to_offset, len, how),
            // It is a directory, and the layer below reports that.
            None => inner.copy(cx, offset, CachedFile::below(to), to_offset, len, how),
        }
    }

    /// Before an unlock, dirty data is written; an acquired lock makes the writes of other clients
    /// visible.
    fn host_lock(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        let Some(file) = self.table.find(inner.id()) else {
            return inner.host_lock(cx, range, state);
        };
        if state != HostLock::Exclusive {
            file.flush(cx)?;
        }
        inner.host_lock(cx, range, state)?;
        if state != HostLock::Unlocked {
            file.invalidate();
        }
        Ok(())
    }
}
