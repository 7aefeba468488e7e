//! Measurements in one guest, on a RAM disk of the host. They are not tests: a guest is emulated,
//! so only relative figures are meaningful.

mod caches;
mod defaults;
mod readplus;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::config::GuestConfig;
use crate::guest::Case;
use crate::machine::Machine;
use crate::run::Plan;
use crate::{Dirs, quote};

/// The available measurements.
pub enum Table {
    /// Servers with default options through plain mounts.
    Defaults {
        /// The protocol to measure; all if none.
        only: Option<Protocol>,
        /// Duration of each load in seconds.
        seconds: u16,
        /// The virtiofsd to measure, if not that of the search path.
        virtiofsd: Option<PathBuf>,
    },
    /// Reads of sparse files over NFS 4.2, with READ_PLUS and with READ.
    Readplus,
    /// The page coalescing jobs with the kernel's 9P client in each cache mode.
    Caches,
}

pub use defaults::Protocol;

/// Options of a measurement.
pub struct Options {
    /// The kernel line.
    pub kernel: String,
    /// Number of rounds; the table's default if none.
    pub rounds: Option<u16>,
    /// Size of its file or files in MiB; the table's default if none.
    pub size: Option<u16>,
    /// The barge under test; that of this program's profile if none.
    pub barge: Option<PathBuf>,
    /// Also print all results as a line of JSON.
    pub json: bool,
    /// The machine.
    pub machine: Machine,
    /// The Debian mirror, if not the machine's own.
    pub mirror: Option<String>,
}

/// The configuration of a table.
struct TableConfig {
    /// The script that measures, without `.py`.
    name: &'static str,
    server_commands: Vec<String>,
    guest: GuestConfig,
    /// Environment of its script besides `ROUNDS` and `SIZE`.
    env: Vec<(&'static str, String)>,
    /// In MiB.
    size: u16,
    rounds: u16,
    timeout: Duration,
}

/// A directory in the host's memory, removed when dropped.
pub struct RamDisk(TempDir);

impl RamDisk {
    /// Makes an empty directory.
    pub fn new() -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("barge-guest-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in("/dev/shm");
        dir.map(Self).context("cannot make a directory in /dev/shm")
    }
}

/// Returns the run that measures `table` on `disk`.
pub fn plan(dirs: &Dirs, table: Table, options: Options, disk: &RamDisk) -> Result<Plan> {
    let barge = dirs.barge(options.barge.as_deref())?;
    let subject = match table {
        Table::Defaults {
            only,
            seconds,
            virtiofsd,
        } => defaults::config(&barge, only, options.rounds, seconds, virtiofsd)?,
        Table::Readplus => readplus::config(&barge, options.rounds),
        Table::Caches => caches::config(&barge, options.rounds),
    };
    let size = options.size.unwrap_or(subject.size);
    let usual = [
        ("ROUNDS", subject.rounds.to_string()),
        ("SIZE", size.to_string()),
    ];
    let json = options.json.then(|| ("JSON", "1".to_owned()));
    let env: Vec<_> = usual
        .into_iter()
        .chain(subject.env)
        .chain(json)
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let script = dirs.scripts.join(format!("{}.py", subject.name));
    Ok(Plan {
        kernel: options.kernel,
        server_commands: subject.server_commands,
        guests: vec![subject.guest],
        root: None,
        share: Some(disk.0.path().to_owned()),
        cases: vec![Case::program(subject.name, &script, &[], &env)],
        case_timeout: subject.timeout,
        timeout: subject.timeout,
        machine: Some(options.machine),
        mirror: options.mirror,
        keep: false,
    })
}

/// Returns a command that writes the port `{NAME}` to a file of that name in the run directory,
/// where the guest can read it, and then executes `serve`.
fn with_port_file(name: &str, serve: &str) -> String {
    let command = format!("echo {{{name}}} >{{run}}/{name}; exec {serve}");
    format!("sh -c {}", quote(&command))
}
