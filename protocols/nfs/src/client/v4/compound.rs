//! COMPOUND: a sequence of operations, executed up to the first that fails.

use vfs::Errno;
use wire::{Malformed, Xdr, XdrReader};

use super::Read;
use crate::client::{CallArguments, ClientCall, Failure, Procedure, SeparatePayload};
use crate::rpc::program;
use crate::v4::op::{self, Op};
use crate::v4::reply::Sequenced;
use crate::v4::{SessionId, Status};

/// The operations of a compound after SEQUENCE.
pub trait Operations {
    /// The decoded results.
    type Answer<'r>;

    /// Whether the reply must be cached, because the operations are not idempotent.
    const CACHE_THIS: bool;

    /// Writes the operations without the payload at the end of the last one.
    fn put(&self, to: &mut Ops<'_>);

    /// Returns the payload at the end of the last operation.
    fn payload(&self) -> &[u8] {
        &[]
    }

    /// Returns the approximate maximum length of the results in bytes; 0 if they are short.
    fn max_reply(&self) -> usize {
        0
    }

    /// Returns [`CallArguments::separate_payload`] of these operations after this SEQUENCE.
    fn separate_payload(&self, _: Option<Sequence>) -> Option<SeparatePayload> {
        None
    }

    /// Decodes the results.
    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Self::Answer<'r>, Failure>;
}

impl<S: Operations> Operations for &S {
    type Answer<'r> = S::Answer<'r>;

    const CACHE_THIS: bool = S::CACHE_THIS;

    fn put(&self, to: &mut Ops<'_>) {
        (**self).put(to);
    }

    fn payload(&self) -> &[u8] {
        (**self).payload()
    }

    fn max_reply(&self) -> usize {
        (**self).max_reply()
    }

    fn separate_payload(&self, sequence: Option<Sequence>) -> Option<SeparatePayload> {
        (**self).separate_payload(sequence)
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<S::Answer<'r>, Failure> {
        (**self).answer(from)
    }
}

/// A COMPOUND call.
pub struct Compound<'a, S> {
    /// The minor version.
    pub minor: u32,
    /// The slot that it uses; `None` in v4.0, and for operations that create sessions.
    pub sequence: Option<Sequence>,
    /// The other operations.
    pub operations: &'a S,
}

/// The slot and sequence id of a compound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The session.
    pub session: SessionId,
    /// The slot.
    pub slot: u32,
    /// The sequence id.
    pub sequence_id: u32,
    /// The highest slot in use.
    pub highest: u32,
}

/// The status flags of SEQUENCE (`sr_status_flags`, RFC 8881 section 18.46.3).
pub mod status_flags {
    /// The client has no connection with a backchannel.
    pub const CALLBACK_PATH_DOWN: u32 = 0x1;
    /// Delegations have been revoked.
    pub const RECALLABLE_REVOKED: u32 = 0x40;
    /// The session has no connection with a backchannel.
    pub const SESSION_PATH_DOWN: u32 = 0x200;
}

/// The results of a compound.
pub struct CompoundResult<T> {
    /// The target for the highest slot in use, from the server.
    pub highest: Option<u32>,
    /// Whether the server has advanced the slot's sequence id.
    pub advanced: bool,
    /// The status flags: some of [`status_flags`].
    pub status_flags: u32,
    /// The results of the operations.
    pub result: Result<T, Failure>,
}

impl<S: Operations> CallArguments for Compound<'_, S> {
    fn procedure(&self) -> Procedure {
        Procedure {
            program: program::NFS,
            version: 4,
            number: 1,
        }
    }

    fn put(&self, to: &mut Vec<u8>) {
        let put_operations = &mut |ops: &mut Ops<'_>| self.operations.put(ops);
        put_compound(self.minor, self.sequence, S::CACHE_THIS, put_operations, to);
    }

    fn payload(&self) -> &[u8] {
        self.operations.payload()
    }

    /// Adds up record mark, RPC and compound headers, SEQUENCE, PUTFH, and the operation's results.
    fn max_reply(&self) -> usize {
        match self.operations.max_reply() {
            0 => 0,
            len => 4 + 24 + 12 + 44 + 8 + len,
        }
    }

    fn separate_payload(&self) -> Option<SeparatePayload> {
        self.operations.separate_payload(self.sequence)
    }
}

impl<S: Operations> ClientCall for Compound<'_, S> {
    type Answer<'r> = CompoundResult<S::Answer<'r>>;

    fn answer<'r>(&self, results: &'r [u8]) -> Result<CompoundResult<S::Answer<'r>>, Failure> {
        self.read(XdrReader::new(results))
    }

    fn answer_with_payload<'r>(
        &self,
        head: &'r [u8],
        payload: &'r [u8],
    ) -> Result<CompoundResult<S::Answer<'r>>, Failure> {
        self.read(XdrReader::with_payload(head, payload))
    }
}

