//! LOCK, LOCKT, LOCKU.

use std::cell::Cell;

use vfs::lock::{ForeignLock, LockKind as Kind};
use wire::Xdr;

use super::attr::PUTFH;
use super::compound::{Operations, Ops, Results, failure_of};
use super::open::{SeqidEffect, take_with_seqid};
use crate::client::Failure;
use crate::v4::op::{self, Locker, NewLocker, OldLocker, Op};
use crate::v4::types::{Denied, LockKind, Owner};
use crate::v4::{ClientId, StateId, Status};

/// A range of bytes, inclusive at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last.
    pub end: u64,
}

impl LockRange {
    /// Returns the length; all ones if the range extends to the end of the file.
    fn length(self) -> u64 {
        match self.end {
            u64::MAX => u64::MAX,
            end => end - self.start + 1,
        }
    }
}

fn kind(kind: Kind) -> LockKind {
    match kind {
        Kind::Shared => LockKind::Read,
        Kind::Exclusive => LockKind::Write,
    }
}

/// A LOCK.
pub struct Lock<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// Shared or exclusive.
    pub kind: Kind,
    /// The range to lock.
    pub range: LockRange,
    /// Whether to reclaim a lock from before the server's restart.
    pub reclaim: bool,
    /// The client ID and the lock owner.
    pub owner: (ClientId, &'a [u8]),
    /// The stateid of the open and, in v4.0, the open owner's next seqid: for the owner's first
    /// lock.
    pub open: (StateId, u32),
    /// The lock stateid from the owner's first lock.
    pub state: Option<StateId>,
    /// v4.0: the lock owner's next seqid.
    pub seqid: u32,
    /// v4.0: set to what the request has done to the seqid.
    pub seqid_effect: &'a Cell<SeqidEffect>,
}

impl Operations for Lock<'_> {
    /// The lock stateid; `None` if there is a conflicting lock.
    type Answer<'r> = Option<StateId>;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        self.seqid_effect.set(SeqidEffect::Unknown);
        let locker = match self.state {
            Some(state) => Locker::Old(OldLocker {
                state,
                seqid: self.seqid,
            }),
            None => Locker::New(NewLocker {
                open_seqid: self.open.1,
                open: self.open.0,
                lock_seqid: self.seqid,
                owner: Owner {
                    client: self.owner.0,
                    name: self.owner.1,
                },
            }),
        };
        to.op(&Op::Putfh(self.handle)).op(&Op::Lock(op::Lock {
            kind: kind(self.kind),
            reclaim: self.reclaim,
            offset: self.range.start,
            length: self.range.length(),
            locker,
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Option<StateId>, Failure> {
        const LOCK: u32 = 12;
        self.seqid_effect.set(SeqidEffect::None);
        from.take::<()>(PUTFH)?;
        let (status, rest) = from.end_of(LOCK)?;
        self.seqid_effect.set(SeqidEffect::of(status));
        match status {
            Status::Ok => Ok(Some(StateId::get(rest)?)),
            Status::Denied => {
                Denied::get(rest)?;
                Ok(None)
            }
            status => Err(failure_of(status)),
        }
    }
}

/// A LOCKT.
pub struct TestLock<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// Shared or exclusive.
    pub kind: Kind,
    /// The range to test.
    pub range: LockRange,
    /// The client ID and the lock owner.
    pub owner: (ClientId, &'a [u8]),
}

impl Operations for TestLock<'_> {
    type Answer<'r> = Option<ForeignLock>;

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle))
            .op(&Op::TestLock(op::TestLock {
                kind: kind(self.kind),
                offset: self.range.start,
                length: self.range.length(),
                owner: Owner {
                    client: self.owner.0,
                    name: self.owner.1,
                },
            }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Option<ForeignLock>, Failure> {
        const LOCKT: u32 = 13;
        from.take::<()>(PUTFH)?;
        match from.end_of(LOCKT)? {
            (Status::Ok, _) => Ok(None),
            (Status::Denied, rest) => {
                let denied = Denied::get(rest)?;
                let start = denied.offset;
                Ok(Some(ForeignLock {
                    start,
                    end: match denied.length {
                        u64::MAX => u64::MAX,
                        length => start.saturating_add(length.saturating_sub(1)),
                    },
                    kind: match denied.kind {
                        LockKind::Read | LockKind::ReadWait => Kind::Shared,
                        LockKind::Write | LockKind::WriteWait => Kind::Exclusive,
                    },
                    // A lock owner is not a process.
                    pid: 0,
                }))
            }
            (status, _) => Err(failure_of(status)),
        }
    }
}

/// A LOCKU.
pub struct Unlock<'a> {
    /// The file's handle.
    pub handle: &'a [u8],
    /// The range to unlock.
    pub range: LockRange,
    /// The current lock stateid.
    pub state: StateId,
    /// v4.0: the lock owner's next seqid.
    pub seqid: u32,
    /// v4.0: set to what the request has done to the seqid.
    pub seqid_effect: &'a Cell<SeqidEffect>,
}

impl Operations for Unlock<'_> {
    type Answer<'r> = StateId;

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        self.seqid_effect.set(SeqidEffect::Unknown);
        to.op(&Op::Putfh(self.handle)).op(&Op::Unlock(op::Unlock {
            // Ignored by servers.
            kind: LockKind::Write,
            seqid: self.seqid,
            state: self.state,
            offset: self.range.start,
            length: self.range.length(),
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<StateId, Failure> {
        const LOCKU: u32 = 14;
        self.seqid_effect.set(SeqidEffect::None);
        from.take::<()>(PUTFH)?;
        take_with_seqid(from, LOCKU, self.seqid_effect)
    }
}
