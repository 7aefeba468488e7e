//! Access control by connection and credential: the transport security that NFS calls require, the
//! mapping of certificates to users (RFC 9289), and the accepted security flavors.
//!
//! The rules apply to NFS, NFS_ACL and NLM. MOUNT and NSM are open to all: a handle from MOUNT is
//! useless without NFS, and NSM releases only locks of the calling host. Linux's NLM supports
//! neither TLS nor RPCSEC_GSS. Where plain connections or AUTH_SYS are refused, its v3 mounts need
//! `nolock`, and v4 is the better choice.

use vfs::{Caller, Groups};
use wire::TlsPeer;

use super::gss::{Authenticated, Flavor};
use crate::rpc::{self, AuthStat, CallRejection, flavor, program};

/// The accepted kinds of transport security, as `xprtsec=` of exports(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// Without TLS.
    pub none: bool,
    /// With TLS.
    pub tls: bool,
    /// With TLS and a client certificate.
    pub mtls: bool,
}

impl Transports {
    /// Only connections without TLS; TLS is not offered.
    pub const PLAIN: Transports = Transports {
        none: true,
        tls: false,
        mtls: false,
    };

    /// Returns whether TLS is offered.
    pub fn offers_tls(self) -> bool {
        self.tls || self.mtls
    }
}

/// The user that a certificate maps to, for all credentials in its owner's calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedUser {
    /// A name in the certificate, as in [`TlsPeer`].
    pub name: String,
    /// The user's id.
    pub uid: u32,
    /// The group's id.
    pub gid: u32,
}

/// The identity of a connection under TLS.
pub(super) struct TlsIdentity {
    certified: bool,
    pub(super) caller: Option<Caller>,
}

impl TlsIdentity {
    pub(super) fn of(peer: &TlsPeer, users: &[CertifiedUser]) -> TlsIdentity {
        let names = peer.names.as_deref().unwrap_or_default();
        let user = users.iter().find(|user| names.contains(&user.name));
        TlsIdentity {
            certified: peer.names.is_some(),
            caller: user.map(|user| Caller {
                uid: user.uid,
                gid: user.gid,
                groups: Groups::Unknown,
            }),
        }
    }
}

/// Returns whether the caller's security flavor is one of `flavors`; `credential` is that of the
/// call's credential.
pub(super) fn allows_flavor(
    flavors: &[Flavor],
    credential: u32,
    authenticated: Option<&Authenticated<'_>>,
) -> bool {
    match (authenticated, credential) {
        (Some(by), _) => (flavors.iter()).any(|flavor| flavor.service() == Some(by.service)),
        (None, flavor::NONE) => flavors.contains(&Flavor::None),
        (None, _) => flavors.contains(&Flavor::Sys),
    }
}

/// Returns whether the call requires one of the accepted flavors. MOUNT, NSM and NULL do not, as
/// above; v4 checks each operation itself.
pub(super) fn requires_flavor(program: u32, version: u32, procedure: u32) -> bool {
    is_secured(program) && (program, version) != (program::NFS, 4) && procedure != 0
}

/// Returns whether `program` gives access to files, their locks or their quotas.
fn is_secured(program: u32) -> bool {
    [
        program::NFS,
        program::NFS_ACL,
        program::NLM,
        program::RQUOTA,
    ]
    .contains(&program)
}

/// Checks the connection of `call` against `accepted`; `secured` if it is under TLS. Returns
/// whether the call is a valid request for TLS. The error is `TooWeak` if the connection is not
/// good enough.
pub(super) fn check_transport(
    call: &rpc::Call<'_>,
    secured: Option<&TlsIdentity>,
    accepted: Transports,
) -> Result<bool, CallRejection> {
    const NULL: u32 = 0;
    if call.credential.flavor == flavor::TLS {
        // Section 4.1.
        let asks = call.procedure == NULL && call.credential.body.is_empty();
        if !asks || secured.is_some() || !accepted.offers_tls() {
            return Err(CallRejection::Auth(AuthStat::BadCred));
        }
        if call.verifier.flavor != flavor::NONE || !call.verifier.body.is_empty() {
            return Err(CallRejection::Auth(AuthStat::BadVerf));
        }
        return Ok(true);
    }
    let is_sufficient = match secured {
        None => accepted.none,
        Some(TlsIdentity { certified, .. }) => accepted.tls || (accepted.mtls && *certified),
    };
    match !is_secured(call.program) || call.procedure == NULL || is_sufficient {
        true => Ok(false),
        false => Err(CallRejection::Auth(AuthStat::TooWeak)),
    }
}
