//! The options of NFS state that several servers share.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Args, Command};
use etcd::Endpoints;

use crate::Failure;
use crate::serve::recovery::etcd::Settings;

/// The default of `--nfs-state-ttl` in seconds.
const DEFAULT_TTL: u16 = 10;

#[derive(Args)]
pub(crate) struct StateArgs {
    /// Keys in etcd for the state of NFS, to share it with standby servers
    ///
    /// etcd://HOST:PORT[,HOST:PORT...]/PREFIX. One server of a prefix is active; the others wait
    /// without listening, and one takes over when the lease has expired: clients then reclaim opens
    /// and locks. All servers need the same file system and the same file handle-key in their state
    /// directories.
    #[arg(long, value_name = "URL", requires = "nfs", value_parser = UrlParser)]
    nfs_state: Option<Endpoints>,
    /// Time to live of the active server's lease, seconds [default: 10]
    ///
    /// A standby server takes over that long after the active one ends without a message. A server
    /// that does not reach etcd for three quarters of it no longer answers, and then ends.
    #[arg(long, value_name = "SECONDS", requires = "nfs_state",
          value_parser = clap::value_parser!(u16).range(2..=120))]
    nfs_state_ttl: Option<u16>,
    /// Authorities of etcd's certificates, PEM; its use means TLS
    #[arg(long, value_name = "FILE", requires = "nfs_state")]
    nfs_state_ca: Option<PathBuf>,
    /// Client certificate chain for etcd, PEM
    #[arg(long, value_name = "FILE", requires_all = ["nfs_state", "nfs_state_key"])]
    nfs_state_cert: Option<PathBuf>,
    /// Key of the client certificate for etcd, PEM
    #[arg(long, value_name = "FILE", requires = "nfs_state_cert")]
    nfs_state_key: Option<PathBuf>,
    /// File with a line USER:PASSWORD of etcd
    ///
    /// Other users must not be able to read it.
    #[arg(long, value_name = "FILE", requires = "nfs_state")]
    nfs_state_auth: Option<PathBuf>,
}

/// The parser of the URL. Its errors do not quote one with a user and a password.
#[derive(Clone)]
struct UrlParser;

impl TypedValueParser for UrlParser {
    type Value = Endpoints;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Endpoints, clap::Error> {
        let parsed = Endpoints::from_str.parse_ref(command, arg, value);
        parsed.map_err(|mut error| {
            if value.as_encoded_bytes().contains(&b'@') {
                let hidden = ContextValue::String("etcd://...".into());
                error.insert(ContextKind::InvalidValue, hidden);
            }
            error
        })
    }
}

impl StateArgs {
    /// Returns whether the state is shared.
    pub(in crate::serve) fn is_shared(&self) -> bool {
        self.nfs_state.is_some()
    }

    /// Returns the settings, if the state is shared.
    pub(in crate::serve) fn plan(&self) -> Result<Option<Settings>, Failure> {
        let Some(endpoints) = self.nfs_state.clone() else {
            return Ok(None);
        };
        let settings = Settings {
            endpoints,
            ttl: Duration::from_secs(self.nfs_state_ttl.unwrap_or(DEFAULT_TTL).into()),
            ca: self.nfs_state_ca.clone(),
            client: self.nfs_state_cert.clone().zip(self.nfs_state_key.clone()),
            auth: self.nfs_state_auth.clone(),
        };
        settings.check()?;
        Ok(Some(settings))
    }
}
