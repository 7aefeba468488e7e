//! The options of NFS state that several servers share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use etcd::Endpoints;

use crate::Failure;
use crate::serve::recovery::etcd::Settings;

#[derive(Args)]
pub(crate) struct StateArgs {
    /// Keys in etcd for the state of NFS, to share it with standby servers
    ///
    /// etcd://HOST:PORT[,HOST:PORT...]/PREFIX. One server of a prefix is active; the others wait
    /// without listening, and one takes over when the lease has expired: clients then reclaim opens
    /// and locks. All servers need the same file system and the same file handle-key in their state
    /// directories.
    #[arg(
        long = "nfs-state",
        id = "nfs-state",
        value_name = "URL",
        requires = "nfs"
    )]
    url: Option<Endpoints>,
    /// Time to live of the active server's lease, seconds
    ///
    /// A standby server takes over that long after the active one ends without a message. A server
    /// that does not reach etcd for three quarters of it no longer answers, and then ends.
    #[arg(long = "nfs-state-ttl", value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u16).range(2..=120))]
    ttl: u16,
    /// Authorities of etcd's certificates, PEM; its use means TLS
    #[arg(long = "nfs-state-ca", value_name = "FILE", requires = "nfs-state")]
    ca: Option<PathBuf>,
    /// Client certificate chain for etcd, PEM
    #[arg(
        long = "nfs-state-cert",
        id = "nfs-state-cert",
        value_name = "FILE",
        requires = "nfs-state-key"
    )]
    cert: Option<PathBuf>,
    /// Key of the client certificate for etcd, PEM
    #[arg(
        long = "nfs-state-key",
        id = "nfs-state-key",
        value_name = "FILE",
        requires = "nfs-state-cert"
    )]
    key: Option<PathBuf>,
    /// File with a line USER:PASSWORD of etcd
    ///
    /// Other users must not be able to read it.
    #[arg(long = "nfs-state-auth", value_name = "FILE", requires = "nfs-state")]
    auth: Option<PathBuf>,
}

impl StateArgs {
    /// Returns whether the state is shared.
    pub(in crate::serve) fn is_shared(&self) -> bool {
        self.url.is_some()
    }

    /// Returns the settings, if the state is shared.
    pub(in crate::serve) fn plan(&self) -> Result<Option<Settings>, Failure> {
        let Some(url) = &self.url else {
            return Ok(None);
        };
        let settings = Settings {
            endpoints: url.clone(),
            ttl: Duration::from_secs(self.ttl.into()),
            ca: self.ca.clone(),
            client: self.cert.clone().zip(self.key.clone()),
            auth: self.auth.clone(),
        };
        settings.check()?;
        Ok(Some(settings))
    }
}
