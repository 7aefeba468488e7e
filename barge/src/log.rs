//! Log lines, on standard error or to syslog.

#[cfg(target_os = "linux")]
mod daemon;

use command::log::{LogArgs, to_stderr};
use tracing::level_filters::LevelFilter;

#[cfg(target_os = "linux")]
pub(crate) use self::daemon::{start, start_daemon};

/// Starts logging to standard error, for a command that works on files and ends: unless `args` say
/// otherwise, only warnings.
pub(crate) fn start_quiet(args: &LogArgs) {
    let level = match args.verbose {
        0 => LevelFilter::WARN,
        _ => args.level(),
    };
    to_stderr(level, args.log_format);
}
