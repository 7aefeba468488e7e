//! A node: the object that it represents, and how to access it.
//!
//! While there are enough descriptors it has one of the object itself (`O_PATH`: no name is
//! resolved again, so the object behind the name cannot be exchanged). When they run short, an idle
//! node's descriptor is replaced by the object's kernel handle or, where handles are not permitted,
//! by the name that it was last found by. An object without a name keeps its descriptor. A node
//! with a kernel handle that is not a directory also has the directory in which it was first found:
//! its own handle contains that. `node_ops` has the node's operations.
//!
//! A million of them have to fit: a node is 72 bytes (see the test), its slot in the table some 20
//! to 40.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Mode, OFlags};
use sys::errno;
use sys::handle::FileHandle;
use vfs::{Attr, Errno, Kind, Name, Node, NodeId, Patience, Result};

use crate::attr;
use crate::descriptors::Fd;
use crate::device::Device;
use crate::host::Host;
use crate::identity;
use crate::node_table::{RingSlot, TableEntry};
use crate::stat::{dev_of, has_name, incarnation_of, stat};
use crate::tree::{Tree, TreeDevice};

/// A file, directory or other object below an export's root.
pub struct HostNode {
    tree_device: Arc<TreeDevice>,
    id: NodeId,
    slot: Mutex<Slot>,
    ring: RingSlot,
    kind: Kind,
    flags: AtomicU8,
    /// The number of open files; it stays at the maximum once it is there.
    opens: AtomicU16,
}

/// Used since the clock hand last passed.
const RECENTLY_USED: u8 = 1;
/// Its descriptor is never evicted.
const PINNED: u8 = 2;
/// Has locks mirrored on the host.
const MIRRORED: u8 = 4;
/// The child that was looked up here last was in the table already.
const CHILD_KNOWN: u8 = 8;
/// The node has lost its last name and holds a peer's share.
const UNLINKED: u8 = 16;

/// The access to an object.
enum Slot {
    /// Open: `O_PATH`, or the descriptor of a file that created it.
    Open {
        fd: Arc<Fd>,
        dentry: Option<Box<Dentry>>,
    },
    /// Open, with a kernel handle, and found in this directory.
    OpenWithDir { fd: Arc<Fd>, dir: Arc<HostNode> },
    /// A kernel handle short enough for inline storage (ext4 has 8 bytes, XFS and tmpfs 12, btrfs
    /// 20).
    Handle {
        kind: u8,
        len: u8,
        bytes: [u8; MAX_INLINE],
    },
    /// A short kernel handle, and the directory in which the object was found.
    HandleWithDir {
        kind: u8,
        len: u8,
        bytes: [u8; MAX_INLINE_WITH_DIR],
        dir: Arc<HostNode>,
    },
    /// A kernel handle.
    BoxedHandle(Box<FileHandle>),
    /// The last known name; `incarnation` distinguishes the object from another with the same
    /// number.
    Dentry {
        dentry: Box<Dentry>,
        incarnation: u64,
    },
}

/// The size at which this variant is no larger than the slot's largest other one.
const MAX_INLINE: usize = 21;

/// The same with a directory.
const MAX_INLINE_WITH_DIR: usize = 13;

/// The location in which an object was last found.
#[derive(Clone)]
pub(crate) struct Dentry {
    pub(crate) parent: Arc<HostNode>,
    pub(crate) name: Box<[u8]>,
}

impl HostNode {
    pub(crate) fn new(
        tree_device: &Arc<TreeDevice>,
        attr: &Attr,
        fd: Arc<Fd>,
        dentry: Option<Box<Dentry>>,
    ) -> HostNode {
        HostNode {
            tree_device: tree_device.clone(),
            id: attr.id,
            slot: Mutex::new(Slot::Open { fd, dentry }),
            ring: RingSlot::new(),
            kind: attr.kind,
            flags: AtomicU8::new(RECENTLY_USED),
            opens: AtomicU16::new(0),
        }
    }

    /// Returns the device that it is on, in its export.
    pub(crate) fn tree_device(&self) -> &Arc<TreeDevice> {
        &self.tree_device
    }

    /// Returns the device that it is on.
    pub(crate) fn device(&self) -> &Device {
        &self.tree_device.device
    }

    /// Returns the core of its export.
    pub(crate) fn host(&self) -> &Host {
        &self.tree_device.device.host
    }

