//! COMPOUND: some operations in a call, up to the first that fails.

use vfs::Errno;
use wire::{Malformed, Xdr, XdrReader};

use super::Read;
use crate::client::{Ask, Failure, Lands, Procedure};
use crate::rpc::program;
use crate::v4::op::{self, Op};
use crate::v4::reply::Sequenced;
use crate::v4::{SessionId, Status};

/// The operations of a compound.
pub trait Steps {
    /// What they answer.
    type Answer<'r>;

    /// Whether they must not be done twice.
    const ONCE: bool;

    /// Writes them but for the payload, which the last of them ends in.
    fn put(&self, to: &mut Ops<'_>);

    /// What the last of them ends in.
    fn payload(&self) -> &[u8] {
        &[]
    }

    /// About how many bytes the answer has at most, if that is many.
    fn room(&self) -> usize {
        0
    }

    /// [`Ask::lands`], behind this SEQUENCE.
    fn lands(&self, _: Option<Sequence>) -> Option<Lands> {
        None
    }

    /// Reads their results.
    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Self::Answer<'r>, Failure>;
}

impl<S: Steps> Steps for &S {
    type Answer<'r> = S::Answer<'r>;

    const ONCE: bool = S::ONCE;

    fn put(&self, to: &mut Ops<'_>) {
        (**self).put(to);
    }

    fn payload(&self) -> &[u8] {
        (**self).payload()
    }

    fn room(&self) -> usize {
        (**self).room()
    }

    fn lands(&self, sequence: Option<Sequence>) -> Option<Lands> {
        (**self).lands(sequence)
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<S::Answer<'r>, Failure> {
        (**self).answer(from)
    }
}

/// A compound.
pub struct Compound<'a, S> {
    /// Which minor version's.
    pub minor: u32,
    /// The slot that it takes: from 4.1 on, but for what makes sessions.
    pub sequence: Option<Sequence>,
    /// Its operations.
    pub steps: &'a S,
}

/// The slot that a compound takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Of which session.
    pub session: SessionId,
    /// Which.
    pub slot: u32,
    /// Which turn of it.
    pub turn: u32,
    /// The highest slot in use.
    pub highest: u32,
}

/// What SEQUENCE is answered with besides (`sr_status_flags`, RFC 8881 section 18.46.3).
pub mod told {
    /// No connection is left to call the client by.
    pub const CALLBACK_PATH_DOWN: u32 = 0x1;
    /// Delegations have been taken away.
    pub const RECALLABLE_REVOKED: u32 = 0x40;
    /// No connection of this session is left to call the client by.
    pub const SESSION_PATH_DOWN: u32 = 0x200;
}

/// A compound's end.
pub struct Done<T> {
    /// The highest slot that the server would have us use.
    pub highest: Option<u32>,
    /// Whether the slot's turn has been taken.
    pub turned: bool,
    /// What the server tells of the client's state: some of [`told`].
    pub told: u32,
    /// The answer.
    pub result: Result<T, Failure>,
}

impl<S: Steps> Ask for Compound<'_, S> {
    type Answer<'r> = Done<S::Answer<'r>>;

    const PROCEDURE: Procedure = Procedure {
        program: program::NFS,
        version: 4,
        number: 1,
    };

    fn put(&self, to: &mut Vec<u8>) {
        // An empty tag.
        0u32.put(to);
        self.minor.put(to);
        let at = to.len();
        0u32.put(to);
        let mut ops = Ops { to, count: 0 };
        if let Some(sequence) = &self.sequence {
            ops.op(&Op::Sequence(op::Sequence {
                session: sequence.session,
                sequence: sequence.turn,
                slot: sequence.slot,
                highest_slot: sequence.highest,
                cache_this: S::ONCE,
            }));
        }
        self.steps.put(&mut ops);
        let count = ops.count;
        to[at..at + 4].copy_from_slice(&count.to_be_bytes());
    }

    fn payload(&self) -> &[u8] {
        self.steps.payload()
    }

    /// Mark, heads of RPC and of the compound, SEQUENCE, PUTFH, and the operation's own.
    fn room(&self) -> usize {
        match self.steps.room() {
            0 => 0,
            room => 4 + 24 + 12 + 44 + 8 + room,
        }
    }

    fn lands(&self) -> Option<Lands> {
        self.steps.lands(self.sequence)
    }

    fn answer<'r>(&self, results: &'r [u8]) -> Result<Done<S::Answer<'r>>, Failure> {
        self.read(XdrReader::new(results))
    }

    fn landed<'r>(
        &self,
        head: &'r [u8],
        payload: &'r [u8],
    ) -> Result<Done<S::Answer<'r>>, Failure> {
        self.read(XdrReader::before(head, payload))
    }
}

