use std::io::{self, ErrorKind, IoSlice};
use std::time::Duration;

use rustix::event::Timespec;
use vfs::fd::{BorrowedFd, OwnedFd};
use vfs::peer::Origin;
use wire::TlsPeer;

use crate::{Pages, Payloads};

/// A bidirectional byte stream to a peer. All methods may be called from several threads at once.
pub trait Link: Send + Sync {
    /// Receives into `buf` and returns the number of bytes; 0 after the peer's end of stream or
    /// [`Link::end_input`]. Without `wait`, returns `WouldBlock` instead of waiting. Returns
    /// `Interrupted` if a connection that reconnects by itself did so: a partly received message is
    /// void, and arrives again from its beginning.
    fn recv(&self, buf: &mut [u8], wait: bool) -> io::Result<usize>;

    /// Receives until `buf` is full, without a time limit. Returns `UnexpectedEof` if the stream
    /// ends before.
    fn recv_exact(&self, buf: &mut [u8]) -> io::Result<()> {
        let mut come = 0;
        while come < buf.len() {
            match self.recv(&mut buf[come..], true)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                got => come += got,
            }
        }
        Ok(())
    }

    /// Sends as much of `bytes` as possible, all of it with `wait`, and returns the number of
    /// bytes. Without `wait`, returns `WouldBlock` if none can be sent at once.
    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize>;

    /// Does what [`Link::send`] does with several buffers in sequence, in one system call if the
    /// connection supports that. Without `wait`, fewer bytes may be sent than possible.
    fn send_vectored(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let mut sent = 0;
        for piece in pieces {
            match self.send(piece, wait) {
                Ok(n) if n == piece.len() => sent += n,
                Ok(n) => return Ok(sent + n),
                Err(error) if error.kind() == ErrorKind::WouldBlock && sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Does what [`Link::send_vectored`] does with messages and the payload that ends the last of
    /// them, which the caller keeps until it is answered: a connection that reconnects by itself
    /// keeps no copy of it, and requests it from the caller again instead.
    fn send_lent(&self, messages: &[u8], payload: &[u8], wait: bool) -> io::Result<usize> {
        self.send_vectored(&[IoSlice::new(messages), IoSlice::new(payload)], wait)
    }

    /// Does what [`Link::send`] does, and passes a file descriptor with the message's first byte,
    /// if the connection can.
    fn send_with_file(
        &self,
        message: &[u8],
        _file: BorrowedFd<'_>,
        wait: bool,
    ) -> io::Result<usize> {
        self.send(message, wait)
    }

    /// Does what [`Link::recv`] does, and replaces `file` by the descriptor that arrived. It
    /// belongs to the last message received, complete or in part: unix(7), `af_unix.c`.
    fn recv_with_file(
        &self,
        buf: &mut [u8],
        wait: bool,
        _file: &mut Option<OwnedFd>,
    ) -> io::Result<usize> {
        self.recv(buf, wait)
    }

    /// Sets timeouts: waits in [`Link::recv`] return `TimedOut` if nothing arrives for `recv`, and
    /// waits for sending if the peer accepts nothing for `send`. Links without their own socket or
    /// pipe may wait forever.
    fn set_timeouts(&self, _recv: Duration, _send: Duration) -> io::Result<()> {
        Ok(())
    }

    /// Returns how payloads are best transferred. By default, inline in messages.
    fn payloads(&self) -> Payloads {
        Payloads::INLINE
    }

    /// Sends all of `head`, then the pages, then all of `tail`; waits without a time limit. Returns
    /// `Unsupported` unless [`Payloads::pages`] is a size from which on that pays.
    fn send_pages(&self, _head: &[u8], _pages: &mut Pages, _tail: &[u8]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    /// Waits for the events of `interest`, the peer's hang-up, or until `wake` is readable; for
    /// `time` at most, if given.
    fn wait(
        &self,
        interest: Interest,
        wake: BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> io::Result<Ready>;

    /// Ends receiving: [`Link::recv`] returns 0, also to current waiters.
    fn end_input(&self);

    /// Closes the connection in both directions: current waits end.
    fn hang_up(&self);

    /// Performs a TLS handshake, after which all data is encrypted; waits for it within a time
    /// limit. No other data may be sent or received meanwhile. Returns `Unsupported` if the
    /// connection has no TLS.
    fn start_tls(&self) -> io::Result<TlsPeer> {
        Err(ErrorKind::Unsupported.into())
    }

    /// Duplicates the connection's descriptor for another process, where it continues. Returns
    /// `None` if the link has state of its own, such as keys.
    fn socket(&self) -> Option<OwnedFd> {
        None
    }

    /// Returns the name of the peer, for logs.
    fn peer(&self) -> &str;

    /// Returns the origin of an accepted connection, as the kernel reports it. Queries the kernel
    /// each time.
    fn origin(&self) -> Origin;
}

/// The events that [`Link::wait`] waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Data to receive.
    pub read: bool,
    /// Space to send.
    pub write: bool,
}

/// The events that [`Link::wait`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Data, or the end of stream, can be received.
    pub read: bool,
    /// Data can be sent, or sending would fail at once.
    pub write: bool,
    /// The peer will send nothing more.
    pub hung_up: bool,
    /// The wake-up descriptor is readable.
    pub woken: bool,
}

/// Converts a duration. One beyond the range of the system is unlimited.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos() as _,
    }
}