    /// Returns its export, with the stores that its operations need.
    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree_device.tree
    }

    pub(crate) fn number(&self) -> NodeId {
        self.id
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Keeps its descriptor from being evicted.
    pub(crate) fn pin(&self) {
        self.flags.fetch_or(PINNED, Ordering::Relaxed);
    }

    /// Marks the node, so that its mirrored locks are removed when it is dropped.
    pub(crate) fn set_mirrored(&self) {
        self.flags.fetch_or(MIRRORED, Ordering::Relaxed);
    }

    /// Marks the node, so that its share is released when it is dropped.
    pub(crate) fn set_unlinked(&self) {
        self.flags.fetch_or(UNLINKED, Ordering::Relaxed);
    }

    /// Counts an open file.
    pub(crate) fn count_open(&self) {
        let more = |opens: u16| Some(opens.saturating_add(1));
        let _ = (self.opens).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Uncounts an open file.
    pub(crate) fn count_close(&self) {
        let fewer = |opens: u16| (opens != u16::MAX).then(|| opens.saturating_sub(1));
        let _ = (self.opens).fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }

    /// Returns whether the next child looked up here is likely to be in the table, as the last one
    /// was: clients look up either the same names again, or ever new ones.
    pub(crate) fn expects_known_child(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & CHILD_KNOWN != 0
    }

    /// Records whether the last one was.
    pub(crate) fn expect_known_child(&self, known: bool) {
        if self.expects_known_child() == known {
            return;
        }
        if known {
            self.flags.fetch_or(CHILD_KNOWN, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!CHILD_KNOWN, Ordering::Relaxed);
        }
    }

    /// Returns whether it has a descriptor, and therefore is the only incarnation of its number.
    pub(crate) fn is_open(&self) -> bool {
        self.slot().fd().is_some()
    }

    /// Returns a descriptor of the object, possibly `O_PATH`. Reopening it uses the server's own
    /// identity: call this before [`crate::identity::CallerIdentity::assume`]. Returns `ESTALE` if
    /// the object cannot be found again.
    pub(crate) fn fd(&self, patience: Patience) -> Result<Arc<Fd>> {
        if let Some(fd) = self.slot().fd() {
            if self.flags.load(Ordering::Relaxed) & RECENTLY_USED == 0 {
                self.flags.fetch_or(RECENTLY_USED, Ordering::Relaxed);
            }
            return Ok(fd.clone());
        }
        self.device().allow_brief(patience)?;
        identity::assume_server()?;
        match self.device().mount() {
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
        let fd = Arc::new(self.host().open(|| handle.open(mount, OFlags::PATH))?);
        slot.reopen(fd.clone());
        self.tree().nodes.insert_into_ring(self);
        Ok(fd)
    }

    /// Walks down from the nearest open ancestor, and accepts a name only if it leads to the same
    /// object.
    fn reopen_by_name(&self) -> Result<Arc<Fd>> {
        /// Deeper than the path of any system call; ends the walk in a cycle.
        const MAX_DEPTH: usize = 1 << 16;
        let mut chain: Vec<(Option<Arc<HostNode>>, Box<Dentry>, u64)> = Vec::new();
        let mut at: Option<Arc<HostNode>> = None;
        let mut fd = loop {
            let next = match &*at.as_deref().unwrap_or(self).slot() {
                Slot::Open { fd, .. } | Slot::OpenWithDir { fd, .. } => break fd.clone(),
                Slot::Dentry {
                    dentry,
                    incarnation,
                } if chain.len() < MAX_DEPTH => {
                    chain.push((at.clone(), dentry.clone(), *incarnation));
                    dentry.parent.clone()
                }
                _ => return Err(Errno::ESTALE),
            };
            at = Some(next);
        };
        for (node, dentry, incarnation) in chain.into_iter().rev() {
            let node = node.as_deref().unwrap_or(self);
            let found = node.host().open(|| open_path(fd.as_fd(), &dentry.name));
            let found = found.map_err(|error| match error {
                Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES => Errno::ESTALE,
                error => error,
            })?;
            let stx = stat(found.as_fd())?;
            let same = dev_of(&stx) == node.device().dev
                && node.device().id(stx.stx_ino) == node.id
                && attr::of(node.device(), &stx).kind == node.kind
                && incarnation_of(found.as_fd()) == incarnation;
            if !same {
                return Err(Errno::ESTALE);
            }
            fd = node.install(&Arc::new(found));
        }
        Ok(fd)
    }

    /// Makes `fd` this node's descriptor, unless it has one by now, and returns the descriptor it
    /// has.
    fn install(&self, fd: &Arc<Fd>) -> Arc<Fd> {
        let mut slot = self.slot();
        if let Some(fd) = slot.fd() {
            return fd.clone();
        }
        slot.reopen(fd.clone());
        self.tree().nodes.insert_into_ring(self);
        fd.clone()
    }

    /// Returns whether `fd`, found under this node's number, is the same object. If so, it becomes
    /// this node's descriptor if there is none, and `dentry` its last known location.
    pub(crate) fn adopt(&self, kind: Kind, fd: &Arc<Fd>, dentry: Option<&Dentry>) -> bool {
        if kind != self.kind {
            return false;
        }
        let same = match &*self.slot() {
            // The inode number of an open object is not reused.
            Slot::Open { .. } | Slot::OpenWithDir { .. } => true,
            Slot::Dentry { incarnation, .. } => incarnation_of(fd.as_fd()) == *incarnation,
            slot => FileHandle::of(fd.as_fd()).ok() == slot.handle(),
        };
        if same {
            self.install(fd);
            if let Some(dentry) = dentry {
                self.relocate(dentry);
            }
        }
        same
    }

    /// Records that it was found in `dir`, unless it is a directory, whose parent can be found, or
    /// an object without a handle. The first one is kept, because handles contain it and clients
    /// cache a file once per handle.
    pub(crate) fn record_directory(&self, dir: &HostNode) {
        if self.kind == Kind::Directory
            || self.device().mount().is_none()
            || !Arc::ptr_eq(&self.tree_device, &dir.tree_device)
        {
            return;
        }
        let mut slot = self.slot();
        if let Slot::Open { fd, dentry: None } = &*slot
            && let Some(dir) = dir.shared()
        {
            let fd = fd.clone();
            *slot = Slot::OpenWithDir { fd, dir };
        }
    }

    /// Returns the directory in which it was first found, if recorded: never for a directory.
    pub(crate) fn directory(&self) -> Option<Arc<HostNode>> {
        self.slot().directory().cloned()
    }

    /// Records its current location.
    pub(crate) fn relocate(&self, to: &Dentry) {
        let is_current = |slot: &Slot| match slot {
            Slot::Open {
                dentry: Some(now), ..
            }
            | Slot::Dentry { dentry: now, .. } => {
                Arc::ptr_eq(&now.parent, &to.parent) && now.name == to.name
            }
            Slot::Open { dentry: None, .. } => false,
            _ => true,
        };
        if is_current(&self.slot()) {
            return;
        }
        // Records are older than the state they describe: those of two directories moved into each
        // other could form a cycle. The older one stays then, and is rejected when used.
        let _moving = self.tree().moving.lock();
        if self.kind == Kind::Directory {
            let mut above = Some(to.parent.clone());
            while let Some(node) = above {
                if std::ptr::eq(&*node, self) {
                    return;
                }
                above = node.slot().dentry().map(|dentry| dentry.parent.clone());
            }
        }
        let mut slot = self.slot();
        let old = match &mut *slot {
            Slot::Open { dentry, .. } => dentry.replace(Box::new(to.clone())),
            Slot::Dentry { dentry, .. } => Some(std::mem::replace(dentry, Box::new(to.clone()))),
            _ => None,
        };
        drop(slot);
        drop(old);
    }

    /// Returns its last known location, if recorded.
    pub(crate) fn dentry(&self) -> Option<Dentry> {
        self.slot().dentry().cloned()
    }

    /// Returns the object's kernel handle.
    pub(crate) fn kernel_handle(&self) -> Result<FileHandle> {
        let slot = self.slot();
        match slot.fd() {
            Some(fd) => FileHandle::of(fd.as_fd()).map_err(errno),
            None => slot.handle().ok_or(Errno::EOPNOTSUPP),
        }
    }

    /// Evicts the descriptor, unless it is in use, was used recently, or could not be reopened.
    pub(crate) fn evict(&self) -> bool {
        if self.flags.fetch_and(!RECENTLY_USED, Ordering::Relaxed) & (RECENTLY_USED | PINNED) != 0 {
            return false;
        }
        let Some(slot) = self.slot.try_lock() else {
            return false;
        };
        let Some(fd) = slot.fd() else {
            return false;
        };
        // References to the descriptor are taken under the slot's lock only, so there can be no new
        // one now.
        if Arc::strong_count(fd) > 1 || !has_name(fd.as_fd()) {
            return false;
        }
        self.close_descriptor(slot)
    }

    /// Closes the descriptor of an object that clients merely remember: it is not open, has no
    /// locks, and no operation uses it. If it has lost its last name, it does not exist any more
    /// then, and operations return `ESTALE`.
    pub(crate) fn give_up(&self) -> bool {
        let in_use = self.flags.load(Ordering::Relaxed) & (PINNED | MIRRORED) != 0;
        if in_use || self.opens.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let Some(slot) = self.slot.try_lock() else {
            return false;
        };
        // An open that has begun holds a reference until it is counted.
        if slot.fd().is_none_or(|fd| Arc::strong_count(fd) > 1) || !self.close_descriptor(slot) {
            return false;
        }
        if self.flags.fetch_and(!UNLINKED, Ordering::Relaxed) & UNLINKED != 0 {
            self.tree().unlinked.forget(self.id);
        }
        true
    }

    /// Closes the descriptor in the node's slot, and leaves what the object is found by later.
    /// Returns false if that is not possible.
    fn close_descriptor(&self, mut slot: MutexGuard<'_, Slot>) -> bool {
        let Some(fd) = slot.fd() else {
            return false;
        };
        let closed = match (self.device().mount(), FileHandle::of(fd.as_fd())) {
            (Some(_), Ok(handle)) => slot.without_descriptor(&handle),
            _ => {
                let incarnation = incarnation_of(fd.as_fd());
                match slot.take_dentry() {
                    Some(dentry) => Slot::Dentry {
                        dentry,
                        incarnation,
                    },
                    None => return false,
                }
            }
        };
        let open = std::mem::replace(&mut *slot, closed);
        self.tree().nodes.remove_from_ring(self);
        drop(slot);
        drop(open);
        true
    }

    /// Replaces the descriptor with the object's kernel handle if it is `shared`, which an open
    /// file is about to close. Returns false if that is not possible.
    pub(crate) fn replace_with_handle(&self, shared: &Arc<Fd>) -> bool {
        let Some(mut slot) = self.slot.try_lock() else {
            return false;
        };
        if !slot.fd().is_some_and(|fd| Arc::ptr_eq(fd, shared)) {
            return true;
        }
        if self.flags.load(Ordering::Relaxed) & PINNED != 0 || self.device().mount().is_none() {
            return false;
        }
        let Ok(handle) = FileHandle::of(shared.as_fd()) else {
            return false;
        };
        let closed = slot.without_descriptor(&handle);
        let open = std::mem::replace(&mut *slot, closed);
        self.tree().nodes.remove_from_ring(self);
        drop(slot);
        drop(open);
        true
    }

    /// Returns whether it has a descriptor other than `fd`, so that a file can be reopened although
    /// it has no name. Returns false if that cannot be determined now.
    pub(crate) fn has_descriptor_besides(&self, fd: &Arc<Fd>) -> bool {
        let slot = self.slot.try_lock();
        slot.is_some_and(|slot| slot.fd().is_some_and(|own| !Arc::ptr_eq(own, fd)))
    }

    /// Handles the close of a file that shared its descriptor with this node: if the node stays in
    /// use, it must not keep the file open for writing.
    pub(crate) fn replace_with_path(&self, closed: &Arc<Fd>) {
        let mut slot = self.slot();
        let (Slot::Open { fd, .. } | Slot::OpenWithDir { fd, .. }) = &mut *slot else {
            return;
        };
        if !Arc::ptr_eq(fd, closed) {
            return;
        }
        let host = self.host();
        if let Ok(path) = host.open(|| host.proc_fds.reopen(closed.as_fd(), OFlags::PATH)) {
            *fd = Arc::new(path);
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock()
    }
}

impl TableEntry for HostNode {
    fn number(&self) -> NodeId {
        self.id
    }

    fn ring_slot(&self) -> &RingSlot {
        &self.ring
    }
}

impl Drop for HostNode {
    fn drop(&mut self) {
        let tree = &self.tree_device.tree;
        tree.nodes.remove(self);
        if *self.flags.get_mut() & MIRRORED != 0 {
            tree.mirrors.forget(self.id);
        }
        if *self.flags.get_mut() & UNLINKED != 0 {
            tree.unlinked.forget(self.id);
        }
        // A chain of parents without other references is dropped iteratively: recursion on a deep
        // one would overflow the stack.
        let mut above = self.slot.get_mut().take_dentry();
        while let Some(dentry) = above {
            above = Arc::into_inner(dentry.parent)
                .and_then(|mut parent| parent.slot.get_mut().take_dentry());
        }
    }
}

impl Slot {
    /// Returns the slot that replaces this one when the descriptor of the object with this handle
    /// is closed. A directory that does not fit next to the handle is dropped.
    fn without_descriptor(&self, handle: &FileHandle) -> Slot {
        let (Ok(kind), bytes) = (u8::try_from(handle.kind()), handle.bytes()) else {
            return Slot::BoxedHandle(Box::new(*handle));
        };
        let len = bytes.len() as u8;
        match self {
            Slot::OpenWithDir { dir, .. } if bytes.len() <= MAX_INLINE_WITH_DIR => {
                Slot::HandleWithDir {
                    kind,
                    len,
                    bytes: padded(bytes),
                    dir: dir.clone(),
                }
            }
            _ if bytes.len() <= MAX_INLINE => Slot::Handle {
                kind,
                len,
                bytes: padded(bytes),
            },
            _ => Slot::BoxedHandle(Box::new(*handle)),
        }
    }

    /// Makes `fd` its descriptor; it has none before.
    fn reopen(&mut self, fd: Arc<Fd>) {
        *self = match self.directory().cloned() {
            Some(dir) => Slot::OpenWithDir { fd, dir },
            None => Slot::Open {
                fd,
                dentry: self.take_dentry(),
            },
        };
    }

    fn fd(&self) -> Option<&Arc<Fd>> {
        match self {
            Slot::Open { fd, .. } | Slot::OpenWithDir { fd, .. } => Some(fd),
            _ => None,
        }
    }

    fn directory(&self) -> Option<&Arc<HostNode>> {
        match self {
            Slot::OpenWithDir { dir, .. } | Slot::HandleWithDir { dir, .. } => Some(dir),
            _ => None,
        }
    }

    /// Returns its kernel handle.
    fn handle(&self) -> Option<FileHandle> {
        let (kind, len, bytes) = match self {
            Slot::Handle { kind, len, bytes } => (kind, len, &bytes[..]),
            Slot::HandleWithDir {
                kind, len, bytes, ..
            } => (kind, len, &bytes[..]),
            Slot::BoxedHandle(handle) => return Some(**handle),
            _ => return None,
        };
        FileHandle::new((*kind).into(), &bytes[..usize::from(*len)]).ok()
    }

    fn dentry(&self) -> Option<&Dentry> {
        match self {
            Slot::Open { dentry, .. } => dentry.as_deref(),
            Slot::Dentry { dentry, .. } => Some(dentry),
            _ => None,
        }
    }

    fn take_dentry(&mut self) -> Option<Box<Dentry>> {
        match self {
            Slot::Open { dentry, .. } => dentry.take(),
            Slot::Dentry { .. } => {
                let nothing = Slot::Handle {
                    kind: 0,
                    len: 0,
                    bytes: [0; MAX_INLINE],
                };
                match std::mem::replace(self, nothing) {
                    Slot::Dentry { dentry, .. } => Some(dentry),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Returns `bytes`, at most `N` of them, padded with zeros.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

impl Dentry {
    /// Returns the location `name` in `parent`, if that is still in the table.
    pub(crate) fn new(parent: &HostNode, name: Name<'_>) -> Option<Box<Dentry>> {
        let parent = parent.shared()?;
        Some(Box::new(Dentry {
            parent,
            name: name.bytes().into(),
        }))
    }
}

impl HostNode {
    /// Returns this node's `Arc` from the table, or `None` if another node has taken its number.
    pub(crate) fn shared(&self) -> Option<Arc<HostNode>> {
        let node = self.tree().nodes.get(self.id)?;
        std::ptr::eq(&*node, self).then_some(node)
    }

    /// Returns `node` as one of this export's, or `EXDEV`.
    pub(crate) fn sibling<'n>(&self, node: &'n dyn Node) -> Result<&'n HostNode> {
        let node = node.as_any().downcast_ref::<HostNode>();
        node.filter(|node| Arc::ptr_eq(node.tree(), self.tree()))
            .ok_or(Errno::EXDEV)
    }

    /// Returns the location `name` here, for `node` if that is found by name.
    pub(crate) fn dentry_for(&self, node: &HostNode, name: Name<'_>) -> Option<Box<Dentry>> {
        match node.device().mount() {
            Some(_) => None,
            None => Dentry::new(self, name),
        }
    }
}

/// Opens the single name `name` in the directory `dir`, of any file type, without following links.
fn open_path(dir: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_small() {
        assert_eq!(size_of::<Slot>(), 24);
        // After the two counters of the `Arc`: 72, for which malloc uses 80.
        assert_eq!(size_of::<HostNode>(), 56);
    }
}
