//! A quota on the disk space and the number of files of a tree, counted in this process: for file
//! systems without project quotas, or without the privilege to use them.
//!
//! The space of an object is that of `st_blocks`, as du(1) counts it. Space that a file system
//! allocates beyond the end of a file in advance (XFS) is not counted, as it returns by itself; the
//! space of extended attributes is. A removed object counts until the last client that uses it has
//! released it.
//!
//! An operation that may need space or a file first reserves the most that it can take, and is
//! refused with `EDQUOT`, without effect, if the quota has no room for that. Afterwards the objects
//! are measured again. So the quota can be exceeded by metadata, which `st_blocks` does not show in
//! advance, and by what requests in flight truncate meanwhile. Overwriting allocated space always
//! succeeds.
//!
//! The tree is counted once ([`DiskQuota::new`]). Changes by other programs of the host are not
//! noticed, except those of an object that a client changes at the same time.
//! `docs/design/quota.md` lists the errors of the count.
//!
//! Deliberately absent: users and groups, soft limits, allocation beyond the end of a file
//! (`EOPNOTSUPP`).
//!
//! Lock order: those of `names` in their order, during an operation; the lock of an object's
//! charge, while the object is measured; `usage`. `objects` is held for a look at the table, and
//! `usage` and the charges of objects that no operation changes are taken under it.

mod count;
mod objects;
mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use vfs::{
    AllocateMode, Attr, AttrMask, Backing, Caller, Capabilities, CopyMode, Cx, DirSink, Entry,
    Errno, File, FileSystem, Handle, Kind, Mode, Name, NewNode, Node, NodeId, OpenFlags, Patience,
    Payload, ReaddirMode, RelaySink, RenameFlags, Result, SetAttr, StatFs, Whence, XattrFlags,
};

pub use usage::{Amount, DiskLimits};

use crate::{Layer, Opened, forward};
use count::{Measure, Space};
use objects::Objects;
use usage::{Reservation, Usage};

/// The layer.
pub struct DiskQuota {
    usage: Usage,
    measure: Measure,
    objects: Mutex<Objects>,
    /// Held while a name changes in one of the directories of a part, so that the object that
    /// loses a name is known.
    names: [Mutex<()>; NAME_LOCKS],
    /// The number of last names that have been removed.
    removed_last_names: AtomicU64,
}

/// The number of parts into which directories are divided by their numbers.
const NAME_LOCKS: usize = 64;

/// The number of objects without a name to check whenever another one is added: more than one, so
/// that those without a user do not accumulate.
const CHECKED_UNLINKED: usize = 4;

/// The number of objects without a name to check when space is short or shown: a client may have
/// many, and others wait for the lock meanwhile.
const MOST_CHECKED_UNLINKED: usize = 256;

/// The use of an object's charge by an operation in progress.
struct Entered<'a> {
    quota: &'a DiskQuota,
    id: NodeId,
    charged: Arc<Mutex<Option<u64>>>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.quota.objects.lock().leave(self.id);
    }
}

/// The removal of a name in progress.
struct Removal<'a> {
    victim: Arc<dyn Node>,
    entered: Entered<'a>,
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let quota = self.entered.quota;
        quota.objects.lock().end_removal(self.entered.id);
    }
}

/// A change of an object that is in progress.
struct Change<'a> {
    entered: Entered<'a>,
    /// The attributes before it.
    attr: Attr,
    /// The bytes of the object before it.
    before: u64,
}

impl DiskQuota {
    /// Counts the tree `fs` and returns a layer that limits it. Directories that this process may
    /// not read are not counted. Blocks until the tree has been read. Returns an error of the root
    /// directory.
    pub fn new(fs: &dyn FileSystem, limits: DiskLimits) -> Result<DiskQuota> {
        let (measure, used) = count::count(fs)?;
        Ok(DiskQuota {
            usage: Usage::new(limits, used),
            measure,
            objects: Mutex::default(),
            names: std::array::from_fn(|_| Mutex::default()),
            removed_last_names: AtomicU64::new(0),
        })
    }

    /// Returns the present usage, without reservations. It may include objects that nobody uses any
    /// more if there are more than 256 without a name.
    pub fn used(&self) -> Amount {
        self.release(MOST_CHECKED_UNLINKED);
        self.usage.used()
    }

