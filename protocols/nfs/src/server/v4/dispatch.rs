//! Serves COMPOUND: runs the operations in order until one fails (RFC 8881 section 16.2).
//!
//! A compound may be restarted from its beginning as long as none of its operations had an effect:
//! an operation that would block ends the attempt with `WOULD_BLOCK`, and so does a limit of the
//! share that makes the compound wait. After the first effect there is no way back, and the rest
//! runs with full patience.

use vfs::Sink as _;
use wire::{Outgoing as _, Xdr, XdrReader};

use super::compound::{Compound, OpError, OpResult};
use super::state::SlotRequest;
use super::{opnum, referral};
use crate::rpc::{self, CallRejection};
use crate::server::duplicate_request_cache::DuplicateRequestCache;
use crate::server::{CallError, RequestContext, call_names, security};
use crate::v4::Status;
use crate::v4::attr::Bitmap;
use crate::v4::op::{Op, OpenHow};

/// Serves a v4 call.
pub(in crate::server) fn serve(
    request: &mut RequestContext<'_>,
    procedure: u32,
) -> Result<(), CallError> {
    match procedure {
        0 => Ok(()),
        1 => compound(request),
        _ => Err(CallRejection::ProcedureUnavailable.into()),
    }
}

/// The maximum number of operations in a compound. Linux sends about ten.
pub(in crate::server) const MAX_OPERATIONS: u32 = 256;

/// The maximum length of a tag, which the reply repeats.
pub(in crate::server) const MAX_TAG: usize = 1024;

fn compound(request: &mut RequestContext<'_>) -> Result<(), CallError> {
    let tag = request.arguments.opaque(MAX_TAG)?;
    let minor = request.arguments.u32()?;
    let count = request.arguments.u32()?;
    let compound = Compound {
        minor,
        ..Compound::default()
    };
    if minor == 0 && changes_names(request.arguments, count) {
        return request.serve_once(|request| {
            let mut request = request.with_compound(compound);
            request.reply.copy_call(DuplicateRequestCache::MAX_REPLY);
            request.serve_compound(tag, count)?;
            Ok(request.reply.take_call_copy())
        });
    }
    request.with_compound(compound).serve_compound(tag, count)
}

/// Returns whether a v4.0 compound creates, removes or renames a name without protection against a
/// repeated execution by an owner's seqid: an unconfirmed owner has none (RFC 7530 section
/// 16.18.5). The search ends at READ or WRITE: no client sends both in one compound.
fn changes_names(mut arguments: XdrReader<'_>, count: u32) -> bool {
    for _ in 0..count {
        match Op::get(&mut arguments) {
            Ok(Op::Create(_) | Op::Remove(_) | Op::Rename(_) | Op::Link(_)) => return true,
            Ok(Op::Open(open)) if matches!(open.how, OpenHow::Create(_)) => return true,
            Ok(Op::Read(_) | Op::Write(_)) | Err(_) => return false,
            Ok(_) => {}
        }
    }
    false
}

/// How a compound ended.
enum CompoundEnd {
    /// Ended with this status, after this number of operations.
    Finished(Status, u32),
    /// A repeated compound: the reply is the cached one.
    Replayed,
}

fn too_many(minor: u32) -> Status {
    match minor {
        0 => Status::Resource,
        _ => Status::TooManyOps,
    }
}

/// Returns how much an operation says about its compound's purpose. The first of the heaviest names
/// it.
fn weight(number: u32) -> u8 {
    match number {
        opnum::SEQUENCE | opnum::SAVEFH => 1,
        number if opnum::PUTFH_LIKE.contains(&number) => 1,
        opnum::GETATTR | opnum::GETFH => 2,
        _ => 3,
    }
}

