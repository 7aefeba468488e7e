//! Links over descriptors of Linux.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType,
    sockopt,
};
use vfs::copies::count_copied;
use vfs::peer::{GuestId, Origin};

use crate::link::timespec;
use crate::{Interest, Link, Pages, Payloads, Ready, fd_passing, origin};

/// A connection over a socket, or over other descriptors that can be polled (pipes, a
/// virtio-serial port).
pub struct StreamLink {
    input: OwnedFd,
    output: Option<OwnedFd>,
    kind: Kind,
    /// Whether this side ended the input: then an end of stream implies nothing about the peer.
    input_ended: AtomicBool,
    peer: String,
    /// The peer's IP address when the connection was made.
    addr: Option<SocketAddr>,
    /// The guest that a monitor's connection belongs to.
    guest: Option<GuestId>,
    payloads: Payloads,
    /// Whether it is a Unix socket, which can pass descriptors.
    passes_files: bool,
    /// The timeouts of [`Link::set_timeouts`], for descriptors without timeouts in the kernel.
    timeouts: OnceLock<(Duration, Duration)>,
}

enum Kind {
    Socket,
    /// Descriptors without shutdown(2); the event makes waiting threads stop.
    Descriptors {
        stop: OwnedFd,
        /// Whether a descriptor blocks, so that poll(2) precedes each read and write.
        blocks: bool,
    },
}

/// The socket buffer size requested for each direction in bytes: a reply of the usual maximum size
/// is sent in one call. The system may grant less.
const SOCKET_BUFFER: usize = 1 << 20;

impl StreamLink {
    /// Creates a connection over `fd`, in both directions.
    pub fn new(fd: OwnedFd, peer: impl Into<String>) -> io::Result<StreamLink> {
        let kind = match sockopt::socket_type(&fd) {
            Ok(_) => {
                set_options(fd.as_fd());
                Kind::Socket
            }
            Err(_) => return StreamLink::from_descriptors(fd, None, peer.into()),
        };
        Ok(StreamLink {
            addr: peer_addr(fd.as_fd()),
            guest: None,
            payloads: Payloads::of(fd.as_fd()),
            passes_files: sockopt::socket_domain(&fd).ok() == Some(AddressFamily::UNIX),
            input: fd,
            output: None,
            kind,
            input_ended: AtomicBool::new(false),
            peer: peer.into(),
            timeouts: OnceLock::new(),
        })
    }

    /// Creates a connection that receives from one descriptor and sends to the other.
    pub fn two_way(
        input: OwnedFd,
        output: OwnedFd,
        peer: impl Into<String>,
    ) -> io::Result<StreamLink> {
        StreamLink::from_descriptors(input, Some(output), peer.into())
    }

    /// Creates a connection over descriptors that are not sockets. Their open file descriptions may
    /// be shared with the process that passed them, or started this one: their flags are left
    /// unchanged.
    fn from_descriptors(
        input: OwnedFd,
        output: Option<OwnedFd>,
        peer: String,
    ) -> io::Result<StreamLink> {
        let (input, input_blocks) = nonblocking(input)?;
        let (output, output_blocks) = output.map(nonblocking).transpose()?.unzip();
        Ok(StreamLink {
            input,
            output,
            kind: Kind::Descriptors {
                stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
                blocks: input_blocks || output_blocks == Some(true),
            },
            input_ended: AtomicBool::new(false),
            peer,
            addr: None,
            guest: None,
            payloads: Payloads::STREAM,
            passes_files: false,
            timeouts: OnceLock::new(),
        })
    }

    /// Returns the same connection, as that of a guest: its monitor connects for it over a host
    /// socket.
    pub(crate) fn with_guest(mut self, guest: GuestId) -> StreamLink {
        self.guest = Some(guest);
        self.passes_files = false;
        self
    }

