//! GETLK, SETLK and SETLKW: advisory locks of byte ranges and of whole files.
//!
//! An owner is an id from the client: a process's file table or an open file. The client releases
//! an owner's locks with FLUSH and RELEASE. Any remaining locks are released together with the last
//! handle of the file through which a lock was requested, and therefore at the end of the mount.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use vfs::lock::{Lock, LockFamily, LockKind, Owner};
use vfs::{Call, Caller, Cx, Errno, Export, Node, NodeId, Result};

use super::RequestContext;
use super::handles::{HandleLocks, Open};
use crate::layout::{LkIn, LkOut};
use crate::numbers::{LK_FLOCK, lock_kind};

/// The locks of one incarnation of a mount.
pub(super) struct MountLocks {
    export: Arc<Export>,
    /// The client's number in the lock table.
    pub(super) client: u64,
    /// The number of handles of each node through which locks were requested. Held while the last
    /// handle's locks are released, so that a lock requested meanwhile is not released with them.
    handles: Mutex<HashMap<NodeId, usize>>,
}

impl MountLocks {
    pub(super) fn new(export: &Arc<Export>) -> Arc<MountLocks> {
        Arc::new(MountLocks {
            export: export.clone(),
            client: Owner::new_client(),
            handles: Mutex::default(),
        })
    }

    fn release(&self, node: &dyn Node, whose: impl Fn(&Owner) -> bool) {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let whose = |owner: &Owner| owner.client == self.client && whose(owner);
        self.export.locks.release(&cx, node, whose);
    }
}

impl HandleLocks {
    /// Records that a lock is requested through this handle.
    pub(super) fn record_request(&self) {
        if self.requested.load(Ordering::Acquire) {
            return;
        }
        let mut handles = self.mount_locks.handles.lock();
        if !self.requested.swap(true, Ordering::AcqRel) {
            *handles.entry(self.node.id()).or_default() += 1;
        }
    }
}

impl Drop for HandleLocks {
    fn drop(&mut self) {
        if !*self.requested.get_mut() {
            return;
        }
        let mut handles = self.mount_locks.handles.lock();
        if let Entry::Occupied(mut count) = handles.entry(self.node.id()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                self.mount_locks.release(&*self.node, |_| true);
            }
        }
    }
}

/// The lock table's id of one of the client's owners. POSIX and flock(2) owner numbers are separate
/// spaces.
pub(super) struct LockOwnerId([u8; 9]);

impl LockOwnerId {
    pub(super) fn posix(number: u64) -> LockOwnerId {
        LockOwnerId::of(LockFamily::Posix, number)
    }

    pub(super) fn flock(number: u64) -> LockOwnerId {
        LockOwnerId::of(LockFamily::Flock, number)
    }

    /// Returns the bytes for the lock table.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the client's number in the lock table's id of one of its owners.
    pub(super) fn number_of(id: &[u8]) -> Option<u64> {
        let id: &[u8; 9] = id.try_into().ok()?;
        id.last_chunk().map(|number| u64::from_le_bytes(*number))
    }

    fn of(space: LockFamily, number: u64) -> LockOwnerId {
        let mut id = [0; 9];
        id[0] = match space {
            LockFamily::Posix => b'p',
            LockFamily::Flock => b'f',
        };
        id[1..].copy_from_slice(&number.to_le_bytes());
        LockOwnerId(id)
    }
}

impl RequestContext<'_> {
    pub(super) fn release_locks(&self, open: &Open, owners: LockOwnerId) {
        let lockers = &open.locks.mount_locks;
        lockers.release(open.node(), |owner| *owner.id == owners.0);
    }

    pub(super) fn setlk(&mut self, args: &LkIn, wait: bool) -> Result<()> {
        let open = self.opened(args.fh)?;
        let lock = requested_lock(&open, args)?;
        let locks = &self.session.export.locks;
        match args.kind {
            lock_kind::UNLCK => {
                let Lock {
                    family: space,
                    start,
                    end,
                    owner,
                    ..
                } = lock;
                locks.unlock(&self.cx, open.node(), space, start, end, &owner)?;
            }
            _ => {
                open.locks.record_request();
                locks.lock(&self.cx, open.node(), lock, wait)?;
            }
        }
        self.reply(&[])
    }

    pub(super) fn getlk(&mut self, args: &LkIn) -> Result<()> {
        let open = self.opened(args.fh)?;
        let lock = requested_lock(&open, args)?;
        let locks = &self.session.export.locks;
        let answer = match locks.holder(&self.cx, open.node(), &lock)? {
            None => LkOut {
                start: args.start,
                end: args.end,
                kind: lock_kind::UNLCK,
                pid: 0,
            },
            Some(held) => LkOut {
                start: held.start.min(MAX_OFFSET),
                end: held.end.min(MAX_OFFSET),
                kind: match held.kind {
                    LockKind::Shared => lock_kind::RDLCK,
                    LockKind::Exclusive => lock_kind::WRLCK,
                },
                pid: held.owner.pid,
            },
        };
        self.reply(&[&answer.encode()])
    }
}

fn requested_lock(open: &Open, args: &LkIn) -> Result<Lock> {
    let space = match args.lk_flags & LK_FLOCK {
        0 => LockFamily::Posix,
        _ => LockFamily::Flock,
    };
    let (start, end) = match space {
        LockFamily::Flock => (0, u64::MAX),
        LockFamily::Posix if args.start > args.end || args.start > MAX_OFFSET => {
            return Err(Errno::EINVAL);
        }
        LockFamily::Posix if args.end >= MAX_OFFSET => (args.start, u64::MAX),
        LockFamily::Posix => (args.start, args.end),
    };
    Ok(Lock {
        family: space,
        start,
        end,
        kind: match args.kind {
            lock_kind::RDLCK | lock_kind::UNLCK => LockKind::Shared,
            lock_kind::WRLCK => LockKind::Exclusive,
            _ => return Err(Errno::EINVAL),
        },
        owner: Owner {
            client: open.locks.mount_locks.client,
            id: LockOwnerId::of(space, args.owner).0[..].into(),
            pid: args.pid,
        },
    })
}

/// The largest offset in a file (`OFFSET_MAX`): a lock that ends there has no end.
const MAX_OFFSET: u64 = i64::MAX as u64;
