//! `barge doctor`: what works on this machine, and what each missing piece costs and what brings it.
//!
//! A [`Machine`] is asked, [`look`] judges, [`show`] tells. Nothing is changed, nothing but a port of the loopback is opened, and no
//! program is run. What barge does not use is not told of: locked memory, FUSE's io_uring.

mod look;
mod machine;
mod show;

use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use self::machine::Machine;
use crate::{Done, Failure};

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

/// A piece that is there, or not.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// For what it is there: a heading.
    group: &'static str,
    name: &'static str,
    found: bool,
    /// What it is good for if it is there; if not, what that costs.
    means: String,
    /// What brings it, if it is not there and anything does.
    bring: Option<String>,
}

/// All of them, and whether barge does what it is for here: serving a directory on this machine.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    kernel: String,
    works: bool,
    findings: Vec<Finding>,
}

/// `barge doctor`
pub(crate) fn run(args: &DoctorArgs) -> Done {
    let report = look::look(&Machine::this());
    let mut out = stdout();
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).map_err(Failure::new)? + "\n",
        false => {
            let plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
            show::text(&report, out.is_terminal() && !plain)
        }
    };
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(format!("standard output: {error}")))?;
    Ok(ExitCode::from(u8::from(!report.works)))
}
