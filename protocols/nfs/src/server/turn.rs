//! A call being served, and the reasons for which it may have no results.

use std::sync::Arc;

use vfs::{Call, Caller, Cx, Errno, Patience};
use wire::{Answer, Buffered, Incoming, Malformed, Outgoing, Xdr, XdrReader};

use super::call_names::StatusRecorder;
use super::gss::Authenticated;
use super::{Server, mount, nlm, portmap, v3, v4};
use crate::rpc::{Record, Refusal, program};

/// The reason for which a call has no results.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The call is rejected with an RPC error.
    Refused(Refusal),
    /// The call is to be served again later.
    Later(Answer),
    /// The call gets no reply: it is dropped, or another transmission of it gets one.
    Unanswered,
}

impl From<Refusal> for Stop {
    fn from(why: Refusal) -> Stop {
        Stop::Refused(why)
    }
}

impl From<Malformed> for Stop {
    fn from(what: Malformed) -> Stop {
        Stop::Refused(what.into())
    }
}

impl Stop {
    /// Returns the `Stop` of an errno that asks to serve the call again; `None` if the errno is an
    /// error.
    pub(crate) fn later(errno: Errno) -> Option<Stop> {
        match errno {
            Errno::WOULD_BLOCK => Some(Stop::Later(Answer::WouldBlock)),
            Errno::PARKED => Some(Stop::Later(Answer::Parked)),
            _ => None,
        }
    }
}

/// A call being served.
pub(crate) struct Turn<'a> {
    pub(crate) server: &'a Arc<Server>,
    /// The number of the connection.
    pub(crate) connection: u64,
    /// The XID.
    pub(crate) xid: u32,
    pub(crate) call: &'a Call,
    /// Whether the results begin with a v3 status.
    pub(super) begins_with_status: bool,
    pub(crate) patience: Patience,
    pub(crate) caller: Caller,
    /// The flavor of the credential.
    pub(crate) flavor: u32,
    /// The identity that RPCSEC_GSS has verified, if any.
    pub(crate) authenticated: Option<&'a Authenticated<'a>>,
    pub(crate) message: &'a dyn Incoming,
    pub(crate) record: &'a Record<'a>,
    /// The bytes that are the same in a retransmission.
    pub(crate) same: [&'a [u8]; 2],
    /// The arguments that have not been parsed yet.
    pub(crate) arguments: XdrReader<'a>,
    /// The reply, whose header has been written.
    pub(crate) out: &'a mut dyn Outgoing,
}

impl<'a> Turn<'a> {
    pub(super) fn run(&mut self, program: u32, version: u32, procedure: u32) -> Result<(), Stop> {
        tracing::trace!(connection = self.connection, program, version, procedure);
        match (program, version) {
            (program::NFS, 3) => v3::serve(self, procedure),
            (program::NFS, 4) => v4::serve(self, procedure),
            (program::NFS_ACL, 3) => v3::acl::serve(self, procedure),
            (program::NFS, _) => Err(Refusal::VersionMismatch(3, 4).into()),
            (program::MOUNT, 3) => mount::serve(self, procedure),
            (program::MOUNT, _) => Err(Refusal::VersionMismatch(3, 3).into()),
            (program::NLM, 4) => nlm::serve(self, procedure),
            (program::NLM, _) => Err(Refusal::VersionMismatch(4, 4).into()),
            (program::NSM, 1) => nlm::serve_nsm(self, procedure),
            (program::NSM, _) => Err(Refusal::VersionMismatch(1, 1).into()),
            (program::PORTMAP, 2..=4) if self.server.options.ports.is_some() => {
                portmap::serve(self, version, procedure)
            }
            _ => Err(Refusal::ProgramUnavailable.into()),
        }
    }

    /// Returns the context for calls to the source.
    pub(crate) fn cx(&self) -> Cx<'_> {
        Cx {
            caller: &self.caller,
            patience: self.patience,
            call: self.call,
        }
    }

    /// Decodes the arguments. Returns an error if other bytes follow them.
    pub(super) fn take<A: Xdr<'a>>(&mut self) -> Result<A, Stop> {
        let arguments = A::get(&mut self.arguments)?;
        self.arguments.end()?;
        Ok(arguments)
    }

    pub(super) fn reply<'b>(&mut self, outcome: &impl Xdr<'b>) {
        let call = self.begins_with_status.then_some(self.call);
        let to = Buffered::new(self.out);
        outcome.put(&mut StatusRecorder { to, call });
    }

    pub(super) fn answer<'b, A: Xdr<'a>, R: Xdr<'b>>(
        &mut self,
        procedure: impl FnOnce(&Self, A) -> Result<R, Stop>,
    ) -> Result<(), Stop> {
        let arguments = self.take()?;
        let outcome = procedure(self, arguments)?;
        self.reply(&outcome);
        Ok(())
    }
}
