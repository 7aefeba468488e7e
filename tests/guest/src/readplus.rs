//! Files of data and holes, read in one guest by READ_PLUS and by READ, by turns: from two servers of one directory, of
//! which one refuses READ_PLUS.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::bench::RamDisk;
use crate::guest::Case;
use crate::run::Plan;
use crate::ways::Way;
use crate::{Dirs, quote};

/// What to measure.
pub struct Options {
    /// The kernel line.
    pub kernel: String,
    /// How often each file is read through each server.
    pub rounds: u16,
    /// The size of the files, MiB.
    pub size: u16,
    /// The program that serves; this workspace's release build if none.
    pub barge: Option<PathBuf>,
    /// QEMU's `-accel`.
    pub accel: String,
    /// The Debian mirror, if not the machine's own.
    pub mirror: Option<String>,
}

/// The run that measures on `disk`.
pub fn plan(dirs: &Dirs, options: Options, disk: &RamDisk) -> Result<Plan> {
    let barge = dirs.barge(options.barge.as_deref())?;
    let way = Way::named("nfs4.2");
    let serve = |port: &str, options: &str| {
        format!(
            "{barge} serve {{share}} --nfs tcp:127.0.0.1:{{{port}}} --state-dir {{run}}/{port} {options}"
        )
    };
    // The guest asks the host where the second one is.
    let plain = serve("port2", "--no-read-plus");
    let plain = quote(&format!("echo {{port2}} >{{run}}/plain; exec {plain}"));
    let env = [
        ("ROUNDS", options.rounds.to_string()),
        ("SIZE", options.size.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    let timeout = Duration::from_secs(1800);
    Ok(Plan {
        kernel: options.kernel,
        serve: vec![serve("port", ""), format!("sh -c {plain}")],
        seats: vec![way.seat(&[])],
        root: None,
        share: Some(disk.path().to_owned()),
        cases: vec![Case::program(
            "readplus",
            &dirs.scripts.join("readplus.py"),
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
