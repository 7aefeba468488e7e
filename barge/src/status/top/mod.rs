//! `barge top`: the figures of the status page in the terminal.

mod fetch;
pub(crate) mod lines;
mod screen;

use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use command::print;
use command::text::printable_json;
use transports::Addr;

use super::change::StatusDelta;
use super::json::Status;
use crate::{CommandResult, Failure};

#[derive(Args)]
pub(crate) struct TopArgs {
    /// Address of the server's --http
    ///
    /// PORT (of this host), HOST:PORT, tcp:HOST:PORT or unix:PATH.
    #[arg(value_name = "ADDR", value_parser = super::parse_addr, default_value = super::DEFAULT_PORT)]
    addr: Addr,
    /// Print the figures once and exit
    ///
    /// Rates and latencies cover the time since the start of the server. This is the default if
    /// standard output is not a terminal.
    #[arg(long)]
    once: bool,
    /// Print the figures of /status.json, one JSON object per line
    #[arg(long)]
    json: bool,
    /// Interval between updates, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,
}

/// `barge top`
pub(crate) fn run(args: &TopArgs) -> CommandResult {
    let interval = Duration::from_secs(args.interval.into());
    if args.json {
        loop {
            let status = fetch::status(&args.addr)?;
            let line = serde_json::to_string(&status).map_err(Failure::new)?;
            let line = printable_json(&line) + "\n";
            print(&line)?;
            if args.once {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(interval);
        }
    }
    if args.once || !stdout().is_terminal() {
        let status = fetch::status(&args.addr)?;
        print(lines::text(&StatusDelta::new(&status, None)))?;
        return Ok(ExitCode::SUCCESS);
    }
    // An error of the first request is reported without the screen.
    let first = fetch::status(&args.addr)?;
    screen::run(first, &|| fetch::status(&args.addr), interval)
        .map_err(|error| Failure::new(format!("the terminal: {error}")))?;
    Ok(ExitCode::SUCCESS)
}

/// The reply of a server.
type StatusResult = Result<Status, Failure>;
