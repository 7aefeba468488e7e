//! RPCSEC_GSS messages (RFC 2203 section 5).

use wire::{Malformed, Xdr, XdrReader, xdr_enum, xdr_struct};

use super::auth::{AuthStat, OpaqueAuth};

/// The supported version.
const VERSION: u32 = 1;

/// The highest sequence number (`MAXSEQ`).
const MAX_SEQUENCE: u32 = 0x8000_0000;

xdr_enum! {
    /// The purpose of a call (`rpc_gss_proc_t`).
    pub(crate) enum GssProcedure {
        /// A call that uses an established context.
        Data = 0,
        /// A request for a context, with the first token.
        Init = 1,
        /// A request for a context, with a further token.
        ContinueInit = 2,
        /// A request to destroy the context.
        Destroy = 3,
    }

    /// The protection of arguments and results (`rpc_gss_service_t`).
    pub(crate) enum Service {
        /// No protection.
        None = 1,
        /// Signed.
        Integrity = 2,
        /// Encrypted.
        Privacy = 3,
    }
}

/// The body of an RPCSEC_GSS credential.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GssCredential<'a> {
    pub(crate) procedure: GssProcedure,
    /// Undefined in context creation requests, as is the service.
    pub(crate) sequence: u32,
    pub(crate) service: Service,
    pub(crate) handle: &'a [u8],
}

impl<'a> GssCredential<'a> {
    /// Parses the credential in `auth`.
    pub(crate) fn of(auth: &OpaqueAuth<'a>) -> Result<GssCredential<'a>, AuthStat> {
        let read = || -> Result<_, Malformed> {
            let mut body = XdrReader::new(auth.body);
            let version = body.u32()?;
            if version != VERSION {
                return Err(Malformed::new(format!(
                    "expected version {VERSION}, got {version}"
                )));
            }
            let procedure = GssProcedure::get(&mut body)?;
            let (sequence, service) = (body.u32()?, body.u32()?);
            let makes = [GssProcedure::Init, GssProcedure::ContinueInit].contains(&procedure);
            let credential = GssCredential {
                procedure,
                sequence: if makes { 0 } else { sequence },
                service: match Service::from_number(service) {
                    Some(service) => service,
                    None if makes => Service::None,
                    None => return Err(Malformed::new(format!("unknown service {service}"))),
                },
                handle: body.opaque(OpaqueAuth::MAX_BODY)?,
            };
            body.end()?;
            Ok(credential)
        };
        let credential = read().map_err(|_| AuthStat::BadCred)?;
        match credential.sequence > MAX_SEQUENCE {
            true => Err(AuthStat::CtxProblem),
            false => Ok(credential),
        }
    }

    /// Returns whether the call is a context creation request.
    pub(crate) fn makes_context(&self) -> bool {
        matches!(
            self.procedure,
            GssProcedure::Init | GssProcedure::ContinueInit
        )
    }

    /// Returns whether the call is served with full patience only: lanes neither look up principals
    /// nor run ciphers.
    pub(crate) fn needs_full_patience(&self) -> bool {
        self.makes_context() || self.service != Service::None
    }
}

xdr_struct! {
    /// The results of a context creation request (`rpc_gss_init_res`).
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct InitResult<'a> {
        pub(crate) handle: &'a [u8],
        /// The GSS-API status codes.
        pub(crate) major: u32,
        pub(crate) minor: u32,
        /// The size of the sequence window.
        pub(crate) window: u32,
        pub(crate) token: &'a [u8],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::flavor;

    fn read(body: &[u8]) -> Result<GssCredential<'_>, AuthStat> {
        GssCredential::of(&OpaqueAuth {
            flavor: flavor::GSS,
            body,
        })
    }

    #[test]
    fn rfc2203_5_3_3_3_what_is_no_credential_is_a_bad_one() {
        let body = |words: [u32; 6]| words.map(u32::to_be_bytes).concat();
        let good = body([1, 0, 9, 3, 4, 77]);
        let credential = read(&good).expect("a credential");
        assert_eq!(credential.procedure, GssProcedure::Data);
        assert_eq!(credential.service, Service::Privacy);
        assert_eq!((credential.sequence, credential.handle), (9, &good[20..]));
        for len in 0..good.len() {
            assert_eq!(read(&good[..len]), Err(AuthStat::BadCred), "{len}");
        }
        assert_eq!(read(&[&good[..], &[0; 4]].concat()), Err(AuthStat::BadCred));
        for bad in [[2, 0, 9, 3, 4, 7], [1, 4, 9, 3, 4, 7], [1, 0, 9, 0, 4, 7]] {
            assert_eq!(read(&body(bad)), Err(AuthStat::BadCred), "{bad:?}");
        }
        assert!(read(&body([1, 1, u32::MAX, 0, 4, 7])).is_ok(), "undefined");
        let high = body([1, 0, MAX_SEQUENCE + 1, 3, 4, 7]);
        assert_eq!(read(&high), Err(AuthStat::CtxProblem));
    }
}
