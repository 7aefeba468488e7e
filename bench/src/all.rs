//! Measures the tables of a run, one after the other; the failure of one does not stop the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use command::bench::{BenchArgs, Table};
use command::stderr::print_line;
use command::{CommandResult, Failure};

use crate::context::Context;
use crate::process::BusyLoops;
use crate::progress::Progress;
use crate::report::format::{Entry, Outcome, Report};
use crate::report::machine::Machine;
use crate::report::results::{Results, Unmeasured};
use crate::zerocopy;
use crate::{
    coalescing, crowd, disk_cache, fairness, find, guest, image, limits, mount, nfs, p9, pack,
    readplus, report, virtiofs,
};

/// The tables of `all`, each with its duration in seconds when quick and when not, on two idle
/// cores of 2023. The progress bar estimates the remaining time from them.
const TABLES: [(Table, [f64; 2]); 15] = [
    (Table::Coalescing, [110.0, 1000.0]),
    (Table::Crowd, [100.0, 150.0]),
    (Table::Fairness, [120.0, 640.0]),
    (Table::Limits, [60.0, 260.0]),
    (Table::Virtiofs, [35.0, 150.0]),
    (Table::Readplus, [40.0, 100.0]),
    (Table::Zerocopy, [70.0, 205.0]),
    (Table::Image, [95.0, 245.0]),
    (Table::Objects, [25.0, 50.0]),
    (Table::DiskCache, [15.0, 70.0]),
    (Table::Mount, [5.0, 20.0]),
    (Table::Find, [5.0, 30.0]),
    (Table::Pack, [20.0, 215.0]),
    (Table::P9, [25.0, 95.0]),
    (Table::Nfs, [65.0, 260.0]),
];

/// A part of a run, shown as one table.
struct Part {
    name: String,
    seconds: f64,
    kind: PartKind,
}

enum PartKind {
    Host(Table),
    Guest(guest::Bench),
}

/// Measures the tables that `options` selects and writes the report.
pub(super) fn run(options: &BenchArgs) -> CommandResult {
    let (steps, _watch) = Progress::with_signal_handler()?;
    let args = &Context::new(options, steps.clone())?;
    let (began, machine) = (Instant::now(), Machine::here());
    let when = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let parts = parts(args);
    let all: f64 = parts.iter().map(|part| part.seconds).sum();
    let (mut before, mut complete) = (0.0, true);
    let mut tables = Vec::new();
    for part in parts {
        let share = (before / all, (before + part.seconds) / all);
        before += part.seconds;
        let began = Instant::now();
        let outcome = match steps.is_stopped() {
            true => Outcome::LeftOut("stopped before".into()),
            false => {
                steps.begin(&part.name, share);
                part.measure(args)
            }
        };
        if let Outcome::Failed(why) = &outcome {
            print_line(format_args!("barge: bench {}: {why}", part.name));
        }
        complete &= outcome.is_complete();
        tables.push(Entry {
            name: part.name,
            seconds: began.elapsed().as_secs_f64(),
            again: None,
            outcome,
        });
    }
    steps.end();
    let status = if steps.is_stopped() || !complete {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    };
    let report = Report {
        barge: args.version()?,
        command: command(args),
        began: when,
        seconds: began.elapsed().as_secs_f64(),
        machine,
        tables,
    };
    report::write(&report, &options.outputs)?;
    Ok(status)
}

fn parts(args: &Context) -> Vec<Part> {
    let speed = usize::from(!args.options.quick);
    let here = |(table, seconds): &(Table, [f64; 2])| Part {
        name: table.name(),
        seconds: seconds[speed],
        kind: PartKind::Host(*table),
    };
    let in_guest = |bench: guest::Bench| Part {
        name: format!("guest {}", bench.name()),
        // Without `--guest` the part is skipped at once.
        seconds: if args.options.guest {
            bench.seconds(args.options.quick)
        } else {
            0.0
        },
        kind: PartKind::Guest(bench),
    };
    match args.options.table {
        Table::All => {
            let here = TABLES.iter().map(here);
            here.chain(guest::Bench::ALL.map(in_guest)).collect()
        }
        table => {
            let one = |(other, _): &&(Table, [f64; 2])| *other == table;
            let mut parts: Vec<_> = TABLES.iter().filter(one).map(here).collect();
            let guests = guest::Bench::ALL.into_iter();
            parts.extend(
                guests
                    .filter(|bench| args.options.guest && bench.table() == table)
                    .map(in_guest),
            );
            parts
        }
    }
}

/// Returns the command line that repeats the run, without the options for output files.
fn command(args: &Context) -> String {
    let mut words = vec!["barge bench".into(), args.options.table.name()];
    words.extend(args.options.quick.then(|| "--quick".into()));
    words.extend(args.options.guest.then(|| "--guest".into()));
    words.extend(
        args.options
            .with_statistics
            .then(|| "--with-statistics".into()),
    );
    words.extend(args.options.runs.map(|runs| format!("--runs {runs}")));
    words.extend((args.options.busy > 0).then(|| format!("--busy {}", args.options.busy)));
    words.extend(args.options.size.map(|size| format!("--size {size}")));
    words.extend(
        args.options
            .only
            .as_ref()
            .map(|only| format!("--only '{only}'")),
    );
    words.join(" ")
}

impl Part {
    fn measure(&self, args: &Context) -> Outcome {
        let measured = catch_unwind(AssertUnwindSafe(|| match &self.kind {
            PartKind::Host(table) => measure(*table, args),
            PartKind::Guest(bench) => bench.measure(args),
        }));
        let stopped = || Outcome::LeftOut("stopped".into());
        let failed = args.progress.take_failures();
        match measured {
            Ok(Ok(measured)) if measured.rows.is_empty() && args.options.only.is_some() => {
                Outcome::LeftOut("no row of it is selected".into())
            }
            Ok(Ok(measured)) => Outcome::of(measured.table(&self.name), failed),
            // A run stopped by a signal may fail in any way.
            Ok(Err(_)) if args.progress.is_stopped() => stopped(),
            Ok(Err(Unmeasured::LeftOut(why))) => Outcome::LeftOut(why),
            Ok(Err(Unmeasured::Failed(failure))) => Outcome::Failed(failure.message),
            Err(_) => Outcome::Failed("it panicked".into()),
        }
    }
}

/// Measures a table on this host, with the requested number of busy loops running.
fn measure(table: Table, args: &Context) -> Result<Results, Unmeasured> {
    let busy = BusyLoops::start(args.options.busy)?;
    let run = match table {
        Table::P9 => p9::run,
        Table::Coalescing => coalescing::run,
        Table::Find => find::run,
        Table::Crowd => crowd::run,
        Table::Image => image::run,
        Table::DiskCache => disk_cache::run,
        Table::Fairness => fairness::run,
        Table::Limits => limits::run,
        Table::Mount => mount::run,
        Table::Nfs => nfs::run,
        Table::Objects => image::object_store::run,
        Table::Pack => pack::run,
        Table::Readplus => readplus::run,
        Table::Virtiofs => virtiofs::run,
        Table::Zerocopy => zerocopy::run,
        Table::All | Table::Replay | Table::Show => {
            let why = format!("{} is no table", table.name());
            return Err(Unmeasured::Failed(Failure::usage(why)));
        }
    };
    let mut results = run(args)?;
    drop(busy);
    match args.options.busy {
        0 => {}
        1 => results.title += ", together with a busy loop",
        many => results.title += &format!(", together with {many} busy loops"),
    }
    Ok(results)
}
