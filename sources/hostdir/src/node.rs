//! A node: which object it stands for, and how that is got hold of.
//!
//! As long as descriptors suffice it has one of the object itself (`O_PATH`: no name is walked
//! again, so nobody can swap what the name leads to). One that is idle when they run short gives it
//! up for the object's kernel handle, or, where handles are not permitted, for the name that it was
//! found by last. An object without a name keeps its descriptor. One with a kernel handle that is
//! no directory also knows the directory that it was found in first: its own handle names that.
//! `ops` has the node's operations.
//!
//! A million of them have to fit: a node is 72 bytes (see the test), its place in the table some
//! 20 to 40.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use sys::errno;
use sys::handle::FileHandle;
use vfs::{Attr, Errno, Kind, Name, NodeId, Patience, Result, sip};

use crate::attr;
use crate::device::{self, Device};
use crate::fds::Fd;
use crate::table::RingSlot;
use crate::tree;

/// A file, directory or other object below an export's root.
pub struct HostNode {
    device: Arc<Device>,
    id: NodeId,
    slot: Mutex<Slot>,
    ring: RingSlot,
    kind: Kind,
    flags: AtomicU8,
}

/// Used since the clock hand last came by.
const TOUCHED: u8 = 1;
/// Never gives its descriptor up.
const PINNED: u8 = 2;
/// Has locks mirrored on the host.
const MIRRORED: u8 = 4;
/// The child that was looked up here last was a known node.
const KNOWN: u8 = 8;
/// The node has lost its last name at the cost of a peer's share.
const UNNAMED: u8 = 16;

/// How an object is got hold of.
enum Slot {
    /// It is open: `O_PATH`, or what a file that created it has open.
    Open {
        fd: Arc<Fd>,
        record: Option<Box<Record>>,
    },
    /// It is open, has a kernel handle, and was found in this directory.
    Listed { fd: Arc<Fd>, dir: Arc<HostNode> },
    /// By a kernel handle, short enough to lie here (ext4 has 8 bytes, XFS and tmpfs 12, btrfs 20).
    Small {
        kind: u8,
        len: u8,
        bytes: [u8; SMALL],
    },
    /// By a kernel handle as short as most, with the directory that it was found in.
    SmallListed {
        kind: u8,
        len: u8,
        bytes: [u8; SMALLER],
        dir: Arc<HostNode>,
    },
    /// By a kernel handle.
    Large(Box<FileHandle>),
    /// By the name it had; `life` tells it from another of the same number.
    Named { record: Box<Record>, life: u64 },
}

/// What makes a slot no larger than its largest other variant.
const SMALL: usize = 21;

/// The same beside a directory.
const SMALLER: usize = 13;

/// Where an object was found last.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) parent: Arc<HostNode>,
    pub(crate) name: Box<[u8]>,
}

