//! Changes on the host, as fanotify(7) reports them (`sys::fs_changes`).
//!
//! With privileges one mark watches the whole file system of the root, and events outside of the
//! tree are dropped. The directory of an event is opened by its handle, and its place below the
//! root is remembered until a directory is renamed, if clients know the directory (`remembered`).
//! Without privileges each directory of the tree has a mark, and its handle is remembered instead.
//! Directories that are created are then walked.
//!
//! Deliberately absent: file systems mounted below the root, whose changes are not reported.

mod remembered;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::thread::CapabilitySet;
use sys::fs_changes::{self, ChangeEvent, ChangeGroup, EventBuffer, WriteEvents};
use sys::handle::FileHandle;
use vfs::{
    Change, ChangeKinds, ChangeStream, ChangedBy, ChangedName, Errno, Kind, NodeId, Patience,
    Result, Support,
};

use self::remembered::{HandleKey, Recent, Remembered};
use crate::descriptors::Fd;
use crate::identity;
use crate::node::HostNode;
use crate::stat::{dev_of, stat};
use crate::tree::Tree;

/// A watch of a file system that a process with privileges has begun, for [`crate::Options`]. It
/// serves one stream.
#[derive(Debug)]
pub struct FileSystemWatch {
    group: Mutex<Option<ChangeGroup>>,
    writes: WriteEvents,
}

impl FileSystemWatch {
    /// Begins to watch the file system that `path` is on. With [`WriteEvents::Each`], all writes on
    /// it become slower. Needs `CAP_SYS_ADMIN`; returns other errors if the kernel or the file
    /// system has no such events.
    pub fn begin(path: &Path, writes: WriteEvents) -> io::Result<Arc<FileSystemWatch>> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let group = ChangeGroup::new()?;
        group.watch_file_system(fd.as_fd(), writes)?;
        Ok(Arc::new(FileSystemWatch {
            group: Mutex::new(Some(group)),
            writes,
        }))
    }
}

/// Returns the support for streams of changes of the tree of `root`.
pub(crate) fn support(root: &HostNode, watch: Option<&FileSystemWatch>) -> Support {
    let directory = root.kind() == Kind::Directory && !root.device().is_remote();
    match watch.is_some() || may_watch_file_systems() {
        _ if !directory => Support::None,
        true if root.device().mount().is_some() => Support::Native,
        _ => Support::Emulated,
    }
}

fn may_watch_file_systems() -> bool {
    sys::caps::have_all(CapabilitySet::SYS_ADMIN)
}

/// Implements [`vfs::FileSystem::watch`]. `watch` was begun before, if it is set, and says which
/// writes to report: otherwise each.
pub(crate) fn watch(
    root: &Arc<HostNode>,
    watch: Option<&FileSystemWatch>,
) -> Result<Box<dyn ChangeStream>> {
    // Not left in `watch` in any case: its queue would fill.
    let begun = watch.and_then(|watch| watch.group.lock().take());
    identity::assume_server()?;
    let support = support(root, watch);
    if support == Support::None {
        return Err(Errno::EOPNOTSUPP);
    }
    let writes = watch.map_or(WriteEvents::Each, |watch| watch.writes);
    // Without kernel handles, it is of no use.
    let begun = begun.filter(|_| support == Support::Native);
    let (group, mut whole) = match begun {
        Some(group) => (group, true),
        None => (ChangeGroup::new().map_err(unsupported)?, false),
    };
    if support == Support::Native && !whole {
        let fd = root.fd(Patience::Full)?;
        whole = group.watch_file_system(fd.as_fd(), writes).is_ok();
    }
    let mut places = Places {
        device: root.device().dev,
        scope: match whole {
            true => Scope::FileSystem,
            false => Scope::Directories,
        },
        writes,
        directories: HashMap::new(),
        seen: Remembered::default(),
        objects: Remembered::default(),
        removed: Recent::default(),
        lost: false,
    };
    if !whole {
        places.watch_below(&group, root, Path::new(""), &mut |_| ())?;
    }
    Ok(Box::new(HostChanges {
        tree: Arc::downgrade(root.tree()),
        group,
        buffer: EventBuffer::default(),
        places,
        process: std::process::id(),
        next_read: None,
    }))
}

