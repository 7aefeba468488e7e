//! The parts that need a kernel client: `barge-guest` boots Linux in QEMU, measures there, and
//! reports the results as a line of JSON.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};

use serde::Deserialize;

use crate::context::Context;
use crate::report::results::{Results, Row, Unmeasured};
use command::Failure;
use command::bench::Table;
use command::tools::{self, Tool, companion};

/// A measurement by barge-guest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bench {
    Caches,
    /// Servers of one protocol with default options.
    Defaults(Protocol),
    Readplus,
}

/// A protocol of [`Bench::Defaults`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Virtiofs,
    NineP,
    Nfs,
}

impl Protocol {
    /// Returns the value of barge-guest's `--only`.
    fn name(self) -> &'static str {
        match self {
            Protocol::Virtiofs => "virtiofs",
            Protocol::NineP => "9p",
            Protocol::Nfs => "nfs",
        }
    }

    /// Returns the peer, which barge-guest leaves out if it is not installed.
    fn peer(self) -> &'static Tool {
        match self {
            Protocol::Virtiofs => &Tool::VIRTIOFSD,
            Protocol::NineP => &Tool::DIOD,
            Protocol::Nfs => &Tool::GANESHA,
        }
    }
}

/// The results that barge-guest reports.
#[derive(Deserialize)]
struct GuestReport {
    title: String,
    notes: Vec<String>,
    columns: Vec<String>,
    peers: Vec<usize>,
    limit: Option<usize>,
    rows: Vec<GuestRow>,
    failed: Vec<String>,
}

#[derive(Deserialize)]
struct GuestRow {
    name: String,
    unit: String,
    runs: Vec<Vec<f64>>,
}

impl Bench {
    pub(super) const ALL: [Bench; 5] = [
        Bench::Caches,
        Bench::Defaults(Protocol::Virtiofs),
        Bench::Defaults(Protocol::NineP),
        Bench::Defaults(Protocol::Nfs),
        Bench::Readplus,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Bench::Caches => "caches",
            Bench::Defaults(Protocol::Virtiofs) => "defaults virtiofs",
            Bench::Defaults(Protocol::NineP) => "defaults 9p",
            Bench::Defaults(Protocol::Nfs) => "defaults nfs",
            Bench::Readplus => "readplus",
        }
    }

    /// Returns the subcommand of barge-guest.
    fn subcommand(self) -> &'static str {
        match self {
            Bench::Caches => "caches",
            Bench::Defaults(_) => "defaults",
            Bench::Readplus => "readplus",
        }
    }

    /// Returns the table that the measurement is a part of.
    pub(super) fn table(self) -> Table {
        match self {
            Bench::Caches => Table::Coalescing,
            Bench::Defaults(Protocol::Virtiofs) => Table::Virtiofs,
            Bench::Defaults(Protocol::NineP) => Table::P9,
            Bench::Defaults(Protocol::Nfs) => Table::Nfs,
            Bench::Readplus => Table::Readplus,
        }
    }

    /// Returns the approximate duration in seconds on two cores without KVM.
    pub(super) fn seconds(self, quick: bool) -> f64 {
        match (self, quick) {
            (Bench::Caches, true) => 130.0,
            (Bench::Caches, false) => 275.0,
            (Bench::Defaults(Protocol::Nfs), true) => 45.0,
            (Bench::Defaults(_), true) => 60.0,
            (Bench::Defaults(Protocol::Nfs), false) => 125.0,
            (Bench::Defaults(_), false) => 180.0,
            (Bench::Readplus, true) => 50.0,
            (Bench::Readplus, false) => 40.0,
        }
    }

    pub(super) fn measure(self, args: &Context) -> Result<Results, Unmeasured> {
        if !args.options.guest {
            let why = "it needs a virtual machine: --guest";
            return Err(Unmeasured::LeftOut(why.into()));
        }
        let Some(program) = companion("barge-guest") else {
            let why = "barge-guest is neither beside barge-bench nor on PATH: `cargo build --release -p barge-guest` in a checkout builds it (it \
                       needs Debian's package qemu-system-x86), `barge-guest fetch` gets its kernels";
            return Err(Unmeasured::LeftOut(why.into()));
        };
        let mut command = Command::new(program);
        command.args([self.subcommand(), "--json", "--barge"]);
        command.arg(&args.barge);
        let rounds = args
            .options
            .runs
            .unwrap_or(if args.options.quick { 1 } else { 3 });
        command.args(["--rounds", &rounds.to_string()]);
        let mut missing = Vec::new();
        match self {
            Bench::Defaults(protocol) => {
                command.args(["--only", protocol.name()]);
                command.args(["--seconds", if args.options.quick { "1" } else { "2" }]);
                let peer = protocol.peer();
                if !peer.missing_from(&tools::program_dirs()).is_empty() {
                    missing.push(peer.missing_message());
                }
                if protocol == Protocol::Virtiofs
                    && let Some(virtiofsd) = tools::find("virtiofsd")
                {
                    command.arg("--virtiofsd").arg(virtiofsd);
                }
            }
            Bench::Caches | Bench::Readplus if args.options.quick => {
                command.args(["--size", "8"]);
            }
            Bench::Caches | Bench::Readplus => {}
        }
        let (report, status) = run_guest(&mut command)?;
        for why in report.failed {
            args.progress.report_failure(why);
        }
        if !status.success() {
            let what = "the guest ended early";
            args.progress
                .report_failure(format!("{what}: barge-guest: {status}"));
        }
        let row = |row: GuestRow| Row::new(row.name, unit(&row.unit), row.runs);
        Ok(Results {
            title: report.title,
            notes: report.notes,
            missing,
            servers: report.columns,
            peers: report.peers,
            limit: report.limit,
            rows: report.rows.into_iter().map(row).collect(),
        })
    }
}

/// Runs barge-guest; returns the last results that it reported, and its exit status.
fn run_guest(command: &mut Command) -> Result<(GuestReport, ExitStatus), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("barge-guest: {error}"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    let lines = child.stdout.take().map(|out| BufReader::new(out).lines());
    let mut report = None;
    let mut last = String::new();
    // Lines of the guest's kernel log may not be UTF-8.
    for line in lines.into_iter().flatten().map_while(Result::ok) {
        let found = serde_json::from_str(&line).ok();
        report = found.or(report);
        last = line;
    }
    let status = child.wait().map_err(|error| failed(&error))?;
    match report {
        Some(report) => Ok((report, status)),
        None => Err(failed(&format!("{status}: {last:.300}"))),
    }
}

/// Returns the unit of a [`Row`]: the guest's scripts use no others.
fn unit(name: &str) -> &'static str {
    ["MB/s", "op/s", "µs"]
        .into_iter()
        .find(|unit| *unit == name)
        .unwrap_or("MiB/s")
}
