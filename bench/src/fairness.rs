//! The table `fairness`: the latency of a client with one small request at a time, alone, beside
//! busy loops, and beside another client that sends as much as it can.
//!
//! Busy loops show the part of the delay that is the kernel's: the greedy client and the server's
//! threads for it use the processors, too.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use command::Failure;
use rustix::process::setpriority_process;

use crate::any_client::{AnyClient, AnyProtocol, AnyServer, PROTOCOLS};
use crate::context::Context;
use crate::crowd::hostile::switch_user;
use crate::process::{BusyLoops, require_root};
use crate::protocol::Operation;
use crate::report::results::{Results, Row};
use crate::workspace::{FILE_COUNT, SMALL_FILES_DIR, Workspace};

/// The pause of the polite client after each operation.
const PAUSE: Duration = Duration::from_millis(3);

/// The time between the start of the greedy client and the measurement.
const SETTLE_TIME: Duration = Duration::from_millis(200);

/// The duration of a batch of the greedy client, after which it checks whether to end.
const BATCH: Duration = Duration::from_millis(50);

/// The nice value of the greedy client's threads, see setpriority(2).
const LOWEST_PRIORITY: i32 = 19;

/// The operations of the polite client: one that reads, and one that looks a file up.
const POLITE: [(&str, Operation); 2] = [
    ("4 KiB read", Operation::ReadSmall),
    ("lookup", Operation::LookUp),
];

/// The operations of the greedy client, with their number in flight.
const GREEDY: [(&str, Operation, usize); 4] = [
    ("1 MiB reads", Operation::ReadLarge, 64),
    ("1 MiB writes", Operation::WriteLarge, 64),
    ("creates", Operation::Create, 64),
    ("listings", Operation::List, 1),
];

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    require_root("fairness")?;
    let args = &args.with_default_runs(3);
    let workspace = Workspace::with_files(args)?;
    // For the other user.
    for dir in [
        workspace.share.clone(),
        workspace.share.join(SMALL_FILES_DIR),
    ] {
        let mode = std::fs::Permissions::from_mode(0o777);
        let changed = std::fs::set_permissions(&dir, mode);
        changed.map_err(|error| Failure::new(format!("{}: {error}", dir.display())))?;
    }
    let server = AnyServer::start(&workspace, "fairness", &["--trust-uids"])?;
    let mut cells = Vec::new();
    for (protocol_name, protocol) in PROTOCOLS {
        for (polite_name, polite) in POLITE {
            for (greedy_name, greedy, depth) in GREEDY {
                let name = format!("{protocol_name}, {polite_name} beside {greedy_name}");
                if args.selects(&name) {
                    cells.push((name, protocol, polite, (greedy, depth)));
                }
            }
        }
    }
    args.progress.plan(cells.len());
    let mut rows = Vec::new();
    for (name, protocol, polite, greedy) in cells {
        match measure(args, &server, &name, protocol, polite, greedy) {
            Ok(measured) => rows.extend(measured),
            Err(why) => args.progress.report_failure(format!("{name}: {why}")),
        }
        args.progress.advance()?;
    }
    Ok(Results {
        title: "A polite client beside a greedy one of another user or machine".into(),
        notes: vec![
            format!(
                "the polite client has one operation at a time, and pauses for {} ms after each; the \
                 greedy one has 64 in flight without a pause, or lists a directory of {FILE_COUNT} \
                 entries",
                PAUSE.as_millis()
            ),
            format!(
                "{} runs of {} ms, alternately alone, beside it and beside a busy loop on each \
                 processor, after a warm-up; all options have their defaults, except that local \
                 users may act as root",
                args.runs(),
                time(args).as_millis()
            ),
            "ratio: the 99th percentile, divided by that alone".into(),
        ],
        missing: Vec::new(),
        servers: vec!["alone".into(), "busy loops".into(), "greedy client".into()],
        peers: Vec::new(),
        limit: None,
        rows,
    })
}

/// Returns the duration of a run: hundreds of operations.
fn time(args: &Context) -> Duration {
    args.run_time() * 25
}

