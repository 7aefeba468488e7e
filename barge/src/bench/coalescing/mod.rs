//! The table `coalescing`: `barge mount` of 9P with messages merged and with a page in each, beside the local file system that is
//! served. The jobs are those of iozone by which page coalescing was first measured in Linux's 9P client, as fio has them.

mod job;
mod limit;
mod mounted;

use std::path::{Path, PathBuf};
use std::process::Command;

use self::job::{JOBS, Job};
use self::limit::Limit;
use self::mounted::Mounted;
use super::BenchArgs;
use super::network::Network;
use super::place::Place;
use super::process::{Process, find, free_port};
use super::report::{Results, Row, Work};
use crate::Failure;

/// Ways to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unix,
    Tcp,
    /// TCP, with 1 ms more for each direction.
    Delayed,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Unix => "Unix",
            Way::Tcp => "TCP",
            Way::Delayed => "TCP + 1 ms",
        }
    }

    /// How many times as fast as with a page in each message it is to be.
    fn target(self, job: &Job) -> f64 {
        match self {
            Way::Delayed => 5.0,
            _ if job.is_sequential() => 2.5,
            _ => job.first_measured,
        }
    }
}

/// What is measured, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    /// By the kernel, where nobody else changes the tree.
    Loose,
    Paged,
    Local,
    /// By the page cache here.
    Mmap,
}

const COLUMNS: [Column; 4] = [Column::Loose, Column::Paged, Column::Local, Column::Mmap];

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::Loose => "loose",
            Column::Paged => "a page each",
            Column::Local => "local",
            Column::Mmap => "mmap",
        }
    }
}

/// A server that is reached by one way.
struct Served {
    way: Way,
    /// Where it is, as a source.
    url: String,
    network: Option<Network>,
    _server: Process,
}

/// The sizes of all.
struct Sizes {
    file: u64,
    /// What the kernel may keep of it, and what barge may.
    cache: u64,
}

pub(super) fn run(args: &BenchArgs) -> Result<Results, Failure> {
    if !rustix::process::geteuid().is_root() {
        let why = "bench coalescing mounts, empties the kernel's caches and makes a network: it takes user 0";
        return Err(Failure::new(why));
    }
    if find("fio").is_none() {
        return Err(Failure::new(
            "bench coalescing takes fio (Debian's package of that name)",
        ));
    }
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let place = Place::below(parent)?;
    let file = u64::from(args.size.unwrap_or(if args.quick { 64 } else { 256 })) << 20;
    let sizes = Sizes {
        file,
        cache: file / 4,
    };
    let limit = Limit::new(sizes.cache);
    let runs = args
        .runs
        .map_or(if args.quick { 1 } else { 3 }, usize::from);
    let mut notes = notes(args, &place, &sizes, runs, limit.is_some());
    let mut rows = Vec::new();
    let mut short = Vec::new();
    for way in [Way::Unix, Way::Tcp, Way::Delayed] {
        let name = |job: &Job| format!("{}, {}", way.name(), job.name);
        let jobs: Vec<_> = JOBS.iter().filter(|job| args.wants(&name(job))).collect();
        if jobs.is_empty() {
            continue;
        }
        let served = match Served::start(way, &place) {
            Ok(served) => served,
            Err(why) => {
                notes.push(format!("{} is missing: {why}", way.name()));
                continue;
            }
        };
        for job in jobs {
            let mut all = vec![Vec::new(); COLUMNS.len()];
            for round in 0..runs {
                for turn in 0..COLUMNS.len() {
                    let turn = (turn + round) % COLUMNS.len();
                    let bench = (&place, &sizes, limit.as_ref());
                    let rate = measure(job, &served, COLUMNS[turn], bench, args.quick);
                    let failed = |why| Failure::new(format!("{}: {why}", name(job)));
                    all[turn].push(rate.map_err(failed)?);
                }
            }
            short.extend(falls_short(&name(job), way, job, &all));
            rows.push(Row {
                name: name(job),
                unit: "MB/s",
                runs: all,
                work: vec![Work::default(); COLUMNS.len()],
                calls: vec![None; COLUMNS.len()],
            });
        }
    }
    if !short.is_empty() {
        notes.push(format!("short of what is aimed at: {}", short.join("; ")));
    }
    Ok(Results {
        title: "9P mounted, messages merged and not".into(),
        notes,
        servers: COLUMNS.map(|column| column.name().to_owned()).into(),
        peers: vec![1],
        rows,
    })
}

