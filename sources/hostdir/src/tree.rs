//! The state that all nodes of one export share.
//!
//! Lock order of the whole crate: a directory's stream, then a node's mirror of locks, then a
//! node's slot (two of those only child before parent, and only with `try_lock`), then the devices,
//! then a shard of the table. No system call is made under a shard's lock.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno as Raw;
use rustix::path::DecInt;
use sys::errno;
use sys::handle::FileHandle;
use vfs::sip;
use vfs::{Attr, Caller, Cx, Errno, HandleKey, Result};

use crate::attr;
use crate::containment::Searches;
use crate::descriptors::{Budget, Fd, Shares};
use crate::device::{self, Device};
use crate::dir_cache::Listings;
use crate::dir_cursor::Streams;
use crate::handle_index::Book;
use crate::identity::{self, Switch};
use crate::lease::Leases;
use crate::locks::Mirrors;
use crate::node::{HostNode, Record};
use crate::node_ids::{DeviceKey, Prefix, Prefixes};
use crate::node_table::{self, Found, Table};
use crate::open_files::Opened;
use crate::unlinked::Unnamed;

pub(crate) struct Tree {
    /// The secrets from which, with the root's identity, the keys for handles and for numbers
    /// derive.
    secrets: [HandleKey; 2],
    keys: OnceLock<Keys>,
    /// Whether nodes can be opened by kernel handle.
    pub(crate) by_handle: bool,
    pub(crate) table: Table,
    pub(crate) mirrors: Mirrors,
    pub(crate) listings: Listings,
    pub(crate) leases: Leases,
    pub(crate) opened: Opened,
    pub(crate) book: Book,
    pub(crate) searches: Searches,
    pub(crate) shares: Arc<Shares>,
    pub(crate) unnamed: Unnamed,
    pub(crate) streams: Streams,
    budget: Arc<Budget>,
    switch: Option<Switch>,
    /// Whether threads that create files keep their umask.
    pub(crate) keeps_umask: bool,
    devices: Mutex<HashMap<u64, Weak<Device>>>,
    prefixes: Mutex<Prefixes>,
    /// `/proc/self/fd`, through which descriptors are reopened.
    proc_fds: OwnedFd,
    /// `st_dev` and inode number of the root.
    root: OnceLock<(u64, u64)>,
    root_node: OnceLock<Weak<HostNode>>,
    /// Held while a directory's recorded parent changes, so that no cycle of parents arises.
    pub(crate) moving: Mutex<()>,
}

/// The keys of an export.
struct Keys {
    /// Seals handles.
    handles: HandleKey,
    /// Composes node numbers.
    numbers: sip::Key,
}

/// The number of nodes to evict when the system has no descriptors left although the budget has.
const SHED: usize = 64;

impl Tree {
    pub(crate) fn new(
        secrets: [HandleKey; 2],
        by_handle: bool,
        budget: usize,
        switch: Option<Switch>,
    ) -> std::io::Result<Tree> {
        let proc_fds = rustix::fs::open(
            c"/proc/self/fd",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Tree {
            secrets,
            keys: OnceLock::new(),
            by_handle,
            table: Table::new(),
            mirrors: Mirrors::default(),
            listings: Listings::default(),
            leases: Leases::default(),
            opened: Opened::default(),
            book: Book::default(),
            searches: Searches::default(),
            // The other quarter is left to leases.
            shares: Shares::new(budget / 4 * 3),
            unnamed: Unnamed::default(),
            streams: Streams::default(),
            budget: Budget::new(budget),
            switch,
            keeps_umask: false,
            devices: Mutex::default(),
            prefixes: Mutex::default(),
            proc_fds,
            root: OnceLock::new(),
            root_node: OnceLock::new(),
            moving: Mutex::new(()),
        })
    }

    /// Sets whether threads that create files keep their umask.
    pub(crate) fn keeping_umask(self, keeps: bool) -> Tree {
        Tree {
            keeps_umask: keeps,
            ..self
        }
    }

    /// Gives the calling thread the caller's identity, if this export switches: directly before the
    /// system calls that need the caller's permissions, and after all opens by handle.
    pub(crate) fn act(&self, cx: &Cx<'_>) -> Result<()> {
        match &self.switch {
            Some(switch) => switch.become_caller(cx.caller, cx.patience),
            None => identity::become_server(),
        }
    }

    /// Gives the calling thread the server's identity.
    pub(crate) fn act_as_server(&self) -> Result<()> {
        identity::become_server()
    }

