//! The core that all parts of an export share and that refers to none of them: its secrets, its
//! descriptor budget, the identity of its callers, and its root.
//!
//! Lock order: the prefixes' mutex last.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::Statx;
use sys::handle::FileHandle;
use vfs::{HandleKey, Result, siphash};

use crate::descriptors::{Budget, Fd, Shares};
use crate::identity::CallerIdentity;
use crate::node_ids::{DeviceKey, Prefix, Prefixes};
use crate::proc_fd::ProcFds;
use crate::stat::{dev_of, stat};

/// The core of an export.
pub(crate) struct Host {
    /// The descriptors of nodes and files.
    pub(crate) budget: Arc<Budget>,
    /// The parts of these that clients can hold open.
    pub(crate) shares: Arc<Shares>,
    /// The identity of operations.
    pub(crate) identity: CallerIdentity,
    /// Whether threads that create files keep their umask.
    pub(crate) keeps_umask: bool,
    /// Whether nodes can be opened by kernel handle.
    pub(crate) by_handle: bool,
    /// Opens descriptors again.
    pub(crate) proc_fds: ProcFds,
    /// Seals handles.
    pub(crate) handle_key: HandleKey,
    /// Composes node numbers.
    pub(crate) number_key: siphash::Key,
    /// `st_dev` and inode number of the root.
    root: (u64, u64),
    prefixes: Mutex<Prefixes>,
}

/// The options from which a [`Host`] is made.
pub(crate) struct HostOptions {
    /// The secrets from which, with the root's identity, the keys for handles and for numbers
    /// derive.
    pub(crate) secrets: [HandleKey; 2],
    pub(crate) budget: Arc<Budget>,
    pub(crate) identity: CallerIdentity,
    pub(crate) keeps_umask: bool,
    pub(crate) by_handle: bool,
    pub(crate) proc_fds: ProcFds,
}

impl Host {
    /// Returns the core of the export of the object that `root` is open on.
    pub(crate) fn new(options: HostOptions, root: BorrowedFd<'_>) -> Result<Host> {
        let stx = stat(root)?;
        let device = DeviceKey::of(root, &stx)?;
        let mut prefixes = Prefixes::default();
        prefixes.root(device);
        let identity = root_identity(root, &stx);
        let [handles, numbers] = &options.secrets;
        Ok(Host {
            // The other quarter is left to leases.
            shares: Shares::new(options.budget.limit() / 4 * 3, &options.budget),
            budget: options.budget,
            identity: options.identity,
            keeps_umask: options.keeps_umask,
            by_handle: options.by_handle,
            proc_fds: options.proc_fds,
            handle_key: handles.derive("hostdir handles", &[&identity]),
            number_key: numbers.derive("hostdir numbers", &[&identity]).number_key(),
            root: (device.dev, stx.stx_ino),
            prefixes: Mutex::new(prefixes),
        })
    }

    /// Opens a descriptor within the budget: see [`Budget::open_within`].
    pub(crate) fn open(&self, open: impl Fn() -> rustix::io::Result<OwnedFd>) -> Result<Fd> {
        self.budget.open_within(open)
    }

    /// Returns the prefix of a device's node numbers.
    pub(crate) fn prefix(&self, device: DeviceKey) -> Result<Prefix> {
        self.prefixes.lock().of(device)
    }

    /// Returns whether these are the root's attributes.
    pub(crate) fn is_root(&self, stx: &Statx) -> bool {
        self.root == (dev_of(stx), stx.stx_ino)
    }
}

/// Returns bytes that distinguish the root `fd`, with the attributes `stx`, from others and stay
/// the same after a restart of the host: its inode number and birth, and the kernel handle, which
/// contains its generation. They omit the device number, and `f_fsid`, which XFS derives from that.
fn root_identity(fd: BorrowedFd<'_>, stx: &Statx) -> Vec<u8> {
    let mut identity = stx.stx_ino.to_le_bytes().to_vec();
    identity.extend(stx.stx_btime.tv_sec.to_le_bytes());
    identity.extend(stx.stx_btime.tv_nsec.to_le_bytes());
    if let Ok(handle) = FileHandle::of(fd) {
        identity.extend(handle.kind().to_le_bytes());
        identity.extend(handle.bytes());
    }
    identity
}