impl RequestContext<'_, Compound> {
    /// Serves a compound of `count` operations, whose results begin with `tag`.
    fn serve_compound(&mut self, tag: &[u8], count: u32) -> Result<(), CallError> {
        let minor = self.compound.minor;
        let start = self.reply.len();
        self.compound.start = start;
        match minor {
            // v4.0 has no session that limits the length of replies.
            0 => self.reply.limit(rpc::MARK + self.server.max_record()),
            // The session limits its length.
            _ if wants_cached_reply(self.arguments) => self.reply.copy_call(usize::MAX),
            _ => {}
        }
        self.reply.value(&Status::Ok);
        self.reply.value(&tag);
        let counted = self.reply.len();
        self.reply.value(&0u32);
        let end = match minor {
            0..=2 if count <= MAX_OPERATIONS => self.run(count)?,
            0..=2 => CompoundEnd::Finished(too_many(minor), 0),
            _ => CompoundEnd::Finished(Status::MinorVersMismatch, 0),
        };
        let CompoundEnd::Finished(status, answered) = end else {
            return Ok(());
        };
        self.reply.patch(start, &(status as u32).to_be_bytes());
        self.reply.patch(counted, &answered.to_be_bytes());
        if let Some(slot) = self.compound.slot.take() {
            slot.finish(self.reply.take_call_copy());
        }
        Ok(())
    }

    /// Runs `count` operations. Returns the status of the last one that ran, and how many ran.
    fn run(&mut self, count: u32) -> Result<CompoundEnd, CallError> {
        for at in 0..count {
            self.call.begin_step(at);
            match self.operation(at, count)? {
                Some(Status::Ok) => {}
                Some(status) => return Ok(CompoundEnd::Finished(status, at + 1)),
                None => return Ok(CompoundEnd::Replayed),
            }
        }
        Ok(CompoundEnd::Finished(Status::Ok, count))
    }

    /// Runs the next operation, the `at`th of `count`, and writes its result. Returns `None` if the
    /// whole compound is a repetition and the cached reply answers it.
    fn operation(&mut self, at: u32, count: u32) -> Result<Option<Status>, CallError> {
        let start = self.reply.len();
        let mut peek = self.arguments;
        let number = peek.u32()?;
        let last = opnum::LAST[self.compound.minor as usize];
        if !(3..=last).contains(&number) {
            self.reply.value(&opnum::ILLEGAL);
            self.reply.value(&Status::OpIllegal);
            return Ok(Some(Status::OpIllegal));
        }
        self.reply.value(&number);
        self.reply.value(&Status::Ok);
        let body = self.reply.len();
        let mut replayed = false;
        self.compound.number = number;
        if weight(number) > self.compound.weight {
            self.compound.weight = weight(number);
            self.call.note_operation(call_names::operation(number));
        }
        let done = self.check_position(number, at, count).and_then(|()| {
            if opnum::MODIFYING.contains(&number) && self.reply.room() < opnum::MAX_MODIFYING_RESULT
            {
                return Err(self.too_big().into());
            }
            let op = match Op::get(&mut self.arguments) {
                Ok(op) => op,
                Err(_) if !Op::NUMBERS.contains(&number) => return Err(Status::Notsupp.into()),
                Err(what) => return Err(what.into()),
            };
            tracing::trace!(?op);
            if let Some(current) = &self.compound.current
                && self.server.referrals.of(&current.node).is_some()
                && !referral::is_independent_of_file_system(number)
            {
                return Err(Status::Moved.into());
            }
            if !self.allows_flavor(number, at + 1 < count) {
                return Err(Status::Wrongsec.into());
            }
            if let Op::Sequence(op) = op {
                replayed = !self.sequence(op, count)?;
                return Ok(());
            }
            self.dispatch(op)
        });
        let done = done.map_err(|error| self.parked_by_limit(error));
        let done = match done {
            Ok(()) | Err(OpError::WithBody(_)) if self.reply.is_full() => {
                Err(self.too_big().into())
            }
            done => done,
        };
        let status = match done {
            Ok(()) if replayed => return Ok(None),
            Ok(()) => return Ok(Some(Status::Ok)),
            Err(OpError::Call(stop)) => return Err(stop),
            Err(OpError::Status(status)) => {
                self.reply.truncate(body);
                if number == opnum::SETATTR {
                    // A failed SETATTR also returns which attributes it set.
                    self.reply.value(&Bitmap::default());
                }
                status
            }
            Err(OpError::WithBody(status)) => status,
        };
        tracing::debug!(number, ?status, "refused");
        self.call.note_error(status as u16);
        self.reply.patch(start + 4, &(status as u32).to_be_bytes());
        Ok(Some(status))
    }

    /// Returns whether the caller's security flavor allows operation `number`. An operation that
    /// sets the current file handle also fails if the operation after it, present if `next`, is not
    /// allowed, except where that operation reports `WRONGSEC` itself or asks for the allowed
    /// flavors (RFC 8881 section 2.6.3.1.1).
    fn allows_flavor(&self, number: u32, next: bool) -> bool {
        let flavors = &self.server.options.flavors;
        if security::allows_flavor(flavors, self.flavor, self.authenticated) {
            return true;
        }
        let free = |number: u32| opnum::ANY_FLAVOR.contains(&number);
        let mut peek = self.arguments;
        let next = peek.u32().ok().filter(|_| next);
        let may_follow = |next: u32| free(next) || opnum::LOOKUP_LIKE.contains(&next);
        free(number) && (!opnum::PUTFH_LIKE.contains(&number) || next.is_none_or(may_follow))
    }

    /// Checks that operation `number` exists in this minor version and may be the `at`th of `count`
    /// (RFC 8881 section 2.10.6.2, the operations' own sections).
    fn check_position(&self, number: u32, at: u32, count: u32) -> Result<(), OpError> {
        use super::opnum as n;
        let of_4_0 = [
            n::OPEN_CONFIRM,
            n::RENEW,
            n::SETCLIENTID,
            n::SETCLIENTID_CONFIRM,
            n::RELEASE_LOCKOWNER,
        ];
        if self.compound.minor > 0 && of_4_0.contains(&number) {
            return Err(Status::Notsupp.into());
        }
        if self.compound.minor == 0 {
            return Ok(());
        }
        let without_session = [
            n::EXCHANGE_ID,
            n::CREATE_SESSION,
            n::DESTROY_SESSION,
            n::BIND_CONN_TO_SESSION,
            n::DESTROY_CLIENTID,
        ];
        match (number, self.compound.slot.is_some()) {
            (n::SEQUENCE, _) if at > 0 => Err(Status::SequencePos.into()),
            // RFC 8881 section 2.10.6.1.3: a retry without a cached reply repeats the SEQUENCE and
            // nothing else.
            _ if self
                .compound
                .slot
                .as_ref()
                .is_some_and(SlotRequest::is_repeated) =>
            {
                Err(Status::RetryUncachedRep.into())
            }
            (n::SEQUENCE, _) | (_, true) => match number == n::BIND_CONN_TO_SESSION {
                true => Err(Status::NotOnlyOp.into()),
                false => Ok(()),
            },
            (number, false) if !without_session.contains(&number) => {
                Err(Status::OpNotInSession.into())
            }
            _ if count > 1 => Err(Status::NotOnlyOp.into()),
            _ => Ok(()),
        }
    }

    /// Runs an operation.
    fn dispatch(&mut self, op: Op<'_>) -> OpResult {
        match op {
            Op::Putfh(handle) => self.putfh(handle),
            Op::Putrootfh | Op::Putpubfh => self.putrootfh(),
            Op::Getfh => self.getfh(),
            Op::Savefh => self.savefh(),
            Op::Restorefh => self.restorefh(),
            Op::Lookup(name) => self.lookup(name),
            Op::LookupParent => self.lookup_parent(),
            Op::Secinfo(name) => self.secinfo(name),
            Op::SecinfoNoName(style) => self.secinfo_no_name(style),
            Op::Getattr(want) => self.getattr(want),
            Op::Setattr(op) => self.setattr(op),
            Op::Verify(attributes) => self.verify(&attributes, Status::NotSame),
            Op::Nverify(attributes) => self.verify(&attributes, Status::Same),
            Op::Access(want) => self.access(want),
            Op::Readlink => self.readlink(),
            Op::Readdir(op) => self.readdir(op),
            Op::Create(op) => self.create(op),
            Op::Remove(name) => self.remove(name),
            Op::Rename(op) => self.rename(op),
            Op::Link(name) => self.link(name),
            Op::Read(op) => self.read(op),
            Op::Write(op) => self.write(op),
            Op::Commit(op) => self.commit(op),
            Op::ReadPlus(op) if self.server.options.read_plus => self.read_plus(op),
            // The client falls back to READ permanently.
            Op::ReadPlus(_) => Err(Status::Notsupp.into()),
            Op::Seek(op) => self.seek(op),
            Op::Allocate(op) => self.allocate(op),
            Op::Deallocate(op) => self.deallocate(op),
            Op::Copy(op) => self.copy(op),
            Op::Clone(op) => self.clone_range(op),
            Op::IoAdvise(op) => self.io_advise(op),
            Op::GetXattr(name) => self.get_xattr(name),
            Op::SetXattr(op) => self.set_xattr(op),
            Op::ListXattrs(op) => self.list_xattrs(op),
            Op::RemoveXattr(name) => self.remove_xattr(name),
            Op::Open(op) => self.open(op),
            Op::OpenConfirm(op) => self.open_confirm(op),
            Op::OpenDowngrade(op) => self.with_effect(|request| request.open_downgrade(op)),
            Op::Close(op) => self.close(op),
            Op::Lock(op) => self.lock(op),
            Op::TestLock(op) => self.test_lock(op),
            Op::Unlock(op) => self.unlock(op),
            Op::ReleaseLockOwner(owner) => self.release_lock_owner(owner),
            Op::SetClientId(op) => self.set_client_id(op),
            Op::SetClientIdConfirm(op) => self.set_client_id_confirm(op),
            Op::Renew(client) => self.renew(client),
            Op::ExchangeId(op) => self.exchange_id(op),
            Op::CreateSession(op) => self.create_session(op),
            Op::DestroySession(session) => self.destroy_session(session),
            Op::BindConnToSession(op) => self.bind_connection(op),
            Op::BackchannelCtl(op) => self.backchannel_ctl(op),
            Op::DestroyClientId(client) => self.destroy_client_id(client),
            Op::ReclaimComplete(one) => self.with_effect(|request| request.reclaim_complete(one)),
            Op::FreeStateId(state) => self.with_effect(|request| request.free_stateid(state)),
            Op::TestStateId(states) => self.test_stateids(&states),
            Op::DelegReturn(state) => self.with_effect(|request| request.delegation_return(state)),
            Op::OffloadCancel(state) => self.with_effect(|request| request.offload_cancel(state)),
            Op::OffloadStatus(state) => self.offload_status(state),
            Op::Sequence(_) => Err(Status::SequencePos.into()),
        }
    }
}

/// Returns whether the next operation is a SEQUENCE that asks to cache its reply.
fn wants_cached_reply(mut arguments: XdrReader<'_>) -> bool {
    matches!(Op::get(&mut arguments), Ok(Op::Sequence(op)) if op.cache_this)
}
