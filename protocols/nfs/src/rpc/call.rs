//! The heads of calls and replies (RFC 5531 section 9).

use wire::{Buffered, Malformed, Outgoing, Put, Xdr, XdrReader, xdr_struct};

use super::MARK;
use super::auth::{AuthStat, OpaqueAuth, flavor};

/// The message type of a call.
pub(crate) const CALL: u32 = 0;
/// The message type of a reply.
pub(crate) const REPLY: u32 = 1;

/// The version of RPC itself.
pub(crate) const VERSION: u32 = 2;

/// The status of a reply to a call that was not denied.
const ACCEPTED: u32 = 0;

xdr_struct! {
    /// What a call begins with, behind its id and type.
    pub(crate) struct Call<'a> {
        pub(crate) rpc_version: u32,
        pub(crate) program: u32,
        pub(crate) version: u32,
        pub(crate) procedure: u32,
        pub(crate) credential: OpaqueAuth<'a>,
        pub(crate) verifier: OpaqueAuth<'a>,
    }
}

/// A call that is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is of another version of RPC.
    RpcMismatch,
    /// The caller is none to talk to.
    Auth(AuthStat),
    /// No such program.
    ProgramUnavailable,
    /// The program has only the versions from one to the other.
    VersionMismatch(u32, u32),
    /// No such procedure.
    ProcedureUnavailable,
    /// Its arguments cannot be read.
    GarbageArguments,
    /// The server failed for a reason of its own (`SYSTEM_ERR`, RFC 5531 section 9).
    SystemError,
}

impl From<Malformed> for Refusal {
    fn from(what: Malformed) -> Refusal {
        tracing::debug!("unreadable arguments: {what}");
        Refusal::GarbageArguments
    }
}

impl<'a> Call<'a> {
    /// What a call by `credential` begins with.
    pub(crate) fn of(
        program: u32,
        version: u32,
        procedure: u32,
        credential: OpaqueAuth<'a>,
    ) -> Call<'a> {
        Call {
            rpc_version: VERSION,
            program,
            version,
            procedure,
            credential,
            verifier: OpaqueAuth::NONE,
        }
    }

    /// The call that stands in `from`, behind its id and type.
    pub(crate) fn read(from: &mut XdrReader<'a>) -> Result<Call<'a>, Refusal> {
        let mut version = *from;
        if version.u32()? != VERSION {
            return Err(Refusal::RpcMismatch);
        }
        Ok(Call::get(from)?)
    }
}

/// Begins the reply to call `xid`, which is carried out: its mark, to be patched when its length is known, if it is
/// `marked`, and its head. The results follow.
pub(crate) fn begin_reply(xid: u32, marked: bool, out: &mut dyn Outgoing) {
    let mut head = [0; MARK + 24];
    head[4..8].copy_from_slice(&xid.to_be_bytes());
    head[8..12].copy_from_slice(&REPLY.to_be_bytes());
    // Accepted, a verifier of AUTH_NONE, success: all zeros.
    out.bytes(if marked { &head } else { &head[MARK..] });
}

/// [`begin_reply`] with a server that shows by `verifier` who it is.
pub(crate) fn begin_verified(
    xid: u32,
    marked: bool,
    verifier: OpaqueAuth<'_>,
    out: &mut dyn Outgoing,
) {
    const SUCCESS: u32 = 0;
    let to = &mut Buffered::new(out);
    if marked {
        [0; MARK].put(to);
    }
    for word in [xid, REPLY, ACCEPTED] {
        word.put(to);
    }
    verifier.put(to);
    SUCCESS.put(to);
}

/// The verifier by which a server says that the connection may be secured (RFC 9289 section 4.1).
pub(crate) const STARTTLS: OpaqueAuth<'static> = OpaqueAuth {
    flavor: flavor::NONE,
    body: b"STARTTLS",
};

/// Writes the reply to call `xid`, which asks for a secured connection, but for its mark.
pub(crate) fn start_tls(xid: u32, out: &mut dyn Outgoing) {
    begin_verified(xid, true, STARTTLS, out);
}

/// Writes the reply to call `xid`, which is refused, but for its mark, to be patched if it is `marked`. Of a caller that is
/// known the server shows by `verifier` who it is itself.
pub(crate) fn refuse<P: Put>(
    xid: u32,
    marked: bool,
    why: Refusal,
    verifier: OpaqueAuth<'_>,
    to: &mut P,
) {
    const DENIED: u32 = 1;
    if marked {
        [0; MARK].put(to);
    }
    xid.put(to);
    REPLY.put(to);
    let accepted = |status: u32, to: &mut P| {
        ACCEPTED.put(to);
        verifier.put(to);
        status.put(to);
    };
    match why {
        Refusal::RpcMismatch => [DENIED, 0, VERSION, VERSION].iter().for_each(|n| n.put(to)),
        Refusal::Auth(why) => {
            DENIED.put(to);
            1u32.put(to);
            why.put(to);
        }
        Refusal::ProgramUnavailable => accepted(1, to),
        Refusal::VersionMismatch(low, high) => {
            accepted(2, to);
            low.put(to);
            high.put(to);
        }
        Refusal::ProcedureUnavailable => accepted(3, to),
        Refusal::GarbageArguments => accepted(4, to),
        Refusal::SystemError => accepted(5, to),
    }
}
