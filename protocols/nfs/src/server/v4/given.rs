//! What a compound has of its call.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::Waker;

use vfs::{Call, Caller, Patience};

use super::state::Requester;
use crate::rpc::Record;
use crate::server::gss::Shown;
use crate::server::{Server, Turn};

/// What a compound has of its call.
pub(super) struct Given<'a> {
    pub(super) server: &'a Arc<Server>,
    pub(super) connection: u64,
    pub(super) call: &'a Call,
    /// One in its place that is woken by nobody, if it cannot be parked: what would wait for another client is told to
    /// come again instead.
    pub(super) stand_in: Option<Call>,
    pub(super) patience: Patience,
    pub(super) caller: &'a Caller,
    pub(super) flavor: u32,
    pub(super) shown: Option<&'a Shown<'a>>,
    pub(super) message: &'a dyn wire::Incoming,
    pub(super) record: &'a Record<'a>,
}

impl<'a> Given<'a> {
    /// What there is of a call, and its reply.
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
            shown: turn.shown,
            message: turn.message,
            record: turn.record,
        };
        (given, turn.out)
    }

    /// As whom RPC knows the caller: what tells whose a client is.
    pub(super) fn principal(&self) -> Cow<'a, [u8]> {
        match self.shown {
            Some(shown) => Cow::Borrowed(shown.principal.as_bytes()),
            None => {
                let ids = u64::from(self.flavor) << 32 | u64::from(self.caller.uid);
                Cow::Owned(ids.to_be_bytes().into())
            }
        }
    }

    /// The sender of the call, whose [`Given::principal`] it is.
    pub(super) fn requester<'p>(&'p self, principal: &'p [u8]) -> Requester<'p> {
        Requester {
            peer: self.call.account(),
            principal,
            proved: self.shown.is_some(),
        }
    }
}
