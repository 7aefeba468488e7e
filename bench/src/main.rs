//! `barge-bench`, which `barge bench` starts: measures barge and its peers on this machine, in the
//! same run.
//!
//! Runs alternate between the servers, so that drift of the machine's speed affects all of them
//! equally. Each cell is the median of several runs, with the minimum and the maximum. Peers that
//! are not installed are listed. Rows with a hardware limit measure it in alternation with the
//! servers ([`hardware_limit`]).

#![forbid(unsafe_code)]

mod all;
mod any_client;
mod coalescing;
mod context;
mod crowd;
mod data;
mod disk_cache;
mod fairness;
mod find;
mod guest;
mod hardware_limit;
mod image;
mod limits;
mod mount;
mod mounted;
mod network;
mod nfs;
mod p9;
mod pack;
mod process;
mod progress;
mod protocol;
mod readplus;
mod relay;
mod replay;
mod report;
mod rounds;
mod syscalls;
mod virtiofs;
mod workspace;
mod zerocopy;

use std::process::ExitCode;

use clap::Parser;
use command::bench::{BenchArgs, Table};
use command::log::{LogArgs, to_stderr};
use command::{CommandResult, Failure, print, signals};

/// Compare barge with its peers
#[derive(Parser)]
#[command(name = "barge-bench", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    signals::prepare();
    let cli = Cli::parse();
    to_stderr(cli.log.level(), cli.log.log_format);
    run(&cli.bench).unwrap_or_else(|failure| failure.report("barge"))
}

fn run(options: &BenchArgs) -> CommandResult {
    match options.table {
        Table::Replay => run_replay(options),
        Table::Show => run_show(options),
        table if !options.files.is_empty() => {
            let file = &options.files[0];
            let why = format!("{}: expected no FILE, got '{file}'", table.name());
            Err(Failure::usage(why))
        }
        _ => all::run(options),
    }
}

fn run_replay(options: &BenchArgs) -> CommandResult {
    let [file, source] = options.files.as_slice() else {
        return Err(Failure::usage("replay: expected FILE SOURCE"));
    };
    let mut replayed = replay::run(file.as_ref(), source, options.paced, options.changes)?;
    let printed = print(replayed.text());
    if let Some(path) = &options.outputs.json {
        std::fs::write(path, replayed.json())
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    printed.map(|()| ExitCode::SUCCESS)
}

fn run_show(options: &BenchArgs) -> CommandResult {
    let mut report = match options.files.first() {
        Some(file) => report::format::read(file.as_ref())?,
        None => return Err(Failure::usage("show: expected FILE")),
    };
    if let Some(later) = options.files.get(1) {
        report = report.merge(report::format::read(later.as_ref())?);
    }
    report::write(&report, &options.outputs)?;
    Ok(ExitCode::SUCCESS)
}
