//! Locks over FUSE: byte ranges and flock(2), each if the server supports it.

use fuse::Request;
use fuse::layout::{LkIn, LkOut};
use fuse::numbers::{InitFlags, LK_FLOCK, lock_kind};
use vfs::lock::{ForeignLock, HostLock, LockFamily, LockKind, LockRange};
use vfs::{Cx, OpenFlags, Result};

use super::channel::ReplySize;
use super::file::Opened;
use super::node::FuseNode;
use crate::locks::Lockable;

/// The lock owner of all locks, as the server need not distinguish barge's clients. FLUSH releases
/// the locks of owner 0, so it is another.
const OWNER: u64 = 1;

fn lock_request(open: &Opened, range: &LockRange, kind: u32) -> LkIn {
    /// `OFFSET_MAX`: a lock that ends there has no end.
    const LAST: u64 = i64::MAX as u64;
    LkIn {
        fh: open.fh,
        owner: OWNER,
        start: range.start,
        end: range.end.min(LAST),
        kind,
        pid: std::process::id(),
        lk_flags: match range.family {
            LockFamily::Posix => 0,
            LockFamily::Flock => LK_FLOCK,
        },
    }
}

impl Lockable for FuseNode {
    type Open = Opened;

    fn has_locks(&self, space: LockFamily) -> bool {
        self.channel().client().has(match space {
            LockFamily::Posix => InitFlags::POSIX_LOCKS,
            LockFamily::Flock => InitFlags::FLOCK_LOCKS,
        })
    }

    fn open_mirror(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Opened> {
        Opened::open(self, cx, flags)
    }

    fn set_lock(
        &self,
        cx: &Cx<'_>,
        open: &Opened,
        range: &LockRange,
        state: HostLock,
    ) -> Result<()> {
        let kind = match state {
            HostLock::Unlocked => lock_kind::UNLCK,
            HostLock::Shared => lock_kind::RDLCK,
            HostLock::Exclusive => lock_kind::WRLCK,
        };
        let args = lock_request(open, range, kind);
        self.call_empty(cx, &Request::Setlk { args })
    }

    fn find_lock(
        &self,
        cx: &Cx<'_>,
        open: &Opened,
        range: &LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>> {
        let kind = match kind {
            LockKind::Shared => lock_kind::RDLCK,
            LockKind::Exclusive => lock_kind::WRLCK,
        };
        let args = lock_request(open, range, kind);
        let reply_size = ReplySize::Fixed(LkOut::SIZE);
        let request = Request::Getlk { args };
        let answer = self.channel().call(cx, self.nodeid, &request, reply_size)?;
        let held = answer.decode(LkOut::decode)?;
        Ok(match held.kind {
            lock_kind::UNLCK => None,
            kind => Some(ForeignLock {
                start: held.start,
                end: match held.end {
                    end if end >= i64::MAX as u64 => u64::MAX,
                    end => end,
                },
                kind: match kind {
                    lock_kind::RDLCK => LockKind::Shared,
                    _ => LockKind::Exclusive,
                },
                pid: held.pid,
            }),
        })
    }
}
