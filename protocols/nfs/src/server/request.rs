//! The context of a request being served, and the reasons for which it may have no results.

use std::sync::Arc;

use vfs::{Call, Caller, Cx, Errno, Patience};
use wire::{Buffered, Incoming, Malformed, ServeOutcome, Xdr, XdrReader};

use super::Server;
use super::call_names::StatusRecorder;
use super::gss::Authenticated;
use super::reply::Reply;
use crate::rpc::{self, CallRejection, Record};

/// The reason for which a call has no results.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The call is rejected with an RPC error.
    Rejected(CallRejection),
    /// The call is to be served again later.
    Retry(ServeOutcome),
    /// The call gets no reply: it is dropped, or another transmission of it gets one.
    Unanswered,
}

impl From<CallRejection> for CallError {
    fn from(why: CallRejection) -> CallError {
        CallError::Rejected(why)
    }
}

impl From<Malformed> for CallError {
    fn from(what: Malformed) -> CallError {
        CallError::Rejected(what.into())
    }
}

impl CallError {
    /// Returns the `CallError` of an errno that asks to serve the call again; `None` if the errno
    /// is an error.
    pub(crate) fn retry(errno: Errno) -> Option<CallError> {
        match errno {
            Errno::WOULD_BLOCK => Some(CallError::Retry(ServeOutcome::WouldBlock)),
            Errno::PARKED => Some(CallError::Retry(ServeOutcome::Parked)),
            _ => None,
        }
    }
}

/// A call whose header has been parsed, and whose sender has not been identified yet.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) xid: u32,
    pub(super) call: &'a Call,
    pub(super) patience: Patience,
    pub(super) message: &'a dyn Incoming,
    pub(super) record: &'a Record<'a>,
    pub(super) head: &'a rpc::Call<'a>,
    /// The bytes that identify the call: a retransmission has the same.
    pub(super) identity: [&'a [u8]; 2],
    pub(super) arguments: XdrReader<'a>,
}

/// The context of a request being served. The procedures of all programs, and the operations of v4,
/// are its methods. `C` is the state of the v4 compound that the request is; other programs have
/// none.
pub(crate) struct RequestContext<'a, C = ()> {
    pub(crate) server: &'a Arc<Server>,
    /// The number of the connection.
    pub(crate) connection: u64,
    /// The XID.
    pub(crate) xid: u32,
    pub(crate) call: &'a Call,
    /// The call that the source gets: `call`, or a substitute that cannot be parked.
    pub(super) source_call: &'a Call,
    pub(crate) patience: Patience,
    pub(crate) caller: &'a Caller,
    /// The flavor of the credential.
    pub(crate) flavor: u32,
    /// The identity that RPCSEC_GSS has verified, if any.
    pub(crate) authenticated: Option<&'a Authenticated<'a>>,
    pub(crate) message: &'a dyn Incoming,
    pub(crate) record: &'a Record<'a>,
    /// The bytes that identify the call: a retransmission has the same.
    pub(super) identity: [&'a [u8]; 2],
    /// The arguments that have not been parsed yet.
    pub(crate) arguments: XdrReader<'a>,
    /// Whether the results begin with a v3 status.
    pub(super) begins_with_status: bool,
    /// The reply, whose header has been written.
    pub(crate) reply: Reply<'a>,
    /// The compound.
    pub(crate) compound: C,
}

impl<'a, C> RequestContext<'a, C> {
    /// Returns the context for calls to the source.
    pub(crate) fn cx(&self) -> Cx<'a> {
        Cx {
            caller: self.caller,
            patience: self.patience,
            call: self.source_call,
        }
    }

    /// Returns the context of the same request as the compound `compound`.
    pub(super) fn with_compound<D>(&mut self, compound: D) -> RequestContext<'_, D> {
        RequestContext {
            server: self.server,
            connection: self.connection,
            xid: self.xid,
            call: self.call,
            source_call: self.source_call,
            patience: self.patience,
            caller: self.caller,
            flavor: self.flavor,
            authenticated: self.authenticated,
            message: self.message,
            record: self.record,
            identity: self.identity,
            arguments: self.arguments,
            begins_with_status: self.begins_with_status,
            reply: self.reply.reborrow(),
            compound,
        }
    }
}

impl<'a> RequestContext<'a> {
    /// Decodes the arguments. Returns an error if other bytes follow them.
    pub(super) fn decode<A: Xdr<'a>>(&mut self) -> Result<A, CallError> {
        let arguments = A::get(&mut self.arguments)?;
        self.arguments.end()?;
        Ok(arguments)
    }

    /// Writes the results of the procedure.
    pub(super) fn answer<'b>(&mut self, results: &impl Xdr<'b>) {
        let call = self.begins_with_status.then_some(self.call);
        let to = Buffered::new(self.reply.out);
        results.put(&mut StatusRecorder { to, call });
    }

    /// Serves a procedure: decodes its arguments and writes its results.
    pub(super) fn serve<'b, A: Xdr<'a>, R: Xdr<'b>>(
        &mut self,
        procedure: impl FnOnce(&Self, A) -> Result<R, CallError>,
    ) -> Result<(), CallError> {
        let arguments = self.decode()?;
        let results = procedure(self, arguments)?;
        self.answer(&results);
        Ok(())
    }
}
