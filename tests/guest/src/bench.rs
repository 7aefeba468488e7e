//! One file on a RAM disk, measured with fio in one guest through each server by turns.
//!
//! 9P goes through QEMU's network, which is emulated; virtiofs goes through shared memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::guest::Case;
use crate::run::Plan;
use crate::ways::{Way, beside};
use crate::{Dirs, quote};

/// What to measure, and how long.
pub struct Options {
    /// The kernel line.
    pub kernel: String,
    /// How often each server is measured.
    pub rounds: u16,
    /// How many seconds each time.
    pub seconds: u16,
    /// The size of the file, MiB.
    pub size: u16,
    /// The program that serves; this workspace's release build if none.
    pub barge: Option<PathBuf>,
    /// A virtiofsd to be measured beside it.
    pub virtiofsd: Option<PathBuf>,
    /// QEMU's `-accel`.
    pub accel: String,
    /// The Debian mirror, if not the machine's own.
    pub mirror: Option<String>,
}

/// A directory in the host's memory, for as long as this lives.
pub struct RamDisk(PathBuf);

impl RamDisk {
    /// An empty one.
    pub fn new() -> Result<Self> {
        let dir = PathBuf::from(format!("/dev/shm/barge-guest-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RamDisk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The run that measures on `disk`.
pub fn plan(dirs: &Dirs, options: Options, disk: &RamDisk) -> Result<Plan> {
    let barge = dirs.barge(options.barge.as_deref())?;
    let (nine, virtiofs) = (Way::named("none"), Way::named("virtiofs"));
    // As much in a message as Linux takes over TCP.
    let mut seat = nine.seat(&["msize=1048576".into()]);
    seat.qemu = virtiofs.device("barge");
    let mut tags = "barge".to_owned();
    let addresses = [nine.address(), virtiofs.address()].join(" ");
    let mut serve = vec![format!("{barge} serve {{share}} {addresses}")];
    if let Some(virtiofsd) = options.virtiofsd {
        let virtiofsd = quote(&virtiofsd.display().to_string());
        let command =
            format!("{virtiofsd} --sandbox none --shared-dir {{share}} --socket-path {{socket2}}");
        // It ends with its guest, which a server of a run does not.
        let lasting = quote(&format!("{command}; exec sleep infinity"));
        serve.push(format!("sh -c {lasting}"));
        seat.qemu
            .extend(virtiofs.device("virtiofsd").iter().map(|text| beside(text)));
        tags += ",virtiofsd";
    }
    let env = [
        ("TAGS", tags),
        ("ROUNDS", options.rounds.to_string()),
        ("SECONDS", options.seconds.to_string()),
        ("SIZE", options.size.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    // Three servers at most, two loads, and as long again for what is around them.
    let turns = 1 + u64::from(options.rounds);
    let timeout = Duration::from_secs(2 * 3 * 2 * turns * u64::from(options.seconds) + 120);
    Ok(Plan {
        kernel: options.kernel,
        serve,
        seats: vec![seat],
        root: None,
        share: Some(disk.0.clone()),
        cases: vec![Case::program(
            "bench",
            &dirs.scripts.join("bench.py"),
            &[],
            &env,
        )],
        case_timeout: timeout,
        timeout,
        accel: options.accel,
        mirror: options.mirror,
        keep: false,
    })
}
