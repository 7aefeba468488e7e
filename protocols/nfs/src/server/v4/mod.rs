//! NFSv4 compounds: runs the operations in order until one fails.
//!
//! A compound may be restarted from its beginning as long as none of its operations had an effect:
//! an operation that would block ends the attempt with `WOULD_BLOCK`. After the first effect there
//! is no way back, and the rest runs with full patience.

mod attr;
mod callback;
mod client;
mod copy;
mod delegation;
mod dir;
mod given;
mod io;
mod label;
mod lock;
mod make;
mod number;
mod open;
mod place;
mod read_plus;
pub(super) mod referral;
mod reply;
mod set;
mod sparse;
pub mod state;
#[cfg(test)]
mod tests;
mod xattr;

use std::net::IpAddr;
use std::sync::Arc;

use vfs::holes::Solid;
use vfs::{Caller, Cx, Errno, File, Node, Patience, Sink as _};
use wire::{Malformed, Outgoing as _, Xdr, XdrReader};

use self::given::Given;
use self::place::Place;
use self::reply::Reply;
use self::state::{NodeKey, SlotTurn};
use super::replay::Replays;
use super::{Stop, Tree, Turn, security, words};
use crate::rpc::{self, Refusal};
use crate::v4::attr::Bitmap;
use crate::v4::op::{Op, OpenHow};
use crate::v4::{StateId, Status};

/// The state of a v4 open: its file and the caller that opened it.
#[derive(Clone)]
pub(crate) struct Files {
    file: Arc<dyn File>,
    caller: Caller,
    solid: Arc<Solid>,
    /// The client's address at the time of the OPEN.
    addr: Option<IpAddr>,
    /// The source's lease, if these are a delegation's.
    _lease: Option<Arc<dyn vfs::Lease>>,
}

/// Serves a v4 call.
pub(super) fn serve(turn: &mut Turn<'_>, procedure: u32) -> Result<(), Stop> {
    match procedure {
        0 => Ok(()),
        1 => compound(turn),
        _ => Err(Refusal::ProcedureUnavailable.into()),
    }
}

/// The maximum number of operations in a compound. Linux sends about ten.
pub(super) const MAX_OPERATIONS: u32 = 256;

/// The maximum length of a tag, which the reply repeats.
pub(super) const MAX_TAG: usize = 1024;

/// The bytes of a failed operation's result: its number, its status and, for SETATTR, an empty
/// bitmap.
const FAILED: usize = 12;

fn compound(turn: &mut Turn<'_>) -> Result<(), Stop> {
    let mut arguments = turn.arguments;
    let tag = arguments.opaque(MAX_TAG)?;
    let head = Head {
        tag,
        minor: arguments.u32()?,
        count: arguments.u32()?,
    };
    if head.minor == 0 && names_change(arguments, head.count) {
        return turn.once(|turn| {
            let (given, out) = Given::of(turn);
            let mut whole = Reply::new(out);
            whole.keep(Replays::LONGEST);
            carry_out(&given, &head, arguments, Reply::new(&mut whole))?;
            Ok(whole.kept())
        });
    }
    let (given, out) = Given::of(turn);
    carry_out(&given, &head, arguments, Reply::new(out))
}

/// Returns whether a v4.0 compound creates, removes or renames a name without protection against a
/// repeated execution by an owner's seqid: an unconfirmed owner has none (RFC 7530 section
/// 16.18.5). The search ends at READ or WRITE: no client sends both in one compound.
fn names_change(mut arguments: XdrReader<'_>, count: u32) -> bool {
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

/// The fields of a compound that precede its operations.
struct Head<'a> {
    tag: &'a [u8],
    minor: u32,
    count: u32,
}