    fn output(&self) -> BorrowedFd<'_> {
        self.output.as_ref().unwrap_or(&self.input).as_fd()
    }

    /// Returns the result of a call that was to `wait`: `WouldBlock` becomes `TimedOut`, as the
    /// call waited for the timeout of [`Link::set_timeouts`]. Clients that set a socket timeout
    /// themselves still get `WouldBlock`.
    fn map_timeout<T>(&self, wait: bool, done: io::Result<T>) -> io::Result<T> {
        match done {
            Err(error)
                if wait
                    && self.timeouts.get().is_some()
                    && error.kind() == ErrorKind::WouldBlock =>
            {
                Err(ErrorKind::TimedOut.into())
            }
            done => done,
        }
    }

    /// Waits for `flags` or `stop`. Returns `TimedOut` after `time`, if given.
    fn poll(
        &self,
        fd: BorrowedFd<'_>,
        flags: PollFlags,
        stop: &OwnedFd,
        time: Option<&Duration>,
    ) -> io::Result<()> {
        let mut fds = [
            PollFd::from_borrowed_fd(fd, flags),
            PollFd::new(stop, PollFlags::IN),
        ];
        let time = time.copied().map(timespec);
        match retry(|| poll(&mut fds, time.as_ref()))? {
            0 => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }
}

/// Creates both ends of a connection within this process.
pub fn pair() -> io::Result<(StreamLink, StreamLink)> {
    let (one, other) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((
        StreamLink::new(one, "in-memory")?,
        StreamLink::new(other, "in-memory")?,
    ))
}

impl Link for StreamLink {
    fn recv(&self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        match &self.kind {
            Kind::Socket => {
                let flags = if wait {
                    RecvFlags::empty()
                } else {
                    RecvFlags::DONTWAIT
                };
                let got = retry(|| rustix::net::recv(&self.input, &mut *buf, flags));
                let got = self.map_timeout(wait, got)?.0;
                count_copied(got);
                Ok(got)
            }
            Kind::Descriptors { stop, blocks } => loop {
                let read = match *blocks && !is_ready(&self.input, PollFlags::IN) {
                    true => Err(ErrorKind::WouldBlock.into()),
                    false => retry(|| rustix::io::read(&self.input, &mut *buf)),
                };
                match read {
                    Err(error) if wait && error.kind() == ErrorKind::WouldBlock => {
                        let time = self.timeouts.get().map(|(recv, _)| recv);
                        self.poll(self.input.as_fd(), PollFlags::IN, stop, time)?;
                        if is_set(stop) {
                            return Ok(0);
                        }
                    }
                    done => return done,
                }
            },
        }
    }

