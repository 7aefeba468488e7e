//! Log lines, on standard error.

use std::io::IsTerminal;

use tracing::Level;

use crate::cli::{LogArgs, LogFormat};

/// Logs from here on, as `args` ask.
pub(crate) fn start(args: &LogArgs) {
    let level = match args.verbose {
        0 => Level::INFO,
        1 => Level::DEBUG,
        _ => Level::TRACE,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal());
    match args.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
