//! Kerberos 5 with the system's GSS-API: keys are from the keytab of `$KRB5_KTNAME`, users from
//! nsswitch.conf(5).
//!
//! A context is used by one thread at a time (RFC 2743).

use std::ffi::CString;
use std::sync::Arc;

use libgssapi::context::{SecurityContext, ServerCtx};
use libgssapi::credential::{Cred, CredUsage};
use libgssapi::error::{Error, MajorFlags};
use libgssapi::name::Name;
use libgssapi::oid::{GSS_MECH_KRB5, GSS_NT_HOSTBASED_SERVICE, OidSet};
use nfs::server::{Accepted, Context, Mechanism, Principal};
use sys::users;
use transports::{Frame, Outbox};
use vfs::{Caller, Groups, LogLimit};
use wire::{Incoming, Outgoing};

use super::PrincipalUser;

/// The server's credential, and the users that principals map to.
pub(super) struct Krb5 {
    credential: Cred,
    users: Arc<[PrincipalUser]>,
}

impl Krb5 {
    /// Acquires any key of the service nfs, for any host name.
    pub(super) fn open(users: Arc<[PrincipalUser]>) -> Result<Krb5, Error> {
        let service = Name::new(b"nfs", Some(GSS_NT_HOSTBASED_SERVICE))?;
        let mut mechanisms = OidSet::new();
        mechanisms.add(GSS_MECH_KRB5)?;
        let credential = Cred::acquire(Some(&service), None, CredUsage::Accept, Some(&mechanisms))?;
        Ok(Krb5 { credential, users })
    }
}

impl Mechanism for Krb5 {
    fn begin(&self) -> Box<dyn Context> {
        Box::new(Krb5Context {
            context: ServerCtx::new(Some(self.credential.clone())),
            users: self.users.clone(),
        })
    }

    fn message(&self, bytes: &[u8], to: &mut dyn FnMut(&dyn Incoming)) {
        to(&Frame(bytes));
    }

    fn compose(
        &self,
        write: &mut dyn FnMut(&mut dyn Outgoing) -> bool,
        then: &mut dyn FnMut(&[u8]),
    ) {
        let mut outbox = Outbox::default();
        if write(outbox.begin()) {
            then(outbox.bytes());
        }
    }
}

struct Krb5Context {
    context: ServerCtx,
    users: Arc<[PrincipalUser]>,
}

impl Context for Krb5Context {
    fn accept(&mut self, token: &[u8]) -> Accepted {
        let step = self.context.step(token, None);
        let done = step.and_then(|token| {
            let token = token.map_or(Vec::new(), |token| token.to_vec());
            match self.context.is_complete() {
                true => Ok(Accepted::Complete(token, self.principal()?)),
                false => Ok(Accepted::Continue(token)),
            }
        });
        done.unwrap_or_else(|why| {
            static REFUSED: LogLimit<()> = LogLimit::new();
            if let Some(suppressed) = REFUSED.permit(()) {
                tracing::info!(suppressed, "RPCSEC_GSS context refused: {why}");
            }
            Accepted::Failed(why.major.bits(), why.minor)
        })
    }

    fn verify_mic(&mut self, bytes: &[u8], mic: &[u8]) -> bool {
        // RPCSEC_GSS has its own sequence numbers: a MIC that is only out of the mechanism's order
        // is valid.
        let order = MajorFlags::GSS_S_DUPLICATE_TOKEN
            | MajorFlags::GSS_S_OLD_TOKEN
            | MajorFlags::GSS_S_UNSEQ_TOKEN
            | MajorFlags::GSS_S_GAP_TOKEN;
        match self.context.verify_mic(bytes, mic) {
            Ok(()) => true,
            Err(why) => order.contains(why.major),
        }
    }

    fn get_mic(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        bytes_or_log(self.context.get_mic(bytes))
    }

    fn wrap(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        bytes_or_log(self.context.wrap(true, bytes))
    }

    fn unwrap(&mut self, sealed: &[u8]) -> Option<Vec<u8>> {
        // A flag of an RFC 4121 token (section 4.2.6.2) says whether it is encrypted.
        const SEALED: u8 = 2;
        if let [5, 4, flags, ..] = sealed
            && flags & SEALED == 0
        {
            return None;
        }
        bytes_or_log(self.context.unwrap(sealed))
    }
}

fn bytes_or_log(made: Result<libgssapi::util::Buf, Error>) -> Option<Vec<u8>> {
    match made {
        Ok(bytes) => Some(bytes.to_vec()),
        Err(why) => {
            tracing::debug!("RPCSEC_GSS: {why}");
            None
        }
    }
}

impl Krb5Context {
    /// Returns the client of the context.
    fn principal(&self) -> Result<Principal, Error> {
        let text = |name: Name| -> Result<String, Error> {
            Ok(String::from_utf8_lossy(&name.display_name()?).into_owned())
        };
        let name = text(self.context.source_name()?)?;
        let server = text(self.context.target_name()?)?;
        let caller = match self.users.iter().find(|user| user.principal == name) {
            Some(user) => Some((user.uid, user.gid)),
            None => local_name(&name, &server).and_then(host_user),
        };
        Ok(Principal {
            caller: caller.map(|(uid, gid)| Caller {
                uid,
                gid,
                groups: Groups::Unknown,
            }),
            lifetime: self.context.lifetime()?,
            name,
        })
    }
}

/// Returns the local name of the client `principal`, if its realm is that of `server` and it is no
/// service.
fn local_name<'a>(principal: &'a str, server: &str) -> Option<&'a str> {
    let (name, realm) = principal.rsplit_once('@')?;
    let (_, ours) = server.rsplit_once('@')?;
    (realm == ours && !name.contains(['/', '@', '\\'])).then_some(name)
}

fn host_user(name: &str) -> Option<(u32, u32)> {
    let user = users::by_name(&CString::new(name).ok()?).ok()??;
    Some((user.uid, user.gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_users_of_the_servers_realm_have_names_here() {
        let local = |principal| local_name(principal, "nfs/server.a.org@A.ORG");
        assert_eq!(local("alice@A.ORG"), Some("alice"));
        for other in [
            "alice@B.ORG",
            "alice",
            "nfs/host@A.ORG",
            "root/admin@A.ORG",
            "a\\@b@A.ORG",
        ] {
            assert_eq!(local(other), None, "{other}");
        }
    }
}