    fn send(&self, bytes: &[u8], wait: bool) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            let result = match &self.kind {
                Kind::Socket => {
                    let dontwait = if wait {
                        SendFlags::empty()
                    } else {
                        SendFlags::DONTWAIT
                    };
                    let flags = SendFlags::NOSIGNAL | dontwait;
                    self.map_timeout(wait, retry(|| rustix::net::send(&self.input, rest, flags)))
                }
                Kind::Descriptors { blocks: true, .. }
                    if !is_ready(self.output(), PollFlags::OUT) =>
                {
                    Err(ErrorKind::WouldBlock.into())
                }
                Kind::Descriptors { blocks, .. } => {
                    let len = if *blocks {
                        rest.len().min(SAFE_WRITE)
                    } else {
                        rest.len()
                    };
                    retry(|| rustix::io::write(self.output(), &rest[..len]))
                }
            };
            match (result, &self.kind) {
                (Ok(n), _) => {
                    count_copied(n);
                    sent += n;
                }
                (Err(error), Kind::Descriptors { stop, .. })
                    if wait && error.kind() == ErrorKind::WouldBlock =>
                {
                    let time = self.timeouts.get().map(|(_, send)| send);
                    self.poll(self.output(), PollFlags::OUT, stop, time)?;
                    if is_set(stop) {
                        return Err(ErrorKind::BrokenPipe.into());
                    }
                }
                (Err(error), _) if error.kind() == ErrorKind::WouldBlock && sent > 0 => break,
                (Err(error), _) => return Err(error),
            }
        }
        Ok(sent)
    }

    fn send_vectored(&self, pieces: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let sent = match &self.kind {
            Kind::Socket => {
                let mut none = SendAncillaryBuffer::default();
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                retry(|| rustix::net::sendmsg(&self.input, pieces, &mut none, flags))
            }
            Kind::Descriptors { blocks: true, .. } => {
                let first = pieces.iter().find(|piece| !piece.is_empty());
                return match first {
                    Some(piece) if !wait => self.send(piece, false),
                    _ => pieces.iter().map(|piece| self.send(piece, true)).sum(),
                };
            }
            Kind::Descriptors { .. } => retry(|| rustix::io::writev(self.output(), pieces)),
        };
        let mut sent = match sent {
            Err(error) if wait && error.kind() == ErrorKind::WouldBlock => 0,
            done => done?,
        };
        count_copied(sent);
        if !wait {
            return Ok(sent);
        }
        let mut behind = sent;
        for piece in pieces {
            let skipped = piece.len().min(behind);
            behind -= skipped;
            if skipped < piece.len() {
                sent += self.send(&piece[skipped..], true)?;
            }
        }
        Ok(sent)
    }

    fn send_with_file(
        &self,
        message: &[u8],
        file: BorrowedFd<'_>,
        wait: bool,
    ) -> io::Result<usize> {
        if !self.passes_files {
            return self.send(message, wait);
        }
        match retry(|| fd_passing::send_with_file(self.input.as_fd(), message, file, wait)) {
            Ok(sent) if wait && sent < message.len() => {
                self.send(&message[sent..], true).map(|rest| sent + rest)
            }
            Err(error) if wait && error.kind() == ErrorKind::WouldBlock => {
                self.map_timeout(wait, Err(error))
            }
            // Too many descriptors are in flight already, or none can be passed.
            Err(error) if !is_connection_error(&error) => self.send(message, wait),
            done => done,
        }
    }

    fn recv_with_file(
        &self,
        buf: &mut [u8],
        wait: bool,
        file: &mut Option<OwnedFd>,
    ) -> io::Result<usize> {
        if !self.passes_files {
            return self.recv(buf, wait);
        }
        let got = retry(|| fd_passing::recv_with_file(self.input.as_fd(), buf, wait, file))?;
        count_copied(got);
        Ok(got)
    }

    fn wait(
        &self,
        interest: Interest,
        wake: BorrowedFd<'_>,
        time: Option<Duration>,
    ) -> io::Result<Ready> {
        let when = |wanted, flag| if wanted { flag } else { PollFlags::empty() };
        let output = self.output();
        let hang_up = when(!self.input_ended.load(Ordering::SeqCst), PollFlags::RDHUP);
        let mut fds = [
            PollFd::from_borrowed_fd(wake, PollFlags::IN),
            PollFd::new(&self.input, hang_up | when(interest.read, PollFlags::IN)),
            PollFd::from_borrowed_fd(output, when(interest.write, PollFlags::OUT)),
        ];
        let time = time.map(timespec);
        retry(|| poll(&mut fds, time.as_ref()))?;
        let input = fds[1].revents();
        Ok(Ready {
            woken: !fds[0].revents().is_empty(),
            read: interest.read && !input.is_empty(),
            write: interest.write && !fds[2].revents().is_empty(),
            hung_up: input.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR),
        })
    }

    fn end_input(&self) {
        self.input_ended.store(true, Ordering::SeqCst);
        match &self.kind {
            Kind::Socket => drop(rustix::net::shutdown(&self.input, Shutdown::Read)),
            Kind::Descriptors { stop, .. } => signal(stop),
        }
    }

    fn hang_up(&self) {
        match &self.kind {
            Kind::Socket => drop(rustix::net::shutdown(&self.input, Shutdown::Both)),
            Kind::Descriptors { stop, .. } => signal(stop),
        }
    }

    fn set_timeouts(&self, recv: Duration, send: Duration) -> io::Result<()> {
        if let Kind::Socket = self.kind {
            sockopt::set_socket_timeout(&self.input, sockopt::Timeout::Recv, Some(recv))?;
            sockopt::set_socket_timeout(&self.input, sockopt::Timeout::Send, Some(send))?;
        }
        // Set only once: waiting threads have read them.
        let _ = self.timeouts.set((recv, send));
        Ok(())
    }

    fn payloads(&self) -> Payloads {
        self.payloads
    }

    fn send_pages(&self, head: &[u8], pages: &mut Pages, tail: &[u8]) -> io::Result<()> {
        let flags = SendFlags::NOSIGNAL | SendFlags::MORE;
        let mut sent = 0;
        while sent < head.len() {
            let more = retry(|| rustix::net::send(&self.input, &head[sent..], flags));
            sent += self.map_timeout(true, more)?;
        }
        self.map_timeout(true, pages.send(self.output(), !tail.is_empty()))?;
        self.send(tail, true).map(drop)
    }

    fn socket(&self) -> Option<OwnedFd> {
        match self.kind {
            Kind::Socket => rustix::io::fcntl_dupfd_cloexec(&self.input, 0).ok(),
            Kind::Descriptors { .. } => None,
        }
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn origin(&self) -> Origin {
        match (&self.kind, self.guest) {
            (_, Some(guest)) => Origin::Guest(guest),
            (Kind::Socket, None) => origin::of_peer(self.input.as_fd(), self.addr),
            (Kind::Descriptors { .. }, None) => Origin::Inherited,
        }
    }
}

