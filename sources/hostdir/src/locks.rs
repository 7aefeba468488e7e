//! Mirroring of locks on the host.
//!
//! All locks that barge's clients hold on a node are held on the host by an open file of the node's
//! own, its mirror: byte ranges as open file description locks (`F_OFD_SETLK`; they conflict with
//! the locks of processes), whole files with flock(2) on another. A mirror is opened with the
//! server's own permissions for the first lock and closed after the last.
//!
//! A file that the server cannot open for writing is opened for reading. Exclusive byte-range locks
//! need a file open for writing, so such a lock is mirrored as shared: it prevents exclusive locks
//! of other processes. A file that cannot be opened at all is not mirrored, but its locks still
//! apply among clients. Objects other than files and directories are not mirrored either.
//!
//! Lock order: the map of mirrors, to find one; then that mirror, held across the system calls.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno as Raw;
use sys::errno;
use sys::lock::Kind as Ofd;
use vfs::lock::{ForeignLock, HostLock, LockFamily, LockKind, LockRange};
use vfs::{Cx, Errno, Kind, NodeId, Ranges, Result};

use crate::descriptors::{Fd, Share};
use crate::device::Device;
use crate::identity;
use crate::lease::Leases;

/// The object whose locks are mirrored.
pub(crate) struct LockedObject<'a, F> {
    pub(crate) node: NodeId,
    pub(crate) kind: Kind,
    pub(crate) device: &'a Device,
    pub(crate) leases: &'a Leases,
    /// Returns its descriptor, perhaps `O_PATH`.
    pub(crate) fd: F,
}

/// The mirrors of the nodes that have locks.
#[derive(Default)]
pub(crate) struct LockMirrors(Mutex<HashMap<NodeId, Arc<Mutex<Mirror>>>>);

#[derive(Default)]
struct Mirror {
    /// The open file for byte ranges, and the locked ranges.
    ranges: Option<MirrorFile>,
    locked: Ranges,
    /// The open file for flock(2), and its state.
    flock: Option<MirrorFile>,
    flock_state: Option<HostLock>,
}

struct MirrorFile {
    fd: Arc<Fd>,
    writable: bool,
    /// Whether it is not writable because the file was leased.
    leased: bool,
    /// It is open as long as the lock is held.
    _share: Option<Share>,
}

impl Drop for MirrorFile {
    fn drop(&mut self) {
        // Closing is not enough: a child process between fork and exec still has a copy of the
        // descriptor. Neither call can fail for an open file.
        let _ = rustix::fs::flock(&self.fd, FlockOperation::NonBlockingUnlock);
        let _ = sys::lock::set(self.fd.as_fd(), 0, u64::MAX, Ofd::Unlocked);
    }
}

impl LockMirrors {
    /// Forgets a node that is dropped, which has no locks any more.
    pub(crate) fn forget(&self, id: NodeId) {
        // Closed after the lock is released.
        let removed = self.0.lock().remove(&id);
        drop(removed);
    }

    /// Implements [`vfs::Node::host_lock`]. The node has to be forgotten when it is dropped.
    pub(crate) fn set(
        &self,
        object: &LockedObject<'_, impl Fn() -> Result<Arc<Fd>>>,
        cx: &Cx<'_>,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        let mirror = self.of(object.node);
        let mut mirror = mirror.lock();
        let (start, end) = (range.start, range.end);
        match range.family {
            LockFamily::Posix => mirror.set_range(object, cx, start, end, state),
            LockFamily::Flock => mirror.set_flock(object, cx, state),
        }
    }

    /// Implements [`vfs::Node::host_lock_holder`]. The node has to be forgotten when it is dropped.
    pub(crate) fn holder(
        &self,
        object: &LockedObject<'_, impl Fn() -> Result<Arc<Fd>>>,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        let mirror = self.of(object.node);
        let mirror = mirror.lock();
        let (start, end) = (range.start, range.end);
        match range.family {
            LockFamily::Posix => mirror.range_holder(object, cx, start, end, kind),
            LockFamily::Flock => mirror.flock_holder(object, cx, kind),
        }
    }

