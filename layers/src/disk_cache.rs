//! A disk cache: keeps file contents that were read from a remote source on a disk of this host,
//! across restarts.
//!
//! - **A copy** holds the contents of one version of one file. The version is everything that the
//!   source reports of the file's state: change counter, size, times, generation. The source still
//!   checks each open; after it, its attributes are requested once, and if there is a copy of that
//!   version, the contents are read from it. This is close-to-open consistency, as in
//!   [`crate::pagecache`]. Later evidence of a change (attributes, a lock that is acquired, a local
//!   open for writing) sends the current opens back to the source.
//! - **Filling a copy**: another thread writes the data of reads to the copy; readers do not wait.
//!   When the file is closed for the last time and half of it is there, the rest is fetched. A file
//!   of at most 16 MiB is fetched completely when the same version is opened for the second time.
//! - **The directory** is on any file system: `store` manages its files, and `checksums` detects
//!   contents that have been altered. Its failures are never reported to readers.
//!
//! Deliberately absent: caching of directories, names, attributes and permission checks, which the
//! source answers each time; caching parts of closed files; caching data written here.
//!
//! Lock order: a file's state, then the store's lock, that of a copy being filled, and the
//! workers'; the table's comes before a file's and is not held across a call. A file's state is
//! held during the search for a copy.

mod cached_copy;
mod checksums;
mod file;
mod partial_copy;
mod store;
mod table;
mod version;
mod workers;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use vfs::lock::{HostLock, LockRange};
use vfs::source_stats::CacheStats;
use vfs::{
    Attr, AttrMask, Caller, Capabilities, CopyMode, Cx, DirSink, Entry, File, FileSystem, Kind,
    Name, Node, NodeId, OpenFlags, ReaddirMode, RelaySink, Result, SetAttr, Support,
};

use self::cached_copy::CachedCopy;
use self::checksums::{Checksums, Key};
use self::file::{CachedFile, ReadSource, may_write};
use self::partial_copy::PartialCopy;
use self::store::Store;
use self::table::Table;
use self::version::Version;
use self::workers::Workers;
use crate::{Clock, Layer, Opened, forward};

/// Configuration of the cache.
pub struct Options {
    /// The cache directory: the root of this file system. Only processes of this kind may write to
    /// it, and nobody else may read it.
    pub dir: Arc<dyn FileSystem>,
    /// The maximum size in bytes of all copies in the directory, including those of other processes
    /// and sources. Each process may exceed it by a 64th.
    pub size: u64,
    /// The identity of the source within this directory: two different trees must have different
    /// ones ([`identity`]).
    pub source: [u8; 32],
    /// An id of this process, distinct from those of all processes that ever use the directory.
    pub process: u64,
    /// A clock since the Unix epoch.
    pub now: Clock,
}

/// Returns the identity of `fs`, which is named `name`: another server has another one, and so has
/// another tree at the same place. Returns an error if `caller` cannot read the root's attributes.
pub fn identity(fs: &dyn FileSystem, name: &str, caller: &Caller) -> Result<[u8; 32]> {
    vfs::cx::block_on(caller, |cx| {
        let root = fs.root(cx)?;
        let attr = root.attr(cx, AttrMask::STAT | AttrMask::GENERATION | AttrMask::BTIME)?;
        // 0 for a source without statfs.
        let fsid = root.statfs(cx).map_or(0, |figures| figures.fsid);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        for number in [attr.id, attr.generation, attr.device, fsid] {
            hasher.update(&number.to_le_bytes());
        }
        let born = attr.btime.unwrap_or_default();
        hasher.update(&born.sec.to_le_bytes());
        hasher.update(&born.nsec.to_le_bytes());
        Ok(*hasher.finalize().as_bytes())
    })
}

/// The layer. When it is dropped, it writes the data that is queued.
pub struct DiskCache {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    source: [u8; 32],
    now: Clock,
    store: Arc<Store>,
    table: Table,
    workers: Arc<Workers>,
    /// The version of each file at its last open.
    opened_versions: Mutex<HashMap<NodeId, Version>>,
    /// Sums of copies that were found, with the chunks verified so far.
    checksums: Mutex<HashMap<Key, Arc<Checksums>>>,
    /// The number of copies with an open file of the source.
    open_sources: Arc<AtomicUsize>,
}