/// Returns whether sending failed because of the connection, not because of the descriptor.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    )
}

/// Returns the peer's IP address if `fd` is an Internet socket whose peer is still connected.
fn peer_addr(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    let peer = rustix::net::getpeername(fd).ok().flatten()?;
    SocketAddr::try_from(peer).ok()
}

/// Enlarges a socket's buffers and disables Nagle's algorithm. Failures are ignored: a Unix socket
/// has no Nagle's algorithm, and a system may limit buffers.
fn set_options(fd: BorrowedFd<'_>) {
    let _ = sockopt::set_tcp_nodelay(fd, true);
    keep_alive(fd);
    // The kernel includes its own overhead, and reports twice the requested size.
    if sockopt::socket_send_buffer_size(fd).is_ok_and(|size| size < SOCKET_BUFFER)
        && sys::net::force_send_buffer(fd, SOCKET_BUFFER).is_err()
    {
        let _ = sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER);
    }
}

/// Enables TCP keepalive (tcp(7)): the system detects within some minutes that a silent peer is
/// gone without closing the connection, such as a host that was switched off, or a connection that
/// a firewall dropped.
fn keep_alive(fd: BorrowedFd<'_>) {
    const IDLE: Duration = Duration::from_secs(60);
    const BETWEEN: Duration = Duration::from_secs(20);
    const PROBES: u32 = 6;
    let _ = sockopt::set_tcp_keepidle(fd, IDLE)
        .and_then(|()| sockopt::set_tcp_keepintvl(fd, BETWEEN))
        .and_then(|()| sockopt::set_tcp_keepcnt(fd, PROBES))
        .and_then(|()| sockopt::set_socket_keepalive(fd, true));
}

/// Returns a nonblocking descriptor for the same pipe or device with its own open file description,
/// or `fd` itself if that is impossible; and whether it blocks.
fn nonblocking(fd: OwnedFd) -> io::Result<(OwnedFd, bool)> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    if flags.contains(OFlags::NONBLOCK) {
        return Ok((fd, false));
    }
    let own = flags & OFlags::RWMODE | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    // Some devices allow one open at a time, and /proc may not be mounted.
    Ok(match rustix::fs::open(path, own, Mode::empty()) {
        Ok(own) => (own, false),
        Err(_) => (fd, true),
    })
}

/// The number of bytes that can be written without blocking once poll(2) reports space: PIPE_BUF
/// (pipe(7)).
const SAFE_WRITE: usize = 4096;

