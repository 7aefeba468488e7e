//! `barge bench`: measures barge and its peers on this machine, in the same run.
//!
//! Runs alternate between the servers, so that drift of the machine's speed affects all of them
//! equally. Each cell is the median of several runs, with the minimum and the maximum. Peers that
//! are not installed are listed. Rows with a hardware limit measure it in alternation with the
//! servers ([`physical`]).

mod all;
mod coalescing;
mod crowd;
mod find;
mod guest;
mod image;
mod kept;
mod mount;
mod mounted;
mod network;
mod nfs;
mod ninep;
mod pack;
mod physical;
mod place;
mod process;
mod readplus;
mod relay;
mod replay;
mod report;
mod rounds;
mod steps;
mod syscalls;
mod virtiofs;
mod zerocopy;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::all::Unmeasured;
use self::process::BusyLoops;
use self::report::{Outputs, Results};
use self::steps::Steps;
use crate::{CommandResult as Done, Failure};

#[derive(Args, Clone)]
pub(crate) struct BenchArgs {
    /// The table to measure
    table: Table,
    /// The files of replay and show
    ///
    /// replay: FILE holds the calls, SOURCE is the tree to make them on. show: FILE was written by
    /// --json, and so was LATER, whose tables replace those of FILE.
    #[arg(value_names = ["FILE", "SOURCE|LATER"], num_args = 0..=2)]
    files: Vec<String>,
    /// replay: make each call at its recorded time [default: as fast as possible]
    #[arg(long)]
    paced: bool,
    /// replay: also make calls that change the tree; writes write zeros
    #[arg(long)]
    changes: bool,
    /// 9p: compare with a server that keeps statistics (serve --http), not one without polling
    #[arg(long)]
    counted: bool,
    /// Few and short runs: a check that the bench works, not a measurement
    ///
    /// System calls are not counted.
    #[arg(long)]
    quick: bool,
    /// Runs of each cell [default: 5, with --quick 3]
    ///
    /// For coalescing 5, with --quick 1; for find, image, kept, objects and pack 3, with --quick 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Directory for the files to measure with [default: /dev/shm, or the temporary directory]
    ///
    /// The default of coalescing, image, kept and objects is always the temporary directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of the files of readplus, coalescing and kept
    ///
    /// The default of readplus is 32, with --quick 8; of coalescing and kept 128, with --quick 32.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    size: Option<u16>,
    /// find: files in the tree to list [default: 100000, with --quick 20000]
    #[arg(long = "files", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    files_in_tree: Option<u32>,
    /// Measure while N threads compute without end, at normal priority
    ///
    /// Shows the performance that remains when processors are scarce.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    busy: u16,
    /// crowd: number of hostile connections
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Measure only rows whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also measure kernel clients in virtual machines (needs barge-guest)
    ///
    /// Adds servers with default options, caches of the 9P client, and READ_PLUS to the tables all,
    /// virtiofs, 9p, nfs, coalescing and readplus.
    #[arg(long)]
    guest: bool,
    #[command(flatten)]
    outputs: Outputs,
    #[arg(skip)]
    steps: Steps,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    /// All tables except replay and show; if one fails, the others go on
    All,
    /// 9P over Unix sockets and TCP, compared with diod
    #[value(name = "9p")]
    Nine,
    /// `barge mount` of 9P, NFS and virtiofs, messages merged and not; needs root and fio
    Coalescing,
    /// `barge mount` of 9P and of NFS listing many files: rate and memory; needs root
    Find,
    /// A 9P and an NFS client while thousands of hostile connections are open; needs root
    Crowd,
    /// Node.js and a JDK from images, compared with the kernel and FUSE tools; needs root
    Image,
    /// `barge mount` of a 9P server 1 ms away, with and without cache_dir=; needs root
    Kept,
    /// `barge mount` of a directory, compared with bindfs; needs root
    Mount,
    /// NFS over loopback TCP, compared with nfs-ganesha
    Nfs,
    /// Node.js from an image in an object store 20 ms away, with and without a read trace
    Objects,
    /// Sizes and build times of images made by `barge pack`, mkfs.erofs and mksquashfs
    Pack,
    /// Files of data and holes over each version of NFS, with and without READ_PLUS; needs root
    Readplus,
    /// Replay recorded calls (`barge serve --record-calls`) on any source: `replay FILE SOURCE`
    Replay,
    /// Render the report of results written by --json: `show FILE [LATER]`
    Show,
    /// virtiofs without a virtual machine, compared with virtiofsd
    Virtiofs,
    /// 9P with and without zero copy, by block size, over Unix sockets, TCP and a virtqueue
    Zerocopy,
}