    /// Returns the space of up to `count` objects that have neither a name nor a user.
    fn release(&self, count: usize) {
        self.objects.lock().release(&self.usage, count);
    }

    /// Reserves `wanted`. Returns `EDQUOT` if there is no room.
    fn reserve(&self, wanted: Amount) -> Result<Reservation<'_>> {
        if let Some(reserved) = self.usage.reserve(wanted) {
            return Ok(reserved);
        }
        self.release(MOST_CHECKED_UNLINKED);
        self.usage.reserve(wanted).ok_or(Errno::EDQUOT)
    }

    /// Begins a change of `object`, which it measures.
    fn begin<'a>(&'a self, object: Measured<'_>, cx: &Cx<'_>) -> Result<Change<'a>> {
        // A measurement before this could be older than that of a change which ends meanwhile.
        let entered = self.enter(object.id(cx)?);
        let attr = object.attr(cx)?;
        let before = self.measure.space(object, &attr, cx)?.bytes();
        lock(&entered.charged, cx)?.get_or_insert(before);
        Ok(Change {
            entered,
            attr,
            before,
        })
    }

    /// Begins to use the charge of the object `id`.
    fn enter(&self, id: NodeId) -> Entered<'_> {
        Entered {
            quota: self,
            id,
            charged: self.objects.lock().enter(id, &self.usage),
        }
    }

    /// Runs `operate`, which may take up to `bytes` more for `object`.
    fn change<T>(
        &self,
        object: Measured<'_>,
        cx: &Cx<'_>,
        bytes: u64,
        operate: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let change = self.begin(object, cx)?;
        let reserved = self.reserve(Amount::bytes(bytes))?;
        let done = operate();
        change.end(object, cx, &reserved, &done);
        done
    }

    /// Runs `operate`, which may write `len` bytes to `offset` of the open file `object`, or after
    /// its end.
    fn write_range<T>(
        &self,
        object: Measured<'_>,
        cx: &Cx<'_>,
        offset: u64,
        len: u64,
        operate: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let change = self.begin(object, cx)?;
        let file = object.file();
        let offset = match file.is_some_and(|file| file.as_any().is::<AppendingFile>()) {
            true => change.attr.size,
            false => offset,
        };
        let needed = self.measure.growth(&change.attr, offset, len);
        let reserved = match self.reserve(Amount::bytes(needed)) {
            Err(Errno::EDQUOT) if is_allocated(file, cx, &change.attr, offset, len) => {
                self.reserve(Amount::default())
            }
            reserved => reserved,
        }?;
        let done = operate();
        change.end(object, cx, &reserved, &done);
        done
    }

    /// Runs `make`, which creates an object that takes up to `bytes`, and has a name in `dir`
    /// unless it is temporary.
    fn add<T>(
        &self,
        dir: &dyn Node,
        cx: &Cx<'_>,
        bytes: u64,
        make: impl FnOnce() -> Result<T>,
        entry: impl FnOnce(&T) -> &Entry,
    ) -> Result<T> {
        let _names = self.lock_names([dir, dir], cx)?;
        let object = Measured::from(dir);
        let change = self.begin(object, cx)?;
        let granule = self.measure.granule();
        let reserved = self.reserve(Amount {
            bytes: bytes + granule,
            inodes: 1,
        })?;
        let made = make();
        if let Ok(made) = &made {
            let bytes = self.measure.initial_bytes(entry(made), &patient(cx));
            self.usage.add(Amount { bytes, inodes: 1 });
        }
        change.end(object, cx, &reserved, &made);
        made
    }

    /// Locks the names of `dirs`. Returns `WOULD_BLOCK` if they are locked and the thread may not
    /// wait.
    fn lock_names(&self, dirs: [&dyn Node; 2], cx: &Cx<'_>) -> Result<Vec<MutexGuard<'_, ()>>> {
        let mut parts = dirs.map(|dir| dir.id() as usize % NAME_LOCKS);
        parts.sort_unstable();
        let count = if parts[0] == parts[1] { 1 } else { 2 };
        let locks = parts[..count]
            .iter()
            .map(|&part| lock(&self.names[part], cx));
        locks.collect()
    }

    /// Runs `remove`, which removes the name of `victim`, if there is one.
    fn remove(
        &self,
        victim: Option<Arc<dyn Node>>,
        cx: &Cx<'_>,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let removal = victim.map(|victim| self.begin_removal(victim));
        remove()?;
        if let Some(removal) = removal {
            self.note_links(&removal.victim, cx);
            drop(removal);
            self.release(CHECKED_UNLINKED);
        }
        Ok(())
    }

    fn begin_removal(&self, victim: Arc<dyn Node>) -> Removal<'_> {
        let entered = self.enter(victim.id());
        self.objects.lock().begin_removal(entered.id);
        Removal { victim, entered }
    }

    /// Notes whether `node` has a name: without one, it counts until nobody uses it.
    fn note_links(&self, node: &Arc<dyn Node>, cx: &Cx<'_>) {
        let cx = &patient(cx);
        let object = Measured::from(&**node);
        let entered = self.enter(node.id());
        // The last one to hold it sees the last change.
        let mut charged = entered.charged.lock();
        let Ok(attr) = object.attr(cx) else {
            return;
        };
        if charged.is_none() {
            let space = self.measure.space(object, &attr, cx).ok();
            *charged = space.map(Space::bytes);
        }
        let unlinked = (attr.nlink == 0).then(|| Arc::downgrade(node));
        self.objects.lock().set_unlinked(node.id(), unlinked);
        if attr.nlink == 0 {
            self.removed_last_names.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the number of last names that have been removed.
    fn removed_last_names(&self) -> u64 {
        self.removed_last_names.load(Ordering::SeqCst)
    }

    /// Notes that an operation has found `node`, at whose begin so many last names had been
    /// `removed`.
    ///
    /// The object may have lost its last name and been released after the operation has found it,
    /// and before it had a node that is seen to be in use. Then it counts again.
    fn note_found(&self, node: &Arc<dyn Node>, removed: u64, cx: &Cx<'_>) {
        if self.removed_last_names() != removed {
            self.note_use(node, cx);
        }
    }

    /// Counts the object of `node`, which is in use, again if it was released.
    fn note_use(&self, node: &Arc<dyn Node>, cx: &Cx<'_>) {
        let cx = &patient(cx);
        let object = Measured::from(&**node);
        let entered = self.enter(node.id());
        let mut charged = entered.charged.lock();
        let Ok(attr) = object.attr(cx) else {
            return;
        };
        if attr.nlink == 0 && self.objects.lock().note_use(node) {
            let space = self.measure.space(object, &attr, cx);
            let space = space.map_or(attr.allocated(), Space::bytes);
            self.usage.add(Amount {
                bytes: *charged.get_or_insert(space),
                inodes: 1,
            });
        }
    }
}

impl Change<'_> {
    /// Ends the change, whose result is `done`: counts the space that the object has now.
    fn end<T>(
        self,
        object: Measured<'_>,
        cx: &Cx<'_>,
        reserved: &Reservation<'_>,
        done: &Result<T>,
    ) {
        // Such an operation had no effect.
        if matches!(done, Err(Errno::WOULD_BLOCK | Errno::PARKED)) {
            return;
        }
        let quota = self.entered.quota;
        let mut charged = self.entered.charged.lock();
        let before = charged.unwrap_or(self.before);
        let measured = quota.measure.space_after(object, cx);
        let now = match measured {
            Some(Space::All(now)) => now,
            // So much more, or less if another request has counted it as well.
            Some(Space::Contents(now)) => before + now.saturating_sub(self.before),
            None => before + reserved.amount().bytes,
        };
        *charged = Some(now);
        quota.usage.replace(before, now);
    }
}

