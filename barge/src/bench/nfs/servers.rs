//! The servers of NFS, each on the same directory.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use remote::nfs::{Dial, secured};
use tls::{Connector, Files};
use transports::{Addr, dial};

use super::super::network::Network;
use super::super::place::Place;
use super::super::process::{Process, free_port, packaged};
use crate::Failure;
use crate::tools::{self, Tool};

/// A server, and how it is reached.
pub(in crate::bench) struct Server {
    /// Where it is, if not in this process's own network.
    network: Option<Arc<Network>>,
    port: u16,
    mount_port: u16,
    /// What MOUNT calls the directory.
    pub(super) path: String,
    /// What it is called in v4's root, if it is not that.
    pub(super) name: Option<&'static str>,
    pub(in crate::bench) process: Process,
    /// What NFS is spoken over, if not a plain connection.
    secure: Option<Arc<Connector>>,
}

impl Server {
    /// The port of NFS.
    pub(in crate::bench) fn port(&self) -> u16 {
        self.port
    }

    /// Connects to NFS in `version`, or to MOUNT.
    pub(in crate::bench) fn dial(&self, mount: bool, version: u32) -> Dial {
        let port = if mount { self.mount_port } else { self.port };
        let addr = loopback(port);
        if let Some(connector) = self.secure.clone().filter(|_| !mount) {
            let network = self.network.clone();
            return Box::new(move || {
                let link = match &network {
                    Some(network) => network.within(|| dial(&addr))??,
                    None => dial(&addr)?,
                };
                secured(link, &connector, version)
            });
        }
        let Some(network) = self.network.clone() else {
            return Box::new(move || Ok(Box::new(dial(&addr)?)));
        };
        Box::new(move || Ok(Box::new(network.within(|| dial(&addr))??)))
    }
}

fn loopback(port: u16) -> Addr {
    Addr::Tcp {
        host: "127.0.0.1".into(),
        port,
    }
}

/// This very program, serving a directory with `options`, and another directory for what it keeps.
pub(in crate::bench) fn barge(
    dirs: (&Path, &Path),
    network: Option<&Arc<Network>>,
    options: &[&str],
) -> Result<(String, Server), Failure> {
    let server = start(dirs, network, options, None)?;
    Ok(([&["barge"], options].concat().join(" "), server))
}

/// It again, which is spoken to over TLS only, with a certificate made here; nothing without openssl, which makes it.
pub(super) fn secure(
    place: &Place,
    network: Option<&Arc<Network>>,
) -> Result<Option<(String, Server)>, Failure> {
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| place.run.join(name));
    let mut openssl = Command::new("openssl");
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"])
        .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args([
            "-subj",
            "/CN=bench",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert);
    if !openssl.output().is_ok_and(|done| done.status.success()) {
        return Ok(None);
    }
    let files = Files {
        ca: Some(cert.clone()),
        ..Files::default()
    };
    let connector = Connector::open(&files, "127.0.0.1", nfs::ALPN).map_err(Failure::new)?;
    let [cert, key] = [cert, key].map(|path| path.display().to_string());
    let options = [
        "--nfs-xprtsec",
        "tls",
        "--nfs-tls-cert",
        &cert,
        "--nfs-tls-key",
        &key,
    ];
    let dirs = (&*place.share, &*place.run);
    let server = start(dirs, network, &options, Some(Arc::new(connector)))?;
    Ok(Some(("barge over TLS".into(), server)))
}

fn start(
    (share, run): (&Path, &Path),
    network: Option<&Arc<Network>>,
    options: &[&str],
    secure: Option<Arc<Connector>>,
) -> Result<Server, Failure> {
    let port = free_port()?;
    let addr = loopback(port).to_string();
    let state = run.join(format!("state-{port}")).display().to_string();
    let all = [&["--nfs", &addr, "--state-dir", &state], options].concat();
    let start = || Process::barge(share, &all);
    let process = match network {
        Some(network) => network.within(start).map_err(Failure::new)?,
        None => start(),
    };
    Ok(Server {
        network: network.cloned(),
        port,
        mount_port: port,
        path: "/".into(),
        name: None,
        process: process?,
        secure,
    })
}

const PORT: u16 = 2049;
const MOUNT_PORT: u16 = 2050;
const NAME: &str = "share";

/// Whether nfs-ganesha can be had here.
pub(super) fn has_ganesha() -> bool {
    let root = rustix::process::geteuid().is_root();
    root && Tool::GANESHA.missing_from(&tools::dirs()).is_empty()
}

/// nfs-ganesha, if it starts.
pub(super) fn ganesha(
    place: &Place,
    network: &Arc<Network>,
) -> Result<Option<(String, Server)>, Failure> {
    let run = &place.run;
    let [config, log, pid] = ["config", "log", "pid"].map(|name| {
        let path = run.join(format!("ganesha.{name}"));
        path.display().to_string()
    });
    std::fs::create_dir_all(run.join("recovery")).map_err(Failure::new)?;
    std::fs::write(&config, ganesha_config(place)).map_err(Failure::new)?;
    let args = [
        "-F", "-f", &config, "-L", &log, "-p", &pid, "-N", "NIV_CRIT",
    ];
    let Some(process) = network.start("ganesha.nfsd", &args) else {
        return Ok(None);
    };
    let server = Server {
        network: Some(network.clone()),
        port: PORT,
        mount_port: MOUNT_PORT,
        path: place.share.display().to_string(),
        name: Some(NAME),
        process,
        secure: None,
    };
    if !network.listens(PORT) || !network.listens(MOUNT_PORT) {
        return Err(Failure::new("nfs-ganesha did not get ready within 30 s"));
    }
    let name = format!("ganesha {}", packaged("nfs-ganesha"));
    Ok(Some((name.trim_end().to_owned(), server)))
}

fn ganesha_config(place: &Place) -> String {
    let (share, run) = (place.share.display(), place.run.display());
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {PORT}; MNT_Port = {MOUNT_PORT}; Enable_NLM = false; \
         Enable_RQUOTA = false; Protocols = 3, 4; }}\n\
         NFSv4 {{ Graceless = true; Only_Numeric_Owners = true; RecoveryRoot = \"{run}/recovery\"; \
         Minor_Versions = 0, 1, 2; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{share}\"; Pseudo = \"/{NAME}\"; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; Transports = TCP; Protocols = 3, 4; \
         FSAL {{ Name = VFS; }} }}\n"
    )
}
