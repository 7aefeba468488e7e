//! Servers with default options, each with its protocol's basic mount command: only the server
//! options required to run, and only the mount options required to connect.
//!
//! TCP goes through QEMU's emulated network; virtio devices use shared memory. Only servers of the
//! same protocol are comparable.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::TableConfig;
use crate::config::{GuestConfig, Mount, VirtiofsDevice};
use crate::quote;

/// A protocol whose servers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Compared with virtiofsd
    Virtiofs,
    /// Compared with diod and QEMU's own server
    #[value(name = "9p")]
    NineP,
    /// Compared with Ganesha
    Nfs,
}

use Protocol::{Nfs, NineP, Virtiofs};

/// A server under test; its texts are templates of a run.
struct Column {
    protocol: Protocol,
    name: &'static str,
    /// The program of a peer that may not be installed.
    program: Option<PathBuf>,
    /// The server's command; none for QEMU itself.
    serve: Option<String>,
    /// The mount command, without the directory.
    mount: String,
    virtiofs: Option<VirtiofsDevice>,
    qemu: Vec<String>,
}

/// QEMU's own 9P server, which requires a security model.
const QEMU_9P: [&str; 4] = [
    "-fsdev",
    "local,id=qemu,path={share},security_model=none",
    "-device",
    "virtio-9p-pci,fsdev=qemu,mount_tag=qemu",
];

/// Ganesha denies access unless configured, and grants no open for 90 s unless `Graceless`. Over
/// v4.2 direct reads of Linux 6.12 from Ganesha 4.3 fail with `EIO`, so that the mount negotiates
/// v4.1. The first line lets it run without a portmapper, which v4 does not use.
const GANESHA: &str = r#"cat >{run}/ganesha.conf <<END
NFS_CORE_PARAM {
    NFS_Port = {port4}; Bind_addr = 127.0.0.1; Protocols = 4;
    Enable_UDP = None; Enable_NLM = false; Enable_RQUOTA = false;
}
NFSv4 { Graceless = true; Minor_Versions = 0, 1; RecoveryRoot = "{run}"; }
EXPORT {
    Export_Id = 1; Path = {share}; Pseudo = /; Access_Type = RW;
    FSAL { Name = VFS; }
}
END
ganesha.nfsd -F -f {run}/ganesha.conf -L {run}/ganesha.log -p {run}/ganesha.pid"#;

fn columns(barge: &str, virtiofsd: &Path) -> Vec<Column> {
    let ours = |address: &str| (None, format!("{barge} serve {{share}} {address}"));
    let peer = |program: &str, serve: &str| (Some(program.into()), serve.to_owned());
    let shares = |options: &str| {
        let program = quote(&virtiofsd.display().to_string());
        let serve = format!("{program} --shared-dir {{share}} {options}");
        (Some(virtiofsd.to_owned()), serve)
    };
    let virtiofs = |name, tag: &str, socket: &str, (program, serve)| Column {
        protocol: Virtiofs,
        name,
        program,
        serve: Some(serve),
        mount: format!("mount -t virtiofs {tag}"),
        virtiofs: Some(VirtiofsDevice {
            tag: tag.into(),
            socket: socket.into(),
            queues: 1,
        }),
        qemu: Vec::new(),
    };
    let network = |protocol, name, (program, serve), mount: &str| Column {
        protocol,
        name,
        program,
        serve: Some(serve),
        mount: format!("mount {mount}"),
        virtiofs: None,
        qemu: Vec::new(),
    };
    let diod = "diod -f -n -L stderr -l 127.0.0.1:{port2} -e {share}";
    let killpriv = "--socket-path {socket3} --killpriv-v2";
    vec![
        virtiofs("barge", "barge", "{socket}", ours("--virtiofs {socket}")),
        virtiofs(
            "virtiofsd",
            "virtiofsd",
            "{socket2}",
            shares("--socket-path {socket2}"),
        ),
        virtiofs(
            "virtiofsd --killpriv-v2",
            "killpriv",
            "{socket3}",
            shares(killpriv),
        ),
        network(
            NineP,
            "barge, TCP",
            ours("--9p tcp:127.0.0.1:{port}"),
            "-t 9p -o trans=tcp,port={port} {host}",
        ),
        network(
            NineP,
            "diod, TCP",
            peer("diod", diod),
            "-t 9p -o trans=tcp,port={port2},aname={share} {host}",
        ),
        Column {
            protocol: NineP,
            name: "QEMU, virtio",
            program: None,
            serve: None,
            mount: "mount -t 9p -o trans=virtio qemu".into(),
            virtiofs: None,
            qemu: QEMU_9P.map(String::from).into(),
        },
        network(
            Nfs,
            "barge",
            ours("--nfs tcp:127.0.0.1:{port3} --nfs-state-dir {run}/state"),
            "-t nfs -o port={port3} {host}:/",
        ),
        network(
            Nfs,
            "Ganesha",
            peer("ganesha.nfsd", GANESHA),
            "-t nfs -o port={port4} {host}:/",
        ),
    ]
}

