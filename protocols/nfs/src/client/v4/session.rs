//! Who a client is and what sessions it has: v4.1 and later (RFC 8881 section 2.10).

use super::callback::{OPERATIONS, SLOTS};
use super::compound::{Ops, Results, Steps};
use crate::client::Failure;
use crate::v4::op::{self, Op, Protect};
use crate::v4::reply::{Bound, Exchanged as ExchangedReply, SessionCreated};
use crate::v4::types::{CallbackSecurity, Channel};
use crate::v4::{ClientId, SessionId, Verifier};

/// Nothing: with its SEQUENCE, a sign of life.
pub struct Nothing;

impl Steps for Nothing {
    type Answer<'r> = ();

    const ONCE: bool = false;

    fn put(&self, _: &mut Ops<'_>) {}

    fn answer<'r>(&self, _: &mut Results<'r>) -> Result<(), Failure> {
        Ok(())
    }
}

/// Makes a client known.
pub struct ExchangeId<'a> {
    /// What no other client is called.
    pub owner: &'a [u8],
    /// Which life of it this is.
    pub verifier: Verifier,
}

/// A client as the server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// Its short name.
    pub client: ClientId,
    /// What its next CREATE_SESSION begins with.
    pub sequence: u32,
}

impl Steps for ExchangeId<'_> {
    type Answer<'r> = Exchanged;

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        /// `EXCHGID4_FLAG_USE_NON_PNFS`
        const NON_PNFS: u32 = 0x0001_0000;
        to.op(&Op::ExchangeId(op::ExchangeId {
            verifier: self.verifier,
            owner: self.owner,
            flags: NON_PNFS,
            protect: Protect::None,
            implementation: None,
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Exchanged, Failure> {
        const EXCHANGE_ID: u32 = 42;
        let ok: ExchangedReply<'r> = from.take(EXCHANGE_ID)?;
        Ok(Exchanged {
            client: ok.client,
            sequence: ok.sequence,
        })
    }
}

/// Makes a session.
pub struct CreateSession {
    /// Whose.
    pub client: ClientId,
    /// Its number among that client's.
    pub sequence: u32,
    /// How many slots it shall have.
    pub slots: u32,
    /// The most bytes of a call, and of a reply.
    pub most: u32,
    /// Whether the server may call by the connection that this goes by.
    pub backchannel: bool,
}

/// A session as it was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its name.
    pub id: SessionId,
    /// How many slots it has.
    pub slots: u32,
    /// The most bytes of a call.
    pub max_request: u32,
    /// The most bytes of a reply.
    pub max_response: u32,
    /// Whether the server may call, and will.
    pub backchannel: bool,
}

impl Steps for CreateSession {
    type Answer<'r> = Session;

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        let fore = Channel {
            header_pad: 0,
            max_request: self.most,
            max_response: self.most,
            // Attributes and a handle.
            max_cached: 4096,
            max_operations: 16,
            max_requests: self.slots,
            rdma: None,
        };
        let back = Channel {
            header_pad: 0,
            max_request: 4096,
            max_response: 4096,
            max_cached: 4096,
            max_operations: OPERATIONS,
            max_requests: SLOTS,
            rdma: None,
        };
        to.op(&Op::CreateSession(op::CreateSession {
            client: self.client,
            sequence: self.sequence,
            flags: if self.backchannel { BACKCHANNEL } else { 0 },
            fore,
            back,
            program: CALLBACK_PROGRAM,
            security: vec![CallbackSecurity::None],
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<Session, Failure> {
        const CREATE_SESSION: u32 = 43;
        let ok: SessionCreated = from.take(CREATE_SESSION)?;
        Ok(Session {
            id: ok.session,
            slots: ok.fore.max_requests.clamp(1, self.slots),
            max_request: ok.fore.max_request,
            max_response: ok.fore.max_response,
            backchannel: self.backchannel && ok.flags & BACKCHANNEL != 0,
        })
    }
}

/// `CREATE_SESSION4_FLAG_CONN_BACK_CHAN`
const BACKCHANNEL: u32 = 2;

/// The program that callbacks are calls of: the first of those that are nobody's (RFC 5531 section 8.3).
pub(super) const CALLBACK_PROGRAM: u32 = 0x4000_0000;

/// Has the server call by the connection that this goes by (RFC 8881 section 18.34).
pub struct BindConnection {
    /// For which session.
    pub session: SessionId,
}

impl Steps for BindConnection {
    /// Whether it will.
    type Answer<'r> = bool;

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        /// `CDFC4_FORE_OR_BOTH`
        const FORE_OR_BOTH: u32 = 3;
        to.op(&Op::BindConnToSession(op::BindConnToSession {
            session: self.session,
            direction: FORE_OR_BOTH,
            rdma: false,
        }));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<bool, Failure> {
        const BIND_CONN_TO_SESSION: u32 = 41;
        /// `CDFS4_BACK`
        const BACK: u32 = 2;
        let bound: Bound = from.take(BIND_CONN_TO_SESSION)?;
        Ok(bound.direction & BACK != 0)
    }
}

/// Ends a session.
pub struct DestroySession {
    /// Which.
    pub session: SessionId,
}

impl Steps for DestroySession {
    type Answer<'r> = ();

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::DestroySession(self.session));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const DESTROY_SESSION: u32 = 44;
        from.take(DESTROY_SESSION)
    }
}

/// Has the server forget a client that has nothing any more.
pub struct DestroyClientId {
    /// Which.
    pub client: ClientId,
}

impl Steps for DestroyClientId {
    type Answer<'r> = ();

    const ONCE: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::DestroyClientId(self.client));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const DESTROY_CLIENTID: u32 = 57;
        from.take(DESTROY_CLIENTID)
    }
}

/// Says that nothing of what was there before the server's restart is left to be claimed.
pub struct ReclaimComplete;

impl Steps for ReclaimComplete {
    type Answer<'r> = ();

    const ONCE: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::ReclaimComplete(false));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const RECLAIM_COMPLETE: u32 = 58;
        match from.end_of(RECLAIM_COMPLETE)?.0 {
            crate::v4::Status::Ok | crate::v4::Status::CompleteAlready => Ok(()),
            status => Err(super::compound::refused(status)),
        }
    }
}
