//! Credentials: AUTH_NONE and AUTH_SYS (RFC 5531 section 8, appendix A).

use std::sync::Arc;

use vfs::{Caller, Groups};
use wire::{Malformed, Put, Xdr, XdrReader, xdr_enum, xdr_struct};

/// The flavors of credentials and verifiers.
pub(crate) mod flavor {
    /// AUTH_NONE.
    pub(crate) const NONE: u32 = 0;
    /// AUTH_SYS.
    pub(crate) const SYS: u32 = 1;
    /// RPCSEC_GSS (RFC 2203).
    pub(crate) const GSS: u32 = 6;
    /// AUTH_TLS (RFC 9289 section 4.1): a request to secure the connection, without a caller.
    pub(crate) const TLS: u32 = 7;
}

xdr_enum! {
    /// The reason for which a credential is rejected.
    #[allow(dead_code)]
    pub(crate) enum AuthStat {
        /// The credential is malformed.
        BadCred = 1,
        /// The verifier is malformed.
        BadVerf = 3,
        /// The flavor is too weak.
        TooWeak = 5,
        /// RPCSEC_GSS: unknown context, or a signature that is not its client's (RFC 2203 section
        /// 5.3.3.3).
        CredProblem = 13,
        /// RPCSEC_GSS: the context cannot be used any longer (RFC 2203 section 5.3.3.3).
        CtxProblem = 14,
    }
}

xdr_struct! {
    /// A credential or verifier in a message (`opaque_auth`).
    pub(crate) struct OpaqueAuth<'a> {
        pub(crate) flavor: u32,
        pub(crate) body: &'a [u8],
    }
}

impl OpaqueAuth<'_> {
    /// The maximum length of a body.
    pub(crate) const MAX_BODY: usize = 400;

    /// AUTH_NONE.
    pub(crate) const NONE: OpaqueAuth<'static> = OpaqueAuth {
        flavor: flavor::NONE,
        body: &[],
    };
}

/// A parsed credential.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS, whose ids are not verified.
    Sys(SysCredential),
}

/// The body of an AUTH_SYS credential.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SysCredential {
    /// The machine name that the client claims.
    pub(crate) machine: Vec<u8>,
    /// The user that it claims.
    pub(crate) caller: Caller,
}

impl Credential {
    /// Parses the credential in `auth`.
    pub(crate) fn of(auth: &OpaqueAuth<'_>) -> Result<Credential, AuthStat> {
        if auth.body.len() > OpaqueAuth::MAX_BODY {
            return Err(AuthStat::BadCred);
        }
        match auth.flavor {
            flavor::NONE => Ok(Credential::None),
            flavor::SYS => {
                let mut body = XdrReader::new(auth.body);
                let sys = SysCredential::get(&mut body).map_err(|_| AuthStat::BadCred)?;
                body.end().map_err(|_| AuthStat::BadCred)?;
                Ok(Credential::Sys(sys))
            }
            _ => Err(AuthStat::TooWeak),
        }
    }
}

impl Xdr<'_> for SysCredential {
    fn get(from: &mut XdrReader<'_>) -> Result<SysCredential, Malformed> {
        let _stamp = from.u32()?;
        let machine = from.opaque(255)?.to_vec();
        let (uid, gid) = (from.u32()?, from.u32()?);
        let groups = Vec::<u32>::get(from)?;
        if groups.len() > 16 {
            return Err(Malformed::new("expected at most 16 groups"));
        }
        Ok(SysCredential {
            machine,
            caller: Caller {
                uid,
                gid,
                groups: Groups::Known(groups.into()),
            },
        })
    }

    fn put(&self, to: &mut impl Put) {
        0u32.put(to);
        self.machine.as_slice().put(to);
        self.caller.uid.put(to);
        self.caller.gid.put(to);
        let groups: Arc<[u32]> = match &self.caller.groups {
            Groups::Known(groups) => groups.clone(),
            Groups::Unknown => Arc::default(),
        };
        groups[..groups.len().min(16)].to_vec().put(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_sys_goes_there_and_back_and_no_further() {
        let sys = SysCredential {
            machine: b"guest".to_vec(),
            caller: Caller {
                uid: 1000,
                gid: 100,
                groups: Groups::Known([4, 24].into()),
            },
        };
        let mut body = Vec::new();
        sys.put(&mut body);
        let of = |body: &[u8]| {
            Credential::of(&OpaqueAuth {
                flavor: flavor::SYS,
                body,
            })
        };
        assert_eq!(of(&body), Ok(Credential::Sys(sys)));
        for len in 0..body.len() {
            assert_eq!(of(&body[..len]), Err(AuthStat::BadCred), "{len}");
        }
        body.extend([0; 4]);
        assert_eq!(of(&body), Err(AuthStat::BadCred));
        assert_eq!(
            Credential::of(&OpaqueAuth {
                flavor: 6,
                body: &[]
            }),
            Err(AuthStat::TooWeak)
        );
    }
}