fn carry_out<'t>(
    turn: &'t Given<'t>,
    head: &Head<'_>,
    arguments: XdrReader<'_>,
    mut reply: Reply<'t>,
) -> Result<(), Stop> {
    let Head { tag, minor, count } = *head;
    let start = reply.len();
    match minor {
        // v4.0 has no session that limits the length of replies.
        0 => reply.limit(rpc::MARK + turn.server.max_record()),
        // The session limits its length.
        _ if asks_to_keep(arguments) => reply.keep(usize::MAX),
        _ => {}
    }
    reply.value(&Status::Ok);
    reply.value(&tag);
    let counted = reply.len();
    reply.value(&0u32);
    let mut compound = Compound {
        turn,
        patience: turn.patience,
        arguments,
        reply,
        minor,
        start,
        number: 0,
        weight: 0,
        body: 0,
        slot: None,
        current: None,
        saved: None,
        state: None,
        saved_state: None,
    };
    let ended = match minor {
        0..=2 if count <= MAX_OPERATIONS => compound.run(count)?,
        0..=2 => Ended::At(too_many(minor), 0),
        _ => Ended::At(Status::MinorVersMismatch, 0),
    };
    let Ended::At(status, answered) = ended else {
        return Ok(());
    };
    let Compound {
        mut reply, slot, ..
    } = compound;
    reply.patch(start, &(status as u32).to_be_bytes());
    reply.patch(counted, &answered.to_be_bytes());
    if let Some(slot) = slot {
        slot.finish(reply.kept());
    }
    Ok(())
}

/// How a compound ended.
enum Ended {
    /// Ended with this status, after this number of operations.
    At(Status, u32),
    /// A repeated compound: the reply is the cached one.
    Before,
}

fn too_many(minor: u32) -> Status {
    match minor {
        0 => Status::Resource,
        _ => Status::TooManyOps,
    }
}

/// The reason why an operation is not done, or not yet.
#[derive(Debug)]
enum Bad {
    /// The operation failed.
    Status(Status),
    /// The operation failed, and the reply already contains the body that goes with the status.
    Answered(Status),
    /// The whole call ends.
    Stop(Stop),
}

impl From<Status> for Bad {
    fn from(status: Status) -> Bad {
        Bad::Status(status)
    }
}

impl From<Errno> for Bad {
    fn from(errno: Errno) -> Bad {
        if errno == Errno::PARKED {
            // The holder may be this very client, whose DELEGRETURN may wait for this reply.
            return Bad::Status(Status::Delay);
        }
        match Stop::later(errno) {
            Some(stop) => Bad::Stop(stop),
            None => Bad::Status(errno.into()),
        }
    }
}

impl From<Malformed> for Bad {
    fn from(what: Malformed) -> Bad {
        tracing::debug!("malformed operation: {what}");
        Bad::Status(Status::Badxdr)
    }
}

type Done = Result<(), Bad>;

/// A compound under way.
struct Compound<'t, 'a> {
    turn: &'t Given<'t>,
    patience: Patience,
    arguments: XdrReader<'a>,
    reply: Reply<'t>,
    minor: u32,
    /// The offset of the compound's results in the reply.
    start: usize,
    /// The number of the current operation.
    number: u32,
    /// The weight of the operation that names the compound so far.
    weight: u8,
    /// The offset of the current operation's own results, after number and status.
    body: usize,
    /// The session's slot that the compound uses (v4.1).
    slot: Option<SlotTurn<Files, Tree>>,
    /// The current file handle.
    current: Option<Place>,
    /// The saved file handle.
    saved: Option<Place>,
    /// The current stateid (RFC 8881 section 16.2.3.1.2).
    state: Option<StateId>,
    /// The saved stateid.
    saved_state: Option<StateId>,
}

/// Returns how much an operation says about its compound's purpose. The first of the heaviest names
/// it.
fn weight(number: u32) -> u8 {
    match number {
        number::SEQUENCE | number::SAVEFH => 1,
        number if number::SETS_HANDLE.contains(&number) => 1,
        number::GETATTR | number::GETFH => 2,
        _ => 3,
    }
}