/// Locks `mutex`. Returns `WOULD_BLOCK` if it is locked and the thread may not wait.
fn lock<'a, T>(mutex: &'a Mutex<T>, cx: &Cx<'_>) -> Result<MutexGuard<'a, T>> {
    match cx.patience {
        Patience::Full => Ok(mutex.lock()),
        _ => mutex.try_lock().ok_or(Errno::WOULD_BLOCK),
    }
}

/// An object to measure.
#[derive(Clone, Copy)]
enum Measured<'a> {
    Node(&'a dyn Node),
    Open(Opened<'a>),
    /// A file that is open, and whose node is unknown.
    File(&'a dyn File),
}

impl<'a> From<&'a dyn Node> for Measured<'a> {
    fn from(node: &'a dyn Node) -> Measured<'a> {
        Measured::Node(node)
    }
}

impl<'a> From<Opened<'a>> for Measured<'a> {
    fn from(opened: Opened<'a>) -> Measured<'a> {
        Measured::Open(opened)
    }
}

impl<'a> Measured<'a> {
    fn id(self, cx: &Cx<'_>) -> Result<NodeId> {
        match self {
            Measured::Node(node) | Measured::Open(Opened { node, .. }) => Ok(node.id()),
            Measured::File(file) => Ok(file.attr(cx, AttrMask::BASIC)?.id),
        }
    }

    fn attr(self, cx: &Cx<'_>) -> Result<Attr> {
        let wanted = AttrMask::BASIC | AttrMask::SIZE;
        match self {
            Measured::Node(node) => node.attr(cx, wanted),
            Measured::Open(Opened { file, .. }) | Measured::File(file) => file.attr(cx, wanted),
        }
    }

    fn node(self) -> Option<&'a dyn Node> {
        match self {
            Measured::Node(node) | Measured::Open(Opened { node, .. }) => Some(node),
            Measured::File(_) => None,
        }
    }

    fn file(self) -> Option<&'a dyn File> {
        match self {
            Measured::Node(_) => None,
            Measured::Open(Opened { file, .. }) | Measured::File(file) => Some(file),
        }
    }
}

