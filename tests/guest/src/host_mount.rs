//! Runs of a script in a `barge mount` of a local server, barge's or another's: without a guest, so
//! in minutes.
//!
//! Not supported: kernels other than the running one.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::guest::Case;
use crate::process_group::ProcessGroup;
use crate::run::Scratch;
use crate::server::{Server, TemplateValues};
use crate::{Dirs, local, tail, tools};

#[derive(Debug)]
/// A server, and how to mount it. Templates may contain the placeholders of a run, and `{barge}`.
pub struct HostMount {
    /// Its name.
    pub name: &'static str,
    /// The server's command; empty if the source needs none.
    serve: &'static str,
    source: &'static str,
    /// Whether the server has a network namespace, in which the mount is made.
    network: bool,
    /// Environment of scripts: the protocol, and the server's implementation.
    protocol: &'static str,
    server: &'static str,
}

/// All servers.
pub const ALL: [HostMount; 10] = [
    HostMount {
        name: "dir",
        serve: "",
        source: "{share}",
        network: false,
        protocol: "dir",
        server: "",
    },
    HostMount {
        name: "9p",
        serve: "{barge} serve {share} --9p unix:{socket}",
        source: "9p+unix:{socket}",
        network: false,
        protocol: "9p",
        server: "barge",
    },
    HostMount {
        name: "9p-handed",
        serve: "{barge} serve {share} --9p unix:{socket} --9p-fd-passing",
        source: "9p+unix:{socket}",
        network: false,
        protocol: "9p",
        server: "barge",
    },
    HostMount {
        name: "nfs3",
        serve: "{barge} serve {share} --nfs unix:{socket} --nfs-state-dir {run}/state",
        source: "nfs+unix:{socket}?vers=3",
        network: false,
        protocol: "nfs3",
        server: "barge",
    },
    HostMount {
        name: "nfs4.2",
        serve: "{barge} serve {share} --nfs unix:{socket} --nfs-state-dir {run}/state",
        source: "nfs+unix:{socket}?vers=4.2",
        network: false,
        protocol: "nfs",
        server: "barge",
    },
    HostMount {
        name: "virtiofs",
        serve: "{barge} serve {share} --virtiofs {socket} --virtiofs-locks shared",
        source: "virtiofs:{socket}",
        network: false,
        protocol: "virtiofs",
        server: "barge",
    },
    HostMount {
        name: "diod",
        serve: "diod -f -n -N -L stderr -l 127.0.0.1:{port} -e {share}",
        source: "9p://127.0.0.1:{port}/?aname={share}&uname=root",
        network: false,
        protocol: "9p",
        server: "diod",
    },
    HostMount {
        name: "virtiofsd",
        serve: "virtiofsd --socket-path {socket} --shared-dir {share} --sandbox none --xattr --inode-file-handles=never --preserve-noatime",
        source: "virtiofs:{socket}",
        network: false,
        protocol: "virtiofs",
        server: "virtiofsd",
    },
    HostMount {
        name: "ganesha-nfs3",
        serve: GANESHA,
        source: "nfs://127.0.0.1:2049{share}?vers=3&mountport=2050",
        network: true,
        protocol: "nfs3",
        server: "ganesha",
    },
    HostMount {
        name: "ganesha-nfs4.1",
        serve: GANESHA,
        source: "nfs://127.0.0.1:2049/export?vers=4.1",
        network: true,
        protocol: "nfs",
        server: "ganesha",
    },
];

/// Ganesha requires a portmapper and fixed ports, so it runs in a network namespace, and creates a
/// file when it is up.
const GANESHA: &str = r#"unshare --net --mount sh -c 'set -e
mount -t tmpfs none /run && mkdir /run/ganesha {run}/recovery && ip link set lo up && rpcbind -f &
cat >{run}/config <<END
NFS_CORE_PARAM { NFS_Port = 2049; MNT_Port = 2050; Enable_NLM = false; Enable_RQUOTA = false; Protocols = 3, 4; }
NFSv4 { Graceless = true; Only_Numeric_Owners = true; RecoveryRoot = "{run}/recovery"; Minor_Versions = 0, 1, 2; }
EXPORT { Export_Id = 1; Path = {share}; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Transports = TCP; Protocols = 3, 4; FSAL { Name = VFS; } }
END
while ! rpcinfo -p 127.0.0.1 >/dev/null 2>&1; do sleep 0.05; done
(while ! grep -q "NFS SERVER INITIALIZED" {run}/ganesha.log; do sleep 0.1; done 2>/dev/null; : >{socket}) &
exec ganesha.nfsd -F -f {run}/config -L {run}/ganesha.log -p {run}/ganesha.pid -N NIV_EVENT'"#;

