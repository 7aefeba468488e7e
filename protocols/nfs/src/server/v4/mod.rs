//! v4: compounds, whose operations are carried out one after the other until one fails.
//!
//! A compound may be carried out again from its beginning as long as nothing it did had an effect: an
//! operation that would block then ends the attempt. Once one had an effect, the rest runs with full
//! patience, for there is no way back.

mod attr;
mod client;
mod dir;
mod io;
mod lock;
mod make;
mod open;
mod place;
mod reply;
mod sparse;
pub mod state;
mod xattr;

use std::sync::Arc;

use vfs::{Cx, Errno, File, Node, Patience};
use wire::{Malformed, Outgoing as _, Xdr, XdrReader};

use self::place::Place;
use self::reply::Reply;
use self::state::{NodeKey, SlotTurn};
use super::{Stop, Turn};
use crate::rpc::Refusal;
use crate::v4::op::Op;
use crate::v4::{StateId, Status};

/// What an open of v4 holds.
pub(crate) type Files = Arc<dyn File>;

/// Answers a call of v4.
pub(super) fn serve(turn: &mut Turn<'_>, procedure: u32) -> Result<(), Stop> {
    match procedure {
        0 => Ok(()),
        1 => compound(turn),
        _ => Err(Refusal::ProcedureUnavailable.into()),
    }
}

/// The most operations of a compound. Linux sends some ten.
const MAX_OPERATIONS: u32 = 256;

/// The longest tag, which goes back as it came.
const MAX_TAG: usize = 1024;

/// Numbers of operations that tell what else is to be told apart here.
mod number {
    pub(super) const OPEN_CONFIRM: u32 = 20;
    pub(super) const RENEW: u32 = 30;
    pub(super) const SETCLIENTID: u32 = 35;
    pub(super) const SETCLIENTID_CONFIRM: u32 = 36;
    pub(super) const RELEASE_LOCKOWNER: u32 = 39;
    pub(super) const BIND_CONN_TO_SESSION: u32 = 41;
    pub(super) const EXCHANGE_ID: u32 = 42;
    pub(super) const CREATE_SESSION: u32 = 43;
    pub(super) const DESTROY_SESSION: u32 = 44;
    pub(super) const SEQUENCE: u32 = 53;
    pub(super) const DESTROY_CLIENTID: u32 = 57;
    pub(super) const ILLEGAL: u32 = 10044;
    /// The last of each minor version.
    pub(super) const LAST: [u32; 3] = [39, 58, 75];
}

fn compound(turn: &mut Turn<'_>) -> Result<(), Stop> {
    let mut arguments = turn.arguments;
    let tag = arguments.opaque(MAX_TAG)?;
    let (minor, count) = (arguments.u32()?, arguments.u32()?);
    let mut reply = Reply::new(turn.out);
    let start = reply.len();
    if minor > 0 && asks_to_keep(arguments) {
        reply.keep();
    }
    reply.value(&Status::Ok);
    reply.value(&tag);
    let counted = reply.len();
    reply.value(&0u32);
    let mut compound = Compound {
        turn: &Given {
            server: turn.server,
            connection: turn.connection,
            call: turn.call,
            caller: &turn.caller,
            flavor: turn.flavor,
            message: turn.message,
            record: turn.record,
        },
        patience: turn.patience,
        arguments,
        reply,
        minor,
        start,
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

/// What a compound has of its call.
struct Given<'a> {
    server: &'a super::Server,
    connection: u64,
    call: &'a vfs::Call,
    caller: &'a vfs::Caller,
    flavor: u32,
    message: &'a dyn wire::Incoming,
    record: &'a crate::rpc::Record<'a>,
}

impl Given<'_> {
    /// As whom RPC knows the caller: what tells whose a client is.
    fn principal(&self) -> [u8; 8] {
        (u64::from(self.flavor) << 32 | u64::from(self.caller.uid)).to_be_bytes()
    }
}

/// A compound being carried out.
struct Compound<'t, 'a> {
    turn: &'t Given<'t>,
    patience: Patience,
    arguments: XdrReader<'a>,
    reply: Reply<'t>,
    minor: u32,
    /// Where its results begin in the reply.
    start: usize,
    /// The session's slot that it came by (v4.1).
    slot: Option<SlotTurn<Files, Arc<dyn Node>>>,
    /// The current file handle.
    current: Option<Place>,
    /// The saved one.
    saved: Option<Place>,
    /// The current stateid (RFC 8881 section 16.2.3.1.2).
    state: Option<StateId>,
    /// The saved one.
    saved_state: Option<StateId>,
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
        let done = self.may_stand_here(number, at, count).and_then(|()| {
            let op = match Op::get(&mut self.arguments) {
                Ok(op) => op,
                Err(_) if !Op::NUMBERS.contains(&number) => return Err(Status::Notsupp.into()),
                Err(what) => return Err(what.into()),
            };
            tracing::trace!(?op);
            if let Op::Sequence(op) = op {
                before = !self.sequence(op, self.start)?;
                return Ok(());
            }
            self.carry_out(op)
        });
        let status = match done {
            Ok(()) if before => return Ok(None),
            Ok(()) => return Ok(Some(Status::Ok)),
            Err(Bad::Stop(stop)) => return Err(stop),
            Err(Bad::Status(status)) => {
                self.reply.truncate(body);
                status
            }
            Err(Bad::Answered(status)) => status,
        };
        tracing::debug!(number, ?status, "refused");
        self.reply.patch(start + 4, &(status as u32).to_be_bytes());
        Ok(Some(status))
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
            Op::ReadPlus(op) => self.read_plus(op),
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
            // Nobody has any.
            Op::DelegReturn(_) => Err(Status::BadStateid.into()),
            // Every copy is done when it is answered.
            Op::OffloadCancel(_) | Op::OffloadStatus(_) => Err(Status::BadStateid.into()),
            Op::Sequence(_) => Err(Status::SequencePos.into()),
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
            call: turn.call,
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
