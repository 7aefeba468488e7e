//! A call being answered, and why it may have no results.

use std::sync::Arc;

use vfs::{Call, Caller, Cx, Errno, Patience};
use wire::{Answer, Buffered, Incoming, Malformed, Outgoing, Xdr, XdrReader};

use super::gss::Shown;
use super::words::Noting;
use super::{Server, mount, nlm, portmap, v3, v4};
use crate::rpc::{Record, Refusal, program};

/// Why a call has no results.
#[derive(Debug)]
pub(crate) enum Stop {
    /// RPC refuses it.
    Refused(Refusal),
    /// Not now.
    Later(Answer),
    /// Another is answered in its place.
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
    /// What an errno is, if it is no status of the protocol's but says that it is too early.
    pub(crate) fn later(errno: Errno) -> Option<Stop> {
        match errno {
            Errno::WOULD_BLOCK => Some(Stop::Later(Answer::WouldBlock)),
            Errno::PARKED => Some(Stop::Later(Answer::Parked)),
            _ => None,
        }
    }
}

/// A call being answered.
pub(crate) struct Turn<'a> {
    pub(crate) server: &'a Arc<Server>,
    /// Which connection it came by.
    pub(crate) connection: u64,
    /// What its client calls it.
    pub(crate) xid: u32,
    pub(crate) call: &'a Call,
    /// Whether results begin with a status of v3's.
    pub(super) begins_with_status: bool,
    pub(crate) patience: Patience,
    pub(crate) caller: Caller,
    /// How it says who it is.
    pub(crate) flavor: u32,
    /// Who it has shown to be, if it has.
    pub(crate) shown: Option<&'a Shown<'a>>,
    pub(crate) message: &'a dyn Incoming,
    pub(crate) record: &'a Record<'a>,
    /// What it has in common with itself when it comes again.
    pub(crate) same: [&'a [u8]; 2],
    /// What has not been read yet.
    pub(crate) arguments: XdrReader<'a>,
    /// The reply, whose head has been written.
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

    /// The context of calls of the source.
    pub(crate) fn cx(&self) -> Cx<'_> {
        Cx {
            caller: &self.caller,
            patience: self.patience,
            call: self.call,
        }
    }

    /// The call's arguments, and nothing behind them.
    pub(super) fn take<A: Xdr<'a>>(&mut self) -> Result<A, Stop> {
        let arguments = A::get(&mut self.arguments)?;
        self.arguments.end()?;
        Ok(arguments)
    }

    pub(super) fn reply<'b>(&mut self, outcome: &impl Xdr<'b>) {
        let call = self.begins_with_status.then_some(self.call);
        let to = Buffered::new(self.out);
        outcome.put(&mut Noting { to, call });
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
