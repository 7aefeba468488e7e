//! `barge bench`: barge beside its peers, on this machine, in the same run.
//!
//! Runs alternate between the servers, so that a drift of the machine's speed meets all of them; each cell
//! is the median of several runs, with the least and the most. Peers that are not installed are named. Where a row has one, what this
//! machine does at best is measured by turns with the rest ([`physical`]).

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
use crate::{Done, Failure};

#[derive(Args, Clone)]
pub(crate) struct BenchArgs {
    /// Which table
    table: Table,
    /// Of replay: the calls, and on what they are made. Of show: what --json has written, and of a later run, whose tables stand in for the first one's
    #[arg(value_names = ["FILE", "SOURCE|LATER"], num_args = 0..=2)]
    files: Vec<String>,
    /// Of replay: make calls when they were made, not as fast as it goes
    #[arg(long)]
    paced: bool,
    /// Of replay: make also those calls that change something; zeros are written
    #[arg(long)]
    changes: bool,
    /// Of 9p: beside a server that counts what it does (serve --http), instead of one that does not poll
    #[arg(long)]
    counted: bool,
    /// Few and short runs, and no system calls counted: to see that it works, not what it is worth
    #[arg(long)]
    quick: bool,
    /// Runs of each cell [default: 5, or 3 when quick; of coalescing 5, or 1; of image, kept, objects and pack 3, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Where to make the files to measure with [default: /dev/shm, or the directory for temporary files; of coalescing,
    /// image, kept and objects always the latter]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The size of each of readplus's files [default: 32, or 8 when quick], and of coalescing's and kept's [default: 128, or 32]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    size: Option<u16>,
    /// Files in the tree that find lists [default: 100000, or 20000 when quick]
    #[arg(long = "files", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    files_in_tree: Option<u32>,
    /// Measure beside N busy loops: threads that compute without end, at the usual priority. Shows
    /// what is left where processors are short
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    busy: u16,
    /// Hostile connections of crowd
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Only rows whose name has this in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also what takes a kernel's client, in virtual machines: servers with default options, caches of the 9P client, READ_PLUS
    /// (of all, virtiofs, 9p, nfs, coalescing and readplus); takes barge-guest
    #[arg(long)]
    guest: bool,
    #[command(flatten)]
    outputs: Outputs,
    #[arg(skip)]
    steps: Steps,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    /// Every table but replay, one after the other; one that fails is told of, and the others go on
    All,
    /// 9P over Unix sockets and TCP, beside diod
    #[value(name = "9p")]
    Nine,
    /// `barge mount` of 9P with messages merged and with a page in each, beside the local file system; needs root and fio
    Coalescing,
    /// `barge mount` of 9P and of NFS, a tree of many files listed: files a second, and memory of the mount; needs root
    Find,
    /// A client of 9P and of NFS beside thousands of hostile connections; needs root
    Crowd,
    /// Node.js and a JDK from images, beside the kernel's EROFS and squashfs, squashfuse and erofsfuse; needs root
    Image,
    /// `barge mount` of a 9P server that is 1 ms away, with and without a directory for copies (cache_dir=); needs root
    Kept,
    /// `barge mount` of a directory, beside bindfs; needs root
    Mount,
    /// NFS over loopback TCP, beside nfs-ganesha
    Nfs,
    /// Node.js from an image in an object store that is 20 ms away, with and without a trace
    Objects,
    /// Sizes and build times of images by `barge pack`, mkfs.erofs and mksquashfs
    Pack,
    /// Files of data and holes by each version of NFS, with READ_PLUS and without; needs root
    Readplus,
    /// Calls that were written down (`barge serve --record-calls`) on any source: `replay FILE SOURCE`
    Replay,
    /// A report again, of what --json has written: `show FILE [LATER]`
    Show,
    /// virtiofs without a virtual machine, beside virtiofsd
    Virtiofs,
    /// 9P with and without zero copy, by sizes, over Unix sockets, TCP and a virtqueue
    Zerocopy,
}

impl BenchArgs {
    fn runs(&self) -> usize {
        self.runs
            .map_or(if self.quick { 3 } else { 5 }, usize::from)
    }

    /// The same with so many runs, or one when quick, if nothing else was said: for tables of which a run of all cells takes long.
    fn seldom(&self, runs: u16) -> BenchArgs {
        BenchArgs {
            runs: self.runs.or(Some(if self.quick { 1 } else { runs })),
            ..self.clone()
        }
    }

    /// How long a run lasts: with five of them, some hundred operations of the slowest kinds, and hundreds of thousands of the fastest.
    fn time(&self) -> Duration {
        // Where processors are short, time slices of milliseconds come in between: a run has many
        // of them.
        let times = if self.busy > 0 { 5 } else { 1 };
        Duration::from_millis(times * if self.quick { 40 } else { 80 })
    }

    /// Whether a row of this name is asked for.
    fn wants(&self, name: &str) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| name.contains(only.as_str()))
    }

    /// So many cells more will be measured, on so many servers each.
    fn plan(&self, cells: usize, servers: usize) {
        self.steps.plan((self.runs() + 1) * cells * servers);
    }

    /// How it is measured.
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
    /// As the command line has it.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// Measures one that is measured here, beside so many busy loops as are asked for.
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

/// `barge bench`
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