    /// Returns whether `caller` is distinguished from root.
    pub(crate) fn is_ordinary(&self, caller: &Caller) -> bool {
        self.switch
            .as_ref()
            .is_some_and(|switch| !switch.is_super_user(caller))
    }

    /// Returns whether the host distinguishes callers.
    pub(crate) fn switches(&self) -> bool {
        self.switch.is_some()
    }

    /// Opens a descriptor within the budget, evicting others if necessary. Returns `ENFILE` if none
    /// can be evicted.
    pub(crate) fn open(&self, open: impl Fn() -> rustix::io::Result<OwnedFd>) -> Result<Fd> {
        let permit = self.budget.take();
        while self.budget.over() {
            if !self.evict_one() {
                return Err(Errno::ENFILE);
            }
        }
        let fd = match open() {
            Err(Raw::MFILE | Raw::NFILE) => {
                for _ in 0..SHED {
                    self.evict_one();
                }
                open()
            }
            opened => opened,
        };
        match fd {
            Ok(fd) => Ok(permit.spend(fd)),
            Err(Raw::MFILE | Raw::NFILE) => Err(Errno::ENFILE),
            Err(error) => Err(errno(error)),
        }
    }

    /// Evicts the descriptor of approximately the least recently used node or file.
    fn evict_one(&self) -> bool {
        // Twice around, as the first round only clears the marks of recent use; and more, since the
        // hand passes unevenly filled shards in turn.
        for _ in 0..2 * self.budget.open() + 8 * node_table::SHARDS {
            let node = self.table.next_in_ring();
            if node.is_some_and(|node| node.evict()) || self.opened.evict_next() {
                return true;
            }
        }
        false
    }

    /// Returns the most descriptors that nodes and files may have.
    pub(crate) fn most_descriptors(&self) -> usize {
        self.budget.most()
    }

    /// Returns the number of descriptors that nodes and files have.
    pub(crate) fn open_descriptors(&self) -> usize {
        self.budget.open()
    }

    /// Opens the object of `fd` again, with other flags. Permission is checked again, except for
    /// `O_PATH`.
    pub(crate) fn reopen(&self, fd: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(
            &self.proc_fds,
            DecInt::from_fd(fd),
            flags | OFlags::CLOEXEC | OFlags::NOCTTY,
            Mode::empty(),
        )
    }

