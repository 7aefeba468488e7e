//! Links over TCP connections, with the standard library and poll(2) or WSAPoll. The socket does
//! not block; a call that waits polls it.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use vfs::copies::count_copied;
use vfs::fd::{AsFd, BorrowedFd};
use vfs::peer::Origin;

use crate::link::timespec;
use crate::{Interest, Link, Payloads, RECV_INTERVAL, Ready};

/// A connection over TCP.
#[derive(Debug)]
pub struct StreamLink {
    stream: TcpStream,
    peer: String,
    /// Whether this side ended the input. Not every system wakes a poll then.
    ended: AtomicBool,
    /// The timeouts of [`Link::set_timeouts`].
    timeouts: OnceLock<(Duration, Duration)>,
}

/// The longest time that a peer may accept no bytes, unless [`Link::set_timeouts`] sets another: as
/// long as an unacknowledged connection lasts on Linux.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

impl StreamLink {
    /// Creates a connection over `stream`.
    pub(crate) fn new(stream: TcpStream, peer: String) -> io::Result<StreamLink> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Without it, a host that was switched off is noticed at the next request only.
        let _ = sockopt::set_socket_keepalive(&stream, true);
        Ok(StreamLink {
            stream,
            peer,
            ended: AtomicBool::new(false),
            timeouts: OnceLock::new(),
        })
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Sends with `write` until it returns a result other than `WouldBlock`, or for the time limit
    /// of a peer that accepts nothing.
    fn send_with(
        &self,
        wait: bool,
        mut write: impl FnMut(&mut &TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let limit = self.timeouts.get().map_or(SEND_TIMEOUT, |(_, send)| *send);
        let began = Instant::now();
        loop {
            match write(&mut &self.stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && wait => {
                    if began.elapsed() >= limit {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    poll_one(&self.stream, PollFlags::OUT, RECV_INTERVAL.min(limit))?;
                }
                done => return done,
            }
        }
    }
}

impl Link for StreamLink {
    fn recv(&self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        let began = Instant::now();
        loop {
            if self.has_ended() {
                return Ok(0);
            }
            match (&self.stream).read(buf) {
                Ok(got) => {
                    count_copied(got);
                    return Ok(got);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && wait => {
                    let limit = self.timeouts.get().map(|(recv, _)| *recv);
                    let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
                    match left {
                        Some(Duration::ZERO) => return Err(ErrorKind::TimedOut.into()),
                        None if began.elapsed() >= RECV_INTERVAL => return Err(error),
                        _ => {}
                    }
                    let time = left.unwrap_or(RECV_INTERVAL).min(RECV_INTERVAL);
                    poll_one(&self.stream, PollFlags::IN, time)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.send_with(wait, |stream| stream.write(&bytes[sent..])) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock && sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        count_copied(sent);
        Ok(sent)
    }

    fn send_vectored(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let mut copies = pieces.to_vec();
        let mut rest = &mut copies[..];
        IoSlice::advance_slices(&mut rest, 0);
        let mut sent = 0;
        while !rest.is_empty() {
            match self.send_with(wait, |stream| stream.write_vectored(rest)) {
                Ok(more) => {
                    sent += more;
                    IoSlice::advance_slices(&mut rest, more);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        count_copied(sent);
        Ok(sent)
    }

    fn set_timeouts(&self, recv: Duration, send: Duration) -> io::Result<()> {
        // Set only once: waiting threads have read them.
        let _ = self.timeouts.set((recv, send));
        Ok(())
    }

    fn payloads(&self) -> Payloads {
        Payloads::STREAM
    }

    fn wait(
        &self,
        interest: Interest,
        wake: BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> io::Result<Ready> {
        let when = |wanted, flag| if wanted { flag } else { PollFlags::empty() };
        let flags = when(interest.read, PollFlags::IN) | when(interest.write, PollFlags::OUT);
        let began = Instant::now();
        loop {
            let left = time.map(|time| time.saturating_sub(began.elapsed()));
            let mut fds = [
                PollFd::from_borrowed_fd(wake, PollFlags::IN),
                PollFd::from_borrowed_fd(self.stream.as_fd(), flags),
            ];
            retry_poll(&mut fds, left.unwrap_or(RECV_INTERVAL).min(RECV_INTERVAL))?;
            let events = fds[1].revents();
            let ready = Ready {
                woken: !fds[0].revents().is_empty(),
                read: interest.read && (!(events - PollFlags::OUT).is_empty() || self.has_ended()),
                write: interest.write && !(events - PollFlags::IN).is_empty(),
                hung_up: events.intersects(PollFlags::HUP | PollFlags::ERR) || self.has_ended(),
            };
            if ready != Ready::default() || left.is_some_and(|left| left.is_zero()) {
                return Ok(ready);
            }
        }
    }

    fn end_input(&self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    fn hang_up(&self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    /// A client does not ask for the origin of its server.
    fn origin(&self) -> Origin {
        Origin::Inherited
    }
}

/// Waits until `stream` is ready, for `time` at most.
fn poll_one(stream: &TcpStream, flags: PollFlags, time: Duration) -> io::Result<()> {
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), flags)];
    retry_poll(&mut fds, time)
}

fn retry_poll(fds: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    let time = timespec(time);
    rustix::io::retry_on_intr(|| poll(fds, Some(&time)))?;
    Ok(())
}