/// Returns a context for work after an operation, which must not be interrupted.
fn patient<'a>(cx: &Cx<'a>) -> Cx<'a> {
    Cx {
        patience: Patience::Full,
        ..*cx
    }
}

/// Returns whether all of the range has space already.
fn is_allocated(file: Option<&dyn File>, cx: &Cx<'_>, attr: &Attr, offset: u64, len: u64) -> bool {
    let end = offset.saturating_add(len);
    let hole = file.map(|file| file.seek(&patient(cx), offset, Whence::Hole));
    end <= attr.size && hole.is_some_and(|hole| hole.is_ok_and(|hole| hole >= end))
}

/// A file that is open to append: offsets of writes do not count.
struct AppendingFile {
    inner: Arc<dyn File>,
}

impl File for AppendingFile {
    fn as_any(&self) -> &dyn std::any::Any {
        self
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
        self.inner.copy(cx, offset, to, to_offset, len, how)
    }

    forward! { wrapped:
        file_attr file_setattr read write readdir fsync flush allocate seek extents lease
    }

    fn backing(&self, cx: &Cx<'_>) -> Option<Arc<dyn Backing>> {
        self.inner.backing(cx)
    }
}

/// Returns `file` as this layer passes it on, which is open with `flags`.
fn opened_with(flags: OpenFlags, file: Arc<dyn File>) -> Arc<dyn File> {
    match flags.contains(OpenFlags::APPEND) {
        true => Arc::new(AppendingFile { inner: file }),
        false => file,
    }
}

