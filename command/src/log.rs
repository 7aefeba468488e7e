//! Options of logging, and log lines on standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
#[cfg(target_os = "linux")]
use tracing_subscriber::fmt::format::Writer;
#[cfg(target_os = "linux")]
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::stderr::{self, Stderr};

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
    /// Returns the options as arguments for another process of the same program.
    pub fn arguments(&self) -> Vec<String> {
        let format = self.log_format.to_possible_value();
        let format = format.map(|format| format!("--log-format={}", format.get_name()));
        let verbose = std::iter::repeat_n("-v".to_owned(), self.verbose.into());
        verbose.chain(format).collect()
    }

    /// Returns the most detailed level to log.
    pub fn level(&self) -> LevelFilter {
        match self.verbose {
            0 => LevelFilter::INFO,
            1 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }
}

/// The format of this process's log.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Starts logging to standard error. A process calls this once.
pub fn to_stderr(level: LevelFilter, format: LogFormat) {
    let _ = FORMAT.set(format);
    stderr::prepare();
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| Stderr)
        .with_target(false)
        // The report of a failed write would go to the same place, and panic.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    log_panics();
}

/// Makes panics lines of the log: the default report waits for the reader of standard error.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("no message");
        let place = panic
            .location()
            .map_or_else(String::new, |at| format!(" at {at}"));
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => {
                tracing::error!("thread '{name}' panicked{place}: {message}\n{backtrace}");
            }
            _ => tracing::error!("thread '{name}' panicked{place}: {message}"),
        }
    }));
}

/// Returns a warning as a line of the log, for the writer of the log itself.
#[cfg(target_os = "linux")]
pub(crate) fn warning(message: &str) -> Vec<u8> {
    let mut time = String::new();
    // It fails if the clock is out of range.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let line = match FORMAT.get() {
        Some(LogFormat::Json) => {
            format!(r#"{{"timestamp":"{time}","level":"WARN","message":"{message}"}}"#)
        }
        Some(LogFormat::Text) | None => format!("{time}  WARN {message}"),
    };
    format!("{line}\n").into_bytes()
}
