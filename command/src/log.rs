//! Options of logging, and log lines on standard error.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;

/// The options that say which lines to log, and in which format.
#[derive(Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// Log connections; if given twice, also every request
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Format of log lines on standard error
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

impl LogArgs {
    /// Returns the most detailed level to log.
    pub fn level(&self) -> LevelFilter {
        match self.verbose {
            0 => LevelFilter::INFO,
            1 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }
}

/// Starts logging to standard error. A process calls this once.
pub fn to_stderr(level: LevelFilter, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_target(false)
        // The report of a failed write would go to the same place, and panic.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