impl DiskCache {
    /// Creates the layer. Returns an error if the directory cannot be used or threads cannot be
    /// started.
    pub fn new(options: Options) -> io::Result<DiskCache> {
        let store = Store::new(&*options.dir, options.size, options.process)
            .map_err(|errno| io::Error::from_raw_os_error(errno.raw() as i32))?;
        let (workers, writer) = Workers::start()?;
        let shared = Shared {
            source: options.source,
            now: options.now,
            store: Arc::new(store),
            table: Table::default(),
            workers,
            opened_versions: Mutex::default(),
            checksums: Mutex::default(),
            open_sources: Arc::default(),
        };
        Ok(DiskCache {
            shared: Arc::new(shared),
            writer: Some(writer),
        })
    }

    /// Waits until all queued data is written and all queued fetches are done.
    pub fn wait(&self) {
        self.shared.workers.wait();
    }

    /// Returns the statistics so far; a lookup is the first read of an open file.
    pub fn stats(&self) -> CacheStats {
        self.shared.store.stats()
    }

    fn revalidate(&self, attr: &Attr) {
        if let Some(entry) = self.shared.table.find(attr.id) {
            entry.revalidate(attr);
        }
    }

    fn revalidated(&self, entry: Entry) -> Entry {
        self.revalidate(&entry.attr);
        entry
    }

