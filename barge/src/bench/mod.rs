//! `barge bench`: barge beside its peers, on this machine, in the same run.
//!
//! Runs alternate between the servers, so that a drift of the machine's speed meets all of them; each cell
//! is the median of several runs, with the least and the most. Peers that are not installed are named.

mod coalescing;
mod image;
mod network;
mod nfs;
mod ninep;
mod place;
mod process;
mod readplus;
mod replay;
mod report;
mod rounds;
mod syscalls;
mod virtiofs;
mod zerocopy;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::{Done, Failure};

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Which table
    table: Table,
    /// Of replay: the trace, and on what its calls are made
    #[arg(value_names = ["FILE", "SOURCE"], num_args = 2, required_if_eq("table", "replay"))]
    replay: Vec<String>,
    /// Of replay: make calls when the trace says, not as fast as it goes
    #[arg(long)]
    paced: bool,
    /// Of replay: make also those calls that change something; zeros are written
    #[arg(long)]
    changes: bool,
    /// Of 9p: beside a server that counts what it does (serve --http), instead of one that does not poll
    #[arg(long)]
    counted: bool,
    /// Few and short runs: to see that it works, not what it is worth
    #[arg(long)]
    quick: bool,
    /// Runs of each cell [default: 5, or 3 when quick; of coalescing 3, or 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Where to make the files to measure with [default: /dev/shm, or the directory for temporary files; of coalescing,
    /// image and objects always the latter]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The size of each of readplus's files [default: 64, or 8 when quick], and of coalescing's [default: 256, or 64]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    size: Option<u16>,
    /// Only rows whose name has this in it
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also write the results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Table {
    /// 9P over Unix sockets and TCP, beside diod
    #[value(name = "9p")]
    Nine,
    /// `barge mount` of 9P with messages merged and with a page in each, beside the local file system; needs root and fio
    Coalescing,
    /// Node.js and a JDK from images, beside the kernel's EROFS and squashfs, squashfuse and erofsfuse; needs root
    Image,
    /// NFS over loopback TCP, beside nfs-ganesha
    Nfs,
    /// Node.js from an image in an object store that is 20 ms away, with and without a trace
    Objects,
    /// Files of data and holes by each version of NFS, with READ_PLUS and without; needs root
    Readplus,
    /// The calls of a trace (`barge serve --trace`) on any source: replay FILE SOURCE
    Replay,
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

    /// How long a run lasts.
    fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 60 } else { 250 })
    }

    /// Whether a row of this name is asked for.
    fn wants(&self, name: &str) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| name.contains(only.as_str()))
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

fn run_replay(args: &BenchArgs) -> Done {
    let [file, source] = args.replay.as_slice() else {
        return Err(Failure::usage("replay: expected FILE SOURCE"));
    };
    let mut replayed = replay::run(file.as_ref(), source, args.paced, args.changes)?;
    print!("{}", replayed.text());
    if let Some(path) = &args.json {
        std::fs::write(path, replayed.json())
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `barge bench`
pub(crate) fn run(args: &BenchArgs) -> Done {
    let results = match args.table {
        Table::Replay => return run_replay(args),
        Table::Nine => ninep::run(args)?,
        Table::Coalescing => coalescing::run(args)?,
        Table::Image => image::run(args)?,
        Table::Nfs => nfs::run(args)?,
        Table::Objects => image::far::run(args)?,
        Table::Readplus => readplus::run(args)?,
        Table::Virtiofs => virtiofs::run(args)?,
        Table::Zerocopy => zerocopy::run(args)?,
    };
    print!("{}", report::text(&results));
    if let Some(path) = &args.json {
        std::fs::write(path, report::json(&results))
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}
