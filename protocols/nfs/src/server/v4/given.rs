//! The context that a compound has from its call.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::Waker;

use vfs::{Call, Caller, Patience};

use super::state::Requester;
use crate::rpc::Record;
use crate::server::gss::Authenticated;
use crate::server::{Server, Turn};

/// The context that a compound has from its call.
pub(super) struct Given<'a> {
    pub(super) server: &'a Arc<Server>,
    pub(super) connection: u64,
    pub(super) call: &'a Call,
    /// A substitute for `call` with a waker that does nothing, if the call cannot be parked: an
    /// operation that would wait for another client returns `DELAY` instead.
    pub(super) stand_in: Option<Call>,
    pub(super) patience: Patience,
    pub(super) caller: &'a Caller,
    pub(super) flavor: u32,
    pub(super) authenticated: Option<&'a Authenticated<'a>>,
    pub(super) message: &'a dyn wire::Incoming,
    pub(super) record: &'a Record<'a>,
}

impl<'a> Given<'a> {
    /// Splits a call into the context and the reply.
    pub(super) fn of<'t: 'a>(turn: &'a mut Turn<'t>) -> (Given<'a>, &'a mut dyn wire::Outgoing) {
        let given = Given {
            server: turn.server,
            connection: turn.connection,
            call: turn.call,
            stand_in: match turn.call.waker() {
                Some(_) => None,
                None => Some(turn.call.woken_by(Waker::noop().clone())),
            },
            patience: turn.patience,
            caller: &turn.caller,
            flavor: turn.flavor,
            authenticated: turn.authenticated,
            message: turn.message,
            record: turn.record,
        };
        (given, turn.out)
    }

    /// Returns the RPC principal of the caller, by which the owner of a client ID is recognised.
    pub(super) fn principal(&self) -> Cow<'a, [u8]> {
        match self.authenticated {
            Some(authenticated) => Cow::Borrowed(authenticated.principal.as_bytes()),
            None => {
                let ids = u64::from(self.flavor) << 32 | u64::from(self.caller.uid);
                Cow::Owned(ids.to_be_bytes().into())
            }
        }
    }

    /// Returns the sender of the call. `principal` is the one that [`Given::principal`] returns.
    pub(super) fn requester<'p>(&'p self, principal: &'p [u8]) -> Requester<'p> {
        Requester {
            peer: self.call.account(),
            principal,
            proved: self.authenticated.is_some(),
        }
    }
}
