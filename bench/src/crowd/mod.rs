//! The table `crowd`: the effect on a client of thousands of hostile connections of another user,
//! and the memory that they use.

pub(super) mod hostile;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use transports::Addr;

use self::hostile::{Behaviour, Crowd, Protocol, REOPEN_RATE, switch_user};
use crate::context::Context;
use crate::nfs::client::{Client as NfsClient, Version};
use crate::nfs::servers::Server;
use crate::p9::client::Client as P9Client;
use crate::process::{Process, free_port, process_tree, require_root};
use crate::protocol::Operation;
use crate::report::results::{Results, Row};
use crate::rounds::Measurement;
use crate::workspace::Workspace;
use command::Failure;

/// The time between the arrival of the crowd and the measurement: the server frees the buffers of
/// the connections' first messages after two seconds.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// The time for the server to close the crowd's connections before the next round.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The time for the server to free memory after the last crowd has disconnected.
const MEMORY_FREE_TIME: Duration = Duration::from_secs(6);

/// An ordinary client that runs one operation at a time.
type OrdinaryClient = Box<dyn FnMut() -> Measurement + Send>;

/// The addresses and the process of a cell's server.
struct CrowdServer {
    p9: Addr,
    nfs: Server,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    require_root("crowd")?;
    sys::limits::raise_descriptors();
    let workspace = Workspace::with_files(args)?;
    let mut cells = Vec::new();
    for (name, protocol) in [("9P", Protocol::P9), ("NFS v3", Protocol::Nfs3)] {
        let kinds = Behaviour::ALL.map(|kind| (format!("{name}, {}", kind.name()), protocol, kind));
        cells.extend(kinds.into_iter().filter(|(name, ..)| args.selects(name)));
    }
    args.progress.plan(cells.len());
    let mut rows = Vec::new();
    for (name, protocol, kind) in cells {
        match measure(args, &workspace, &name, protocol, kind) {
            Ok(measured) => rows.extend(measured),
            Err(why) => args.progress.report_failure(format!("{name}: {why}")),
        }
        args.progress.advance()?;
    }
    let count = args.options.connections;
    Ok(Results {
        title: format!("A client during {count} hostile connections of another user"),
        notes: vec![
            format!(
                "over loopback TCP, one operation at a time, {} runs of {} ms, alternately alone and \
                 with the hostile connections, from {} s after they are open; all options have \
                 their defaults except the limits of connections",
                args.runs(),
                time(args).as_millis(),
                SETTLE_TIME.as_secs()
            ),
            format!(
                "resident memory of the server: 'at most' before the hostile connections and at its peak \
                 with them; 'afterwards' before them and {} s after they have ended",
                MEMORY_FREE_TIME.as_secs()
            ),
            format!("reopening: {REOPEN_RATE} connections a second, the oldest first"),
        ],
        missing: Vec::new(),
        servers: vec!["alone".into(), format!("with {count}")],
        peers: Vec::new(),
        limit: None,
        rows,
    })
}

/// Returns the duration of a run: thousands of operations, of which the slowest hundredth matters.
fn time(args: &Context) -> Duration {
    args.run_time() * 20
}

/// Measures a bystander alone and then with a crowd: a row for each of its operations, and two for
/// the server's memory.
fn measure(
    args: &Context,
    workspace: &Workspace,
    name: &str,
    protocol: Protocol,
    kind: Behaviour,
) -> Result<Vec<Row>, String> {
    let text = |failure: Failure| failure.message;
    let p9 = Addr::Tcp {
        host: "127.0.0.1".into(),
        port: free_port().map_err(text)?,
    };
    let many = (u32::from(args.options.connections) * 2 + 100).to_string();
    let options = [
        "--9p",
        &p9.to_string(),
        // The hostile clients are another user.
        "--admit=*",
        "--max-connections",
        &many,
        "--max-connections-per-client",
        &many,
    ];
    let (_, nfs) = crate::nfs::servers::barge(
        workspace.barge(),
        (&workspace.share, &workspace.run_dir),
        None,
        &options,
    )
    .map_err(text)?;
    let served = CrowdServer { p9, nfs };
    let process = &served.nfs.process;
    let port = match (protocol, &served.p9) {
        (Protocol::P9, Addr::Tcp { port, .. }) => *port,
        _ => served.nfs.port(),
    };
    let mut bystanders = served.ordinary_clients(protocol)?;
    let mut rows: Vec<Row> = bystanders
        .iter()
        .map(|(what, _)| {
            let name = format!("{name}: {what}, 99th percentile");
            Row::new(name, "µs", vec![Vec::new(); 2])
        })
        .collect();
    // Warms up.
    for (_, bystander) in &mut bystanders {
        latency_p99(bystander, time(args))?;
    }
    let mut run = |column: usize| -> Result<(), String> {
        for ((_, bystander), row) in bystanders.iter_mut().zip(&mut rows) {
            let slowest = latency_p99(bystander, time(args))?;
            row.runs[column].push(slowest);
        }
        Ok(())
    };
    let before = memory(process, "VmRSS")?;
    for _ in 0..args.runs() {
        run(0)?;
        let crowd = (protocol, kind, port, args.options.connections);
        with_crowd(crowd, || run(1))?;
        sleep(CLOSE_TIME);
    }
    let beside = memory(process, "VmHWM")?;
    sleep(MEMORY_FREE_TIME);
    let afterwards = memory(process, "VmRSS")?;
    let row = |what: &str, figures: [f64; 2]| {
        let runs = figures.map(|figure| vec![figure]).into();
        Row::new(format!("{name}: {what}"), "MiB", runs)
    };
    rows.push(row("memory, at most", [before, beside]));
    rows.push(row("memory, afterwards", [before, afterwards]));
    Ok(rows)
}

