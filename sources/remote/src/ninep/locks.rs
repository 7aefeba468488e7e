//! Locks over 9P2000.L, whose single kind of lock covers both independent kinds of Linux: flock(2)
//! becomes a lock of the whole file, as in v9fs. The other dialects have no locks.

use p9::numbers::{lock_kind, lock_status};
use p9::{Rmessage, Tmessage};
use vfs::lock::{ForeignLock, HostLock, LockFamily, LockKind, LockRange};
use vfs::{Cx, Errno, OpenFlags, Result};

use super::fid::Opened;
use super::node::RemoteNode;
use super::open::open_fid;
use crate::locks::Lockable;

impl Lockable for RemoteNode {
    type Open = Opened;

    fn has_locks(&self, _: LockFamily) -> bool {
        self.session().is_linux()
    }

    fn open_mirror(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Opened> {
        open_fid(self.session(), cx, self.fid(cx)?.fid, flags)
    }

    fn set_lock(
        &self,
        cx: &Cx<'_>,
        open: &Opened,
        lock: &LockRange,
        state: HostLock,
    ) -> Result<()> {
        let lock = Tmessage::Lock {
            fid: open.held.fid,
            kind: match state {
                HostLock::Unlocked => lock_kind::UNLCK,
                HostLock::Shared => lock_kind::RDLCK,
                HostLock::Exclusive => lock_kind::WRLCK,
            },
            // It does not wait for locks of others.
            flags: 0,
            start: lock.start,
            length: length(lock.start, lock.end),
            proc_id: process(lock.family),
            client_id: self.shared.client_id.as_str().as_bytes(),
        };
        match status(&self.session().call(cx, &lock)?.message()?) {
            lock_status::SUCCESS => Ok(()),
            lock_status::BLOCKED | lock_status::GRACE => Err(Errno::EAGAIN),
            _ => Err(Errno::ENOLCK),
        }
    }

    fn find_lock(
        &self,
        cx: &Cx<'_>,
        open: &Opened,
        lock: &LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        let client = self.shared.client_id.as_str().as_bytes();
        let request = Tmessage::Getlock {
            fid: open.held.fid,
            kind: match kind {
                LockKind::Shared => lock_kind::RDLCK,
                LockKind::Exclusive => lock_kind::WRLCK,
            },
            start: lock.start,
            length: length(lock.start, lock.end),
            proc_id: process(lock.family),
            client_id: client,
        };
        let reply = self.session().call(cx, &request)?;
        let Rmessage::Getlock {
            kind,
            start,
            length,
            proc_id,
            client_id,
        } = reply.message()?
        else {
            return Err(Errno::EIO);
        };
        // This client's own locks are in the lock table.
        if kind == lock_kind::UNLCK || client_id == client {
            return Ok(None);
        }
        Ok(Some(ForeignLock {
            start,
            end: match length {
                0 => u64::MAX,
                length => start.saturating_add(length - 1),
            },
            kind: match kind {
                lock_kind::RDLCK => LockKind::Shared,
                _ => LockKind::Exclusive,
            },
            pid: proc_id,
        }))
    }
}

fn status(reply: &Rmessage<'_>) -> u8 {
    match reply {
        Rmessage::Lock { status } => *status,
        _ => lock_status::ERROR,
    }
}

/// Separate owners, so that unlocking one kind leaves the other.
fn process(space: LockFamily) -> u32 {
    match space {
        LockFamily::Posix => 1,
        LockFamily::Flock => 2,
    }
}

/// The length in a lock request; 0 means up to the end of the file.
fn length(start: u64, end: u64) -> u64 {
    match end {
        u64::MAX => 0,
        end => end - start + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn to_the_end_is_no_length() {
        assert_eq!(length(5, 5), 1);
        assert_eq!(length(5, u64::MAX), 0);
        assert_eq!(length(0, u64::MAX - 1), u64::MAX);
    }
}
