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
use vfs::lock::{Lock, LockKind, Owner, Space};
use vfs::{Call, Caller, Cx, Errno, Export, Node, NodeId, Result};

use super::Turn;
use super::handles::{Locked, Open};
use crate::layout::{LkIn, LkOut};
use crate::numbers::{LK_FLOCK, lock_kind};

/// The locks of one incarnation of a mount.
pub(super) struct Lockers {
    export: Arc<Export>,
    /// The client's number in the lock table.
    pub(super) client: u64,
    /// The number of handles of each node through which locks were requested. Held while the last
    /// handle's locks are released, so that a lock requested meanwhile is not released with them.
    handles: Mutex<HashMap<NodeId, usize>>,
}

impl Lockers {
    pub(super) fn new(export: &Arc<Export>) -> Arc<Lockers> {
        Arc::new(Lockers {
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

impl Locked {
    /// Records that a lock is requested through this handle.
    fn note(&self) {
        if self.any.load(Ordering::Acquire) {
            return;
        }
        let mut handles = self.lockers.handles.lock();
        if !self.any.swap(true, Ordering::AcqRel) {
            *handles.entry(self.node.id()).or_default() += 1;
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if !*self.any.get_mut() {
            return;
        }
        let mut handles = self.lockers.handles.lock();
        if let Entry::Occupied(mut count) = handles.entry(self.node.id()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                self.lockers.release(&*self.node, |_| true);
            }
        }
    }
}

/// The lock table's id of one of the client's owners. POSIX and flock(2) owner numbers are separate
/// spaces.
pub(super) struct Owners([u8; 9]);

impl Owners {
    pub(super) fn posix(number: u64) -> Owners {
        Owners::of(Space::Posix, number)
    }

    pub(super) fn flock(number: u64) -> Owners {
        Owners::of(Space::Flock, number)
    }

    fn of(space: Space, number: u64) -> Owners {
        let mut id = [0; 9];
        id[0] = match space {
            Space::Posix => b'p',
            Space::Flock => b'f',
        };
        id[1..].copy_from_slice(&number.to_le_bytes());
        Owners(id)
    }
}

impl Turn<'_> {
    pub(super) fn release_locks(&self, open: &Open, owners: Owners) {
        let lockers = &open.locked.lockers;
        lockers.release(open.node(), |owner| *owner.id == owners.0);
    }

    pub(super) fn setlk(&mut self, args: &LkIn, wait: bool) -> Result<()> {
        let open = self.opened(args.fh)?;
        let asked = asked(&open, args)?;
        let locks = &self.peer.export.locks;
        match args.kind {
            lock_kind::UNLCK => {
                let Lock {
                    space,
                    start,
                    end,
                    owner,
                    ..
                } = asked;
                locks.unlock(&self.cx, open.node(), space, start, end, &owner)?;
            }
            _ => {
                open.locked.note();
                locks.lock(&self.cx, open.node(), asked, wait)?;
            }
        }
        self.reply(&[])
    }

    pub(super) fn getlk(&mut self, args: &LkIn) -> Result<()> {
        let open = self.opened(args.fh)?;
        let asked = asked(&open, args)?;
        let locks = &self.peer.export.locks;
        let answer = match locks.holder(&self.cx, open.node(), &asked)? {
            None => LkOut {
                start: args.start,
                end: args.end,
                kind: lock_kind::UNLCK,
                pid: 0,
            },
            Some(held) => LkOut {
                start: held.start.min(LAST),
                end: held.end.min(LAST),
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

fn asked(open: &Open, args: &LkIn) -> Result<Lock> {
    let space = match args.lk_flags & LK_FLOCK {
        0 => Space::Posix,
        _ => Space::Flock,
    };
    let (start, end) = match space {
        Space::Flock => (0, u64::MAX),
        Space::Posix if args.start > args.end || args.start > LAST => {
            return Err(Errno::EINVAL);
        }
        Space::Posix if args.end >= LAST => (args.start, u64::MAX),
        Space::Posix => (args.start, args.end),
    };
    Ok(Lock {
        space,
        start,
        end,
        kind: match args.kind {
            lock_kind::RDLCK | lock_kind::UNLCK => LockKind::Shared,
            lock_kind::WRLCK => LockKind::Exclusive,
            _ => return Err(Errno::EINVAL),
        },
        owner: Owner {
            client: open.locked.lockers.client,
            id: Owners::of(space, args.owner).0[..].into(),
            pid: args.pid,
        },
    })
}

/// The largest offset in a file (`OFFSET_MAX`): a lock that ends there has no end.
const LAST: u64 = i64::MAX as u64;
