//! Keeps files on a disk of this host: what was read of a source that is far away is read there the next time, over restarts.
//!
//! - **A copy** is of one file and one version of it, which is all that the source tells of its state: change counter, size, times, generation. Who opens a file to
//!   read is let in by the source, as ever, which is asked once behind that what the file is; if there is a copy of just that, its contents come from there. So it
//!   is close-to-open, as [`crate::pagecache`] is. What comes by later (attributes, a lock that is had, somebody here who opens it to write) turns those who have it open to the source.
//! - **Making one**: what readers bring is written to the copy by another thread; they wait for nothing. When the file is closed by all and half of it is there, the rest is fetched, as is all of
//!   a file that is no giant when the same version is opened for the second time.
//! - **The directory** is any file system: `store` tells what is in it, and `sums` how contents that are not what they were are found out. Whatever fails there is no error of who reads.
//!
//! What it lacks on purpose: directories, names, attributes and the right to open, which are the source's to tell each time; parts of files, once they are closed; keeping what was written here.
//!
//! Lock order: a file's state, then the store's, a copy's that is being made, and the workers'; the table's comes before a file's and is not held across a call. A file's state is held while it is
//! looked whether there is a copy.

mod copy;
mod file;
mod filling;
mod store;
mod sums;
mod table;
mod version;
mod workers;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use vfs::lock::{HostLock, LockRange};
use vfs::{
    Attr, Caller, CopyHow, Cx, DirSink, Entry, File, FileSystem, Kind, Name, Node, NodeId,
    OpenFlags, Plus, RelaySink, Result, SetAttr, Want,
};

use self::copy::Copy;
use self::file::{Choice, KeptFile, writes};
use self::filling::Filling;
use self::store::Store;
use self::sums::{Key, Sums};
use self::table::Table;
use self::version::Version;
use self::workers::Workers;
use crate::{Clock, Layer, Opened, forward};

/// How files are kept.
pub struct Options {
    /// Where: in the root of this, which nobody but processes of this kind writes to, and nobody else may read.
    pub dir: Arc<dyn FileSystem>,
    /// Bytes of all copies there, those of other processes and sources, too. They may be a 64th more for each process.
    pub size: u64,
    /// What the source is known by, in this directory: two that are not the same tree must not have the same ([`identity`]).
    pub source: [u8; 32],
    /// What tells this process from others that have the directory, at any time.
    pub process: u64,
    /// Since the Unix epoch.
    pub now: Clock,
}

