//! A page cache that merges: what programs read and write in small pieces goes below in large ones.
//!
//! - **Reading**: a stream is read ahead of, in windows that grow with it; a small read at random brings along what is around it as
//!   long as that pays. Whoever misses something reads it himself; what is ahead is read by threads.
//! - **Writing behind**: bytes written stay here until a whole message of adjacent ones is there, until too much is, until
//!   they are some seconds old, or until somebody wants them below: fsync, close, a change of size or attributes, a lock
//!   given back. They leave in the order of their offsets. What is lost is told by fsync and by close, once to each who has the file open.
//! - **Coherence** is from close to open: at open the change counter is compared, and what was read is forgotten if it has
//!   moved, or if it says nothing because the file was written here. So it is when a lock is had. Attributes that come by
//!   tell of others' changes earlier. A write past the cache (`O_DIRECT`, `O_APPEND`, `O_SYNC`) is seen by all who have the file open here.
//!
//! What it lacks on purpose: names and attributes (whoever mounts keeps these), directories, memory maps.
//!
//! Lock order: the table of files, then a file's state, then memory's and the workers'; none across a call below. A stream's
//! and the count of errors seen are taken alone, the latter before the file's state.

mod ahead;
mod cached;
mod core;
mod file;
mod memory;
mod pages;
mod payload;
mod table;
mod workers;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::lock::{HostLock, LockRange};
use vfs::{
    Attr, CopyHow, Cx, DirSink, Entry, File, FileSystem, Kind, Node, OpenFlags, Plus, RelaySink,
    Result, SetAttr, Want,
};

use self::cached::Cached;
use self::core::Core;
use self::file::CachedFile;
use self::table::Table;
use crate::{Layer, Opened, forward};

/// What is kept, by the names that Linux's 9P client has for it (`Documentation/filesystems/9p.rst`). Its `none` is to have
/// no such layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What was read and is read ahead; writes go below at once.
    ReadAhead,
    /// Also what was written, until the file is closed.
    Mmap,
    /// What small reads at random brought along, while the file is open: the rest has who is above, who trusts that nobody else
    /// changes anything.
    Loose,
}

/// How a cache is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What it keeps.
    pub mode: Mode,
    /// Bytes of memory, but for what is on its way; half of it at most waits to be written.
    pub memory: usize,
    /// Threads, which is how many messages are under way at once besides those of who waits for theirs.
    pub threads: usize,
}

impl Default for Options {
    /// Memory for a few streams with their largest windows; as many threads as keep messages of 1 MiB under way on a fast
    /// connection.
    fn default() -> Options {
        Options {
            mode: Mode::Mmap,
            memory: 64 << 20,
            threads: 4,
        }
    }
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Reads that had all they wanted.
    pub hits: u64,
    /// Those that had to read below.
    pub misses: u64,
    /// Bytes that it holds.
    pub bytes: u64,
}

/// The layer.
pub struct PageCache {
    table: Arc<Table>,
    mode: Mode,
}

impl PageCache {
    /// An empty cache. An error if not even one thread can be had.
    pub fn new(options: Options) -> io::Result<PageCache> {
        let core = Core::new(options.memory, options.threads.max(1))?;
        Ok(PageCache {
            table: Table::new(core),
            mode: options.mode,
        })
    }

    /// What it has done.
    pub fn figures(&self) -> Figures {
        let core = &self.table.core;
        Figures {
            hits: core.hits.load(Ordering::Relaxed),
            misses: core.misses.load(Ordering::Relaxed),
            bytes: core.memory.used(),
        }
    }

    fn landings(&self) -> u64 {
        self.table.core.landings()
    }

    /// What a name has led to, asked for when [`Core::landings`] was `since`.
    fn met(&self, mut entry: Entry, since: u64) -> Entry {
        if let Some(file) = self.table.find(entry.attr.id) {
            file.meet(&mut entry.attr, since);
        }
        entry
    }

    /// Keeps `file`, a file's, which was opened with `flags`.
    fn keep(
        &self,
        file: Arc<dyn File>,
        flags: OpenFlags,
        attr: &Attr,
        since: u64,
    ) -> Arc<dyn File> {
        Arc::new(self.over(file, self.table.open(attr, since), flags))
    }

    fn over(&self, file: Arc<dyn File>, cached: Arc<Cached>, flags: OpenFlags) -> CachedFile {
        CachedFile::new(file, self.table.clone(), cached, (self.mode, flags))
    }

