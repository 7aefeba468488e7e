//! The table `coalescing`: `barge mount` of 9P, NFS and virtiofs with merged messages and with one
//! page in each, compared with the local file system that is served. The jobs are the fio
//! equivalents of the iozone jobs with which page coalescing was first measured in Linux's 9P
//! client.

mod job;
mod memory_limit;

use std::process::Command;

use self::job::{JOBS, Job, Writers};
use self::memory_limit::MemoryLimit;
use crate::context::Context;
use crate::mounted::Mounted;
use crate::network::Network;
use crate::process::{Process, free_port, require_root};
use crate::relay::Relay;
use crate::report::results::{Results, Row, Summary};
use crate::rounds::Rotation;
use crate::workspace::Workspace;
use command::Failure;
use command::tools::{Tool, find};

/// The connection to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connection {
    Unix,
    /// A Unix socket over which the server passes file descriptors; other data still travels in
    /// messages.
    FdPassing,
    Tcp,
    /// TCP, with half a millisecond of delay in each direction.
    DelayedTcp,
    /// NFS 4.2 over TCP.
    Nfs,
    /// A virtiofs device.
    Virtiofs,
    /// No server: the mounted tree is in the mount's own memory. No FUSE mount is faster.
    FuseOnly,
}

const CONNECTIONS: [Connection; 7] = [
    Connection::Unix,
    Connection::FdPassing,
    Connection::Tcp,
    Connection::DelayedTcp,
    Connection::Nfs,
    Connection::Virtiofs,
    Connection::FuseOnly,
];

impl Connection {
    fn name(self) -> &'static str {
        match self {
            Connection::Unix => "Unix",
            Connection::FdPassing => "Unix, fd passing",
            Connection::Tcp => "TCP",
            Connection::DelayedTcp => "TCP + 1 ms",
            Connection::Nfs => "NFS 4.2",
            Connection::Virtiofs => "virtiofs",
            Connection::FuseOnly => "FUSE alone",
        }
    }

    /// Returns the target ratio of `loose` to one page in each message.
    fn target_speedup(self, job: &Job) -> Option<f64> {
        match self {
            Connection::FdPassing | Connection::FuseOnly => None,
            Connection::DelayedTcp => Some(5.0),
            _ if job.is_sequential() => Some(2.5),
            _ => Some(job.published_speedup),
        }
    }

    /// Returns the column whose target is 90 % of the speed of the local file system.
    fn parity_column(self, job: &Job) -> Option<Column> {
        match self {
            Connection::FdPassing => Some(Column::Mmap),
            Connection::DelayedTcp | Connection::FuseOnly => None,
            _ => job.is_sequential().then_some(Column::Loose),
        }
    }
}

/// The configuration of the mount, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    /// The kernel caches and merges, on the assumption that only this mount changes the tree;
    /// except for the read-ahead of small random reads.
    Loose,
    Uncoalesced,
    Local,
    /// The mount's own page cache caches and merges.
    Mmap,
}

const COLUMNS: [Column; 4] = [
    Column::Loose,
    Column::Uncoalesced,
    Column::Local,
    Column::Mmap,
];

impl Column {
    fn name(self) -> &'static str {
        match self {
            Column::Loose => "loose",
            Column::Uncoalesced => "uncoalesced",
            Column::Local => "local",
            Column::Mmap => "mmap",
        }
    }
}

/// A served tree, over one connection.
struct ServedTree {
    /// The URL of the tree as a source.
    url: String,
    /// The URL for one page in each message, and the mount options for it; `None` if there are no
    /// messages.
    uncoalesced: Option<(String, &'static str)>,
    network: Option<Network>,
    relay: Option<Relay>,
    _server: Option<Process>,
}

/// The sizes in bytes.
struct Sizes {
    file: u64,
    /// The part of the file that a job uses.
    part: u64,
    /// The limits of the kernel's page cache and of barge's.
    cache: u64,
}

impl Sizes {
    fn new(file: u64) -> Sizes {
        Sizes {
            file,
            part: file,
            cache: file / 4,
        }
    }

