//! The table `limits`: whether a limit (`serve --limit`) is held and used up, and the cost of one
//! that is not reached.

use std::time::Duration;

use command::Failure;

use crate::any_client::{AnyClient, AnyProtocol, AnyServer, PROTOCOLS};
use crate::context::Context;
use crate::process::processor_time;
use crate::protocol::{LARGE, Operation};
use crate::report::results::{CpuTime, Results, Row};
use crate::workspace::Workspace;

/// The operations per second of the limit.
const OPS: u32 = 1000;

/// The MiB per second of the limit.
const MIB: u32 = 64;

/// A limit that no client reaches.
const UNREACHED: &str = "ops=1000000000,bytes=1024T";

/// The operations in flight of each row of a limit.
const DEPTHS: [usize; 2] = [1, 16];

/// A measurement with a server that has a limit.
struct Held {
    name: String,
    unit: &'static str,
    /// The limit in this unit, and the units of an operation.
    rate: f64,
    each: f64,
    protocol: AnyProtocol,
    operation: Operation,
    depth: usize,
    by_bytes: bool,
}

pub(super) fn run(args: &Context) -> Result<Results, Failure> {
    let args = &args.with_default_runs(3);
    let workspace = Workspace::with_files(args)?;
    let (ops, bytes) = (format!("ops={OPS}"), format!("bytes={MIB}M"));
    let control = format!("unix:{}", workspace.run_dir.join("control").display());
    let start = |name: &str, options: &[&str]| AnyServer::start(&workspace, name, options);
    let by_ops = start("ops", &["--limit", &ops])?;
    let by_bytes = start("bytes", &["--limit", &bytes])?;
    let servers = [
        ("no limit", start("none", &[])?),
        (
            "not reached",
            start(
                "unreached",
                &["--limit", UNREACHED, "--client-limit", UNREACHED],
            )?,
        ),
        (
            "changeable, none set",
            start("unset", &["--control", &control])?,
        ),
    ];
    let held: Vec<_> = held()
        .into_iter()
        .filter(|it| args.selects(&it.name))
        .collect();
    let cost = |protocol: &str| format!("{protocol}, cost: 4 KiB read, depth 1");
    let costs = PROTOCOLS.map(|(name, protocol)| (cost(name), protocol));
    let costs: Vec<(String, AnyProtocol)> = (costs.into_iter())
        .filter(|(name, _)| args.selects(name))
        .collect();
    args.progress.plan(held.len() + costs.len());
    let mut rows = Vec::new();
    for cell in held {
        let server = if cell.by_bytes { &by_bytes } else { &by_ops };
        match cell.measure(args, server) {
            Ok(row) => rows.push(row),
            Err(why) => args
                .progress
                .report_failure(format!("{}: {why}", cell.name)),
        }
        args.progress.advance()?;
    }
    for (name, protocol) in costs {
        match cost_of(args, &servers, &name, protocol) {
            Ok(measured) => rows.extend(measured),
            Err(why) => args.progress.report_failure(format!("{name}: {why}")),
        }
        args.progress.advance()?;
    }
    Ok(Results {
        title: "Limits of a share".into(),
        notes: vec![
            format!(
                "limits: {} runs of {} ms after the burst is used up; expected: the limit",
                args.runs(),
                time(args).as_millis()
            ),
            format!(
                "cost: {} runs of {} ms, alternating; expected: the rate of a server without a \
                 limit; not reached: --limit and --client-limit {UNREACHED}; none set: --control; \
                 processor time: of the server alone",
                cost_runs(args),
                args.run_time().as_millis()
            ),
        ],
        missing: Vec::new(),
        servers: vec!["expected".into(), "measured".into()],
        peers: Vec::new(),
        limit: None,
        rows,
    })
}

fn held() -> Vec<Held> {
    let mut all = Vec::new();
    for (name, protocol) in PROTOCOLS {
        for depth in DEPTHS {
            let held = |what: &str, by_bytes| Held {
                name: format!("{name}, {what}, depth {depth}"),
                unit: if by_bytes { "MB/s" } else { "op/s" },
                rate: match by_bytes {
                    true => f64::from(MIB) * f64::from(1 << 20) / 1e6,
                    false => f64::from(OPS),
                },
                each: if by_bytes {
                    f64::from(LARGE) / 1e6
                } else {
                    1.0
                },
                protocol,
                operation: match by_bytes {
                    true => Operation::ReadLarge,
                    false => Operation::ReadSmall,
                },
                depth,
                by_bytes,
            };
            all.push(held(&format!("{OPS} op/s: 4 KiB read"), false));
            all.push(held(&format!("{MIB} MiB/s: 1 MiB read"), true));
        }
    }
    all
}

/// Returns the duration of a run: many bursts.
fn time(args: &Context) -> Duration {
    args.run_time() * 40
}

fn cost_runs(args: &Context) -> usize {
    args.runs() * 10
}

impl Held {
    fn measure(&self, args: &Context, server: &AnyServer) -> Result<Row, String> {
        let mut client = server.connect(self.protocol, self.operation, 0)?;
        let mut row = Row::new(self.name.clone(), self.unit, vec![Vec::new(); 2]);
        for _ in 0..args.runs() {
            rate(&mut client, self.depth, args.run_time() * 5)?;
            let measured = rate(&mut client, self.depth, time(args))?;
            row.runs[0].push(self.rate);
            row.runs[1].push(measured * self.each);
        }
        Ok(row)
    }
}

/// Measures small reads on each of `servers`, of which the first is expected of the others.
fn cost_of(
    args: &Context,
    servers: &[(&str, AnyServer)],
    name: &str,
    protocol: AnyProtocol,
) -> Result<Vec<Row>, String> {
    let clients = servers
        .iter()
        .map(|(_, server)| server.connect(protocol, Operation::ReadSmall, 0));
    let mut clients: Vec<_> = clients.collect::<Result<_, _>>()?;
    let mut rates = vec![Vec::new(); servers.len()];
    let mut times = vec![CpuTime::default(); servers.len()];
    for round in 0..=cost_runs(args) {
        for position in 0..servers.len() {
            let column = (position + round) % servers.len();
            let pid = servers[column].1.pid();
            let before = processor_time(pid);
            let (done, took) = clients[column](1, args.run_time(), usize::MAX / 64)
                .map_err(|errno| errno.to_string())?;
            // The first round warms up.
            if round > 0 {
                rates[column].push(done as f64 / took.as_secs_f64());
                times[column].operations += done;
                times[column].time += processor_time(pid).saturating_sub(before);
            }
        }
    }
    let rows = (1..servers.len()).map(|column| {
        let runs = vec![rates[0].clone(), rates[column].clone()];
        let mut row = Row::new(format!("{name}, {}", servers[column].0), "op/s", runs);
        row.add_cpu_times(0, &times[..1]);
        row.add_cpu_times(1, &times[column..=column]);
        row
    });
    Ok(rows.collect())
}

/// Returns the operations per second of a client during `time`.
fn rate(client: &mut AnyClient, depth: usize, time: Duration) -> Result<f64, String> {
    let measured = client(depth, time, usize::MAX / 64);
    let (done, took) = measured.map_err(|errno| errno.to_string())?;
    Ok(done as f64 / took.as_secs_f64())
}

#[test]
fn each_limit_has_its_rows() {
    let names: Vec<_> = held().into_iter().map(|it| it.name).collect();
    assert_eq!(names.len(), 16);
    assert_eq!(names[0], "9P, 1000 op/s: 4 KiB read, depth 1");
    assert_eq!(names[15], "virtiofs, 64 MiB/s: 1 MiB read, depth 16");
}
