//! Measures the tables of a run, one after the other; the failure of one does not stop the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use super::report::machine::Machine;
use super::report::shape::{Entry, Outcome, Report};
use super::steps::Steps;
use super::{BenchArgs, Table, guest};
use crate::{CommandResult as Done, Failure};

/// The tables of `all`, each with its duration in seconds when quick and when not, on two idle
/// cores of 2023. The progress bar estimates the remaining time from them.
const ALL: [(Table, [f64; 2]); 13] = [
    (Table::Coalescing, [110.0, 1000.0]),
    (Table::Crowd, [100.0, 150.0]),
    (Table::Virtiofs, [35.0, 150.0]),
    (Table::Readplus, [40.0, 100.0]),
    (Table::Zerocopy, [70.0, 205.0]),
    (Table::Image, [95.0, 245.0]),
    (Table::Objects, [25.0, 50.0]),
    (Table::Kept, [15.0, 70.0]),
    (Table::Mount, [5.0, 20.0]),
    (Table::Find, [5.0, 30.0]),
    (Table::Pack, [20.0, 215.0]),
    (Table::Nine, [25.0, 95.0]),
    (Table::Nfs, [65.0, 260.0]),
];

/// A part of a run, shown as one table.
struct Part {
    name: String,
    seconds: f64,
    what: What,
}

enum What {
    Here(Table),
    Guest(guest::Bench),
}

/// Measures the tables that `args` selects and writes the report.
pub(super) fn run(args: &BenchArgs) -> Done {
    let (steps, _watch) = Steps::watched()?;
    let args = &BenchArgs {
        steps: steps.clone(),
        ..args.clone()
    };
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
            eprintln!("barge: bench {}: {why}", part.name);
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
        barge: format!("barge {}", env!("CARGO_PKG_VERSION")),
        command: command(args),
        began: when,
        seconds: began.elapsed().as_secs_f64(),
        machine,
        tables,
    };
    args.outputs.give(&report)?;
    Ok(status)
}

fn parts(args: &BenchArgs) -> Vec<Part> {
    let speed = usize::from(!args.quick);
    let here = |(table, seconds): &(Table, [f64; 2])| Part {
        name: table.name(),
        seconds: seconds[speed],
        what: What::Here(*table),
    };
    let in_guest = |bench: guest::Bench| Part {
        name: format!("guest {}", bench.name()),
        // Without `--guest` the part is skipped at once.
        seconds: if args.guest {
            bench.seconds(args.quick)
        } else {
            0.0
        },
        what: What::Guest(bench),
    };
    match args.table {
        Table::All => {
            let here = ALL.iter().map(here);
            here.chain(guest::Bench::ALL.map(in_guest)).collect()
        }
        table => {
            let one = |(other, _): &&(Table, [f64; 2])| *other == table;
            let mut parts: Vec<_> = ALL.iter().filter(one).map(here).collect();
            let guests = guest::Bench::ALL.into_iter();
            parts.extend(
                guests
                    .filter(|bench| args.guest && bench.table() == table)
                    .map(in_guest),
            );
            parts
        }
    }
}

/// Returns the command line that repeats the run, without the options for output files.
fn command(args: &BenchArgs) -> String {
    let mut words = vec!["barge bench".into(), args.table.name()];
    words.extend(args.quick.then(|| "--quick".into()));
    words.extend(args.guest.then(|| "--guest".into()));
    words.extend(args.counted.then(|| "--counted".into()));
    words.extend(args.runs.map(|runs| format!("--runs {runs}")));
    words.extend((args.busy > 0).then(|| format!("--busy {}", args.busy)));
    words.extend(args.size.map(|size| format!("--size {size}")));
    words.extend(args.only.as_ref().map(|only| format!("--only '{only}'")));
    words.join(" ")
}

impl Part {
    fn measure(&self, args: &BenchArgs) -> Outcome {
        let measured = catch_unwind(AssertUnwindSafe(|| match &self.what {
            What::Here(table) => table.measure(args),
            What::Guest(bench) => bench.measure(args),
        }));
        let stopped = || Outcome::LeftOut("stopped".into());
        let failed = args.steps.take_failed();
        match measured {
            Ok(Ok(measured)) if measured.rows.is_empty() && args.only.is_some() => {
                Outcome::LeftOut("it has no such row".into())
            }
            Ok(Ok(measured)) => Outcome::of(measured.shape(&self.name), failed),
            // A run stopped by a signal may fail in any way.
            Ok(Err(_)) if args.steps.is_stopped() => stopped(),
            Ok(Err(Unmeasured::LeftOut(why))) => Outcome::LeftOut(why),
            Ok(Err(Unmeasured::Failed(failure))) => Outcome::Failed(failure.message),
            Err(_) => Outcome::Failed("it panicked".into()),
        }
    }
}

/// The reason why a part has no results.
pub(super) enum Unmeasured {
    LeftOut(String),
    Failed(Failure),
}

impl From<Failure> for Unmeasured {
    fn from(failure: Failure) -> Unmeasured {
        Unmeasured::Failed(failure)
    }
}
