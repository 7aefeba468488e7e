//! Log lines of commands that serve.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;

use command::log::{LogArgs, log_panics, to_stderr};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Starts logging to standard error, for a command that serves.
pub(crate) fn start(args: &LogArgs) {
    to_stderr(args.level(), args.log_format);
}

/// Starts logging at `level`, or at that of `args` if it is more verbose, for a daemon that may log
/// to syslog.
pub(crate) fn start_daemon(args: &LogArgs, level: LevelFilter, to_syslog: bool) {
    let level = level.max(match args.verbose {
        0 => LevelFilter::OFF,
        _ => args.level(),
    });
    match to_syslog.then(Syslog::connect).transpose() {
        Ok(Some(syslog)) => {
            tracing_subscriber::fmt()
                .with_max_level(level)
                .with_writer(syslog)
                .with_target(false)
                .with_level(false)
                .with_ansi(false)
                .without_time()
                .log_internal_errors(false)
                .init();
            log_panics();
        }
        Ok(None) => to_stderr(level, args.log_format),
        Err(error) => {
            to_stderr(level, args.log_format);
            tracing::warn!("syslog: {error}");
        }
    }
}

/// A connection to the host's log, as syslog(3) uses.
struct Syslog(UnixDatagram);

impl Syslog {
    fn connect() -> io::Result<Syslog> {
        let socket = UnixDatagram::unbound()?;
        socket.connect("/dev/log")?;
        // A line that a daemon does not take is dropped.
        socket.set_nonblocking(true)?;
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