impl<'t, 'a> Compound<'t, 'a> {
    /// Runs `count` operations. Returns the status of the last one that ran, and how many ran.
    fn run(&mut self, count: u32) -> Result<Ended, Stop> {
        for at in 0..count {
            match self.operation(at, count)? {
                Some(Status::Ok) => {}
                Some(status) => return Ok(Ended::At(status, at + 1)),
                None => return Ok(Ended::Before),
            }
        }
        Ok(Ended::At(Status::Ok, count))
    }

    /// Runs the next operation, the `at`th of `count`, and writes its result. Returns `None` if the
    /// whole compound is a repetition and the cached reply answers it.
    fn operation(&mut self, at: u32, count: u32) -> Result<Option<Status>, Stop> {
        let start = self.reply.len();
        let mut peek = self.arguments;
        let number = peek.u32()?;
        let last = number::LAST[self.minor as usize];
        if !(3..=last).contains(&number) {
            self.reply.value(&number::ILLEGAL);
            self.reply.value(&Status::OpIllegal);
            return Ok(Some(Status::OpIllegal));
        }
        self.reply.value(&number);
        self.reply.value(&Status::Ok);
        let body = self.reply.len();
        let mut before = false;
        (self.number, self.body) = (number, body);
        if weight(number) > self.weight {
            self.weight = weight(number);
            self.turn.call.note(words::operation(number));
        }
        let done = self.may_stand_here(number, at, count).and_then(|()| {
            if number::CHANGES.contains(&number) && self.reply.room() < number::MOST_OF_A_CHANGE {
                return Err(self.too_big().into());
            }
            let op = match Op::get(&mut self.arguments) {
                Ok(op) => op,
                Err(_) if !Op::NUMBERS.contains(&number) => return Err(Status::Notsupp.into()),
                Err(what) => return Err(what.into()),
            };
            tracing::trace!(?op);
            if let Some(place) = &self.current
                && self.turn.server.referrals.of(&place.node).is_some()
                && !referral::is_elsewhere(number)
            {
                return Err(Status::Moved.into());
            }
            if !self.is_secure(number, at + 1 < count) {
                return Err(Status::Wrongsec.into());
            }
            if let Op::Sequence(op) = op {
                before = !self.sequence(op, count)?;
                return Ok(());
            }
            self.carry_out(op)
        });
        let done = match done {
            Ok(()) | Err(Bad::Answered(_)) if self.reply.is_over() => Err(self.too_big().into()),
            done => done,
        };
        let status = match done {
            Ok(()) if before => return Ok(None),
            Ok(()) => return Ok(Some(Status::Ok)),
            Err(Bad::Stop(stop)) => return Err(stop),
            Err(Bad::Status(status)) => {
                self.reply.truncate(body);
                if number == number::SETATTR {
                    // A failed SETATTR also returns which attributes it set.
                    self.reply.value(&Bitmap::default());
                }
                status
            }
            Err(Bad::Answered(status)) => status,
        };
        tracing::debug!(number, ?status, "refused");
        self.turn.call.note_fault(status as u16);
        self.reply.patch(start + 4, &(status as u32).to_be_bytes());
        Ok(Some(status))
    }

    /// Returns whether the caller's security flavor allows operation `number`. An operation that
    /// sets the current file handle also fails if the operation after it, present if `next`, is not
    /// allowed, except where that operation reports `WRONGSEC` itself or asks for the allowed
    /// flavors (RFC 8881 section 2.6.3.1.1).
    fn is_secure(&self, number: u32, next: bool) -> bool {
        let flavors = &self.turn.server.options.flavors;
        if security::allows(flavors, self.turn.shown) {
            return true;
        }
        let free = |number: u32| number::FOR_ALL.contains(&number);
        let mut peek = self.arguments;
        let next = peek.u32().ok().filter(|_| next);
        let may_follow = |next: u32| free(next) || number::LOOKS_UP.contains(&next);
        free(number) && (!number::SETS_HANDLE.contains(&number) || next.is_none_or(may_follow))
    }

