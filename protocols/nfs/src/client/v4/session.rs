//! Client IDs and sessions of v4.1 and later (RFC 8881 section 2.10).

use super::callback::{MAX_OPERATIONS, MAX_SLOTS};
use super::compound::{Operations, Ops, Results};
use crate::client::Failure;
use crate::v4::op::{self, Op, Protect};
use crate::v4::reply::{Bound, Exchanged as ExchangedReply, SessionCreated};
use crate::v4::types::{CallbackSecurity, Channel};
use crate::v4::{ClientId, SessionId, Verifier};

/// A compound of SEQUENCE alone, which renews the lease.
pub struct SequenceOnly;

impl Operations for SequenceOnly {
    type Answer<'r> = ();

    const CACHE_THIS: bool = false;

    fn put(&self, _: &mut Ops<'_>) {}

    fn answer<'r>(&self, _: &mut Results<'r>) -> Result<(), Failure> {
        Ok(())
    }
}

/// An EXCHANGE_ID.
pub struct ExchangeId<'a> {
    /// The client owner, unique among clients.
    pub owner: &'a [u8],
    /// Identifies this incarnation of the client.
    pub verifier: Verifier,
}

/// The results of EXCHANGE_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The client ID.
    pub client: ClientId,
    /// The sequence id for the next CREATE_SESSION.
    pub sequence: u32,
}

impl Operations for ExchangeId<'_> {
    type Answer<'r> = Exchanged;

    const CACHE_THIS: bool = false;

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

/// A CREATE_SESSION.
pub struct CreateSession {
    /// The client ID.
    pub client: ClientId,
    /// The client ID's sequence id.
    pub sequence: u32,
    /// The requested number of slots.
    pub slots: u32,
    /// The maximum length of a call and of a reply in bytes.
    pub most: u32,
    /// Whether to use this connection for the backchannel.
    pub backchannel: bool,
}

/// The negotiated parameters of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The session ID.
    pub id: SessionId,
    /// The number of slots.
    pub slots: u32,
    /// The maximum length of a call in bytes.
    pub max_request: u32,
    /// The maximum length of a reply in bytes.
    pub max_response: u32,
    /// Whether the connection is used for the backchannel.
    pub backchannel: bool,
}

impl Operations for CreateSession {
    type Answer<'r> = Session;

    const CACHE_THIS: bool = false;

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
            max_operations: MAX_OPERATIONS,
            max_requests: MAX_SLOTS,
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

/// The RPC program of callbacks: the first transient program number (RFC 5531 section 8.3).
pub(super) const CALLBACK_PROGRAM: u32 = 0x4000_0000;

/// A BIND_CONN_TO_SESSION: uses this connection for the backchannel (RFC 8881 section 18.34).
pub struct BindConnection {
    /// The session ID.
    pub session: SessionId,
}

impl Operations for BindConnection {
    /// Whether the server has accepted.
    type Answer<'r> = bool;

    const CACHE_THIS: bool = false;

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

/// A DESTROY_SESSION.
pub struct DestroySession {
    /// The session ID.
    pub session: SessionId,
}

impl Operations for DestroySession {
    type Answer<'r> = ();

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::DestroySession(self.session));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const DESTROY_SESSION: u32 = 44;
        from.take(DESTROY_SESSION)
    }
}

/// A DESTROY_CLIENTID, for a client without any state.
pub struct DestroyClientId {
    /// The client ID.
    pub client: ClientId,
}

impl Operations for DestroyClientId {
    type Answer<'r> = ();

    const CACHE_THIS: bool = false;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::DestroyClientId(self.client));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const DESTROY_CLIENTID: u32 = 57;
        from.take(DESTROY_CLIENTID)
    }
}

/// A RECLAIM_COMPLETE: all state from before the server's restart has been reclaimed.
pub struct ReclaimComplete;

impl Operations for ReclaimComplete {
    type Answer<'r> = ();

    const CACHE_THIS: bool = true;

    fn put(&self, to: &mut Ops<'_>) {
        to.op(&Op::ReclaimComplete(false));
    }

    fn answer<'r>(&self, from: &mut Results<'r>) -> Result<(), Failure> {
        const RECLAIM_COMPLETE: u32 = 58;
        match from.end_of(RECLAIM_COMPLETE)?.0 {
            crate::v4::Status::Ok | crate::v4::Status::CompleteAlready => Ok(()),
            status => Err(super::compound::failure_of(status)),
        }
    }
}