pub(super) fn config(
    barge: &str,
    only: Option<Protocol>,
    rounds: Option<u16>,
    seconds: u16,
    virtiofsd: Option<PathBuf>,
) -> Result<TableConfig> {
    let mut columns = columns(barge, &virtiofsd.unwrap_or_else(|| "virtiofsd".into()));
    columns.retain(|column| only.is_none_or(|only| only == column.protocol));
    columns.retain(|column| {
        let found = column.program.as_deref().is_none_or(is_program);
        if !found {
            eprintln!("barge-guest: {} is not installed", column.name);
        }
        found
    });
    let mounts: String = columns.iter().map(Column::line).collect();
    let mut serve: Vec<String> = columns.iter().filter_map(Column::command).collect();
    // Goes last, since a server counts as ready when everything in its command accepts connections.
    let last = serve.last_mut().context("no server to measure")?;
    let lines = quote(&mounts);
    *last = format!(
        "sh -c {}",
        quote(&format!("printf %s {lines} >{{run}}/mounts; exec {last}"))
    );
    let rounds = rounds.unwrap_or(3);
    let turns = (u64::from(rounds) + 1) * columns.len() as u64;
    Ok(TableConfig {
        name: "defaults",
        server_commands: serve,
        guest: GuestConfig {
            // The script makes the mounts to measure.
            mount: Mount::usual("tmpfs", None, &[]),
            extra_fs_types: vec!["nfs"],
            cpus: 2,
            virtiofs: columns.iter().flat_map(|it| it.virtiofs.clone()).collect(),
            qemu: columns.into_iter().flat_map(|it| it.qemu).collect(),
        },
        env: vec![("SECONDS", seconds.to_string())],
        size: 128,
        rounds,
        // Six loads, and the same time for setup.
        timeout: Duration::from_secs(turns * (12 * u64::from(seconds) + 20) + 120),
    })
}

impl Column {
    /// Returns a line for the script: protocol, column, mount command.
    fn line(&self) -> String {
        let protocol = self.protocol.to_possible_value();
        let protocol = protocol.expect("no protocol is skipped");
        format!("{}\t{}\t{}\n", protocol.get_name(), self.name, self.mount)
    }

    /// Returns the command of the server. A shell outlives a peer that exits with its guest, and
    /// exits on SIGTERM at once.
    fn command(&self) -> Option<String> {
        let serve = self.serve.as_ref()?;
        Some(match self.program {
            None => serve.clone(),
            Some(_) => format!("sh -c {}", quote(&format!("{serve}\nexec sleep infinity"))),
        })
    }
}

/// Returns whether a program is installed, at its path or on the search path.
fn is_program(name: &Path) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    name.is_file() || std::env::split_paths(&paths).any(|dir| dir.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_plain_and_of_their_protocol() {
        const NEEDED: [&str; 3] = ["trans=", "port=", "aname="];
        for column in columns("barge", Path::new("virtiofsd")) {
            let line = column.line();
            let [protocol, name, mount] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            assert_eq!(name, column.name);
            let words: Vec<_> = mount.split_whitespace().collect();
            assert_eq!(words[..3], ["mount", "-t", protocol]);
            for options in words.windows(2).filter(|pair| pair[0] == "-o") {
                for option in options[1].split(',') {
                    let needed = NEEDED.iter().any(|name| option.starts_with(name));
                    assert!(needed, "{option} in {mount}");
                }
            }
        }
    }

    #[test]
    fn one_protocol_brings_its_own_servers_only() {
        let barge = std::env::current_exe()
            .expect("a path")
            .display()
            .to_string();
        let subject = config(&barge, Some(Nfs), None, 3, None).expect("barge is there");
        assert!(subject.guest.qemu.is_empty(), "{:?}", subject.guest.qemu);
        assert!(
            subject.server_commands[0].contains(" --nfs "),
            "{:?}",
            subject.server_commands
        );
        assert!(
            !subject.server_commands.concat().contains("virtiofs"),
            "{:?}",
            subject.server_commands
        );
    }
}