fn signal(event: &OwnedFd) {
    // Fails only if the counter is full, and then it is readable already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

fn is_set(event: &OwnedFd) -> bool {
    is_ready(event, PollFlags::IN)
}

/// Returns whether `fd` is ready for any of `events`, or has failed.
fn is_ready(fd: impl AsFd, events: PollFlags) -> bool {
    let mut fds = [PollFd::new(&fd, events)];
    matches!(poll(&mut fds, Some(&timespec(Duration::ZERO))), Ok(1))
}

fn retry<T>(call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    rustix::io::retry_on_intr(call).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_arrive_in_a_row_however_many_go_at_once() {
        let (one, other) = pair().expect("a pair");
        let (input, output) = rustix::pipe::pipe().expect("a pipe");
        let pipe = StreamLink::two_way(input, output, "pipe").expect("a link");
        let large = vec![7; 4 << 20];
        let pieces = [&b"head"[..], b"", &large, b"tail"];
        let slices = pieces.map(IoSlice::new);
        for (from, to) in [(&one, &other), (&pipe, &pipe)] {
            std::thread::scope(|scope| {
                let sent = scope.spawn(|| from.send_vectored(&slices, true).expect("sent"));
                let mut got = vec![0; large.len() + 8];
                to.recv_exact(&mut got).expect("received");
                assert_eq!(sent.join().expect("no panic"), got.len());
                assert!(got == pieces.concat());
            });
        }
    }

    /// The process that passed a pipe may use its end, too, and block on it.
    #[test]
    fn descriptors_of_others_keep_their_flags() {
        let (input, output) = rustix::pipe::pipe().expect("a pipe");
        let theirs = [&input, &output].map(|fd| fd.try_clone().expect("cloned"));
        let pipe = StreamLink::two_way(input, output, "pipe").expect("a link");
        let none = pipe.recv(&mut [0; 8], false).map_err(|error| error.kind());
        assert_eq!(none, Err(ErrorKind::WouldBlock));
        let large = vec![7; 4 << 20];
        let sent = pipe.send(&large, false).expect("sent");
        assert!(sent > 0 && sent < large.len());
        for fd in &theirs {
            let flags = rustix::fs::fcntl_getfl(fd).expect("flags");
            assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
        }
    }

    /// Simulates a device that cannot be opened again, or a system without /proc.
    #[test]
    fn one_that_blocks_is_asked_first() {
        let (input, output) = rustix::pipe::pipe().expect("a pipe");
        let mut pipe = StreamLink::two_way(input, output, "pipe").expect("a link");
        let (input, output) = rustix::pipe::pipe().expect("a pipe");
        (pipe.input, pipe.output) = (input, Some(output));
        if let Kind::Descriptors { blocks, .. } = &mut pipe.kind {
            *blocks = true;
        }
        let none = pipe.recv(&mut [0; 8], false).map_err(|error| error.kind());
        assert_eq!(none, Err(ErrorKind::WouldBlock));
        let large = vec![7; 1 << 20];
        let pieces = [IoSlice::new(b"head"), IoSlice::new(&large)];
        let sent = pipe.send_vectored(&pieces, false).expect("sent");
        assert_eq!(sent, 4);
        let mut sent = pipe.send(&large, false).expect("sent");
        assert!(sent > 0 && sent < large.len());
        std::thread::scope(|scope| {
            let rest = scope.spawn(|| pipe.send_vectored(&pieces, true).expect("sent"));
            sent += 4 + 4 + large.len();
            let mut got = vec![0; sent];
            pipe.recv_exact(&mut got).expect("received");
            assert_eq!(rest.join().expect("no panic"), 4 + large.len());
            assert!(got.ends_with(&large) && got.starts_with(b"head\x07"));
        });
    }

    #[test]
    fn only_a_socket_of_the_network_has_an_address_and_keeps_it() {
        assert_eq!(pair().expect("a pair").0.origin().addr(), None);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = listener.local_addr().expect("an address");
        let client = std::net::TcpStream::connect(at).expect("connected");
        let (server, _) = listener.accept().expect("accepted");
        let link = StreamLink::new(server.into(), "tcp").expect("a link");
        drop(client);
        assert_eq!(link.origin().addr(), Some(at.ip()));
        let (input, output) = rustix::pipe::pipe().expect("a pipe");
        let pipe = StreamLink::two_way(input, output, "pipe").expect("a link");
        assert_eq!(pipe.origin(), Origin::Inherited);
    }

    #[test]
    fn without_waiting_as_many_go_as_fit() {
        let (one, other) = pair().expect("a pair");
        let large = vec![7; 16 << 20];
        let slices = [IoSlice::new(b"head"), IoSlice::new(&large)];
        let sent = one.send_vectored(&slices, false).expect("sent");
        assert!(sent > 4 && sent < large.len(), "{sent}");
        let more = one.send_vectored(&slices, false).map_err(|e| e.kind());
        assert_eq!(more.err(), Some(ErrorKind::WouldBlock));
        let mut got = vec![0; sent];
        other.recv_exact(&mut got).expect("received");
        assert_eq!(&got[..5], b"head\x07");
    }
}