/// Returns the server with this name.
pub fn named(name: &str) -> Result<&'static HostMount, String> {
    let names = || ALL.each_ref().map(|hosted| hosted.name).join(", ");
    let found = ALL.iter().find(|hosted| hosted.name == name);
    found.ok_or_else(|| format!("expected one of {}", names()))
}

/// Runs a case in a mount by `barge`, with mount options, and returns its status. The command
/// `host` runs in the served directory.
pub fn run(
    dirs: &Dirs,
    case: &Case,
    (hosted, barge, options): (&HostMount, &str, &[String]),
    keep: bool,
) -> Result<i32> {
    let mut scratch = Scratch::new(dirs, keep)?;
    // Ganesha follows no symbolic links.
    let share = scratch.create_share()?.canonicalize()?;
    // The scratch directory's path may be too long for a socket in it.
    let mounted = tempfile::tempdir()?;
    let at = mounted.path();
    let address = TemplateValues::allocate(
        &share,
        &scratch.dir,
        &scratch.dir,
        &tools::install_root(&dirs.cache),
        "127.0.0.1",
        0,
    )?;
    let family = ProcessGroup::new()?;
    let log = scratch.dir.join("server.log");
    let serve = hosted.serve.replace("{barge}", barge);
    let mut server = None;
    if !serve.is_empty() {
        server = Some(Server::start(&serve, &address, &family, &log)?);
    }

    let mut command = match &server {
        Some(server) if hosted.network => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/proc/{}/ns/net", server.id()));
            command.arg(barge);
            command
        }
        _ => Command::new(barge),
    };
    let log = scratch.dir.join("mount.log");
    let options = [&["allow_other".to_owned()], options].concat().join(",");
    command
        .args(["mount", "-f", &address.fill(hosted.source), "-o", &options])
        .arg(at)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&log)?);
    let mut mount = family.spawn(&mut command)?;
    let began = Instant::now();
    while !is_mounted(at)? {
        let ended = mount.try_wait()?.is_some() || began.elapsed() > TIMEOUT;
        ensure!(!ended, "it does not mount: {}", tail(&log, 5));
        sleep(Duration::from_millis(20));
    }
    let status = local::run_in(dirs, case, (&scratch.dir, &share, at), |command| {
        command
            .env("CACHE", "auto")
            .env("SOURCE", hosted.protocol)
            .env("SERVER", hosted.server)
            // As for a mount in a guest; 9P and v3 report no holes, and v3 has no attributes.
            .envs([("ACL", "no"), ("UPPER", "no"), ("HOLES", "no")]);
    });
    if let Some(pid) = Pid::from_raw(mount.id().cast_signed()) {
        kill_process(pid, Signal::TERM)?;
    }
    let ended = mount.wait()?;
    // An error means that it is already unmounted, as expected.
    let _ = unmount(at, UnmountFlags::DETACH);
    let said = fs::read_to_string(&log).unwrap_or_default();
    if !ended.success() || said.contains("panicked at") {
        scratch.keep = true;
        bail!("barge mount ended with {ended}: {}", tail(&log, 5));
    }
    if let Some(server) = server.filter(|_| hosted.server == "barge") {
        server.stop()?;
    }
    scratch.keep |= !matches!(status, Ok(0 | 77));
    if scratch.keep {
        eprintln!("barge-guest: logs are in {}", scratch.dir.display());
    }
    status
}

/// Timeout of a mount.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns whether the directory is on another device than its parent.
fn is_mounted(at: &std::path::Path) -> Result<bool> {
    let device = |path| rustix::fs::stat(path).map(|stat| stat.st_dev);
    Ok(device(at)? != device(at.parent().unwrap_or(at))?)
}