impl HostNode {
    pub(crate) fn new(
        device: &Arc<Device>,
        attr: &Attr,
        fd: Arc<Fd>,
        record: Option<Box<Record>>,
    ) -> HostNode {
        HostNode {
            device: device.clone(),
            id: attr.id,
            slot: Mutex::new(Slot::Open { fd, record }),
            ring: RingSlot::new(),
            kind: attr.kind,
            flags: AtomicU8::new(TOUCHED),
        }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn number(&self) -> NodeId {
        self.id
    }

    pub(crate) fn what(&self) -> Kind {
        self.kind
    }

    pub(crate) fn ring_slot(&self) -> &RingSlot {
        &self.ring
    }

    /// Keeps its descriptor whatever happens.
    pub(crate) fn pin(&self) {
        self.flags.fetch_or(PINNED, Ordering::Relaxed);
    }

    /// Has the node's mirrored locks looked for when it is dropped.
    pub(crate) fn set_mirrored(&self) {
        self.flags.fetch_or(MIRRORED, Ordering::Relaxed);
    }

    /// Marks the node, so that its share is given back when it is dropped.
    pub(crate) fn set_unnamed(&self) {
        self.flags.fetch_or(UNNAMED, Ordering::Relaxed);
    }

    /// Whether the next child looked up here is likely to be a known node, as the last one was:
    /// clients look the same names up again, or ever new ones.
    pub(crate) fn expects_known(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & KNOWN != 0
    }

    /// What the last one was.
    pub(crate) fn expect_known(&self, known: bool) {
        if self.expects_known() == known {
            return;
        }
        if known {
            self.flags.fetch_or(KNOWN, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!KNOWN, Ordering::Relaxed);
        }
    }

    /// Whether it has a descriptor, and so the only life of its number.
    pub(crate) fn is_open(&self) -> bool {
        self.slot().fd().is_some()
    }

    /// A descriptor of the object, `O_PATH` perhaps. If it has to be opened again that is done as
    /// the server itself: so first this, then [`tree::Tree::act`]. `ESTALE` if it cannot be found again.
    pub(crate) fn fd(&self, patience: Patience) -> Result<Arc<Fd>> {
        if let Some(fd) = self.slot().fd() {
            if self.flags.load(Ordering::Relaxed) & TOUCHED == 0 {
                self.flags.fetch_or(TOUCHED, Ordering::Relaxed);
            }
            return Ok(fd.clone());
        }
        self.device.brief(patience)?;
        self.device.tree.act_as_server()?;
        match self.device.mount() {
            Some(mount) => self.reopen_by_handle(mount),
            None => self.reopen_by_name(),
        }
    }

    fn reopen_by_handle(&self, mount: BorrowedFd<'_>) -> Result<Arc<Fd>> {
        let mut slot = self.slot();
        if let Some(fd) = slot.fd() {
            return Ok(fd.clone());
        }
        let handle = slot.handle().ok_or(Errno::ESTALE)?;
        let tree = &self.device.tree;
        let fd = Arc::new(tree.open(|| handle.open(mount, OFlags::PATH))?);
        slot.reopen(fd.clone());
        tree.table.insert_into_ring(self);
        Ok(fd)
    }

    /// Walks down from the nearest ancestor that is open, and believes a name only if it leads to
    /// the very object.
    fn reopen_by_name(&self) -> Result<Arc<Fd>> {
        /// Deeper than any path that a system call would take at once; ends what is no tree.
        const DEEPEST: usize = 1 << 16;
        let mut way: Vec<(Option<Arc<HostNode>>, Box<Record>, u64)> = Vec::new();
        let mut at: Option<Arc<HostNode>> = None;
        let mut fd = loop {
            let next = match &*at.as_deref().unwrap_or(self).slot() {
                Slot::Open { fd, .. } | Slot::Listed { fd, .. } => break fd.clone(),
                Slot::Named { record, life } if way.len() < DEEPEST => {
                    way.push((at.clone(), record.clone(), *life));
                    record.parent.clone()
                }
                _ => return Err(Errno::ESTALE),
            };
            at = Some(next);
        };
        for (node, record, life) in way.into_iter().rev() {
            let node = node.as_deref().unwrap_or(self);
            let found = node
                .device
                .tree
                .open(|| open_path(fd.as_fd(), &record.name));
            let found = found.map_err(|error| match error {
                Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES => Errno::ESTALE,
                error => error,
            })?;
            let stx = tree::stat(found.as_fd())?;
            let same = device::dev_of(&stx) == node.device.dev
                && node.device.id(stx.stx_ino) == node.id
                && attr::of(&node.device, &stx).kind == node.kind
                && life_of(found.as_fd()) == life;
            if !same {
                return Err(Errno::ESTALE);
            }
            fd = node.install(&Arc::new(found));
        }
        Ok(fd)
    }

    /// Makes `fd` this node's descriptor, unless it has got one meanwhile, and says which it is.
    fn install(&self, fd: &Arc<Fd>) -> Arc<Fd> {
        let mut slot = self.slot();
        if let Some(fd) = slot.fd() {
            return fd.clone();
        }
        slot.reopen(fd.clone());
        self.device.tree.table.insert_into_ring(self);
        fd.clone()
    }

    /// Whether `fd`, found under this node's number, is the same object; if so, it is this node's
    /// descriptor should it need one, and `record` where it was found last.
    pub(crate) fn adopt(&self, kind: Kind, fd: &Arc<Fd>, record: Option<&Record>) -> bool {
        if kind != self.kind {
            return false;
        }
        let same = match &*self.slot() {
            // An inode that is open keeps its number.
            Slot::Open { .. } | Slot::Listed { .. } => true,
            Slot::Named { life, .. } => life_of(fd.as_fd()) == *life,
            slot => FileHandle::of(fd.as_fd()).ok() == slot.handle(),
        };
        if same {
            self.install(fd);
            if let Some(record) = record {
                self.relocate(record);
            }
        }
        same
    }

    /// Notes that it was found in `dir`, if that is worth noting: a directory tells itself what it
    /// is in, and an object without a handle none. The first stays, for handles name it, and
    /// clients cache a file once for each handle.
    pub(crate) fn note_directory(&self, dir: &HostNode) {
        if self.kind == Kind::Directory
            || self.device.mount().is_none()
            || !Arc::ptr_eq(&self.device, &dir.device)
        {
            return;
        }
        let mut slot = self.slot();
        if let Slot::Open { fd, record: None } = &*slot
            && let Some(dir) = dir.shared()
        {
            let fd = fd.clone();
            *slot = Slot::Listed { fd, dir };
        }
    }

    /// The directory that it was found in, if that is noted: of no directory.
    pub(crate) fn directory(&self) -> Option<Arc<HostNode>> {
        self.slot().directory().cloned()
    }

    /// Notes where it was found now.
    pub(crate) fn relocate(&self, to: &Record) {
        let tree = &self.device.tree;
        let unmoved = |slot: &Slot| match slot {
            Slot::Open {
                record: Some(now), ..
            }
            | Slot::Named { record: now, .. } => {
                Arc::ptr_eq(&now.parent, &to.parent) && now.name == to.name
            }
            Slot::Open { record: None, .. } => false,
            _ => true,
        };
        if unmoved(&self.slot()) {
            return;
        }
        // Records are older than what they record: those of two directories moved into one
        // another could make a ring. The older one stays then, and proves stale when used.
        let _moving = tree.moving.lock().expect("no panic holds it");
        if self.kind == Kind::Directory {
            let mut above = Some(to.parent.clone());
            while let Some(node) = above {
                if std::ptr::eq(&*node, self) {
                    return;
                }
                above = node.slot().record().map(|record| record.parent.clone());
            }
        }
        let mut slot = self.slot();
        let old = match &mut *slot {
            Slot::Open { record, .. } => record.replace(Box::new(to.clone())),
            Slot::Named { record, .. } => Some(std::mem::replace(record, Box::new(to.clone()))),
            _ => None,
        };
        drop(slot);
        drop(old);
    }

    /// Where it was found last, if that is noted.
    pub(crate) fn record(&self) -> Option<Record> {
        self.slot().record().cloned()
    }

    /// The kernel's handle of the object.
    pub(crate) fn kernel_handle(&self) -> Result<FileHandle> {
        let slot = self.slot();
        match slot.fd() {
            Some(fd) => FileHandle::of(fd.as_fd()).map_err(errno),
            None => slot.handle().ok_or(Errno::EOPNOTSUPP),
        }
    }

    /// Gives the descriptor up, unless it is in use, was used lately, or could not be had again.
    pub(crate) fn evict(&self) -> bool {
        if self.flags.fetch_and(!TOUCHED, Ordering::Relaxed) & (TOUCHED | PINNED) != 0 {
            return false;
        }
        let Ok(mut slot) = self.slot.try_lock() else {
            return false;
        };
        let Some(fd) = slot.fd() else {
            return false;
        };
        // Others take the descriptor under the slot's lock only, so nobody can now.
        if Arc::strong_count(fd) > 1 || !has_name(fd.as_fd()) {
            return false;
        }
        let closed = match self.device.mount() {
            Some(_) => match FileHandle::of(fd.as_fd()) {
                Ok(handle) => slot.closed(&handle),
                Err(_) => return false,
            },
            None => {
                let life = life_of(fd.as_fd());
                match slot.take_record() {
                    Some(record) => Slot::Named { record, life },
                    None => return false,
                }
            }
        };
        let open = std::mem::replace(&mut *slot, closed);
        self.device.tree.table.remove_from_ring(self);
        drop(slot);
        drop(open);
        true
    }

    /// A file gives up `shared`, which this node may have too: then it goes by the object's kernel handle.
    /// False if it cannot.
    pub(crate) fn part_with(&self, shared: &Arc<Fd>) -> bool {
        let Ok(mut slot) = self.slot.try_lock() else {
            return false;
        };
        if !slot.fd().is_some_and(|fd| Arc::ptr_eq(fd, shared)) {
            return true;
        }
        if self.flags.load(Ordering::Relaxed) & PINNED != 0 || self.device.mount().is_none() {
            return false;
        }
        let Ok(handle) = FileHandle::of(shared.as_fd()) else {
            return false;
        };
        let closed = slot.closed(&handle);
        let open = std::mem::replace(&mut *slot, closed);
        self.device.tree.table.remove_from_ring(self);
        drop(slot);
        drop(open);
        true
    }

    /// Whether it has a descriptor of its own, other than `fd`: then a file can be opened again
    /// though it has no name. False if that cannot be told now.
    pub(crate) fn has_other_than(&self, fd: &Arc<Fd>) -> bool {
        let slot = self.slot.try_lock();
        slot.is_ok_and(|slot| slot.fd().is_some_and(|own| !Arc::ptr_eq(own, fd)))
    }

    /// A file that shared its descriptor with this node is closed: if the node lives on it shall
    /// not keep the file open for writing.
    pub(crate) fn settle(&self, closed: &Arc<Fd>) {
        let mut slot = self.slot();
        let (Slot::Open { fd, .. } | Slot::Listed { fd, .. }) = &mut *slot else {
            return;
        };
        if !Arc::ptr_eq(fd, closed) {
            return;
        }
        let tree = &self.device.tree;
        if let Ok(path) = tree.open(|| tree.reopen(closed.as_fd(), OFlags::PATH)) {
            *fd = Arc::new(path);
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().expect("no panic holds it")
    }
}

impl Drop for HostNode {
    fn drop(&mut self) {
        let tree = &self.device.tree;
        tree.table.remove(self);
        if *self.flags.get_mut() & MIRRORED != 0 {
            tree.mirrors.forget(self.id);
        }
        if *self.flags.get_mut() & UNNAMED != 0 {
            tree.unnamed.forget(self.id);
        }
        // A chain of parents that nobody else knows is taken apart link by link: dropped as it
        // is, a deep one would overflow the stack.
        let mut above = self.slot.get_mut().ok().and_then(Slot::take_record);
        while let Some(record) = above {
            above = Arc::into_inner(record.parent)
                .and_then(|mut parent| parent.slot.get_mut().ok().and_then(Slot::take_record));
        }
    }
}

impl Slot {
    /// Returns the slot that replaces this one when the descriptor of the object with this handle
    /// is closed. A directory that finds no room beside the handle is forgotten.
    fn closed(&self, handle: &FileHandle) -> Slot {
        let (Ok(kind), bytes) = (u8::try_from(handle.kind()), handle.bytes()) else {
            return Slot::Large(Box::new(*handle));
        };
        let len = bytes.len() as u8;
        match self {
            Slot::Listed { dir, .. } if bytes.len() <= SMALLER => Slot::SmallListed {
                kind,
                len,
                bytes: padded(bytes),
                dir: dir.clone(),
            },
            _ if bytes.len() <= SMALL => Slot::Small {
                kind,
                len,
                bytes: padded(bytes),
            },
            _ => Slot::Large(Box::new(*handle)),
        }
    }

    /// Makes `fd` its descriptor; it has none.
    fn reopen(&mut self, fd: Arc<Fd>) {
        *self = match self.directory().cloned() {
            Some(dir) => Slot::Listed { fd, dir },
            None => Slot::Open {
                fd,
                record: self.take_record(),
            },
        };
    }

    fn fd(&self) -> Option<&Arc<Fd>> {
        match self {
            Slot::Open { fd, .. } | Slot::Listed { fd, .. } => Some(fd),
            _ => None,
        }
    }

    fn directory(&self) -> Option<&Arc<HostNode>> {
        match self {
            Slot::Listed { dir, .. } | Slot::SmallListed { dir, .. } => Some(dir),
            _ => None,
        }
    }

    /// The kernel handle that it goes by.
    fn handle(&self) -> Option<FileHandle> {
        let (kind, len, bytes) = match self {
            Slot::Small { kind, len, bytes } => (kind, len, &bytes[..]),
            Slot::SmallListed {
                kind, len, bytes, ..
            } => (kind, len, &bytes[..]),
            Slot::Large(handle) => return Some(**handle),
            _ => return None,
        };
        FileHandle::new((*kind).into(), &bytes[..usize::from(*len)]).ok()
    }

    fn record(&self) -> Option<&Record> {
        match self {
            Slot::Open { record, .. } => record.as_deref(),
            Slot::Named { record, .. } => Some(record),
            _ => None,
        }
    }

    fn take_record(&mut self) -> Option<Box<Record>> {
        match self {
            Slot::Open { record, .. } => record.take(),
            Slot::Named { .. } => {
                let nothing = Slot::Small {
                    kind: 0,
                    len: 0,
                    bytes: [0; SMALL],
                };
                match std::mem::replace(self, nothing) {
                    Slot::Named { record, .. } => Some(record),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// `bytes`, which are no more than `N`, and zeros.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

impl Record {
    /// `name` in `parent`, if that is still in the table.
    pub(crate) fn new(parent: &HostNode, name: Name<'_>) -> Option<Box<Record>> {
        let parent = parent.shared()?;
        Some(Box::new(Record {
            parent,
            name: name.bytes().into(),
        }))
    }
}

impl HostNode {
    /// This node as the table has it; nothing if another took its number over.
    pub(crate) fn shared(&self) -> Option<Arc<HostNode>> {
        let node = self.device.tree.table.get(self.id)?;
        std::ptr::eq(&*node, self).then_some(node)
    }
}

/// Opens the one name `name` of the directory `dir`, whatever it is, following nothing.
fn open_path(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Whether the object can still be found by a name.
pub(crate) fn has_name(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::NLINK)
        .is_ok_and(|stx| stx.stx_nlink > 0)
}

/// Tells one life of an inode number from the next: by the kernel's handle, which every file
/// system that can makes so, or else by the time of birth.
pub(crate) fn life_of(fd: BorrowedFd<'_>) -> u64 {
    /// Any will do: nobody gains by two lives that look alike, and it must not change.
    const KEY: sip::Key = *b"barge generation";
    let bytes = match FileHandle::of(fd) {
        Ok(handle) => [&handle.kind().to_le_bytes(), handle.bytes()].concat(),
        Err(_) => match tree::stat(fd) {
            Ok(stx) => [
                stx.stx_btime.tv_sec.to_le_bytes(),
                i64::from(stx.stx_btime.tv_nsec).to_le_bytes(),
            ]
            .concat(),
            Err(_) => Vec::new(),
        },
    };
    sip::hash(&KEY, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_small() {
        assert_eq!(size_of::<Slot>(), 24);
        // Behind two counters of the `Arc`: 72, for which malloc takes 80.
        assert_eq!(size_of::<HostNode>(), 56);
    }
}