impl<S: Steps> Compound<'_, S> {
    fn read<'r>(&self, from: XdrReader<'r>) -> Result<Done<S::Answer<'r>>, Failure> {
        let (begun, mut results) = self.begin(from)?;
        let result = match begun.result {
            Ok(()) => self.steps.answer(&mut results),
            Err(failure) => Err(failure),
        };
        if let Err(Failure::Malformed(what)) = result {
            return Err(Failure::Malformed(what));
        }
        Ok(Done {
            highest: begun.highest,
            turned: begun.turned,
            told: begun.told,
            result,
        })
    }

    /// Reads what stands before the steps' results, and whether there are any.
    fn begin<'r>(&self, mut from: XdrReader<'r>) -> Result<(Done<()>, Results<'r>), Failure> {
        let status = Status::get(&mut from)?;
        from.opaque(usize::MAX)?;
        let mut results = Results {
            status,
            left: from.u32()?,
            from,
        };
        let mut done = Done {
            highest: None,
            turned: false,
            told: 0,
            result: Ok(()),
        };
        if let Some(sequence) = &self.sequence {
            match results.take::<Sequenced>(SEQUENCE) {
                Ok(sequenced) => {
                    let (slot, turn) = (sequenced.slot, sequenced.sequence);
                    if (slot, turn) != (sequence.slot, sequence.turn) {
                        let what = format!("expected the end of {sequence:?}, got {sequenced:?}");
                        return Err(Malformed::new(what).into());
                    }
                    done.turned = true;
                    done.told = sequenced.flags;
                    done.highest = Some(sequenced.target_highest_slot);
                }
                Err(Failure::Malformed(what)) => return Err(Failure::Malformed(what)),
                Err(failure) => done.result = Err(failure),
            }
        }
        Ok((done, results))
    }
}

impl Compound<'_, Read<'_>> {
    /// Reads results up to their payload, and says how long that is.
    pub(in crate::client) fn payload_len(
        &self,
        from: &mut XdrReader<'_>,
    ) -> Result<usize, Failure> {
        let (begun, mut results) = self.begin(*from)?;
        begun.result?;
        if results.status != Status::Ok {
            return Err(refused(results.status));
        }
        let len = self.steps.payload_len(&mut results)?;
        *from = results.from;
        Ok(len)
    }
}

const SEQUENCE: u32 = 53;

/// A compound's operations under construction.
pub struct Ops<'a> {
    pub(super) to: &'a mut Vec<u8>,
    count: u32,
}

impl Ops<'_> {
    pub(super) fn op(&mut self, op: &Op<'_>) -> &mut Self {
        op.put(self.to);
        self.count += 1;
        self
    }

    /// An operation's number; its arguments are to be written by hand.
    pub(super) fn number(&mut self, number: u32) -> &mut Vec<u8> {
        number.put(self.to);
        self.count += 1;
        self.to
    }
}

/// A compound's results.
pub struct Results<'r> {
    status: Status,
    left: u32,
    from: XdrReader<'r>,
}