/// Returns the error of a kernel, sandbox or file system without such events.
fn unsupported(error: rustix::io::Errno) -> Errno {
    match sys::errno(error) {
        limit @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC | Errno::ENOMEM) => limit,
        _ => Errno::EOPNOTSUPP,
    }
}

/// The time between two busy reads, in which the kernel merges changes of one object.
const PAUSE: Duration = Duration::from_millis(1);

/// The time after a read of changes outside of the tree only, or after a loss: programs that are
/// busy elsewhere on the file system wake this one 50 times per second at most, and a want of
/// descriptors that lasts makes as many overflows.
const LONG_PAUSE: Duration = Duration::from_millis(20);

/// Maximum number of reads between two pauses: as many as empty a queue of the default length.
const MAX_READS: usize = 32;

/// A stream of changes of a tree.
struct HostChanges {
    tree: Weak<Tree>,
    group: ChangeGroup,
    buffer: EventBuffer,
    places: Places,
    /// This process.
    process: u32,
    /// The earliest time of the next read.
    next_read: Option<Instant>,
}

impl ChangeStream for HostChanges {
    fn next(&mut self, time: Duration, each: &mut dyn FnMut(&Change<'_>)) -> Result<()> {
        identity::assume_server()?;
        if let Some(next_read) = self.next_read.take() {
            std::thread::sleep(next_read.saturating_duration_since(Instant::now()));
        }
        let (tree, group, places) = (&self.tree, &self.group, &mut self.places);
        // Kept for the whole batch only: the stream does not keep the source open.
        let mut root = None;
        let mut outcome = Ok(());
        let any_passed = Cell::new(false);
        let mut each = |change: &Change<'_>| {
            any_passed.set(true);
            each(change);
        };
        let mut wait = time;
        for _ in 0..MAX_READS {
            let read = group.read(&mut self.buffer, Some(wait), &mut |event| {
                if root.is_none() {
                    root = tree.upgrade().and_then(|tree| tree.root());
                }
                let passed = match &root {
                    Some(root) => places.pass(group, root, &event, self.process, &mut each),
                    None => Err(Errno::ESTALE),
                };
                outcome = outcome.and(passed);
            });
            if !read.map_err(|_| Errno::EIO)? {
                break;
            }
            let lost = std::mem::take(&mut places.lost);
            if lost {
                each(&Change::OVERFLOW);
            }
            let any_passed = any_passed.get();
            let pause = match any_passed && !lost {
                true => PAUSE,
                false => LONG_PAUSE,
            };
            self.next_read = Some(Instant::now() + pause);
            if any_passed || outcome.is_err() {
                break;
            }
            // The queue is to be empty at the beginning of the long pause.
            wait = Duration::ZERO;
        }
        outcome
    }

    fn covers(&self, device: u64) -> bool {
        device == self.places.device
    }
}

/// The places of directories and the numbers of objects by their handles.
struct Places {
    /// The device that is watched.
    device: u64,
    scope: Scope,
    writes: WriteEvents,
    /// All directories of the tree, with marks on directories.
    directories: HashMap<HandleKey, Place>,
    /// The directories of events, with a mark of the file system.
    seen: Remembered<Place>,
    objects: Remembered<NodeId>,
    /// The last name that was removed from an object, with marks on directories: it cannot be
    /// opened to see whether it has others.
    removed: Recent<(NodeId, Box<[u8]>)>,
    /// Whether a change could not be located since this was last cleared, for want of a descriptor
    /// or memory.
    lost: bool,
}

/// The extent of the marks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// One for the file system: places are found as events need them.
    FileSystem,
    /// One for each directory, all of which have a place.
    Directories,
}

fn key(handle: &FileHandle) -> HandleKey {
    [&handle.kind().to_le_bytes()[..], handle.bytes()]
        .concat()
        .into()
}

/// The place of a directory.
#[derive(Clone)]
enum Place {
    /// The root or below it, at this path.
    Beneath(NodeId, Arc<Path>),
    Outside,
}

/// A name in a directory of the tree.
struct Location<'a> {
    dir: NodeId,
    path: Arc<Path>,
    name: &'a [u8],
}

impl Location<'_> {
    fn changed(&self) -> ChangedName<'_> {
        ChangedName {
            dir: self.dir,
            path: self.path.as_os_str().as_bytes(),
            name: self.name,
        }
    }

    /// Returns the path below the root.
    fn full(&self) -> PathBuf {
        match self.name {
            b"" => self.path.to_path_buf(),
            name => self.path.join(OsStr::from_bytes(name)),
        }
    }
}

