//! By what connections NFS may be asked for, as whom a certificate's owner calls (RFC 9289), and how callers may say who
//! they are.
//!
//! The rules hold for NFS, its ACLs and its locks (NLM). MOUNT and NSM are answered to all: what
//! MOUNT gives is of no use without NFS, and NSM frees only locks of the host that speaks. Linux's
//! NLM knows neither TLS nor RPCSEC_GSS: where plain connections or AUTH_SYS are refused, its v3
//! mounts need `nolock`, and v4 is the better choice.

use vfs::{Caller, Groups};
use wire::Certified;

use super::gss::{Flavor, Shown};
use crate::rpc::{self, AuthStat, Refusal, flavor, program};

/// Which connections are good enough, as `xprtsec=` of exports(5) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// Plain ones.
    pub none: bool,
    /// Those under TLS.
    pub tls: bool,
    /// Those under TLS whose clients have shown a certificate.
    pub mtls: bool,
}

impl Transports {
    /// Plain ones only: no others are offered.
    pub const PLAIN: Transports = Transports {
        none: true,
        tls: false,
        mtls: false,
    };

    /// Whether TLS is offered.
    pub fn offers_tls(self) -> bool {
        self.tls || self.mtls
    }
}

/// As whom the owner of a certificate calls, whatever it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedUser {
    /// A name in the certificate, as [`Certified`] has it.
    pub name: String,
    /// The user's id.
    pub uid: u32,
    /// Its group's.
    pub gid: u32,
}

/// What a connection has become by being secured.
pub(super) struct Secured {
    certified: bool,
    pub(super) caller: Option<Caller>,
}

impl Secured {
    pub(super) fn by(peer: &Certified, users: &[CertifiedUser]) -> Secured {
        let names = peer.names.as_deref().unwrap_or_default();
        let user = users.iter().find(|user| names.contains(&user.name));
        Secured {
            certified: peer.names.is_some(),
            caller: user.map(|user| Caller {
                uid: user.uid,
                gid: user.gid,
                groups: Groups::Unknown,
            }),
        }
    }
}

/// Whether one of `flavors` is how a caller says who it is.
pub(super) fn allows(flavors: &[Flavor], shown: Option<&Shown<'_>>) -> bool {
    let by = shown.map(|shown| shown.service);
    flavors.iter().any(|flavor| flavor.service() == by)
}

/// Whether such a call is for them alone. MOUNT, NSM and NULL are for everybody, as above; v4 asks
/// for each operation.
pub(super) fn minds_flavors(program: u32, version: u32, procedure: u32) -> bool {
    is_secured(program) && (program, version) != (program::NFS, 4) && procedure != 0
}

/// Whether files, or locks of theirs, are reached by `program`.
fn is_secured(program: u32) -> bool {
    [program::NFS, program::NFS_ACL, program::NLM].contains(&program)
}

/// What `call` asks of a connection that is `secured` or not: whether to secure it, if it may be answered at all.
pub(super) fn look_at(
    call: &rpc::Call<'_>,
    secured: Option<&Secured>,
    good: Transports,
) -> Result<bool, Refusal> {
    const NULL: u32 = 0;
    if call.credential.flavor == flavor::TLS {
        // Section 4.1.
        let asks = call.procedure == NULL && call.credential.body.is_empty();
        if !asks || secured.is_some() || !good.offers_tls() {
            return Err(Refusal::Auth(AuthStat::BadCred));
        }
        if call.verifier.flavor != flavor::NONE || !call.verifier.body.is_empty() {
            return Err(Refusal::Auth(AuthStat::BadVerf));
        }
        return Ok(true);
    }
    let good_enough = match secured {
        None => good.none,
        Some(Secured { certified, .. }) => good.tls || (good.mtls && *certified),
    };
    match !is_secured(call.program) || call.procedure == NULL || good_enough {
        true => Ok(false),
        false => Err(Refusal::Auth(AuthStat::TooWeak)),
    }
}