/// Runs `measure` while a crowd of `count` connections to `port` is open.
fn with_crowd(
    (protocol, kind, port, count): (Protocol, Behaviour, u16, u16),
    mut measure: impl FnMut() -> Result<(), String>,
) -> Result<(), String> {
    let stop = AtomicBool::new(false);
    let (opened, is_open) = channel();
    scope(|threads| {
        let crowd = threads.spawn(|| -> io::Result<()> {
            // Dropped on return, which also reports a failure.
            let opened = opened;
            switch_user()?;
            let mut crowd = Crowd::open(protocol, kind, port, count)?;
            let _ = opened.send(());
            match kind {
                Behaviour::Reopening => crowd.reopen(protocol, port, &stop),
                _ => crowd.hold(&stop),
            }
        });
        let measured = match is_open.recv() {
            Ok(()) => {
                sleep(SETTLE_TIME);
                measure()
            }
            Err(_) => Ok(()),
        };
        stop.store(true, Ordering::Relaxed);
        crowd.thread().unpark();
        let crowd = crowd.join().map_err(|_| "the crowd panicked")?;
        crowd.map_err(|error| format!("the crowd: {error}"))?;
        measured
    })
}

impl CrowdServer {
    /// Returns clients that read 4 KiB and get attributes.
    fn ordinary_clients(
        &self,
        protocol: Protocol,
    ) -> Result<[(&'static str, OrdinaryClient); 2], String> {
        const ONE: (usize, Duration, usize) = (1, Duration::MAX, 1);
        let (depth, time, most) = ONE;
        Ok(match protocol {
            Protocol::P9 => {
                let client = |number| P9Client::connect(&self.p9, "", number);
                let (mut reads, mut attributes) = (client(0)?, client(1)?);
                [
                    (
                        "4 KiB read",
                        Box::new(move || reads.run(Operation::ReadSmall, depth, time, most)),
                    ),
                    (
                        "walk+getattr+clunk",
                        Box::new(move || attributes.run(Operation::LookUp, depth, time, most)),
                    ),
                ]
            }
            Protocol::Nfs3 => {
                let client =
                    |work, number| NfsClient::connect(&self.nfs, Version::V3, work, number);
                let mut reads = client(Operation::ReadSmall, 0)?;
                let mut attributes = client(Operation::Attributes, 1)?;
                [
                    ("4 KiB read", Box::new(move || reads.run(depth, time, most))),
                    (
                        "getattr",
                        Box::new(move || attributes.run(depth, time, most)),
                    ),
                ]
            }
        })
    }
}

/// Repeats an operation for `time`; returns the 99th percentile of its latency in microseconds.
fn latency_p99(bystander: &mut OrdinaryClient, time: Duration) -> Result<f64, String> {
    let began = Instant::now();
    let mut all = Vec::new();
    while began.elapsed() < time {
        let (_, took) = bystander().map_err(|errno| errno.to_string())?;
        all.push(took);
    }
    all.sort_unstable();
    let at = (all.len() * 99 / 100).min(all.len().saturating_sub(1));
    let slowest = all.get(at).ok_or("no operation ended")?;
    Ok(slowest.as_secs_f64() * 1e6)
}

/// Returns a memory figure of a process and its descendants together in MiB, by its name in
/// /proc/PID/status (proc_pid_status(5)).
fn memory(process: &Process, field: &str) -> Result<f64, String> {
    let mut sum = 0.0;
    for pid in process_tree(process.pid()) {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        sum += kib.ok_or_else(|| format!("{path}: no {field}"))?;
    }
    Ok(sum / 1024.0)
}