    fn of(&self, node: NodeId) -> Arc<Mutex<Mirror>> {
        let mut mirrors = self.0.lock();
        mirrors.entry(node).or_default().clone()
    }
}

impl Mirror {
    fn set_range(
        &mut self,
        object: &LockedObject<'_, impl Fn() -> Result<Arc<Fd>>>,
        cx: &Cx<'_>,
        start: u64,
        end: u64,
        state: HostLock,
    ) -> Result<()> {
        if self.ranges.is_none() {
            if state == HostLock::Unlocked {
                return Ok(());
            }
            self.ranges = open(object, cx)?;
        }
        if state == HostLock::Exclusive {
            self.reopen_writable(object, cx)?;
        }
        let Some(open) = &self.ranges else {
            return Ok(());
        };
        let kind = match state {
            HostLock::Unlocked => Ofd::Unlocked,
            HostLock::Exclusive if open.writable => Ofd::Exclusive,
            HostLock::Shared | HostLock::Exclusive => Ofd::Shared,
        };
        // No process can lock beyond the largest offset, so there is no lock to mirror.
        let reachable = i64::try_from(start).is_ok();
        let locked = if reachable {
            sys::lock::set(open.fd.as_fd(), start, end, kind).map_err(errno)
        } else {
            Ok(())
        };
        if locked.is_ok() && reachable {
            match state {
                HostLock::Unlocked => self.locked.remove(start, end),
                HostLock::Shared | HostLock::Exclusive => self.locked.insert(start, end),
            }
        }
        if self.locked.is_empty() {
            self.ranges = None;
        }
        locked
    }

    /// Reopens for writing a file that was opened for reading because of a lease, if that is
    /// possible now, and takes all locked ranges again, as shared.
    fn reopen_writable(
        &mut self,
        object: &LockedObject<'_, impl Fn() -> Result<Arc<Fd>>>,
        cx: &Cx<'_>,
    ) -> Result<()> {
        if !self.ranges.as_ref().is_some_and(|open| open.leased) {
            return Ok(());
        }
        let Some(open) = open(object, cx)? else {
            return Ok(());
        };
        for (start, end) in self.locked.iter() {
            sys::lock::set(open.fd.as_fd(), start, end, Ofd::Shared).map_err(errno)?;
        }
        self.ranges = Some(open);
        Ok(())
    }

    fn set_flock(
        &mut self,
        object: &LockedObject<'_, impl Fn() -> Result<Arc<Fd>>>,
        cx: &Cx<'_>,
        state: HostLock,
    ) -> Result<()> {
        if state == HostLock::Unlocked {
            (self.flock, self.flock_state) = (None, None);
            return Ok(());
        }
        if self.flock.is_none() {
            self.flock = open(object, cx)?;
        }
        let Some(open) = &self.flock else {
            return Ok(());
        };
        match rustix::fs::flock(&open.fd, flock_operation(state)) {
            Ok(()) => {
                self.flock_state = Some(state);
                Ok(())
            }
            Err(error) => {
                match self.flock_state {
                    // flock(2) releases the old lock before it fails to take the new one.
                    Some(before) => {
                        let _ = rustix::fs::flock(&open.fd, flock_operation(before));
                    }
                    None => self.flock = None,
                }
                Err(errno(error))
            }
        }
    }