    /// Checks that operation `number` exists in this minor version and may be the `at`th of `count`
    /// (RFC 8881 section 2.10.6.2, the operations' own sections).
    fn may_stand_here(&self, number: u32, at: u32, count: u32) -> Result<(), Bad> {
        use self::number as n;
        let of_4_0 = [
            n::OPEN_CONFIRM,
            n::RENEW,
            n::SETCLIENTID,
            n::SETCLIENTID_CONFIRM,
            n::RELEASE_LOCKOWNER,
        ];
        if self.minor > 0 && of_4_0.contains(&number) {
            return Err(Status::Notsupp.into());
        }
        if self.minor == 0 {
            return Ok(());
        }
        let without_session = [
            n::EXCHANGE_ID,
            n::CREATE_SESSION,
            n::DESTROY_SESSION,
            n::BIND_CONN_TO_SESSION,
            n::DESTROY_CLIENTID,
        ];
        match (number, self.slot.is_some()) {
            (n::SEQUENCE, _) if at > 0 => Err(Status::SequencePos.into()),
            // RFC 8881 section 2.10.6.1.3: a retry without a cached reply repeats the SEQUENCE and
            // nothing else.
            _ if self.slot.as_ref().is_some_and(SlotTurn::is_repeated) => {
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

    fn carry_out(&mut self, op: Op<'_>) -> Done {
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
            Op::ReadPlus(op) if self.turn.server.options.read_plus => self.read_plus(op),
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
            Op::OpenDowngrade(op) => self.open_downgrade(op),
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
            Op::ReclaimComplete(one) => self.reclaim_complete(one),
            Op::FreeStateId(state) => self.free_stateid(state),
            Op::TestStateId(states) => self.test_stateids(&states),
            Op::DelegReturn(state) => self.delegation_return(state),
            Op::OffloadCancel(state) => self.offload_cancel(state),
            Op::OffloadStatus(state) => self.offload_status(state),
            Op::Sequence(_) => Err(Status::SequencePos.into()),
        }
    }

    /// Returns the status of an operation whose result does not fit in the reply (RFC 8881 section
    /// 2.10.6.4; v4.0 has `RESOURCE` for that).
    fn too_big(&self) -> Status {
        match &self.slot {
            Some(slot) if slot.request().cache_this => Status::RepTooBigToCache,
            Some(_) => Status::RepTooBig,
            None => Status::Resource,
        }
    }

    /// Returns the state's key of `node`.
    fn key(&self, node: &Arc<dyn Node>) -> NodeKey {
        NodeKey {
            export: 0,
            node: node.id(),
        }
    }

    /// Returns the stateid that `given` stands for: the current one if it is the special current
    /// stateid.
    fn current_of(&self, given: &StateId) -> Result<StateId, Status> {
        match *given {
            StateId::CURRENT if self.minor > 0 => self.state.ok_or(Status::BadStateid),
            given => Ok(given),
        }
    }

    /// Writes the new stateid of the state that an operation changed, and makes it the current one.
    fn changed(&mut self, state: StateId) {
        self.state = Some(state);
        self.reply.value(&state);
    }

    /// Returns the context for calls of the source.
    fn cx(&self) -> Cx<'t> {
        let turn: &'t Given<'t> = self.turn;
        Cx {
            caller: turn.caller,
            patience: self.patience,
            call: turn.stand_in.as_ref().unwrap_or(turn.call),
        }
    }

    /// Records that the compound had an effect, so that it cannot be restarted.
    fn affected(&mut self) {
        self.patience = Patience::Full;
    }
}

/// Returns whether the next operation is a SEQUENCE that asks to cache its reply.
fn asks_to_keep(mut arguments: XdrReader<'_>) -> bool {
    matches!(Op::get(&mut arguments), Ok(Op::Sequence(op)) if op.cache_this)
}