impl BenchArgs {
    fn runs(&self) -> usize {
        self.runs
            .map_or(if self.quick { 3 } else { 5 }, usize::from)
    }

    /// Returns a copy with `runs` runs, or one if quick, unless `--runs` is given: for tables in
    /// which a run of all cells takes long.
    fn seldom(&self, runs: u16) -> BenchArgs {
        BenchArgs {
            runs: self.runs.or(Some(if self.quick { 1 } else { runs })),
            ..self.clone()
        }
    }

    /// Returns the duration of a run: five runs make some hundred operations of the slowest kinds,
    /// and hundreds of thousands of the fastest.
    fn time(&self) -> Duration {
        // With busy loops, a run is longer, so that it spans many time slices, which last
        // milliseconds.
        let times = if self.busy > 0 { 5 } else { 1 };
        Duration::from_millis(times * if self.quick { 40 } else { 80 })
    }

    /// Returns whether a row of this name is selected by `--only`.
    fn wants(&self, name: &str) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| name.contains(only.as_str()))
    }

    /// Adds the runs of `cells` cells on `servers` servers each to the planned steps.
    fn plan(&self, cells: usize, servers: usize) {
        self.steps.plan((self.runs() + 1) * cells * servers);
    }

    /// Returns the note on how the table is measured.
    fn note(&self, place: &place::Place) -> String {
        format!(
            "{} runs of {} ms each, alternating, after one to warm up; all files below {}",
            self.runs(),
            self.time().as_millis(),
            place.parent()
        )
    }
}

impl Table {
    /// Returns the name on the command line.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Measures the table on this host, with `args.busy` busy loops running.
    fn measure(self, args: &BenchArgs) -> Result<Results, Unmeasured> {
        let busy = BusyLoops::start(args.busy)?;
        let mut results = self.run(args)?;
        drop(busy);
        match args.busy {
            0 => {}
            1 => results.title += ", beside a busy loop",
            many => results.title += &format!(", beside {many} busy loops"),
        }
        Ok(results)
    }

    fn run(self, args: &BenchArgs) -> Result<Results, Unmeasured> {
        Ok(match self {
            Table::Nine => ninep::run(args)?,
            Table::Coalescing => coalescing::run(args)?,
            Table::Find => find::run(args)?,
            Table::Crowd => crowd::run(args)?,
            Table::Image => image::run(args)?,
            Table::Kept => kept::run(args)?,
            Table::Mount => mount::run(args)?,
            Table::Nfs => nfs::run(args)?,
            Table::Objects => image::far::run(args)?,
            Table::Pack => pack::run(args)?,
            Table::Readplus => readplus::run(args)?,
            Table::Virtiofs => virtiofs::run(args)?,
            Table::Zerocopy => zerocopy::run(args)?,
            Table::All | Table::Replay | Table::Show => {
                let why = format!("{} is no table", self.name());
                return Err(Unmeasured::Failed(Failure::usage(why)));
            }
        })
    }
}

fn run_replay(args: &BenchArgs) -> Done {
    let [file, source] = args.files.as_slice() else {
        return Err(Failure::usage("replay: expected FILE SOURCE"));
    };
    let mut replayed = replay::run(file.as_ref(), source, args.paced, args.changes)?;
    print!("{}", replayed.text());
    if let Some(path) = &args.outputs.json {
        std::fs::write(path, replayed.json())
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_show(args: &BenchArgs) -> Done {
    let mut report = match args.files.first() {
        Some(file) => report::shape::read(file.as_ref())?,
        None => return Err(Failure::usage("show: expected FILE")),
    };
    if let Some(later) = args.files.get(1) {
        report = report.renewed(report::shape::read(later.as_ref())?);
    }
    args.outputs.give(&report)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `barge bench`.
pub(crate) fn run(args: &BenchArgs) -> Done {
    match args.table {
        Table::Replay => run_replay(args),
        Table::Show => run_show(args),
        table if !args.files.is_empty() => {
            let why = format!(
                "{}: expected no FILE, got '{}'",
                table.name(),
                args.files[0]
            );
            Err(Failure::usage(why))
        }
        _ => all::run(args),
    }
}