fn put_compound(
    minor: u32,
    sequence: Option<Sequence>,
    cache_this: bool,
    put_operations: &mut dyn FnMut(&mut Ops<'_>),
    to: &mut Vec<u8>,
) {
    // An empty tag.
    0u32.put(to);
    minor.put(to);
    let at = to.len();
    0u32.put(to);
    let mut ops = Ops { to, count: 0 };
    if let Some(sequence) = sequence {
        ops.op(&Op::Sequence(op::Sequence {
            session: sequence.session,
            sequence: sequence.sequence_id,
            slot: sequence.slot,
            highest_slot: sequence.highest,
            cache_this,
        }));
    }
    put_operations(&mut ops);
    let count = ops.count;
    to[at..at + 4].copy_from_slice(&count.to_be_bytes());
}

impl<S: Operations> Compound<'_, S> {
    fn read<'r>(&self, from: XdrReader<'r>) -> Result<CompoundResult<S::Answer<'r>>, Failure> {
        let (start, mut results) = begin(self.sequence.as_ref(), from)?;
        let result = match start.result {
            Ok(()) => self.operations.answer(&mut results),
            Err(failure) => Err(failure),
        };
        if let Err(Failure::Malformed(what)) = result {
            return Err(Failure::Malformed(what));
        }
        Ok(CompoundResult {
            highest: start.highest,
            advanced: start.advanced,
            status_flags: start.status_flags,
            result,
        })
    }
}

/// Parses the results up to those of the operations; `CompoundResult::result` is the error of
/// SEQUENCE.
fn begin<'r>(
    sequence: Option<&Sequence>,
    mut from: XdrReader<'r>,
) -> Result<(CompoundResult<()>, Results<'r>), Failure> {
    let status = Status::get(&mut from)?;
    from.opaque(usize::MAX)?;
    let mut results = Results {
        status,
        left: from.u32()?,
        from,
    };
    let mut done = CompoundResult {
        highest: None,
        advanced: false,
        status_flags: 0,
        result: Ok(()),
    };
    if let Some(sequence) = sequence {
        match results.take::<Sequenced>(SEQUENCE) {
            Ok(sequenced) => {
                let (slot, sequence_id) = (sequenced.slot, sequenced.sequence);
                if (slot, sequence_id) != (sequence.slot, sequence.sequence_id) {
                    let what = format!("expected the end of {sequence:?}, got {sequenced:?}");
                    return Err(Malformed::new(what).into());
                }
                done.advanced = true;
                done.status_flags = sequenced.flags;
                done.highest = Some(sequenced.target_highest_slot);
            }
            Err(Failure::Malformed(what)) => return Err(Failure::Malformed(what)),
            Err(failure) => done.result = Err(failure),
        }
    }
    Ok((done, results))
}

impl Compound<'_, Read<'_>> {
    /// Parses results up to their payload, and returns its length.
    pub(in crate::client) fn payload_len(
        &self,
        from: &mut XdrReader<'_>,
    ) -> Result<usize, Failure> {
        let (start, mut results) = begin(self.sequence.as_ref(), *from)?;
        start.result?;
        if results.status != Status::Ok {
            return Err(failure_of(results.status));
        }
        let len = self.operations.payload_len(&mut results)?;
        *from = results.from;
        Ok(len)
    }
}

const SEQUENCE: u32 = 53;

/// An encoder of a compound's operations.
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

    /// Writes an operation's number, and returns the buffer for the arguments.
    pub(super) fn number(&mut self, number: u32) -> &mut Vec<u8> {
        number.put(self.to);
        self.count += 1;
        self.to
    }
}

/// A decoder of a compound's results.
pub struct Results<'r> {
    status: Status,
    left: u32,
    from: XdrReader<'r>,
}

impl<'r> Results<'r> {
    /// Decodes the next operation's results; returns its error if it failed.
    pub(super) fn take<T: Xdr<'r>>(&mut self, number: u32) -> Result<T, Failure> {
        match self.step(number)? {
            Status::Ok => Ok(T::get(&mut self.from)?),
            status => Err(failure_of(status)),
        }
    }

    /// Returns the next operation's results undecoded; its error if it failed.
    pub(super) fn open(&mut self, number: u32) -> Result<&mut XdrReader<'r>, Failure> {
        match self.step(number)? {
            Status::Ok => Ok(&mut self.from),
            status => Err(failure_of(status)),
        }
    }

    /// Returns the next operation's status, and the reader of what follows.
    pub(super) fn end_of(
        &mut self,
        number: u32,
    ) -> Result<(Status, &mut XdrReader<'r>), Malformed> {
        let status = self.step(number)?;
        Ok((status, &mut self.from))
    }

    fn step(&mut self, number: u32) -> Result<Status, Malformed> {
        if self.left == 0 {
            // The compound failed before its first operation, or a result is missing.
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

/// Translates a status to the failure that it means for the caller.
pub(super) fn failure_of(status: Status) -> Failure {
    use Status as S;
    Failure::Error(match status {
        S::Delay | S::Grace | S::ClientidBusy | S::BackChanBusy | S::Layouttrylater => {
            return Failure::Delay;
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
