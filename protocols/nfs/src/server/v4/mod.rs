//! v4: compounds, whose operations are carried out one after the other until one fails.
//!
//! A compound may be carried out again from its beginning as long as nothing it did had an effect: an
//! operation that would block then ends the attempt. Once one had an effect, the rest runs with full
//! patience, for there is no way back.

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

/// What an open of v4 holds: a file, and who opened it.
#[derive(Clone)]
pub(crate) struct Files {
    file: Arc<dyn File>,
    caller: Caller,
    solid: Arc<Solid>,
    /// Where he called from.
    addr: Option<IpAddr>,
    /// A delegation's.
    _lease: Option<Arc<dyn vfs::Lease>>,
}

/// Answers a call of v4.
pub(super) fn serve(turn: &mut Turn<'_>, procedure: u32) -> Result<(), Stop> {
    match procedure {
        0 => Ok(()),
        1 => compound(turn),
        _ => Err(Refusal::ProcedureUnavailable.into()),
    }
}

/// The most operations of a compound. Linux sends some ten.
pub(super) const MAX_OPERATIONS: u32 = 256;

/// The longest tag, which goes back as it came.
pub(super) const MAX_TAG: usize = 1024;

/// The bytes of an operation that failed: its number, its status and, of SETATTR, that it set nothing.
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

/// Whether a compound of v4.0 makes, removes or renames something that no owner's number protects
/// from a second time: an owner that is not confirmed yet has none (RFC 7530 section 16.18.5). Not
/// behind READ or WRITE: no client has both in one.
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

/// What a compound says before its operations.
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
        // Of v4.0 no session says how long replies may be.
        0 => reply.limit(rpc::MARK + turn.server.max_record()),
        // The session bounds it.
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
    /// With this status, after so many operations.
    At(Status, u32),
    /// It was carried out before, and its reply is the one of then.
    Before,
}

fn too_many(minor: u32) -> Status {
    match minor {
        0 => Status::Resource,
        _ => Status::TooManyOps,
    }
}

/// Why an operation is not done, or not yet.
#[derive(Debug)]
enum Bad {
    /// It failed.
    Status(Status),
    /// It failed, and what else it has to say of that stands in the reply.
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
            // Whoever is in the way may be this very client, and its answer behind this one.
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
        tracing::debug!("unreadable operation: {what}");
        Bad::Status(Status::Badxdr)
    }
}

type Done = Result<(), Bad>;

/// A compound being carried out.
struct Compound<'t, 'a> {
    turn: &'t Given<'t>,
    patience: Patience,
    arguments: XdrReader<'a>,
    reply: Reply<'t>,
    minor: u32,
    /// Where its results begin in the reply.
    start: usize,
    /// The number of the operation that is being carried out.
    number: u32,
    /// That of the operation that the compound is named by so far.
    weight: u8,
    /// Where its own results begin, behind number and status.
    body: usize,
    /// The session's slot that it came by (v4.1).
    slot: Option<SlotTurn<Files, Tree>>,
    /// The current file handle.
    current: Option<Place>,
    /// The saved one.
    saved: Option<Place>,
    /// The current stateid (RFC 8881 section 16.2.3.1.2).
    state: Option<StateId>,
    /// The saved one.
    saved_state: Option<StateId>,
}

/// How much an operation says of what its compound is for. The first of the heaviest names it.
fn weight(number: u32) -> u8 {
    match number {
        number::SEQUENCE | number::SAVEFH => 1,
        number if number::SETS_HANDLE.contains(&number) => 1,
        number::GETATTR | number::GETFH => 2,
        _ => 3,
    }
}

impl<'t, 'a> Compound<'t, 'a> {
    /// Carries out `count` operations. Says how the last one ended, and which one that was.
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

    /// Carries out the next operation, the `at`th of `count`, and answers it; nothing if the whole compound
    /// was answered before.
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
                    // Which attributes were set it says in any case.
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

    /// Whether the caller may ask for operation `number` in the way that it says who it is. What sets the current file
    /// handle fails for what comes `next` then, unless that fails itself, or asks which ways there are (RFC 8881 section
    /// 2.6.3.1.1).
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

    /// Whether operation `number` belongs to this minor version, and may be the `at`th of `count` (RFC 8881
    /// section 2.10.6.2, the operations' own sections).
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
            // RFC 8881 section 2.10.6.1.3: the SEQUENCE before it is answered again, and that is all.
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
            // The client falls back on READ for good.
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

    /// What the state knows `node` by.
    fn key(&self, node: &Arc<dyn Node>) -> NodeKey {
        NodeKey {
            export: 0,
            node: node.id(),
        }
    }

    /// The stateid that `given` means: the current one, where it says so.
    fn current_of(&self, given: &StateId) -> Result<StateId, Status> {
        match *given {
            StateId::CURRENT if self.minor > 0 => self.state.ok_or(Status::BadStateid),
            given => Ok(given),
        }
    }

    /// Answers the new stateid of what an operation changed.
    fn changed(&mut self, state: StateId) {
        self.state = Some(state);
        self.reply.value(&state);
    }

    /// The context of calls of the source.
    fn cx(&self) -> Cx<'t> {
        let turn: &'t Given<'t> = self.turn;
        Cx {
            caller: turn.caller,
            patience: self.patience,
            call: turn.stand_in.as_ref().unwrap_or(turn.call),
        }
    }

    /// Something has changed, and it cannot be begun anew.
    fn affected(&mut self) {
        self.patience = Patience::Full;
    }
}

/// Whether a SEQUENCE comes next, and asks that its reply be kept.
fn asks_to_keep(mut arguments: XdrReader<'_>) -> bool {
    matches!(Op::get(&mut arguments), Ok(Op::Sequence(op)) if op.cache_this)
}
