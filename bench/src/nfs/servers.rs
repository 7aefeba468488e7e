//! The NFS servers, each on the same directory.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use remote::nfs::{Dial, establish_tls};
use tls::{Connector, TlsFiles};
use transports::{Addr, dial};

use crate::network::Network;
use crate::process::{Process, free_port, package_version};
use crate::workspace::Workspace;
use command::Failure;
use command::tools::{self, Tool};

/// A server with the parameters to connect to it.
pub(crate) struct Server {
    /// The network namespace of the server, if not that of this process.
    network: Option<Arc<Network>>,
    port: u16,
    mount_port: u16,
    /// The path of the directory for MOUNT.
    pub(super) path: String,
    /// The name of the directory in the v4 pseudo file system, unless it is the root.
    pub(super) name: Option<&'static str>,
    pub(crate) process: Process,
    /// TLS, if NFS requires it.
    tls: Option<Arc<Connector>>,
}

impl Server {
    /// Returns the port of NFS.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the function that connects to NFS in `version`, or to MOUNT.
    pub(crate) fn dial(&self, mount: bool, version: u32) -> Dial {
        let port = if mount { self.mount_port } else { self.port };
        let addr = loopback(port);
        if let Some(connector) = self.tls.clone().filter(|_| !mount) {
            let network = self.network.clone();
            return Box::new(move || {
                let link = match &network {
                    Some(network) => network.run_inside(|| dial(&addr))??,
                    None => dial(&addr)?,
                };
                establish_tls(link, &connector, version)
            });
        }
        let Some(network) = self.network.clone() else {
            return Box::new(move || Ok(Box::new(dial(&addr)?)));
        };
        Box::new(move || Ok(Box::new(network.run_inside(|| dial(&addr))??)))
    }
}

fn loopback(port: u16) -> Addr {
    Addr::Tcp {
        host: "127.0.0.1".into(),
        port,
    }
}

/// Runs `command`, barge without arguments, as a server of the first directory with `options`; its
/// state goes below the second.
pub(crate) fn barge(
    command: Command,
    dirs: (&Path, &Path),
    network: Option<&Arc<Network>>,
    options: &[&str],
) -> Result<(String, Server), Failure> {
    let server = start(command, dirs, network, options, None)?;
    Ok(([&["barge"], options].concat().join(" "), server))
}

/// Starts barge as a server that requires TLS, with a new self-signed certificate. Returns
/// `None` without openssl, which creates the certificate.
pub(super) fn barge_with_tls(
    workspace: &Workspace,
    network: Option<&Arc<Network>>,
) -> Result<Option<(String, Server)>, Failure> {
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| workspace.run_dir.join(name));
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
    let files = TlsFiles {
        ca: Some(cert.clone()),
        ..TlsFiles::default()
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
    let dirs = (&*workspace.share, &*workspace.run_dir);
    let server = start(
        workspace.barge(),
        dirs,
        network,
        &options,
        Some(Arc::new(connector)),
    )?;
    Ok(Some(("barge over TLS".into(), server)))
}

fn start(
    barge: Command,
    (share, run): (&Path, &Path),
    network: Option<&Arc<Network>>,
    options: &[&str],
    secure: Option<Arc<Connector>>,
) -> Result<Server, Failure> {
    let port = free_port()?;
    let addr = loopback(port).to_string();
    let state = run.join(format!("state-{port}")).display().to_string();
    let all = [&["--nfs", &addr, "--nfs-state-dir", &state], options].concat();
    let start = || Process::serve(barge, share, &all);
    let process = match network {
        Some(network) => network.run_inside(start).map_err(Failure::new)?,
        None => start(),
    };
    Ok(Server {
        network: network.cloned(),
        port,
        mount_port: port,
        path: "/".into(),
        name: None,
        process: process?,
        tls: secure,
    })
}

const PORT: u16 = 2049;
const MOUNT_PORT: u16 = 2050;
const NAME: &str = "share";

/// Returns whether nfs-ganesha is installed and the user is root.
pub(super) fn has_ganesha() -> bool {
    let root = rustix::process::geteuid().is_root();
    root && Tool::GANESHA
        .missing_from(&tools::program_dirs())
        .is_empty()
}

/// Starts nfs-ganesha; returns `None` if it does not start.
pub(super) fn ganesha(
    workspace: &Workspace,
    network: &Arc<Network>,
) -> Result<Option<(String, Server)>, Failure> {
    let run = &workspace.run_dir;
    let [config, log, pid] = ["config", "log", "pid"].map(|name| {
        let path = run.join(format!("ganesha.{name}"));
        path.display().to_string()
    });
    std::fs::create_dir_all(run.join("recovery")).map_err(Failure::new)?;
    std::fs::write(&config, ganesha_config(workspace)).map_err(Failure::new)?;
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
        path: workspace.share.display().to_string(),
        name: Some(NAME),
        process,
        tls: None,
    };
    if !network.wait_for_listener(PORT) || !network.wait_for_listener(MOUNT_PORT) {
        return Err(Failure::new("nfs-ganesha did not get ready within 30 s"));
    }
    let name = format!("ganesha {}", package_version("nfs-ganesha"));
    Ok(Some((name.trim_end().to_owned(), server)))
}

fn ganesha_config(workspace: &Workspace) -> String {
    let (share, run) = (workspace.share.display(), workspace.run_dir.display());
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