/// The object of an event.
#[derive(Default)]
struct Object {
    id: Option<NodeId>,
    /// Whether it has no name, or does not exist any more.
    nameless: bool,
    /// Set if it exists and has no name: it exists as long as this is open.
    unlinked: Option<Fd>,
}

impl Places {
    /// Passes the changes of an event to `each`.
    fn pass(
        &mut self,
        group: &ChangeGroup,
        root: &Arc<HostNode>,
        event: &ChangeEvent<'_>,
        process: u32,
        each: &mut dyn FnMut(&Change<'_>),
    ) -> Result<()> {
        if event.overflow {
            each(&Change::OVERFLOW);
            // Directories may have been created and moved.
            self.directories.clear();
            self.seen.clear();
            if self.scope == Scope::Directories {
                self.watch_below(group, root, Path::new(""), &mut |_| ())?;
            }
            return Ok(());
        }
        let name = event.name.and_then(|name| self.location(root, name));
        let old = event.old.and_then(|old| self.location(root, old));
        let mut kinds = ChangeKinds::empty();
        kinds.set(ChangeKinds::CREATED, event.created);
        kinds.set(ChangeKinds::CONTENTS, event.contents && !event.is_dir);
        kinds.set(ChangeKinds::ATTRIBUTES, event.attributes);
        kinds.set(ChangeKinds::DELETED, event.deleted);
        if event.renamed {
            kinds |= match (&old, &name) {
                (Some(_), Some(_)) => ChangeKinds::RENAMED,
                (Some(_), None) => ChangeKinds::DELETED,
                (None, Some(_)) => ChangeKinds::CREATED,
                (None, None) => ChangeKinds::empty(),
            };
        }
        let object = match &event.object {
            Some(handle) => self.object(root, handle, event, name.as_ref()),
            // A change of the directory itself.
            None => Object {
                id: name.as_ref().map(|name| name.dir),
                ..Object::default()
            },
        };
        // A file that is written after it lost its name, or never had one (`O_TMPFILE`).
        let used = !(event.created || event.deleted || event.renamed || event.is_dir);
        let name = name.filter(|_| !used || !object.nameless);
        let (name, old) = match kinds.contains(ChangeKinds::RENAMED) {
            true => (name, old),
            false => (name.or(old), None),
        };
        if kinds.is_empty() || name.is_none() && !object.id.is_some_and(|id| is_known(root, id)) {
            return Ok(());
        }
        each(&Change {
            kinds,
            node: object.id,
            is_dir: event.is_dir,
            last_link: object.unlinked.is_some(),
            by: match event.pid == process {
                true => ChangedBy::ThisProcess,
                false => ChangedBy::Others,
            },
            name: name.as_ref().map(Location::changed),
            old_name: old.as_ref().map(Location::changed),
        });
        if event.is_dir {
            self.follow_directory(group, root, kinds, event, name.as_ref(), each)?;
        }
        Ok(())
    }

    /// Updates the places after a change of a directory's name.
    fn follow_directory(
        &mut self,
        group: &ChangeGroup,
        root: &Arc<HostNode>,
        kinds: ChangeKinds,
        event: &ChangeEvent<'_>,
        name: Option<&Location<'_>>,
        each: &mut dyn FnMut(&Change<'_>),
    ) -> Result<()> {
        if self.scope == Scope::FileSystem {
            if event.renamed {
                // Those of the moved directory are at other paths, or on the other side.
                self.seen.clear();
            }
            return Ok(());
        }
        if let Some(handle) = event.object.as_ref().map(key) {
            if event.renamed
                && let Some(Place::Beneath(_, old)) = self.directories.get(&handle).cloned()
            {
                let to = name.filter(|_| kinds.contains(ChangeKinds::RENAMED));
                self.relocate(&old, to.map(Location::full).as_deref());
            }
            if event.deleted {
                // It is empty: none is below.
                self.directories.remove(&handle);
            }
        }
        match name {
            // Entries that were made before the mark have no event.
            Some(name) if kinds.contains(ChangeKinds::CREATED) => {
                self.watch_below(group, root, &name.full(), each)
            }
            _ => Ok(()),
        }
    }

    /// Changes the paths of the directory `old` and those below it, or forgets them.
    fn relocate(&mut self, old: &Path, to: Option<&Path>) {
        self.directories.retain(|_, place| {
            let Place::Beneath(_, path) = place else {
                return true;
            };
            let (Ok(below), Some(to)) = (path.strip_prefix(old), to) else {
                return !path.starts_with(old);
            };
            *path = match below.as_os_str().is_empty() {
                true => to.into(),
                false => to.join(below).into(),
            };
            true
        });
    }

    /// Returns the location of a name, if its directory is in the tree.
    fn location<'a>(
        &mut self,
        root: &HostNode,
        name: fs_changes::ChangedName<'a>,
    ) -> Option<Location<'a>> {
        let key = key(&name.dir);
        let known = match self.scope {
            Scope::Directories => Some(self.directories.get(&key)?.clone()),
            Scope::FileSystem => self.seen.get(&key),
        };
        let place = match known {
            Some(place) => place,
            None => {
                let place = present(find_place(root, &name.dir));
                let place = self.note_loss(place)?;
                let id = match &place {
                    Place::Beneath(id, _) => Some(*id),
                    Place::Outside => None,
                };
                let is_known = |id| is_known(root, id);
                self.seen.insert(key, id, place.clone(), is_known);
                place
            }
        };
        match place {
            Place::Beneath(dir, path) => Some(Location {
                dir,
                path,
                name: name.name,
            }),
            Place::Outside => None,
        }
    }

