//! The options of NFS security flavors (`sec=`), and the GSS mechanism they configure.

mod krb5;

use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use nfs::server::{Flavor, Mechanism};

use crate::Failure;

#[derive(Args)]
pub(crate) struct SecArgs {
    /// Security flavors of NFS, as sec= of exports(5) [default: sys]
    ///
    /// none (callers act as the anonymous user), sys, krb5, krb5i and krb5p, with colons between
    /// them, the preferred ones first; calls of others are refused. Kerberos needs a key of
    /// nfs/HOST in $KRB5_KTNAME or /etc/krb5.keytab. Locks of v3 (NLM) are included, which Linux
    /// requests with sys: without sys, mount v3 with nolock.
    #[arg(long, value_name = "LIST", requires = "nfs")]
    nfs_sec: Option<FlavorList>,
    /// User that a Kerberos principal acts as; may be repeated
    ///
    /// A principal is written as nfs/host.example.org@EXAMPLE.ORG [default: the user of the name
    /// before @ in the realm of the server, else the anonymous user]
    #[arg(long, value_name = "PRINCIPAL=UID:GID", requires = "nfs_sec")]
    nfs_gss_user: Vec<PrincipalUser>,
}

impl SecArgs {
    /// Returns the configuration, or `None` without `--nfs-sec`.
    pub(in crate::serve) fn plan(&self) -> Option<Security> {
        let FlavorList(flavors) = self.nfs_sec.clone()?;
        Some(Security {
            flavors,
            users: self.nfs_gss_user.clone().into(),
        })
    }
}

/// The security flavors of NFS, and the users of principals.
pub(in crate::serve) struct Security {
    pub(in crate::serve) flavors: Arc<[Flavor]>,
    users: Arc<[PrincipalUser]>,
}

impl Security {
    /// Returns the `sec=` option for a mount command: the preferred flavor, or no option if sys is
    /// accepted.
    pub(in crate::serve) fn mount_option(&self) -> &'static str {
        match self.flavors.first() {
            _ if self.flavors.contains(&Flavor::Sys) => "",
            Some(Flavor::None) => ",sec=none",
            Some(Flavor::Krb5) => ",sec=krb5",
            Some(Flavor::Krb5i) => ",sec=krb5i",
            Some(Flavor::Krb5p) => ",sec=krb5p",
            Some(Flavor::Sys) | None => "",
        }
    }

    /// Returns whether a flavor is one of Kerberos.
    pub(in crate::serve) fn uses_kerberos(&self) -> bool {
        let mut flavors = self.flavors.iter();
        flavors.any(|flavor| !matches!(flavor, Flavor::None | Flavor::Sys))
    }

    /// Returns the GSS mechanism, or `None` without Kerberos.
    pub(in crate::serve) fn mechanism(&self) -> Result<Option<Arc<dyn Mechanism>>, Failure> {
        if !self.uses_kerberos() {
            return Ok(None);
        }
        let krb5 = krb5::Krb5::open(self.users.clone())
            .map_err(|why| Failure::new(format!("--nfs-sec: no key of nfs/HOST: {why}")))?;
        Ok(Some(Arc::new(krb5)))
    }
}

#[derive(Clone)]
struct FlavorList(Arc<[Flavor]>);

impl FromStr for FlavorList {
    type Err = String;

    fn from_str(text: &str) -> Result<FlavorList, String> {
        let mut flavors = Vec::new();
        for word in text.split(':') {
            let flavor = match word {
                "none" => Flavor::None,
                "sys" => Flavor::Sys,
                "krb5" => Flavor::Krb5,
                "krb5i" => Flavor::Krb5i,
                "krb5p" => Flavor::Krb5p,
                _ => {
                    return Err(format!(
                        "expected none, sys, krb5, krb5i or krb5p, got '{word}'"
                    ));
                }
            };
            if flavors.contains(&flavor) {
                return Err(format!("expected {word} only once"));
            }
            flavors.push(flavor);
        }
        Ok(FlavorList(flavors.into()))
    }
}

/// The user that a principal acts as.
#[derive(Clone)]
struct PrincipalUser {
    principal: String,
    uid: u32,
    gid: u32,
}

impl FromStr for PrincipalUser {
    type Err = String;

    fn from_str(text: &str) -> Result<PrincipalUser, String> {
        let bad = || "expected PRINCIPAL=UID:GID, such as alice@EXAMPLE.ORG=1000:1000".to_owned();
        let (principal, ids) = text.rsplit_once('=').ok_or_else(bad)?;
        if principal
            .split_once('@')
            .is_none_or(|(name, realm)| name.is_empty() || realm.is_empty())
        {
            return Err(bad());
        }
        let (uid, gid) = ids.split_once(':').ok_or_else(bad)?;
        let id = |text: &str| text.parse().map_err(|_| bad());
        Ok(PrincipalUser {
            principal: principal.to_owned(),
            uid: id(uid)?,
            gid: id(gid)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_users_are_read_and_what_is_none_says_so() {
        let list = |text: &str| text.parse().map(|FlavorList(flavors)| flavors.to_vec());
        use Flavor::*;
        assert_eq!(
            list("krb5p:krb5i:krb5:sys"),
            Ok(vec![Krb5p, Krb5i, Krb5, Sys])
        );
        assert_eq!(list("sys"), Ok(vec![Sys]));
        assert_eq!(list("sys:none"), Ok(vec![Sys, Flavor::None]));
        for bad in ["", "any", "sys,krb5", "krb5:", "sys:sys"] {
            assert!(list(bad).expect_err(bad).contains("expected"), "{bad}");
        }
        let user = |text: &str| {
            text.parse()
                .map(|user: PrincipalUser| (user.principal, user.uid, user.gid))
        };
        let machine = ("nfs/host@EXAMPLE.ORG".to_owned(), 0, 7);
        assert_eq!(user("nfs/host@EXAMPLE.ORG=0:7"), Ok(machine));
        for bad in [
            "alice=1:2",
            "alice@=1:2",
            "@R=1:2",
            "a@R",
            "a@R=1",
            "a@R=x:1",
        ] {
            assert!(user(bad).expect_err(bad).contains("PRINCIPAL"), "{bad}");
        }
    }
}