impl<'r> Results<'r> {
    /// The next operation's results, if it succeeded.
    pub(super) fn take<T: Xdr<'r>>(&mut self, number: u32) -> Result<T, Failure> {
        match self.step(number)? {
            Status::Ok => Ok(T::get(&mut self.from)?),
            status => Err(refused(status)),
        }
    }

    /// The next operation's results, to be read by hand, if it succeeded.
    pub(super) fn open(&mut self, number: u32) -> Result<&mut XdrReader<'r>, Failure> {
        match self.step(number)? {
            Status::Ok => Ok(&mut self.from),
            status => Err(refused(status)),
        }
    }

    /// How the next operation ended, and what follows that.
    pub(super) fn end_of(
        &mut self,
        number: u32,
    ) -> Result<(Status, &mut XdrReader<'r>), Malformed> {
        let status = self.step(number)?;
        Ok((status, &mut self.from))
    }

    fn step(&mut self, number: u32) -> Result<Status, Malformed> {
        if self.left == 0 {
            // Nothing was tried at all, or there is a result too few.
            return match self.status {
                Status::Ok => Err(Malformed::new(format!("operation {number} has no result"))),
                status => Ok(status),
            };
        }
        self.left -= 1;
        const ILLEGAL: u32 = 10044;
        match self.from.u32()? {
            got if got == number || got == ILLEGAL => Ok(Status::get(&mut self.from)?),
            got => Err(Malformed::new(format!(
                "expected the result of operation {number}, got that of {got}"
            ))),
        }
    }
}

/// What a status means to who asked.
pub(super) fn refused(status: Status) -> Failure {
    use Status as S;
    Failure::Refused(match status {
        S::Delay | S::Grace | S::ClientidBusy | S::BackChanBusy | S::Layouttrylater => {
            return Failure::Later;
        }
        S::Expired
        | S::StaleClientid
        | S::StaleStateid
        | S::OldStateid
        | S::BadStateid
        | S::BadSeqid
        | S::AdminRevoked
        | S::DelegRevoked
        | S::Badsession
        | S::Badslot
        | S::BadHighSlot
        | S::Deadsession
        | S::SeqMisordered
        | S::SeqFalseRetry
        | S::RetryUncachedRep
        | S::ConnNotBoundToSession => return Failure::State(status),
        S::Perm | S::Badowner | S::WrongCred => Errno::EPERM,
        S::Noent | S::Badname => Errno::ENOENT,
        S::Nxio => Errno::ENXIO,
        S::Access | S::Openmode | S::Wrongsec => Errno::EACCES,
        S::Exist => Errno::EEXIST,
        S::Xdev | S::WrongLfs => Errno::EXDEV,
        S::Notdir => Errno::ENOTDIR,
        S::Isdir => Errno::EISDIR,
        S::Inval | S::Badtype | S::Badchar | S::Toosmall | S::BadRange | S::WrongType => {
            Errno::EINVAL
        }
        S::Fbig => Errno::EFBIG,
        S::Nospc => Errno::ENOSPC,
        S::Rofs => Errno::EROFS,
        S::Mlink => Errno::EMLINK,
        S::Nametoolong => Errno::ENAMETOOLONG,
        S::Notempty => Errno::ENOTEMPTY,
        S::Dquot => Errno::EDQUOT,
        S::Stale | S::Badhandle | S::Fhexpired | S::Moved | S::BadCookie => Errno::ESTALE,
        S::Notsupp
        | S::Attrnotsupp
        | S::UnionNotsupp
        | S::OpIllegal
        | S::OffloadDenied
        | S::PartnerNotsupp => Errno::EOPNOTSUPP,
        S::Symlink => Errno::ELOOP,
        S::FileOpen | S::ShareDenied => Errno::EBUSY,
        S::Denied | S::Locked => Errno::EAGAIN,
        S::Resource | S::LockRange | S::LockNotsupp | S::NoGrace | S::ReclaimBad => Errno::ENOLCK,
        S::Deadlock => Errno::EDEADLK,
        S::Noxattr => Errno::ENODATA,
        S::Xattr2big => Errno::E2BIG,
        S::MinorVersMismatch => Errno::from_raw(93),
        S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache => Errno::EMSGSIZE,
        _ => Errno::EIO,
    })
}