fn notes(
    args: &BenchArgs,
    place: &Place,
    sizes: &Sizes,
    runs: usize,
    limited: bool,
) -> Vec<String> {
    let mib = |bytes: u64| bytes >> 20;
    let mut notes = vec![
        format!(
            "{runs} runs each, alternating, of fio's synchronous engine on a file of {} MiB below {}, for {} s at most, writes with \
             their fsync; every cache is emptied before each",
            mib(sizes.file),
            place.parent(),
            job::seconds(args.quick),
        ),
        "the ratio is that of loose to a page each".into(),
        format!(
            "loose: cache=loose, merged by the kernel; mmap: cache=mmap,cache_size={}M, merged by barge; a page each: cache=auto, \
             msize=4120, of which the client has 8 under way; local: the file system that is served",
            mib(sizes.cache)
        ),
    ];
    notes.push(match limited {
        true => format!(
            "the kernel keeps up to {} MiB of it, and of what fio is",
            mib(sizes.cache)
        ),
        false => "no control group for memory: the kernel keeps as much as it likes".into(),
    });
    notes
}

/// What of a row is below its target: to a page each, and to the local file system.
fn falls_short(name: &str, way: Way, job: &Job, runs: &[Vec<f64>]) -> Vec<String> {
    let median = |column: usize| {
        let mut sorted = runs[column].clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let (loose, paged, local) = (median(0), median(1), median(2));
    let mut short = Vec::new();
    let target = way.target(job);
    if loose < target * paged {
        short.push(format!(
            "{name}: {:.2} of {target} times a page each",
            loose / paged
        ));
    }
    if way != Way::Delayed && job.is_sequential() && loose < 0.9 * local {
        short.push(format!("{name}: {:.2} of 0.9 times local", loose / local));
    }
    short
}

/// Runs `job` once, with nothing in any cache.
fn measure(
    job: &Job,
    served: &Served,
    column: Column,
    (place, sizes, limit): (&Place, &Sizes, Option<&Limit>),
    quick: bool,
) -> Result<f64, String> {
    job.prepare(&place.share, sizes.file)?;
    empty_caches()?;
    let mounted = match column {
        Column::Local => None,
        column => Some(served.mount(column, &place.run, sizes)?),
    };
    let below = mounted.as_ref().map_or(&*place.share, Mounted::path);
    job.run(below, sizes.file, limit, quick)
}

fn empty_caches() -> Result<(), String> {
    rustix::fs::sync();
    let path = "/proc/sys/vm/drop_caches";
    std::fs::write(path, "3").map_err(|error| format!("{path}: {error}"))
}

impl Served {
    fn start(way: Way, place: &Place) -> Result<Served, String> {
        let network = match way {
            Way::Unix => None,
            _ => Some(
                Network::bare()
                    .ok_or("no network can be made: Debian's iproute2 and util-linux")?,
            ),
        };
        let (addr, url) = match &network {
            None => {
                let path = place.run.join("socket");
                let path = path.display();
                (format!("unix:{path}"), format!("9p+unix:{path}"))
            }
            Some(_) => {
                let port = free_port().map_err(|failure| failure.message)?;
                (
                    format!("tcp:127.0.0.1:{port}"),
                    format!("9p://127.0.0.1:{port}"),
                )
            }
        };
        let mut command = barge(network.as_ref())?;
        command.args(["serve", "--9p", &addr]).arg(&place.share);
        let server = Process::ready(&mut command).map_err(|failure| failure.message)?;
        if let (Way::Delayed, Some(network)) = (way, &network) {
            let mut command = network.command();
            command.args([
                "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms", "limit",
                "100000",
            ]);
            let output = command.output().map_err(|error| format!("tc: {error}"))?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr);
                return Err(format!("no delay (netem): {}", why.trim()));
            }
        }
        Ok(Served {
            way,
            url,
            network,
            _server: server,
        })
    }

    fn mount(&self, column: Column, run: &Path, sizes: &Sizes) -> Result<Mounted, String> {
        let slash = if self.way == Way::Unix { "" } else { "/" };
        let (source, options) = match column {
            Column::Loose => (self.url.clone(), "cache=loose".into()),
            Column::Mmap => (
                self.url.clone(),
                format!("cache=mmap,cache_size={}", sizes.cache),
            ),
            _ => (
                format!("{}{slash}?msize=4120", self.url),
                "cache=auto".into(),
            ),
        };
        Mounted::new(
            barge(self.network.as_ref())?,
            &source,
            &options,
            run.join("mounted"),
        )
    }
}

/// This very program, in a network.
fn barge(network: Option<&Network>) -> Result<Command, String> {
    let program: PathBuf = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(match network {
        None => Command::new(program),
        Some(network) => {
            let mut command = network.command();
            command.arg(program);
            command
        }
    })
}