    fn range_holder(
        &self,
        object: &LockedObject<'_, impl Fn() -> Result<Arc<Fd>>>,
        cx: &Cx<'_>,
        start: u64,
        end: u64,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        if i64::try_from(start).is_err() {
            return Ok(None);
        }
        let opened;
        let open = match &self.ranges {
            Some(open) => open,
            // Then no other process has it open.
            None if is_leased_to_write(object) => return Ok(None),
            None => match open(object, cx)? {
                Some(open) => {
                    opened = open;
                    &opened
                }
                None => return Ok(None),
            },
        };
        let kind = match kind {
            LockKind::Shared => Ofd::Shared,
            LockKind::Exclusive => Ofd::Exclusive,
        };
        let holder = sys::lock::holder(open.fd.as_fd(), start, end, kind).map_err(errno)?;
        Ok(holder.map(|holder| ForeignLock {
            start: holder.start,
            end: holder.end,
            kind: match holder.kind {
                Ofd::Exclusive => LockKind::Exclusive,
                _ => LockKind::Shared,
            },
            pid: holder.pid,
        }))
    }

    /// Tests a lock by taking it, since there is no call to query one: with another open file,
    /// which conflicts with our own mirror too. A conflict with the mirror cannot be distinguished
    /// from one with another process, and counts as the former.
    fn flock_holder(
        &self,
        object: &LockedObject<'_, impl Fn() -> Result<Arc<Fd>>>,
        cx: &Cx<'_>,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        let ours_conflicts = match self.flock_state {
            None => false,
            Some(HostLock::Shared) => kind == LockKind::Exclusive,
            Some(_) => true,
        };
        if ours_conflicts || is_leased_to_write(object) {
            return Ok(None);
        }
        let Some(open) = open(object, cx)? else {
            return Ok(None);
        };
        let outsider = |kind| {
            Ok(Some(ForeignLock {
                start: 0,
                end: u64::MAX,
                kind,
                pid: 0,
            }))
        };
        if rustix::fs::flock(&open.fd, flock_operation(kind.into())).is_ok() {
            return Ok(None);
        }
        match rustix::fs::flock(&open.fd, flock_operation(HostLock::Shared)) {
            Ok(()) => outsider(LockKind::Shared),
            Err(Raw::WOULDBLOCK) => outsider(LockKind::Exclusive),
            Err(error) => Err(errno(error)),
        }
    }
}

fn flock_operation(state: HostLock) -> FlockOperation {
    match state {
        HostLock::Unlocked => FlockOperation::NonBlockingUnlock,
        HostLock::Shared => FlockOperation::NonBlockingLockShared,
        HostLock::Exclusive => FlockOperation::NonBlockingLockExclusive,
    }
}

fn is_leased_to_write<F>(object: &LockedObject<'_, F>) -> bool {
    let leased = object.leases.find(object.node);
    matches!(leased, Some((sys::lease::Kind::Write, _)))
}

/// Opens a mirror, if the server can, without breaking a lease: with a write lease, the leased open
/// file serves as the mirror; with a read lease the file is opened for reading.
fn open(
    object: &LockedObject<'_, impl Fn() -> Result<Arc<Fd>>>,
    cx: &Cx<'_>,
) -> Result<Option<MirrorFile>> {
    let leased = object.leases.find(object.node);
    if let Some((sys::lease::Kind::Write, fd)) = leased {
        return Ok(Some(MirrorFile {
            fd,
            writable: true,
            leased: false,
            _share: None,
        }));
    }
    let leased = leased.is_some();
    let flags = match object.kind {
        Kind::File if leased => [OFlags::RDONLY].as_slice(),
        Kind::File => &[OFlags::RDWR, OFlags::RDONLY],
        Kind::Directory => &[OFlags::RDONLY],
        _ => return Ok(None),
    };
    let host = &object.device.host;
    let share = host.shares.take(cx.call.account())?;
    let fd = (object.fd)()?;
    identity::assume_server()?;
    for &flags in flags {
        match host.open(|| host.proc_fds.reopen(fd.as_fd(), flags | OFlags::NONBLOCK)) {
            Ok(fd) => {
                let writable = flags == OFlags::RDWR;
                return Ok(Some(MirrorFile {
                    fd: Arc::new(fd),
                    writable,
                    leased,
                    _share: share,
                }));
            }
            Err(Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
