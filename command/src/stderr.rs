//! Standard error, the one place where programs write log lines and messages. A write neither fails
//! nor waits for a reader: a line that a full disk, a closed pipe, or a reader that has stopped
//! does not take is dropped, and a later line says how many were.
//!
//! A pipe or terminal is opened once more for writes that do not wait: the flag `O_NONBLOCK` of the
//! inherited descriptor would apply to other programs that share it. Where that is not permitted,
//! as for a pipe of another user, each write is preceded by poll(2), which leaves a gap: if another
//! process fills the pipe in between, the write waits for the reader.

use std::fmt::Display;
use std::io::{self, Write};

use crate::text::printable;

#[cfg(target_os = "linux")]
pub use self::linux::redirect;

/// A writer of whole lines, each with one call of [`Write::write`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

/// Opens standard error, as a process does before it is confined.
pub(crate) fn prepare() {
    #[cfg(target_os = "linux")]
    linux::prepare();
}

/// Writes `text` as a line, or as several. Other control characters, such as those of a server that
/// sends escape sequences for terminals, are shown as [`printable`] has them.
pub fn print_line(text: impl Display) {
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    // It never fails.
    let _ = Stderr.write(format!("{}\n", lines.join("\n")).as_bytes());
}

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        #[cfg(target_os = "linux")]
        linux::write(line);
        #[cfg(not(target_os = "linux"))]
        let _ = io::stderr().write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::IsTerminal;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{FileType, Mode, OFlags, fstat, open};
    use rustix::io::{Errno, write as write_fd};
    use rustix::net::{SendFlags, send};
    use rustix::stdio::{dup2_stderr, stderr};

    use crate::log;

    /// Time for a reader that is behind: more than a busy collector pauses, and little for a
    /// request that logs. A reader that stays behind delays one line only.
    const PATIENCE: Duration = Duration::from_millis(100);

    /// The largest write that a pipe with any space takes without waiting (PIPE_BUF, pipe(7)).
    const PIPE_BUF: usize = 4096;

    static LINES: Mutex<Option<Lines>> = Mutex::new(None);

    pub(super) fn prepare() {
        lock().get_or_insert_with(Lines::of_stderr);
    }

    pub(super) fn write(line: &[u8]) {
        lock().get_or_insert_with(Lines::of_stderr).write(line);
    }

    /// Makes `target` standard error.
    pub fn redirect(target: impl AsFd) -> rustix::io::Result<()> {
        let mut lines = lock();
        dup2_stderr(target)?;
        // The old pipe is closed, which its reader may wait for.
        *lines = None;
        Ok(())
    }

    fn lock() -> MutexGuard<'static, Option<Lines>> {
        LINES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lines that were written to an output.
    struct Lines {
        output: Output,
        /// The number of lines that were dropped since the last one that was written.
        dropped: u64,
        /// Whether the last line that was written lacks its end.
        is_torn: bool,
    }

    impl Lines {
        fn of_stderr() -> Lines {
            Lines::new(Output::of_stderr())
        }

        fn new(output: Output) -> Lines {
            Lines {
                output,
                dropped: 0,
                is_torn: false,
            }
        }

        fn write(&mut self, line: &[u8]) {
            let mut patience = PATIENCE;
            if self.dropped > 0 {
                patience = Duration::ZERO;
                let report = format!(
                    "{} lines of the log were dropped: standard error was full or closed",
                    self.dropped
                );
                if self.append(&log::warning(&report), patience).is_err() {
                    self.dropped += 1;
                    return;
                }
                self.dropped = 0;
            }
            if self.append(line, patience).is_err() {
                self.dropped += 1;
            }
        }

        /// Writes one line, and waits for at most `patience`.
        fn append(&mut self, line: &[u8], patience: Duration) -> Result<(), Errno> {
            let deadline = Instant::now() + patience;
            if self.is_torn {
                self.write_all(b"\n", deadline)?;
            }
            self.is_torn = false;
            self.write_all(line, deadline)
        }

        fn write_all(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), Errno> {
            let whole = bytes.len();
            while !bytes.is_empty() {
                match self.output.write(bytes) {
                    Ok(len) => bytes = &bytes[len..],
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) if self.output.waits_until(deadline) => {}
                    Err(errno) => {
                        self.is_torn |= bytes.len() < whole;
                        return Err(errno);
                    }
                }
            }
            Ok(())
        }
    }

    /// The kinds of standard error, by how one writes without waiting.
    enum Output {
        /// A file, whose writes wait for its disk only.
        File,
        Socket,
        /// A pipe or terminal, opened once more with `O_NONBLOCK`.
        Reopened(File),
        /// Anything else.
        Polled,
    }

    impl Output {
        fn of_stderr() -> Output {
            let kind = fstat(stderr()).map(|stat| FileType::from_raw_mode(stat.st_mode));
            match kind {
                Ok(FileType::RegularFile) => Output::File,
                Ok(FileType::Socket) => Output::Socket,
                Ok(FileType::Fifo) => Output::reopen(),
                Ok(_) if std::io::stderr().is_terminal() => Output::reopen(),
                _ => Output::Polled,
            }
        }

        fn reopen() -> Output {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            match open("/proc/self/fd/2", flags, Mode::empty()) {
                Ok(fd) => Output::Reopened(fd.into()),
                Err(_) => Output::Polled,
            }
        }

        fn fd(&self) -> BorrowedFd<'_> {
            match self {
                Output::Reopened(file) => file.as_fd(),
                Output::File | Output::Socket | Output::Polled => stderr(),
            }
        }

        /// Writes a part of `bytes`, or returns `EAGAIN` if that would wait.
        fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
            match self {
                Output::File | Output::Reopened(_) => write_fd(self.fd(), bytes),
                Output::Socket => send(stderr(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
                Output::Polled => match self.waits_until(Instant::now()) {
                    true => write_fd(stderr(), &bytes[..bytes.len().min(PIPE_BUF)]),
                    false => Err(Errno::AGAIN),
                },
            }
        }

        /// Waits until there is space, or a write fails, and returns whether that was before
        /// `deadline`.
        fn waits_until(&self, deadline: Instant) -> bool {
            let fd = self.fd();
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let mut ready = [PollFd::new(&fd, PollFlags::OUT)];
                match poll(&mut ready, Timespec::try_from(left).ok().as_ref()) {
                    Err(Errno::INTR) => {}
                    Ok(count) => return count > 0,
                    Err(_) => return false,
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::io::Read;

        use rustix::fs::{fcntl_getfl, fcntl_setfl};
        use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

        use super::*;

        /// Returns a pipe of one page: the lines written to it, and its end to read, which does not
        /// wait.
        fn pipe() -> (Lines, File) {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
            fcntl_setpipe_size(&write, PIPE_BUF).expect("resized");
            for end in [&read, &write] {
                let flags = fcntl_getfl(end).expect("flags");
                fcntl_setfl(end, flags | OFlags::NONBLOCK).expect("set");
            }
            (Lines::new(Output::Reopened(write.into())), read.into())
        }

        fn text(read: &mut File) -> String {
            let mut text = Vec::new();
            let end = read.read_to_end(&mut text).map_err(|error| error.kind());
            assert!(matches!(end, Ok(_) | Err(std::io::ErrorKind::WouldBlock)));
            String::from_utf8(text).expect("text")
        }

        #[test]
        fn a_reader_that_stops_delays_one_line_and_learns_how_many_are_missing() {
            let (mut lines, mut read) = pipe();
            let began = Instant::now();
            for _ in 0..10_000 {
                lines.write(b"a line of twenty-four B\n");
            }
            assert!(began.elapsed() < PATIENCE * 50, "{:?}", began.elapsed());
            let before = text(&mut read);
            let written = before.matches("a line").count() as u64;
            assert!(before.len() <= PIPE_BUF && written > 100);
            lines.write(b"the last\n");
            let after = text(&mut read);
            let (report, last) = after.split_once('\n').expect("two lines");
            let missing = format!("{} lines of the log were dropped", 10_000 - written);
            assert!(report.contains(&missing), "{report}");
            assert_eq!(last, "the last\n");
        }

        #[test]
        fn a_line_that_is_cut_does_not_run_into_the_next() {
            let (mut lines, mut read) = pipe();
            lines.write(&[b'x'; 3 * PIPE_BUF]);
            assert!(lines.is_torn);
            let cut = text(&mut read);
            assert!(cut.len() < 3 * PIPE_BUF && cut.chars().all(|c| c == 'x'));
            lines.write(b"next\n");
            let rest = text(&mut read);
            assert!(
                rest.starts_with('\n') && rest.ends_with("\nnext\n"),
                "{rest:?}"
            );
        }

        #[test]
        fn a_closed_pipe_takes_nothing_and_fails_nothing() {
            let (mut lines, read) = pipe();
            drop(read);
            lines.write(b"a\n");
            lines.write(b"b\n");
            assert_eq!(lines.dropped, 2);
        }
    }
}