    /// Returns the directory in which a descriptor's number is a name of its object.
    pub(crate) fn proc_fds(&self) -> BorrowedFd<'_> {
        self.proc_fds.as_fd()
    }

    /// Returns the kernel's path of `fd`: `None` if it is too long, and a wrong one if the kernel
    /// knows none or the object has been removed.
    pub(crate) fn path_of(&self, fd: BorrowedFd<'_>) -> Option<PathBuf> {
        let number = DecInt::from_fd(fd);
        let path = rustix::fs::readlinkat(&self.proc_fds, number, Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(path.into_bytes())))
    }

    /// Returns the prefix of a device's node numbers.
    pub(crate) fn prefix(&self, device: DeviceKey) -> Result<Prefix> {
        self.prefixes.lock().expect("no panic holds it").of(device)
    }

    /// Makes the object of `fd` the root. Called once, before everything else.
    pub(crate) fn set_root(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let stx = stat(fd)?;
        let device = DeviceKey::of(fd, &stx)?;
        let mut prefixes = self.prefixes.lock().expect("no panic holds it");
        prefixes.root(device);
        self.root.get_or_init(|| (device.dev, stx.stx_ino));
        self.keys.get_or_init(|| {
            let identity = identity_of(fd, &stx);
            let [handles, numbers] = &self.secrets;
            Keys {
                handles: handles.derive("hostdir handles", &[&identity]),
                numbers: numbers
                    .derive("hostdir numbers", &[&identity])
                    .for_numbers(),
            }
        });
        Ok(())
    }

    /// Returns the key that seals this export's handles.
    pub(crate) fn handle_key(&self) -> &HandleKey {
        &self.keys().handles
    }

    /// Returns the key that composes this export's node numbers.
    pub(crate) fn number_key(&self) -> &sip::Key {
        &self.keys().numbers
    }

    fn keys(&self) -> &Keys {
        self.keys
            .get()
            .expect("the root is set before anything else")
    }

    /// Stores the root node. Called once.
    pub(crate) fn set_root_node(&self, node: &Arc<HostNode>) {
        self.root_node.get_or_init(|| Arc::downgrade(node));
    }

    /// Returns the root node, as long as the export lives.
    pub(crate) fn table_root(&self) -> Option<Arc<HostNode>> {
        self.root_node.get()?.upgrade()
    }

    /// Returns whether these are the root's attributes.
    pub(crate) fn is_root(&self, stx: &Statx) -> bool {
        self.root.get() == Some(&(device::dev_of(stx), stx.stx_ino))
    }

    /// Returns the devices that have nodes.
    pub(crate) fn devices(&self) -> Vec<Arc<Device>> {
        let devices = self.devices.lock().expect("no panic holds it");
        devices.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the node of `fd`'s object, and its attributes. `near` is the device that it is
    /// probably on, `from` the location where it was found, if by name. The node uses `fd` unless
    /// it has a descriptor.
    pub(crate) fn enter(
        self: &Arc<Tree>,
        near: Option<&Arc<Device>>,
        fd: Fd,
        from: Option<(&HostNode, vfs::Name<'_>)>,
    ) -> Result<(Arc<HostNode>, Attr)> {
        self.enter_shared(near, &Arc::new(fd), from)
    }

    /// [`Tree::enter`] for a descriptor that an open file shares.
    pub(crate) fn enter_shared(
        self: &Arc<Tree>,
        near: Option<&Arc<Device>>,
        fd: &Arc<Fd>,
        from: Option<(&HostNode, vfs::Name<'_>)>,
    ) -> Result<(Arc<HostNode>, Attr)> {
        let stx = stat(fd.as_fd())?;
        let device = match near {
            Some(near) if near.dev == device::dev_of(&stx) => near.clone(),
            _ => self.device(fd.as_fd(), &stx)?,
        };
        let attr = attr::of(&device, &stx);
        let record = match from {
            Some((parent, name)) if device.mount().is_none() => Record::new(parent, name),
            _ => None,
        };
        let mut stale = None;
        loop {
            let found = self.table.get_or_insert(attr.id, stale.as_ref(), || {
                Arc::new(HostNode::new(&device, &attr, fd.clone(), record.clone()))
            });
            match found {
                Found::New(node) => {
                    if let Some((parent, _)) = from {
                        parent.expect_known(false);
                        node.note_directory(parent);
                    }
                    return Ok((node, attr));
                }
                Found::Old(node) => {
                    if node.adopt(attr.kind, fd, record.as_deref()) {
                        if let Some((parent, _)) = from {
                            parent.expect_known(true);
                            node.note_directory(parent);
                        }
                        return Ok((node, attr));
                    }
                    stale = Some(node);
                }
            }
        }
    }

    fn device(self: &Arc<Tree>, fd: BorrowedFd<'_>, stx: &Statx) -> Result<Arc<Device>> {
        let dev = device::dev_of(stx);
        let devices = || self.devices.lock().expect("no panic holds it");
        if let Some(device) = devices().get(&dev).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let new = Arc::new(Device::new(self, fd, stx)?);
        let mut devices = devices();
        if let Some(device) = devices.get(&dev).and_then(Weak::upgrade) {
            return Ok(device);
        }
        devices.retain(|_, device| device.strong_count() > 0);
        devices.insert(dev, Arc::downgrade(&new));
        Ok(new)
    }
}

/// Returns bytes that distinguish the root `fd`, with the attributes `stx`, from others and stay
/// the same after a restart of the host: its inode number and birth, and the kernel handle, which
/// contains its generation. They omit the device number, and `f_fsid`, which XFS derives from that.
fn identity_of(fd: BorrowedFd<'_>, stx: &Statx) -> Vec<u8> {
    let mut identity = stx.stx_ino.to_le_bytes().to_vec();
    identity.extend(stx.stx_btime.tv_sec.to_le_bytes());
    identity.extend(stx.stx_btime.tv_nsec.to_le_bytes());
    if let Ok(handle) = FileHandle::of(fd) {
        identity.extend(handle.kind().to_le_bytes());
        identity.extend(handle.bytes());
    }
    identity
}

/// Returns the attributes of `fd`'s object.
pub(crate) fn stat(fd: BorrowedFd<'_>) -> Result<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, mask).map_err(errno)
}

/// Returns the attributes of the child `name` of the directory `dir`.
pub(crate) fn stat_child(dir: BorrowedFd<'_>, name: vfs::Name<'_>) -> Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(dir, name.bytes(), flags, mask).map_err(errno)
}
