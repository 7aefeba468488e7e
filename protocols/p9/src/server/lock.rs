//! Tlock and Tgetlock: advisory locks of byte ranges.
//!
//! An owner is the client's name and a process id, both from the client. flock(2) arrives as a lock
//! of the whole file, so all locks are of [`LockFamily::Posix`]. Locks requested through a fid are
//! released with it.

use vfs::lock::{Lock, LockFamily, LockKind, Owner};
use vfs::{Errno, Result};

use super::connection::Connection;
use super::request::RequestContext;
use crate::numbers::{LockFlags, lock_kind, lock_status};
use crate::{Rmessage, Tmessage};

impl RequestContext<'_> {
    pub(super) fn lock(&mut self, request: &Tmessage<'_>) -> Result<()> {
        let &Tmessage::Lock {
            fid,
            kind,
            flags,
            start,
            length,
            proc_id,
            client_id,
        } = request
        else {
            return Err(Errno::EPROTO);
        };
        let fid = self.fid(fid)?;
        let open = fid.open()?;
        // As diod. Linux sends BLOCK and, after a restart of the server, RECLAIM.
        let flags = LockFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let (start, end) = range(start, length)?;
        let owner = self.connection.lock_owner(client_id, proc_id)?;
        let cx = self.cx(&fid.attach().caller);
        let done = match kind {
            lock_kind::UNLCK => {
                let range = LockFamily::Posix.range(start, end);
                open.lock_owners.unlock(&cx, range, &owner)
            }
            _ => {
                let wait = flags.contains(LockFlags::BLOCK)
                    && self.connection.server.options.blocking_locks;
                let new = Lock {
                    family: LockFamily::Posix,
                    start,
                    end,
                    kind: lock_kind_of(kind)?,
                    owner,
                };
                open.lock_owners.lock(&cx, new, wait)
            }
        };
        let status = match done {
            Ok(()) => lock_status::SUCCESS,
            Err(Errno::EAGAIN) => lock_status::BLOCKED,
            Err(errno) => return Err(errno),
        };
        self.reply(&Rmessage::Lock { status })
    }

    pub(super) fn getlock(&mut self, request: &Tmessage<'_>) -> Result<()> {
        let &Tmessage::Getlock {
            fid,
            kind,
            start,
            length,
            proc_id,
            client_id,
        } = request
        else {
            return Err(Errno::EPROTO);
        };
        let fid = self.fid(fid)?;
        fid.open()?;
        let (first, last) = range(start, length)?;
        let nobody = Rmessage::Getlock {
            kind: lock_kind::UNLCK,
            start,
            length,
            proc_id,
            client_id,
        };
        // Linux sends UNLCK here for every type of its program's request: then only a lock that
        // conflicts with both types is returned.
        let kind = match kind {
            lock_kind::UNLCK => LockKind::Shared,
            kind => lock_kind_of(kind)?,
        };
        let requested = Lock {
            family: LockFamily::Posix,
            start: first,
            end: last,
            kind,
            owner: self.connection.lock_owner(client_id, proc_id)?,
        };
        let cx = self.cx(&fid.attach().caller);
        let locks = &fid.attach().export.locks;
        let Some(held) = locks.holder(&cx, fid.node(), &requested)? else {
            return self.reply(&nobody);
        };
        // The name of another connection's client is not disclosed.
        let client_id = match held.owner.id.split_last_chunk::<4>() {
            Some((client_id, _)) if held.owner.client == self.connection.client => client_id,
            _ => &[],
        };
        self.reply(&Rmessage::Getlock {
            kind: match held.kind {
                LockKind::Shared => lock_kind::RDLCK,
                LockKind::Exclusive => lock_kind::WRLCK,
            },
            start: held.start,
            length: match held.end {
                u64::MAX => 0,
                end => end - held.start + 1,
            },
            proc_id: held.owner.pid,
            client_id,
        })
    }
}

impl Connection {
    /// Returns the owner of locks that a client names so. Returns `EINVAL` if the name is too long.
    pub(super) fn lock_owner(&self, client_id: &[u8], proc_id: u32) -> Result<Owner> {
        /// Linux sends its node name, of up to 64 bytes.
        const MOST: usize = 255;
        if client_id.len() > MOST {
            return Err(Errno::EINVAL);
        }
        Ok(Owner {
            client: self.client,
            id: [client_id, &proc_id.to_le_bytes()].concat().into(),
            pid: proc_id,
        })
    }
}

fn lock_kind_of(kind: u8) -> Result<LockKind> {
    match kind {
        lock_kind::RDLCK => Ok(LockKind::Shared),
        lock_kind::WRLCK => Ok(LockKind::Exclusive),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the first and last byte; length 0 means to the end.
fn range(start: u64, length: u64) -> Result<(u64, u64)> {
    let end = match length {
        0 => u64::MAX,
        _ => start.checked_add(length - 1).ok_or(Errno::EOVERFLOW)?,
    };
    Ok((start, end))
}
