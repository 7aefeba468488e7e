//! The options of TLS for NFS, and the acceptor they configure.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use nfs::server::{CertifiedUser, Transports};
use tls::{Acceptor, ClientAuth, TlsFiles};

use super::host::Host;
use crate::Failure;

/// Reads the files of `acceptor` again.
pub(super) fn reload_certificates(acceptor: &Acceptor) {
    match acceptor.reload() {
        Ok(()) => tracing::info!("certificates reloaded"),
        Err(why) => tracing::error!("keeping the previous certificates: {why}"),
    }
}

#[derive(Args)]
pub(crate) struct TlsArgs {
    /// Certificate chain to offer TLS to NFS clients with, PEM
    ///
    /// RFC 9289, mount option xprtsec=tls. SIGHUP reads it and the other TLS files again.
    #[arg(long, value_name = "FILE", requires_all = ["nfs", "nfs_tls_key"])]
    nfs_tls_cert: Option<PathBuf>,
    /// Private key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "nfs_tls_cert")]
    nfs_tls_key: Option<PathBuf>,
    /// Authorities to verify certificates of NFS clients with, PEM
    ///
    /// Needed for xprtsec=mtls.
    #[arg(long, value_name = "FILE", requires = "nfs_tls_cert")]
    nfs_tls_ca: Option<PathBuf>,
    /// Transport security that NFS and NLM accept, as xprtsec= of exports(5)
    ///
    /// none, tls and mtls, with colons between them. Linux locks over v3 on plain connections only:
    /// without none, mount v3 with nolock [default: all that the other options allow]
    #[arg(long, value_name = "LIST", requires = "nfs_tls_cert")]
    nfs_xprtsec: Option<Xprtsec>,
    /// User that clients with a certificate of this name act as; may be repeated
    ///
    /// The name is email:…, DNS:… or URI:…. The user of their requests is ignored.
    #[arg(long, value_name = "NAME=UID:GID", requires = "nfs_tls_ca")]
    nfs_tls_user: Vec<TlsUser>,
}

impl TlsArgs {
    /// Returns the TLS configuration, or `None` without a certificate.
    pub(super) fn plan(&self) -> Result<Option<Tls>, Failure> {
        if self.nfs_tls_cert.is_none() {
            return Ok(None);
        }
        let certified = self.nfs_tls_ca.is_some();
        let transports = match self.nfs_xprtsec {
            Some(Xprtsec(transports)) if transports.mtls && !certified => {
                let why = "--nfs-xprtsec with mtls: expected --nfs-tls-ca";
                return Err(Failure::usage(why));
            }
            Some(Xprtsec(transports)) => transports,
            None => Transports {
                none: true,
                tls: true,
                mtls: certified,
            },
        };
        Ok(Some(Tls {
            files: TlsFiles {
                cert: self.nfs_tls_cert.clone(),
                key: self.nfs_tls_key.clone(),
                ca: self.nfs_tls_ca.clone(),
            },
            transports,
            users: self
                .nfs_tls_user
                .iter()
                .map(|user| user.0.clone())
                .collect(),
        }))
    }
}

/// The TLS configuration of NFS.
pub(super) struct Tls {
    files: TlsFiles,
    pub(super) transports: Transports,
    pub(super) users: Arc<[CertifiedUser]>,
}

impl Tls {
    /// Returns its files.
    pub(super) fn files(&self) -> Vec<&Path> {
        let TlsFiles { cert, key, ca } = &self.files;
        [cert, key, ca]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
            .collect()
    }

    /// Returns the acceptor that secures connections. Its files are those of `host`.
    pub(super) fn acceptor(&self, host: Host) -> Result<Arc<Acceptor>, Failure> {
        let Transports { none, tls, mtls } = self.transports;
        let demand = match mtls && !tls {
            true => ClientAuth::Required,
            false => ClientAuth::Optional,
        };
        tracing::debug!(none, tls, mtls, "NFS with TLS");
        let read = Box::new(move |path: &Path| host.read(path));
        Acceptor::open(self.files.clone(), read, demand, nfs::ALPN)
            .map(Arc::new)
            .map_err(|why| Failure::new(format!("TLS: {why}")))
    }
}

#[derive(Clone, Copy)]
struct Xprtsec(Transports);

impl FromStr for Xprtsec {
    type Err = String;

    fn from_str(text: &str) -> Result<Xprtsec, String> {
        let mut transports = Transports {
            none: false,
            tls: false,
            mtls: false,
        };
        for word in text.split(':') {
            match word {
                "none" => transports.none = true,
                "tls" => transports.tls = true,
                "mtls" => transports.mtls = true,
                _ => return Err(format!("expected none, tls or mtls, got '{word}'")),
            }
        }
        match transports.offers_tls() {
            true => Ok(Xprtsec(transports)),
            false => Err("expected tls or mtls in addition to none".into()),
        }
    }
}

#[derive(Clone)]
struct TlsUser(CertifiedUser);

impl FromStr for TlsUser {
    type Err = String;

    fn from_str(text: &str) -> Result<TlsUser, String> {
        let bad = || "expected NAME=UID:GID with a NAME such as email:…, DNS:… or URI:…".to_owned();
        let (name, ids) = text.rsplit_once('=').ok_or_else(bad)?;
        let known = ["email:", "DNS:", "URI:"];
        if !known.iter().any(|kind| name.starts_with(kind)) {
            return Err(bad());
        }
        let (uid, gid) = ids.split_once(':').ok_or_else(bad)?;
        let id = |text: &str| text.parse().map_err(|_| bad());
        Ok(TlsUser(CertifiedUser {
            name: name.to_owned(),
            uid: id(uid)?,
            gid: id(gid)?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_users_are_read_and_what_is_none_says_so() {
        let list = |text: &str| {
            text.parse()
                .map(|Xprtsec(all)| (all.none, all.tls, all.mtls))
        };
        assert_eq!(list("none:tls:mtls"), Ok((true, true, true)));
        assert_eq!(list("mtls"), Ok((false, false, true)));
        for bad in ["", "none", "tls,mtls", "tls:"] {
            assert!(list(bad).expect_err(bad).contains("expected"), "{bad}");
        }
        let user = |text: &str| {
            text.parse()
                .map(|TlsUser(user)| (user.name, user.uid, user.gid))
        };
        let alice = ("email:alice@example.org".to_owned(), 1000, 100);
        assert_eq!(user("email:alice@example.org=1000:100"), Ok(alice));
        assert_eq!(user("URI:a=b=1:2"), Ok(("URI:a=b".to_owned(), 1, 2)));
        for bad in ["alice=1:2", "email:a", "email:a=1", "email:a=x:1"] {
            assert!(user(bad).expect_err(bad).contains("NAME=UID:GID"), "{bad}");
        }
    }
}