    /// The same of one that was perhaps made.
    fn keep_made(
        &self,
        (entry, file): (Entry, Arc<dyn File>),
        flags: OpenFlags,
        cx: &Cx<'_>,
        since: u64,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let entry = self.met(entry, since);
        let file = self.keep(file, flags, &entry.attr, since);
        if flags.contains(OpenFlags::TRUNC) && entry.attr.size > 0 {
            // What others here have written arrived behind the cut.
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
    /// Nothing is kept here of an open file that the host reads and writes by itself.
    fn leaves_contents(&self) -> bool {
        self.mode != Mode::Loose
    }

    forward! {
        capabilities id above
        root resolve
        handle access statfs readlink parent unlink rename xattr xattrs set_xattr remove_xattr
        host_lock_holder
        file_attr file_setattr read write fsync flush allocate seek extents lease
    }

    fn sync(&self, inner: &dyn FileSystem, cx: &Cx<'_>) -> Result<()> {
        for file in self.table.all() {
            file.clean(cx)?;
        }
        let synced = inner.sync(cx);
        self.table.check().and(synced)
    }

    fn attr(&self, inner: &dyn Node, cx: &Cx<'_>, want: Want) -> Result<Attr> {
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
            let cached = self.table.join(inner.id());
            if flags.contains(OpenFlags::TRUNC) {
                cached.cut(0);
            }
            return Ok(Arc::new(self.over(file, cached, flags)));
        }
        // What it takes is more than one call below.
        cx.may_wait()?;
        let known = self.table.find(inner.id());
        let known = known.filter(|_| flags.contains(OpenFlags::TRUNC));
        let exclusive = known.as_ref().map(|file| file.exclusive(cx)).transpose()?;
        let since = self.landings();
        let file = inner.open(cx, flags)?;
        let attr = file.attr(cx, Want::STAT | Want::GENERATION)?;
        if let Some(known) = &known {
            known.cut(attr.size);
        }
        drop(exclusive);
        Ok(self.keep(file, flags, &attr, since))
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: vfs::Name<'_>) -> Result<Entry> {
        let since = self.landings();
        let entry = inner.lookup(cx, name)?;
        match self.table.find(entry.attr.id) {
            // With the times of what was written here, which may have arrived since.
            Some(file) if !file.is_sure(&file.lock(), since) => {
                let attr = file.attr(cx, Want::STAT, || entry.node.attr(cx, Want::STAT))?;
                Ok(Entry { attr, ..entry })
            }
            _ => Ok(self.met(entry, since)),
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
        cx.may_wait()?;
        let since = self.landings();
        let made = inner.create(cx, name, flags, mode)?;
        self.keep_made(made, flags, cx, since)
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: vfs::Name<'_>,
        what: vfs::Make<'_>,
        mode: vfs::Mode,
    ) -> Result<Entry> {
        let since = self.landings();
        let entry = inner.make(cx, name, what, mode)?;
        Ok(self.met(entry, since))
    }

    fn tmpfile(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: vfs::Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        cx.may_wait()?;
        let since = self.landings();
        let made = inner.tmpfile(cx, flags, mode)?;
        self.keep_made(made, flags, cx, since)
    }

    fn link(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: vfs::Name<'_>,
        target: &dyn Node,
    ) -> Result<Entry> {
        if let Some(file) = self.table.find(target.id()) {
            file.clean(cx)?;
        }
        let since = self.landings();
        let entry = inner.link(cx, name, target)?;
        Ok(self.met(entry, since))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let since = self.landings();
        let mut meeting = RelaySink::new(sink, |sink, entry| {
            sink.entry(entry.map_entry(|entry| self.met(entry, since)))
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
        how: CopyHow,
    ) -> Result<u64> {
        match inner.as_any().downcast_ref::<CachedFile>() {
            Some(file) => file.copy(cx, offset, to, to_offset, len, how),
            // It is a directory, and what is below says so.
            None => inner.copy(cx, offset, CachedFile::below(to), to_offset, len, how),
        }
    }

    /// Whoever gives a lock back has his bytes below first, and whoever has got one sees what others have written.
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
            file.clean(cx)?;
        }
        inner.host_lock(cx, range, state)?;
        if state != HostLock::Unlocked {
            file.doubt();
        }
        Ok(())
    }
}