/// Measures a polite client alone, beside busy loops and beside a greedy one: rows for its median,
/// its 99th percentile and the ratio of the latter.
fn measure(
    args: &Context,
    server: &AnyServer,
    name: &str,
    protocol: AnyProtocol,
    polite: Operation,
    (greedy, depth): (Operation, usize),
) -> Result<Vec<Row>, String> {
    let mut client = server.connect(protocol, polite, 0)?;
    let row = |what: &str, unit| Row::new(format!("{name}: {what}"), unit, vec![Vec::new(); 3]);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let processors = u16::try_from(processors).unwrap_or(u16::MAX);
    let mut rows = vec![
        row("median", "µs"),
        row("99th percentile", "µs"),
        row("ratio", "×"),
    ];
    latencies(&mut client, time(args) / 5)?;
    for _ in 0..args.runs() {
        let alone = latencies(&mut client, time(args))?;
        let connect = || {
            // A device is a client of its own.
            if !matches!(protocol, AnyProtocol::Virtiofs) {
                switch_user().map_err(|error| error.to_string())?;
            }
            server.connect(protocol, greedy, 1)
        };
        let beside = beside(connect, depth, || latencies(&mut client, time(args)))?;
        let loops = BusyLoops::start(processors).map_err(|failure| failure.message)?;
        let busy = latencies(&mut client, time(args))?;
        drop(loops);
        for (column, all) in [&alone, &busy, &beside].into_iter().enumerate() {
            let slowest = quantile(all, 0.99);
            rows[0].runs[column].push(quantile(all, 0.5));
            rows[1].runs[column].push(slowest);
            rows[2].runs[column].push(slowest / quantile(&alone, 0.99));
        }
    }
    Ok(rows)
}

/// Runs `measure` while the client that `connect` returns has `depth` operations in flight.
fn beside<T>(
    connect: impl FnOnce() -> Result<AnyClient, String> + Send,
    depth: usize,
    measure: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    let stop = AtomicBool::new(false);
    let (connected, is_connected) = channel();
    scope(|threads| {
        let stop = &stop;
        let greedy = threads.spawn(move || -> Result<usize, String> {
            // Stands for a client of another machine: it takes no processor from the others.
            let lowered = setpriority_process(None, LOWEST_PRIORITY);
            lowered.map_err(|errno| format!("setpriority: {errno}"))?;
            let mut client = connect()?;
            let _ = connected.send(());
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                let batch = client(depth, BATCH, usize::MAX / 64);
                done += batch
                    .map_err(|errno| format!("the greedy client: {errno}"))?
                    .0;
            }
            Ok(done)
        });
        let measured = match is_connected.recv() {
            Ok(()) => {
                sleep(SETTLE_TIME);
                Some(measure())
            }
            Err(_) => None,
        };
        stop.store(true, Ordering::Relaxed);
        let done = greedy.join().map_err(|_| "the greedy client panicked")??;
        match measured {
            Some(measured) if done > 0 => measured,
            _ => Err("the greedy client did nothing".into()),
        }
    })
}

/// Returns the latencies of operations with pauses for `time`, in microseconds, in order.
fn latencies(client: &mut AnyClient, time: Duration) -> Result<Vec<f64>, String> {
    let began = Instant::now();
    let mut all = Vec::new();
    while began.elapsed() < time {
        let (_, took) = client(1, Duration::MAX, 1).map_err(|errno| errno.to_string())?;
        all.push(took.as_secs_f64() * 1e6);
        sleep(PAUSE);
    }
    all.sort_by(f64::total_cmp);
    Ok(all)
}

/// Returns a quantile of sorted figures, of which there is at least one.
fn quantile(all: &[f64], part: f64) -> f64 {
    let at = (all.len() as f64 * part) as usize;
    all[at.min(all.len() - 1)]
}

#[test]
fn quantiles_are_figures_that_were_measured() {
    let all: Vec<_> = (0..100).map(f64::from).collect();
    assert_eq!((quantile(&all, 0.5), quantile(&all, 0.99)), (50.0, 99.0));
    assert_eq!(quantile(&[7.0], 0.99), 7.0);
}
