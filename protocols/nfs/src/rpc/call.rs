//! The headers of calls and replies (RFC 5531 section 9).

use wire::{Buffered, Malformed, Outgoing, Put, Xdr, XdrReader, xdr_struct};

use super::MARK;
use super::auth::{AuthStat, OpaqueAuth, flavor};

/// The message type of a call.
pub(crate) const CALL: u32 = 0;
/// The message type of a reply.
pub(crate) const REPLY: u32 = 1;

/// The supported version of RPC.
pub(crate) const VERSION: u32 = 2;

/// The status of a reply to a call that was not denied.
const ACCEPTED: u32 = 0;

xdr_struct! {
    /// The header of a call, after XID and message type.
    pub(crate) struct Call<'a> {
        pub(crate) rpc_version: u32,
        pub(crate) program: u32,
        pub(crate) version: u32,
        pub(crate) procedure: u32,
        pub(crate) credential: OpaqueAuth<'a>,
        pub(crate) verifier: OpaqueAuth<'a>,
    }
}

/// The reason for which a call is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallRejection {
    /// Unsupported RPC version.
    RpcMismatch,
    /// The credential is rejected.
    Auth(AuthStat),
    /// No such program.
    ProgramUnavailable,
    /// Unsupported program version; the lowest and highest supported versions.
    VersionMismatch(u32, u32),
    /// No such procedure.
    ProcedureUnavailable,
    /// The arguments are malformed.
    GarbageArguments,
    /// The server failed for an internal reason (`SYSTEM_ERR`, RFC 5531 section 9).
    SystemError,
}

impl From<Malformed> for CallRejection {
    fn from(what: Malformed) -> CallRejection {
        tracing::debug!("malformed arguments: {what}");
        CallRejection::GarbageArguments
    }
}

impl<'a> Call<'a> {
    /// Creates the header of a call with `credential`.
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

    /// Parses the header of a call, after XID and message type.
    pub(crate) fn read(from: &mut XdrReader<'a>) -> Result<Call<'a>, CallRejection> {
        let mut version = *from;
        if version.u32()? != VERSION {
            return Err(CallRejection::RpcMismatch);
        }
        Ok(Call::get(from)?)
    }
}

/// Begins the successful reply to call `xid`: the record mark if `marked`, to be patched when the
/// length is known, and the header. The results follow.
pub(crate) fn begin_reply(xid: u32, marked: bool, out: &mut dyn Outgoing) {
    let mut head = [0; MARK + 24];
    head[4..8].copy_from_slice(&xid.to_be_bytes());
    head[8..12].copy_from_slice(&REPLY.to_be_bytes());
    // Accepted, a verifier of AUTH_NONE, success: all zeros.
    out.bytes(if marked { &head } else { &head[MARK..] });
}

/// Begins the reply as [`begin_reply`], with the server's `verifier`.
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

/// The verifier that grants a request for TLS (RFC 9289 section 4.1).
pub(crate) const STARTTLS: OpaqueAuth<'static> = OpaqueAuth {
    flavor: flavor::NONE,
    body: b"STARTTLS",
};

/// Writes the reply that grants the request for TLS `xid`; its record mark is to be patched.
pub(crate) fn start_tls(xid: u32, out: &mut dyn Outgoing) {
    begin_verified(xid, true, STARTTLS, out);
}

/// Writes the reply that rejects call `xid`. Its record mark, if `marked`, is to be patched.
/// `verifier` is the server's, if the caller's credential was accepted.
pub(crate) fn refuse<P: Put>(
    xid: u32,
    marked: bool,
    why: CallRejection,
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
        CallRejection::RpcMismatch => [DENIED, 0, VERSION, VERSION].iter().for_each(|n| n.put(to)),
        CallRejection::Auth(why) => {
            DENIED.put(to);
            1u32.put(to);
            why.put(to);
        }
        CallRejection::ProgramUnavailable => accepted(1, to),
        CallRejection::VersionMismatch(low, high) => {
            accepted(2, to);
            low.put(to);
            high.put(to);
        }
        CallRejection::ProcedureUnavailable => accepted(3, to),
        CallRejection::GarbageArguments => accepted(4, to),
        CallRejection::SystemError => accepted(5, to),
    }
}