    /// Returns the object of an event with the name `name`, if that is in the tree.
    fn object(
        &mut self,
        root: &HostNode,
        handle: &FileHandle,
        event: &ChangeEvent<'_>,
        name: Option<&Location<'_>>,
    ) -> Object {
        let key = key(handle);
        let known = self.objects.get(&key);
        if event.created || event.renamed {
            self.removed.remove(&key);
        }
        // A change of the number of links has no name: a file may have replaced this one.
        let unlinked = event.deleted || event.attributes && event.name.is_none();
        // A handle has the generation of the inode and always means the same object.
        if known.is_some() && !unlinked {
            return Object {
                id: known,
                nameless: self.is_removed(&key, name),
                unlinked: None,
            };
        }
        let device = root.device();
        let opened = match (self.scope, device.mount()) {
            (Scope::FileSystem, Some(mount)) => {
                root.host().open(|| handle.open(mount, OFlags::PATH))
            }
            _ => open_child(root, name, handle),
        };
        let opened = opened.and_then(|fd| {
            let stx = stat(fd.as_fd())?;
            Ok((fd, stx))
        });
        let opened = self.note_loss(present(opened));
        let opened = opened.filter(|(_, stx)| dev_of(stx) == self.device);
        let Some((fd, stx)) = opened else {
            let nameless = self.scope == Scope::FileSystem || self.is_removed(&key, name);
            match (self.scope, name) {
                (Scope::FileSystem, _) => self.objects.remove(&key),
                (Scope::Directories, Some(name)) if event.deleted => {
                    self.removed.insert(key, (name.dir, name.name.into()));
                }
                _ => {}
            }
            return Object {
                id: known,
                nameless,
                unlinked: None,
            };
        };
        let id = device.id(stx.stx_ino);
        let unlinked = stx.stx_nlink == 0;
        match unlinked {
            // Later changes are not of this name.
            true => self.objects.remove(&key),
            false => {
                let is_known = |id| is_known(root, id);
                self.objects.insert(key, Some(id), id, is_known);
            }
        }
        Object {
            id: Some(id),
            nameless: unlinked,
            unlinked: unlinked.then_some(fd),
        }
    }

    /// Returns whether `name` was removed from the object, with a mark on its directory.
    fn is_removed(&mut self, key: &HandleKey, name: Option<&Location<'_>>) -> bool {
        let removed = self.removed.get(key);
        let removed = removed.zip(name);
        removed.is_some_and(|((dir, removed), name)| (dir, &*removed) == (name.dir, name.name))
    }

    /// Returns the object of a change if it is there. Notes the loss of the change after an error.
    fn note_loss<T>(&mut self, object: Result<Option<T>>) -> Option<T> {
        self.lost |= object.is_err();
        object.unwrap_or_default()
    }

