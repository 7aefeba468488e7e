//! Log lines, on standard error or to syslog.

use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;

use clap::{Args, ValueEnum};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct LogArgs {
    /// Log connections; if given twice, also every request
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Format of log lines on standard error
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

/// Starts logging to standard error.
pub(crate) fn start(args: &LogArgs) {
    to_stderr(level_of(args), args.log_format);
}

/// Starts logging at `level`, or at that of `args` if it is more verbose, for a daemon that may log
/// to syslog.
pub(crate) fn start_daemon(args: &LogArgs, level: LevelFilter, to_syslog: bool) {
    let level = level.max(match args.verbose {
        0 => LevelFilter::OFF,
        _ => level_of(args),
    });
    match to_syslog.then(Syslog::connect).transpose() {
        Ok(Some(syslog)) => tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(syslog)
            .with_target(false)
            .with_level(false)
            .with_ansi(false)
            .without_time()
            .init(),
        Ok(None) => to_stderr(level, args.log_format),
        Err(error) => {
            to_stderr(level, args.log_format);
            tracing::warn!("syslog: {error}");
        }
    }
}

fn level_of(args: &LogArgs) -> LevelFilter {
    match args.verbose {
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

fn to_stderr(level: LevelFilter, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// A connection to the host's log, as syslog(3) uses.
struct Syslog(UnixDatagram);

impl Syslog {
    fn connect() -> io::Result<Syslog> {
        let socket = UnixDatagram::unbound()?;
        socket.connect("/dev/log")?;
        Ok(Syslog(socket))
    }
}

impl<'a> MakeWriter<'a> for Syslog {
    type Writer = SyslogLine<'a>;

    fn make_writer(&'a self) -> SyslogLine<'a> {
        SyslogLine {
            socket: &self.0,
            level: Level::INFO,
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> SyslogLine<'a> {
        SyslogLine {
            socket: &self.0,
            level: *meta.level(),
        }
    }
}

/// A writer that sends each line as one message.
struct SyslogLine<'a> {
    socket: &'a UnixDatagram,
    level: Level,
}

impl Write for SyslogLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.socket.send(&message(self.level, line))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a message of the facility LOG_USER (RFC 3164, section 4.1), without a time, which the
/// log adds itself.
fn message(level: Level, line: &[u8]) -> Vec<u8> {
    const USER: u8 = 1;
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    let head = format!("<{}>barge[{}]: ", USER * 8 + severity, std::process::id());
    [head.as_bytes(), line.trim_ascii_end()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_message_of_its_severity() {
        let (there, here) = UnixDatagram::pair().expect("a pair");
        let syslog = Syslog(here);
        let log = tracing_subscriber::fmt()
            .with_writer(syslog)
            .with_target(false)
            .with_level(false)
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::with_default(log, || tracing::warn!(n = 1, "told"));
        let mut buffer = [0; 99];
        let len = there.recv(&mut buffer).expect("a message");
        let expected = format!("<12>barge[{}]: told n=1", std::process::id());
        assert_eq!(str::from_utf8(&buffer[..len]), Ok(expected.as_str()));
    }
}