/// Returns the child `name` of `dir`, if there is one.
fn child(dir: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Option<Arc<dyn Node>>> {
    match dir.lookup(&cx.on_behalf_of(&Caller::ROOT), name) {
        Ok(entry) => Ok(Some(entry.node)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl Layer for DiskQuota {
    /// Reads and writes cannot bypass the layer.
    fn allows_passthrough(&self) -> bool {
        false
    }

    fn setattr(&self, inner: &dyn Node, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        match set.size {
            // A file grows by a hole.
            Some(_) => self.change(inner.into(), cx, 0, || inner.setattr(cx, set)),
            None => inner.setattr(cx, set),
        }
    }

    fn file_setattr(&self, inner: Opened<'_>, cx: &Cx<'_>, set: &SetAttr) -> Result<Attr> {
        match set.size {
            Some(_) => self.change(inner.into(), cx, 0, || inner.setattr(cx, set)),
            None => inner.setattr(cx, set),
        }
    }

    /// Shows the limits as the size of the file system, if they are smaller.
    fn statfs(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<StatFs> {
        let stat = inner.statfs(cx)?;
        Ok(self.usage.limits().shown(stat, self.used()))
    }

    fn resolve(
        &self,
        inner: &dyn FileSystem,
        cx: &Cx<'_>,
        handle: &Handle,
    ) -> Result<Arc<dyn Node>> {
        let node = inner.resolve(cx, handle)?;
        // The host may use an object without a name.
        if node.attr(cx, AttrMask::BASIC)?.nlink == 0 {
            self.note_use(&node, cx);
        }
        Ok(node)
    }

    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> Result<Entry> {
        let removed = self.removed_last_names();
        let entry = inner.lookup(cx, name)?;
        self.note_found(&entry.node, removed, cx);
        Ok(entry)
    }

    fn parent(&self, inner: &dyn Node, cx: &Cx<'_>) -> Result<Entry> {
        let removed = self.removed_last_names();
        let entry = inner.parent(cx)?;
        self.note_found(&entry.node, removed, cx);
        Ok(entry)
    }

    fn readdir(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        cookie: u64,
        plus: ReaddirMode,
        sink: &mut dyn DirSink,
    ) -> Result<()> {
        let removed = self.removed_last_names();
        let mut noting = RelaySink::new(sink, |sink, entry| {
            if let Some(found) = &entry.entry {
                self.note_found(&found.node, removed, cx);
            }
            sink.entry(entry)
        });
        inner.readdir(cx, cookie, plus, &mut noting)
    }

    fn open(&self, inner: &dyn Node, cx: &Cx<'_>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let open = || inner.open(cx, flags);
        let file = match flags.contains(OpenFlags::TRUNC) {
            true => self.change(inner.into(), cx, 0, open),
            false => open(),
        }?;
        Ok(opened_with(flags, file))
    }

    fn create(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let exclusive = flags.contains(OpenFlags::EXCL);
        loop {
            cx.call.check()?;
            // So it is certain whether a file was created.
            let create = || inner.create(cx, name, flags | OpenFlags::EXCL, mode);
            let refused = match self.add(inner, cx, 0, create, |(entry, _)| entry) {
                Ok((entry, file)) => return Ok((entry, opened_with(flags, file))),
                Err(errno @ (Errno::EEXIST | Errno::EDQUOT)) if !exclusive => errno,
                Err(errno) => return Err(errno),
            };
            let existing = match self.lookup(inner, cx, name) {
                Ok(existing) => existing,
                // It has been removed meanwhile.
                Err(Errno::ENOENT) if refused == Errno::EEXIST => continue,
                Err(Errno::ENOENT) => return Err(refused),
                Err(errno) => return Err(errno),
            };
            if existing.node.kind() == Kind::Directory {
                return Err(Errno::EISDIR);
            }
            let file = self.open(&*existing.node, cx, flags)?;
            let attr = match flags.contains(OpenFlags::TRUNC) {
                true => file.attr(&patient(cx), AttrMask::STAT)?,
                false => existing.attr,
            };
            return Ok((Entry { attr, ..existing }, file));
        }
    }

    fn make(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        what: NewNode<'_>,
        mode: Mode,
    ) -> Result<Entry> {
        let granule = self.measure.granule();
        let bytes = match what {
            NewNode::Directory | NewNode::Symlink(_) => granule,
            _ => 0,
        };
        let make = || inner.make(cx, name, what, mode);
        self.add(inner, cx, bytes, make, |entry| entry)
    }

    fn tmpfile(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        flags: OpenFlags,
        mode: Mode,
    ) -> Result<(Entry, Arc<dyn File>)> {
        let make = || inner.tmpfile(cx, flags, mode);
        let (entry, file) = self.add(inner, cx, 0, make, |(entry, _)| entry)?;
        self.note_links(&entry.node, cx);
        self.release(CHECKED_UNLINKED);
        Ok((entry, opened_with(flags, file)))
    }

    fn link(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        target: &dyn Node,
    ) -> Result<Entry> {
        let _names = self.lock_names([inner, inner], cx)?;
        let granule = self.measure.granule();
        let link = || inner.link(cx, name, target);
        let entry = self.change(inner.into(), cx, granule, link)?;
        // A temporary file may have got its first name.
        self.note_links(&entry.node, cx);
        Ok(entry)
    }

    fn unlink(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>, dir: bool) -> Result<()> {
        let _names = self.lock_names([inner, inner], cx)?;
        let victim = child(inner, cx, name)?;
        let unlink = || self.change(inner.into(), cx, 0, || inner.unlink(cx, name, dir));
        self.remove(victim, cx, unlink)
    }

    fn rename(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: Name<'_>,
        to: &dyn Node,
        to_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let _names = self.lock_names([inner, to], cx)?;
        let replaces = !flags.intersects(RenameFlags::EXCHANGE | RenameFlags::NOREPLACE);
        let victim = match replaces {
            true => child(to, cx, to_name)?,
            false => None,
        };
        let whiteout = u64::from(flags.contains(RenameFlags::WHITEOUT));
        let rename = || {
            let from = self.begin(inner.into(), cx)?;
            let into = self.begin(to.into(), cx)?;
            // A directory that grows is counted afterwards: a rename is possible without room.
            let reserved = self.reserve(Amount {
                bytes: 0,
                inodes: whiteout,
            })?;
            let done = inner.rename(cx, name, to, to_name, flags);
            if done.is_ok() {
                self.usage.add(Amount {
                    bytes: 0,
                    inodes: whiteout,
                });
            }
            into.end(to.into(), cx, &reserved, &done);
            from.end(inner.into(), cx, &reserved, &done);
            done
        };
        self.remove(victim, cx, rename)
    }

    fn set_xattr(
        &self,
        inner: &dyn Node,
        cx: &Cx<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let bytes = self.measure.round_up((name.len() + value.len()) as u64);
        let set = || inner.set_xattr(cx, name, value, flags);
        self.change(inner.into(), cx, bytes, set)
    }

    fn remove_xattr(&self, inner: &dyn Node, cx: &Cx<'_>, name: &[u8]) -> Result<()> {
        self.change(inner.into(), cx, 0, || inner.remove_xattr(cx, name))
    }

    fn write(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        offset: u64,
        data: &mut dyn Payload,
    ) -> Result<usize> {
        let len = data.len() as u64;
        let write = || inner.write(cx, offset, data);
        self.write_range(inner.into(), cx, offset, len, write)
    }

    fn allocate(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        how: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        // Space beyond the end of the file could not be told from that which the file system has
        // allocated in advance. If another request makes the file shorter meanwhile, it grows
        // again, which is counted.
        let (how, len) = match how {
            AllocateMode::KeepSize | AllocateMode::ZeroKeepSize => {
                let size = inner.attr(cx, AttrMask::SIZE)?.size;
                let within = len.min(size.saturating_sub(offset));
                match how {
                    AllocateMode::KeepSize if within < len => return Err(Errno::EOPNOTSUPP),
                    AllocateMode::KeepSize => (AllocateMode::Extend, len),
                    // The range beyond the end of the file is zero.
                    _ if within == 0 => return Ok(()),
                    _ => (AllocateMode::Zero, within),
                }
            }
            _ => (how, len),
        };
        let allocate = || inner.allocate(cx, how, offset, len);
        match how {
            AllocateMode::Extend | AllocateMode::Zero => {
                self.write_range(inner.into(), cx, offset, len, allocate)
            }
            _ => self.change(inner.into(), cx, 0, allocate),
        }
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
        let below = match to.as_any().downcast_ref::<AppendingFile>() {
            Some(appending) => &*appending.inner,
            None => to,
        };
        let rest = inner.attr(cx, AttrMask::SIZE)?.size.saturating_sub(offset);
        // A clone of 0 bytes reaches to the end of the file.
        let most = if len == 0 { rest } else { len.min(rest) };
        let copy = || inner.copy(cx, offset, below, to_offset, len, how);
        self.write_range(Measured::File(to), cx, to_offset, most, copy)
    }

    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    forward! {
        id above
        root sync
        handle attr access readlink xattr xattrs host_lock host_lock_holder
        file_attr read fsync flush seek extents lease
    }
}