    /// Watches the directory at `path` and those below it, on the same file system. Passes what it
    /// finds there as created to `each`. Skips directories that this process cannot read and those
    /// that are moved or removed meanwhile; returns `ENOSPC` if the user watches too many.
    fn watch_below(
        &mut self,
        group: &ChangeGroup,
        root: &HostNode,
        path: &Path,
        each: &mut dyn FnMut(&Change<'_>),
    ) -> Result<()> {
        let root_fd = root.fd(Patience::Full)?;
        let mut waiting = vec![path.to_path_buf()];
        while let Some(path) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let fd = root.host().open(|| open_beneath(&root_fd, &path, flags));
            let Some(fd) = present(fd)? else {
                continue;
            };
            let stx = stat(fd.as_fd())?;
            group
                .watch_directory(fd.as_fd(), self.writes)
                .map_err(unsupported)?;
            let handle = FileHandle::of(fd.as_fd()).map_err(sys::errno)?;
            let (dir, device) = (root.device().id(stx.stx_ino), root.device());
            let place: Arc<Path> = path.clone().into();
            self.directories
                .insert(key(&handle), Place::Beneath(dir, place));
            let entries = rustix::fs::Dir::read_from(&fd).map_err(sys::errno)?;
            for entry in entries {
                // A directory that was removed has no entries.
                let Some(entry) = present(entry.map_err(sys::errno))? else {
                    break;
                };
                let name = entry.file_name().to_bytes();
                if name == b"." || name == b".." {
                    continue;
                }
                let is_dir = entry.file_type() == FileType::Directory;
                if is_dir {
                    waiting.push(path.join(OsStr::from_bytes(name)));
                }
                each(&Change {
                    kinds: ChangeKinds::CREATED,
                    node: Some(device.id(entry.ino())),
                    is_dir,
                    by: ChangedBy::Unknown,
                    name: Some(ChangedName {
                        dir,
                        path: path.as_os_str().as_bytes(),
                        name,
                    }),
                    ..Change::default()
                });
            }
        }
        Ok(())
    }
}

/// Returns `None` for an object that is gone, or that this process may not open: errors of handles,
/// and of paths below the root.
fn present<T>(object: Result<T>) -> Result<Option<T>> {
    match object {
        Ok(object) => Ok(Some(object)),
        Err(Errno::ESTALE | Errno::ENOENT | Errno::EACCES) => Ok(None),
        Err(Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns whether a client knows the object.
fn is_known(root: &HostNode, id: NodeId) -> bool {
    root.tree().nodes.get(id).is_some()
}

/// Returns the place of a directory of the root's file system, `ESTALE` if it no longer exists.
fn find_place(root: &HostNode, handle: &FileHandle) -> Result<Place> {
    let (tree, host) = (root.tree(), root.host());
    let mount = root.device().mount().ok_or(Errno::ESTALE)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let fd = host.open(|| handle.open(mount, flags))?;
    let stx = stat(fd.as_fd())?;
    if !tree.containment()?.is_directory_beneath(&fd)? {
        return Ok(Place::Outside);
    }
    let root_fd = root.fd(Patience::Full)?;
    let top = host.proc_fds.path_of(root_fd.as_fd());
    let path = host.proc_fds.path_of(fd.as_fd());
    let (top, path) = top.zip(path).ok_or(Errno::ENAMETOOLONG)?;
    // Only that of a removed directory differs.
    let below = path.strip_prefix(&top).map_err(|_| Errno::ESTALE)?;
    Ok(Place::Beneath(root.device().id(stx.stx_ino), below.into()))
}

/// Opens the object at `name` if it is the one of `handle`.
fn open_child(root: &HostNode, name: Option<&Location<'_>>, handle: &FileHandle) -> Result<Fd> {
    let path = name.ok_or(Errno::ESTALE)?.full();
    let root_fd = root.fd(Patience::Full)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let fd = root.host().open(|| open_beneath(&root_fd, &path, flags))?;
    match FileHandle::of(fd.as_fd()) {
        Ok(own) if own == *handle => Ok(fd),
        _ => Err(Errno::ESTALE),
    }
}

/// Opens the object at `path` below the root, on the same file system.
fn open_beneath(root: &Fd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = match path.as_os_str().as_bytes() {
        b"" => b".",
        path => path,
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = flags | OFlags::CLOEXEC;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}