    /// Returns the sizes for `job` over `way`. A job that runs to its end uses a part that takes
    /// about 3 s with one page in each message, and barge may cache half of it.
    fn for_job(&self, job: &Job, way: Connection) -> Sizes {
        let share = match (job.runs_to_end, way) {
            (false, _) => return Sizes::new(self.file),
            (true, Connection::DelayedTcp) => 16,
            (true, _) => 2,
        };
        let part = self.file / share;
        Sizes {
            file: self.file,
            part,
            cache: (part / 2).max(1 << 20),
        }
    }
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    require_root("bench coalescing mounts, and makes a network")?;
    if find(Tool::FIO.name).is_none() {
        return Err(Failure::new(Tool::FIO.missing_message()));
    }
    let workspace = Workspace::new_in(args, std::env::temp_dir())?;
    let file = u64::from(
        args.options
            .size
            .unwrap_or(if args.options.quick { 32 } else { 128 }),
    ) << 20;
    let sizes = Sizes::new(file);
    let limit = MemoryLimit::new(sizes.cache);
    let args = &args.with_default_runs(5);
    let runs = args.runs();
    let mut notes = notes(args, &workspace, &sizes, limit.is_some());
    let mut missing = Vec::new();
    let mut rows = Vec::new();
    let mut short = Vec::new();
    args.progress
        .plan(CONNECTIONS.len() * JOBS.len() * runs * COLUMNS.len());
    for way in CONNECTIONS {
        let name = |job: &Job| format!("{}, {}", way.name(), job.name);
        let jobs: Vec<_> = JOBS.iter().filter(|job| args.selects(&name(job))).collect();
        if jobs.is_empty() {
            continue;
        }
        let served = match ServedTree::start(way, &workspace) {
            Ok(served) => served,
            Err(why) => {
                missing.push(format!("{} is missing: {why}", way.name()));
                continue;
            }
        };
        for job in jobs {
            let mut row = Row::new(name(job), "MB/s", vec![Vec::new(); COLUMNS.len()]);
            let mut rotation = Rotation::of(COLUMNS.len());
            let mut messages = Vec::new();
            let sizes = sizes.for_job(job, way);
            for round in 0..runs {
                rotation.round(args, round, std::slice::from_mut(&mut row), |rows, slot| {
                    let column = COLUMNS[slot];
                    if column == Column::Uncoalesced && served.uncoalesced.is_none() {
                        return Ok(());
                    }
                    let bench = (&workspace, &sizes, limit.as_ref());
                    let rate = measure(job, &served, column, bench, args.options.quick);
                    let mean = served.relay.as_ref().and_then(Relay::mean_write);
                    if let (0, Some(mean)) = (round, mean) {
                        messages.push(format!("{} {mean}", column.name()));
                    }
                    let failed = |why| format!("{}, {}: {why}", column.name(), name(job));
                    rows[0].runs[slot].push(rate.map_err(failed)?);
                    Ok(())
                })?;
            }
            if job.writers != Writers::One && !messages.is_empty() {
                let messages = messages.join(", ");
                notes.push(format!(
                    "{}: bytes of a Twrite, mean: {messages}",
                    name(job)
                ));
            }
            short.extend(missed_targets(&name(job), way, job, &row.runs));
            rows.push(row);
        }
    }
    if !short.is_empty() {
        notes.push(format!("below target: {}", short.join("; ")));
    }
    Ok(Results {
        title: "barge mount with coalesced and uncoalesced messages".into(),
        notes,
        missing,
        servers: COLUMNS.map(|column| column.name().to_owned()).into(),
        peers: vec![1],
        limit: COLUMNS.iter().position(|&column| column == Column::Local),
        rows,
    })
}

fn notes(args: &Context, workspace: &Workspace, sizes: &Sizes, limited: bool) -> Vec<String> {
    let mib = |bytes: u64| bytes >> 20;
    let mut notes = vec![
        format!(
            "{} runs each, alternating, of fio's synchronous engine on a file of {} MiB below {}, for at most {} s, writes with \
             their fsync; before each all caches of the file are empty",
            args.runs(),
            mib(sizes.file),
            workspace.parent(),
            JOBS[0].seconds(args.options.quick),
        ),
        format!(
            "random read 4K: each page of the first {} MiB once ({} MiB with 1 ms); barge caches up to half of that",
            mib(sizes.file / 2),
            mib(sizes.file / 16),
        ),
        "ratios are of loose to uncoalesced: one page in each message".into(),
        format!(
            "loose: cache=loose, coalesced by the kernel; mmap: cache=mmap, coalesced by barge, both with cache_size={}M; uncoalesced: cache=auto, \
             msize=4120 and inflight=4096, so that each of the kernel's requests travels page by page; over NFS rsize=4096, wsize=4096 and \
             inflight=4096; over virtiofs max_write=4096 and inflight=4096; local: the file system that is served",
            mib(sizes.cache)
        ),
        "Unix, fd passing: with --9p-fd-passing and cache=mmap the kernel itself reads and writes the served file (passthrough); loose and \
         uncoalesced do not support that, and are as over Unix"
            .into(),
        "FUSE alone: a mount of a file in its own memory, which is overwritten: no FUSE mount without passthrough is faster here, whatever its \
         source"
            .into(),
        "TCP + 1 ms: through a relay on loopback that delays data by half a millisecond in each direction; the relay takes processor time \
         from all columns except local"
            .into(),
    ];
    notes.push(match limited {
        true => format!(
            "the kernel caches up to {} MiB of the file and of fio",
            mib(sizes.cache)
        ),
        false => "no control group for memory: the kernel caches without a limit".into(),
    });
    notes
}

/// Returns the targets that a row misses: compared with one page in each message, and with the
/// local file system.
fn missed_targets(name: &str, way: Connection, job: &Job, runs: &[Vec<f64>]) -> Vec<String> {
    const PARITY: f64 = 0.9;
    let median =
        |column: Column| Summary::of(&runs[column as usize]).map_or(f64::NAN, |of| of.median);
    let mut short = Vec::new();
    let mut owes = |column, target: f64, beside: Column| {
        let ratio = median(column) / median(beside);
        if ratio < target {
            let beside = beside.name();
            short.push(format!("{name}: {ratio:.2} of {target} times {beside}"));
        }
    };
    if let Some(gain) = way.target_speedup(job) {
        owes(Column::Loose, gain, Column::Uncoalesced);
    }
    if let Some(column) = way.parity_column(job) {
        owes(column, PARITY, Column::Local);
    }
    short
}

/// Runs `job` once, with cold caches; returns MB/s.
fn measure(
    job: &Job,
    served: &ServedTree,
    column: Column,
    (workspace, sizes, limit): (&Workspace, &Sizes, Option<&MemoryLimit>),
    quick: bool,
) -> Result<f64, String> {
    let mounted = match column {
        Column::Local => None,
        column => Some(served.mount(column, workspace, sizes)?),
    };
    let below = mounted.as_ref().map_or(&*workspace.share, Mounted::path);
    // As late as possible: see `workspace::forget`.
    job.prepare(&workspace.share, sizes.file)?;
    job.drop_cache(&workspace.share)?;
    if served.uncoalesced.is_none() && mounted.is_some() {
        job.create_files(below, sizes.file)?;
    }
    job.run(below, sizes.part, limit, quick)
}

impl ServedTree {
    fn start(way: Connection, workspace: &Workspace) -> Result<ServedTree, String> {
        /// The placeholder for the port in a source's URL.
        const PORT: &str = "{port}";
        let path = workspace.run_dir.join("socket").display().to_string();
        let port = free_port()?;
        let (nine, tcp) = ("--9p".to_owned(), format!("tcp:127.0.0.1:{port}"));
        let (serve, url) = match way {
            Connection::Unix => (
                vec![nine, format!("unix:{path}")],
                format!("9p+unix:{path}"),
            ),
            Connection::FdPassing => (
                vec!["--9p-fd-passing".into(), nine, format!("unix:{path}")],
                format!("9p+unix:{path}"),
            ),
            Connection::Tcp | Connection::DelayedTcp => {
                (vec![nine, tcp], format!("9p://127.0.0.1:{PORT}/"))
            }
            Connection::Nfs => {
                let state = workspace.run_dir.join("state").display().to_string();
                (
                    vec!["--nfs".into(), tcp, "--nfs-state-dir".into(), state],
                    format!("nfs://127.0.0.1:{PORT}/?vers=4.2"),
                )
            }
            Connection::Virtiofs => (
                vec!["--virtiofs".into(), path.clone()],
                format!("virtiofs:{path}"),
            ),
            Connection::FuseOnly => (Vec::new(), "mem:".into()),
        };
        let network = match url.contains(PORT) && way != Connection::DelayedTcp {
            true => Some(
                Network::loopback_only()
                    .ok_or("no network can be made: Debian's iproute2 and util-linux")?,
            ),
            false => None,
        };
        let server = match serve.is_empty() {
            true => None,
            false => {
                let mut command = barge(workspace, network.as_ref());
                command.arg("serve").args(serve).arg(&workspace.share);
                Some(Process::start_barge(&mut command)?)
            }
        };
        let relay = match way {
            Connection::DelayedTcp => {
                let relay = Relay::start(([127, 0, 0, 1], port).into());
                Some(relay.map_err(|error| format!("no relay: {error}"))?)
            }
            _ => None,
        };
        let port = relay.as_ref().map_or(port, |relay| relay.port);
        let url = url.replace(PORT, &port.to_string());
        let uncoalesced = match way {
            Connection::Unix | Connection::FdPassing | Connection::Tcp | Connection::DelayedTcp => {
                Some((
                    format!("{url}?msize=4120&inflight=4096"),
                    "cache=auto,passthrough=off",
                ))
            }
            Connection::Nfs => Some((
                format!("{url}&rsize=4096&wsize=4096&inflight=4096"),
                "cache=auto",
            )),
            Connection::Virtiofs => {
                Some((format!("{url}?max_write=4096&inflight=4096"), "cache=auto"))
            }
            Connection::FuseOnly => None,
        };
        Ok(ServedTree {
            url,
            uncoalesced,
            network,
            relay,
            _server: server,
        })
    }

    fn mount(
        &self,
        column: Column,
        workspace: &Workspace,
        sizes: &Sizes,
    ) -> Result<Mounted, String> {
        let cache_options = |cache| format!("cache={cache},cache_size={}", sizes.cache);
        let (loose, mmap) = (cache_options("loose"), cache_options("mmap"));
        let (source, options) = match column {
            Column::Loose => (&self.url, &*loose),
            Column::Mmap => (&self.url, &*mmap),
            Column::Local | Column::Uncoalesced => {
                let uncoalesced = self.uncoalesced.as_ref().ok_or("there are no messages")?;
                (&uncoalesced.0, uncoalesced.1)
            }
        };
        Mounted::new(
            barge(workspace, self.network.as_ref()),
            source,
            options,
            workspace.run_dir.join("mounted"),
        )
    }
}

/// Returns a command for the program to measure, in `network` if given.
fn barge(workspace: &Workspace, network: Option<&Network>) -> Command {
    match network {
        None => workspace.barge(),
        Some(network) => {
            let mut command = network.command();
            command.arg(&workspace.barge);
            command
        }
    }
}