/// What `fs`, which is named `name`, is known by: another server, or another tree at the same place, is another. An error if its root cannot be
/// looked at by `caller`.
pub fn identity(fs: &dyn FileSystem, name: &str, caller: &Caller) -> Result<[u8; 32]> {
    vfs::cx::block_on(caller, |cx| {
        let root = fs.root(cx)?;
        let attr = root.attr(cx, Want::STAT | Want::GENERATION | Want::BTIME)?;
        // A source that does not know of such figures has none.
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

/// The layer. Dropped, it writes what has come.
pub struct Kept {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    source: [u8; 32],
    now: Clock,
    store: Arc<Store>,
    table: Table,
    workers: Arc<Workers>,
    /// Versions that were opened, by their files.
    seen: Mutex<HashMap<NodeId, Version>>,
    /// Sums of copies that were found, with what was held against them.
    sums: Mutex<HashMap<Key, Arc<Sums>>>,
    /// How many copies are being made.
    making: Arc<AtomicUsize>,
}

impl Kept {
    /// Keeps what comes by. An error if the directory cannot be used, or threads cannot be had.
    pub fn new(options: Options) -> io::Result<Kept> {
        let store = Store::new(&*options.dir, options.size, options.process)
            .map_err(|errno| io::Error::from_raw_os_error(errno.raw() as i32))?;
        let (workers, writer) = Workers::start()?;
        let shared = Shared {
            source: options.source,
            now: options.now,
            store: Arc::new(store),
            table: Table::default(),
            workers,
            seen: Mutex::default(),
            sums: Mutex::default(),
            making: Arc::default(),
        };
        Ok(Kept {
            shared: Arc::new(shared),
            writer: Some(writer),
        })
    }

    /// Waits until all that has come is written, and all is fetched that is to be.
    pub fn wait(&self) {
        self.shared.workers.wait();
    }

    fn meet(&self, attr: &Attr) {
        if let Some(entry) = self.shared.table.find(attr.id) {
            entry.meet(attr);
        }
    }

    fn met(&self, entry: Entry) -> Entry {
        self.meet(&entry.attr);
        entry
    }

    /// One that was perhaps made.
    fn made(
        &self,
        (entry, file): (Entry, Arc<dyn File>),
        flags: OpenFlags,
    ) -> (Entry, Arc<dyn File>) {
        // Nobody could know before which file it is.
        let id = entry.attr.id;
        if writes(flags) {
            self.shared.void(id);
        }
        let known = self.shared.table.open(id, writes(flags));
        let epoch = known.epoch();
        let file = KeptFile::new(file, &self.shared, (known, epoch), flags);
        (entry, Arc::new(file))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.shared.workers.close();
        if let Some(writer) = self.writer.take() {
            // If it has panicked, it has said so.
            let _ = writer.join();
        }
    }
}

impl Shared {
    /// So many versions and sums are remembered: some MB. Then it begins anew, which costs a second fetch or look.
    const REMEMBERED: usize = 1 << 14;

    /// Bytes of the largest file that is fetched as a whole because it is opened for the second time: some seconds of a slow line, for one of which
    /// perhaps nobody wants more than the beginning.
    const AT_ONCE: u64 = 16 << 20;

    /// The copy of a file is not what it has, from now on; and there is to be none.
    fn void(&self, id: NodeId) {
        if let Some(entry) = self.table.find(id) {
            entry.doubt();
        }
        self.store.remove(Key::of(&self.source, id));
    }

    /// Where the contents of a file come from that was opened when it was at `epoch`, and is as `attr` says behind that.
    fn choose(
        &self,
        entry: &table::Entry,
        epoch: u64,
        attr: &Attr,
        from: (&Arc<dyn File>, &Caller),
    ) -> Choice {
        let version = Version::of(attr);
        let mut state = entry.state();
        if entry.epoch() != epoch || entry.is_written() || version.size == 0 {
            return Choice::Source;
        }
        if let Some(known) = &state.copy
            && known.sums().version == version
        {
            return Choice::Copy(known.clone());
        }
        if version.size > self.store.largest() {
            return Choice::Source;
        }
        let key = Key::of(&self.source, entry.id);
        if let Some(found) = self.store.find(key, version) {
            let copy = Arc::new(Copy::new(found.data, self.known(key, found.sums)));
            state.copy = Some(copy.clone());
            state.version = Some(version);
            return Choice::Copy(copy);
        }
        if !version.is_settled((self.now)()) {
            return Choice::Source;
        }
        let under_way = state.filling.clone();
        let under_way =
            under_way.filter(|filling| filling.version == version && !filling.is_over());
        let what = (key, version);
        let Some(filling) =
            under_way.or_else(|| Filling::new(what, &self.store, from, &self.making))
        else {
            return Choice::Source;
        };
        state.filling = Some(filling.clone());
        drop(state);
        if self.was_seen(entry.id, version)
            && version.size <= Shared::AT_ONCE
            && filling.wants_fetching()
        {
            self.workers.rest(filling.clone());
        }
        Choice::Filling(filling)
    }

    /// The same sums, with what is known of them.
    fn known(&self, key: Key, sums: Sums) -> Arc<Sums> {
        let mut known = self.sums.lock().expect("no panic holds it");
        if known.len() >= Shared::REMEMBERED {
            known.clear();
        }
        let sums = Arc::new(sums);
        let known = known.entry(key).or_insert_with(|| sums.clone());
        if !known.same(&sums) {
            *known = sums;
        }
        known.clone()
    }

    /// Whether it was opened before.
    fn was_seen(&self, id: NodeId, version: Version) -> bool {
        let mut seen = self.seen.lock().expect("no panic holds it");
        if seen.len() >= Shared::REMEMBERED {
            seen.clear();
        }
        seen.insert(id, version) == Some(version)
    }
}

impl Layer for Kept {
    forward! {
        capabilities id above
        root resolve sync
        handle access statfs readlink parent make link unlink rename xattr xattrs set_xattr remove_xattr
        host_lock_holder
        file_attr file_setattr read write fsync flush allocate seek extents lease
    }

    fn attr(&self, inner: &dyn Node, cx: &Cx<'_>, want: Want) -> Result<Attr> {
        let attr = inner.attr(cx, want)?;
        if want.contains(Want::STAT) {
            self.meet(&attr);
        }
        Ok(attr)
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        if set.size.is_some() {
            self.shared.void(inner.id());
        }
        let attr = inner.setattr(cx, set)?;
        self.meet(&attr);
        Ok(attr)
    }

    fn open(&self, inner: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if inner.kind() != Kind::File {
            return inner.open(cx, flags);
        }
        let (id, writes) = (inner.id(), writes(flags));
        let entry = self.shared.table.open(id, writes);
        if writes {
            self.shared.void(id);
        }
        let epoch = entry.epoch();
        match inner.open(cx, flags) {
            Ok(file) => {
                let file = KeptFile::new(file, &self.shared, (entry, epoch), flags);
                Ok(Arc::new(file))
            }
            Err(errno) => {
                if let Some(filling) = self.shared.table.close(&entry, writes) {
                    self.shared.workers.end(filling);
                }
                Err(errno)
            }
        }
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        Ok(self.met(inner.lookup(cx, name)?))
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: vfs::Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        Ok(self.made(inner.create(cx, name, flags, mode)?, flags))
    }

    fn tmpfile(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: vfs::Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        Ok(self.made(inner.tmpfile(cx, flags, mode)?, flags))
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: Plus,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let mut meeting = RelaySink::new(sink, |sink, entry| {
            if let Some(entry) = &entry.entry {
                self.meet(&entry.attr);
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
        how: CopyHow,
    ) -> Result<u64> {
        let from = KeptFile::below(inner.file);
        from.copy(cx, offset, KeptFile::below(to), to_offset, len, how)
    }

    /// Whoever has got a lock sees what others have written.
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
            entry.doubt();
        }
        Ok(())
    }
}