    /// Wraps the result of a create, whose file may be new or not.
    fn wrap_created(
        &self,
        (entry, file): (Entry, Arc<dyn File>),
        flags: OpenFlags,
    ) -> (Entry, Arc<dyn File>) {
        // Its id was unknown before.
        let id = entry.attr.id;
        if may_write(flags) {
            self.shared.invalidate_and_remove(id);
        }
        let known = self.shared.table.open(id, may_write(flags));
        let epoch = known.epoch();
        let file = CachedFile::new(file, &self.shared, (known, epoch), flags);
        (entry, Arc::new(file))
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.shared.workers.close();
        if let Some(writer) = self.writer.take() {
            // A panic has printed its own message.
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// The maximum number of versions and of sums in memory, some MB. Beyond it they are dropped,
    /// at the cost of fetching or verifying again.
    const MAX_REMEMBERED: usize = 1 << 14;

    /// The size in bytes of the largest file that is fetched completely on the second open: some
    /// seconds on a slow link, for a file of which perhaps only the beginning is needed.
    const MAX_FETCH_ON_OPEN: u64 = 16 << 20;

    /// Invalidates the copy of a file for current opens, and deletes it.
    fn invalidate_and_remove(&self, id: NodeId) {
        if let Some(entry) = self.table.find(id) {
            entry.invalidate();
        }
        self.store.remove(Key::of(&self.source, id));
    }

    /// Returns where to read the contents of a file from that was opened at `epoch` and had `attr`
    /// after the open.
    fn choose_source(
        &self,
        entry: &table::Entry,
        epoch: u64,
        attr: &Attr,
        from: (&Arc<dyn File>, &Caller),
    ) -> ReadSource {
        let version = Version::of(attr);
        let mut state = entry.state();
        if entry.epoch() != epoch || entry.has_writers() || version.size == 0 {
            return ReadSource::Source;
        }
        if let Some(known) = &state.copy
            && known.checksums().version == version
        {
            self.store.count_open(true);
            return ReadSource::Copy(known.clone());
        }
        if version.size > self.store.max_file_size() {
            return ReadSource::Source;
        }
        let key = Key::of(&self.source, entry.id);
        let found = self.store.find(key, version);
        self.store.count_open(found.is_some());
        if let Some(found) = found {
            let copy = Arc::new(CachedCopy::new(
                found.data,
                self.shared_checksums(key, found.checksums),
            ));
            state.copy = Some(copy.clone());
            state.version = Some(version);
            return ReadSource::Copy(copy);
        }
        if !version.is_settled((self.now)()) {
            return ReadSource::Source;
        }
        let under_way = state.filling.clone();
        let under_way =
            under_way.filter(|filling| filling.version == version && !filling.is_finished());
        let what = (key, version);
        let Some(filling) =
            under_way.or_else(|| PartialCopy::new(what, &self.store, from, &self.open_sources))
        else {
            return ReadSource::Source;
        };
        state.filling = Some(filling.clone());
        drop(state);
        if self.was_opened_before(entry.id, version)
            && version.size <= Shared::MAX_FETCH_ON_OPEN
            && filling.begin_fetch()
        {
            self.workers.queue_fetch(filling.clone());
        }
        ReadSource::Filling(filling)
    }

    /// Returns the same sums, with the results of earlier verification.
    fn shared_checksums(&self, key: Key, sums: Checksums) -> Arc<Checksums> {
        let mut known = self.checksums.lock();
        if known.len() >= Shared::MAX_REMEMBERED {
            known.clear();
        }
        let sums = Arc::new(sums);
        let known = known.entry(key).or_insert_with(|| sums.clone());
        if !known.is_equal(&sums) {
            *known = sums;
        }
        known.clone()
    }

    /// Returns whether the same version was opened before, and remembers it.
    fn was_opened_before(&self, id: NodeId, version: Version) -> bool {
        let mut seen = self.opened_versions.lock();
        if seen.len() >= Shared::MAX_REMEMBERED {
            seen.clear();
        }
        seen.insert(id, version) == Some(version)
    }
}

impl Layer for DiskCache {
    /// Without changes: they would be reported before this cache knows of them.
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities {
            changes: Support::None,
            ..inner
        }
    }

    forward! {
        id above
        root resolve sync
        handle access statfs readlink parent make link unlink rename xattr xattrs set_xattr remove_xattr
        host_lock_holder
        file_attr file_setattr read write fsync flush allocate seek extents lease
    }

    fn attr(&self, inner: &dyn Node, cx: &Cx<'_>, want: AttrMask) -> Result<Attr> {
        let attr = inner.attr(cx, want)?;
        if want.contains(AttrMask::STAT) {
            self.revalidate(&attr);
        }
        Ok(attr)
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if set.size.is_some() {
            self.shared.invalidate_and_remove(inner.id());
        }
        let attr = inner.setattr(cx, set)?;
        self.revalidate(&attr);
        Ok(attr)
    }

    fn open(&self, inner: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if inner.kind() != Kind::File {
            return inner.open(cx, flags);
        }
        let (id, writes) = (inner.id(), may_write(flags));
        let entry = self.shared.table.open(id, writes);
        if writes {
            self.shared.invalidate_and_remove(id);
        }
        let epoch = entry.epoch();
        match inner.open(cx, flags) {
            Ok(file) => {
                let file = CachedFile::new(file, &self.shared, (entry, epoch), flags);
                Ok(Arc::new(file))
            }
            Err(errno) => {
                if let Some(filling) = self.shared.table.close(&entry, writes) {
                    self.shared.workers.queue_close(filling);
                }
                Err(errno)
            }
        }
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        Ok(self.revalidated(inner.lookup(cx, name)?))
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: vfs::Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        Ok(self.wrap_created(inner.create(cx, name, flags, mode)?, flags))
    }

    fn tmpfile(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: vfs::Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        Ok(self.wrap_created(inner.tmpfile(cx, flags, mode)?, flags))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let mut meeting = RelaySink::new(sink, |sink, entry| {
            if let Some(entry) = &entry.entry {
                self.revalidate(&entry.attr);
            }
            sink.entry(entry)
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
        let from = CachedFile::below(inner.file);
        from.copy(cx, offset, CachedFile::below(to), to_offset, len, how)
    }

    /// An acquired lock invalidates the copy, so that its owner sees the writes of other clients.
    fn host_lock(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        inner.host_lock(cx, range, state)?;
        if let Some(entry) = self.shared.table.find(inner.id())
            && state != HostLock::Unlocked
        {
            entry.invalidate();
        }
        Ok(())
    }
}
