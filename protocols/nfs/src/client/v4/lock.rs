//! LOCK, LOCKT, LOCKU.

use std::cell::Cell;

use vfs::lock::{LockKind as Kind, Outsider};
use wire::Xdr;

use super::attr::PUTFH;
use super::compound::{Ops, Results, Steps, refused};
use super::open::counted;
use crate::client::Failure;
use crate::v4::op::{self, Locker, NewLocker, OldLocker, Op};
use crate::v4::types::{Denied, LockKind, Owner};
use crate::v4::{ClientId, StateId, Status};

/// What is locked: both ends belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub start: u64,
    /// The last.
    pub end: u64,
}

impl LockRange {
    /// All ones are to the end.
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

/// Locks.
pub struct Lock<'a> {
    /// What file.
    pub handle: &'a [u8],
    /// How strongly.
    pub kind: Kind,
    /// What of it.
    pub range: LockRange,
    /// Whether it was locked before the server's restart.
    pub reclaim: bool,
    /// By which client, and which of its owners.
    pub owner: (ClientId, &'a [u8]),
    /// The open file, and in v4.0 its owner's next number: for the first lock.
    pub open: (StateId, u32),
    /// What the first lock was answered by.
    pub state: Option<StateId>,
    /// v4.0: the lock owner's next number.
    pub seqid: u32,
    /// v4.0: whether that has been counted.
    pub counts: &'a Cell<bool>,
}

impl Steps for Lock<'_> {
    /// `None` if somebody is in the way.
    type Answer<'r> = Option<StateId>;

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
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
        self.counts.set(false);
        from.take::<()>(PUTFH)?;
        let (status, rest) = from.end_of(LOCK)?;
        self.counts.set(status.counts());
        match status {
            Status::Ok => Ok(Some(StateId::get(rest)?)),
            Status::Denied => {
                Denied::get(rest)?;
                Ok(None)
            }
            status => Err(refused(status)),
        }
    }
}

/// Asks who is in the way of a lock.
pub struct TestLock<'a> {
    /// Of what file.
    pub handle: &'a [u8],
    /// How strong.
    pub kind: Kind,
    /// What of it.
    pub range: LockRange,
    /// By which client, and which of its owners.
    pub owner: (ClientId, &'a [u8]),
}

impl Steps for TestLock<'_> {
    type Answer<'r> = Option<Outsider>;

    const ONCE: bool = false;

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

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Option<Outsider>, Failure> {
        const LOCKT: u32 = 13;
        from.take::<()>(PUTFH)?;
        match from.end_of(LOCKT)? {
            (Status::Ok, _) => Ok(None),
            (Status::Denied, rest) => {
                let denied = Denied::get(rest)?;
                let start = denied.offset;
                Ok(Some(Outsider {
                    start,
                    end: match denied.length {
                        u64::MAX => u64::MAX,
                        length => start.saturating_add(length.saturating_sub(1)),
                    },
                    kind: match denied.kind {
                        LockKind::Read | LockKind::ReadWait => Kind::Shared,
                        LockKind::Write | LockKind::WriteWait => Kind::Exclusive,
                    },
                    // Owners are no processes.
                    pid: 0,
                }))
            }
            (status, _) => Err(refused(status)),
        }
    }
}

/// Unlocks.
pub struct Unlock<'a> {
    /// What file.
    pub handle: &'a [u8],
    /// What of it.
    pub range: LockRange,
    /// What the last lock was answered by.
    pub state: StateId,
    /// v4.0: the lock owner's next number.
    pub seqid: u32,
    /// v4.0: whether that has been counted.
    pub counts: &'a Cell<bool>,
}

impl Steps for Unlock<'_> {
    type Answer<'r> = StateId;

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::Putfh(self.handle)).op(&Op::Unlock(op::Unlock {
            // Of no meaning here.
            kind: LockKind::Write,
            seqid: self.seqid,
            state: self.state,
            offset: self.range.start,
            length: self.range.length(),
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<StateId, Failure> {
        const LOCKU: u32 = 14;
        self.counts.set(false);
        from.take::<()>(PUTFH)?;
        counted(from, LOCKU, self.counts)
    }
}
