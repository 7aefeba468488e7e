//! `barge doctor`: reports which features work on this host, and what the others need.
//!
//! [`Machine`] collects facts, [`check`] evaluates them, [`show`] prints the report. The host is
//! not changed, no program is run, and only a port of the loopback address is opened. Features that
//! barge does not use are not reported: locked memory, io_uring of FUSE.

mod check;
mod machine;
mod show;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use clap::Args;
use command::print;
use serde::Serialize;

use self::machine::Machine;
use crate::{CommandResult, Failure};

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// A feature that is available, or not.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// Heading of the report.
    group: &'static str,
    name: &'static str,
    found: bool,
    /// Benefit of the feature if it is available, otherwise the cost of its absence.
    means: String,
    /// Remedy, if the feature is missing and there is one.
    bring: Option<String>,
}

/// The findings, and whether barge can serve a directory on this host.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    kernel: String,
    works: bool,
    findings: Vec<Finding>,
}

/// `barge doctor`
pub(crate) fn run(args: &DoctorArgs) -> CommandResult {
    let report = check::check(&Machine::this());
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).map_err(Failure::new)? + "\n",
        false => {
            let plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
            show::text(&report, stdout().is_terminal() && !plain)
        }
    };
    print(text)?;
    Ok(ExitCode::from(u8::from(!report.works)))
}
