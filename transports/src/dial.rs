//! Connecting to servers that may not respond.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

pub use crate::reserved_port::dial_from_reserved;
use crate::{Addr, StreamLink, vsock};

/// The interval at which [`crate::Link::recv`] of a dialled connection returns `WouldBlock` while
/// it waits, so that the caller can check the time: long enough to cost nothing.
pub const RECV_INTERVAL: Duration = Duration::from_secs(1);

/// The timeout for connecting to each of a host's addresses: a little longer than three lost SYNs.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time without an acknowledgement after which a connection is lost: the default of nfs(5)'s
/// `timeo=` over TCP.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Connects to `addr`. Returns `TimedOut` if that takes longer than 10 s. A TCP connection ends
/// when its peer does not respond for a minute; see also [`RECV_INTERVAL`].
pub fn dial(addr: &Addr) -> io::Result<StreamLink> {
    let fd: OwnedFd = match addr {
        Addr::Tcp { host, port } => tcp(host, *port)?,
        Addr::Unix(path) => dial_unix(path)?,
        Addr::Vsock { cid, port } => vsock::connect(*cid, *port)?,
        Addr::VsockUds { path, port } => vsock::connect_uds(path, *port)?,
        Addr::Fd(number) => sys::inherit::fd(*number)?,
    };
    link(fd, addr.to_string())
}

/// Creates a link over an established connection.
pub(crate) fn link(fd: OwnedFd, peer: String) -> io::Result<StreamLink> {
    // Descriptors that are not sockets support neither, and then a link waits forever.
    let _ = sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(RECV_INTERVAL));
    let _ = set_user_timeout(fd.as_fd());
    StreamLink::new(fd, peer)
}

fn set_user_timeout(fd: impl AsFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_user_timeout(&fd, USER_TIMEOUT.as_millis() as u32)?;
    sockopt::set_tcp_keepidle(&fd, USER_TIMEOUT / 2)?;
    sockopt::set_tcp_keepintvl(&fd, USER_TIMEOUT / 6)?;
    sockopt::set_socket_keepalive(&fd, true)
}

fn tcp(host: &str, port: u16) -> io::Result<OwnedFd> {
    connect_to_any(host, port, |to| {
        Ok(TcpStream::connect_timeout(&to, CONNECT_TIMEOUT)?.into())
    })
}

/// Connects to the addresses of `host` in turn and returns the first connection.
pub(crate) fn connect_to_any(
    host: &str,
    port: u16,
    connect: impl Fn(SocketAddr) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let mut why = io::Error::from(ErrorKind::NotFound);
    for to in (host, port).to_socket_addrs()? {
        // A thread that serves clients may act as one of them.
        match sys::creds::as_own_user(|| connect(to))? {
            Ok(fd) => return Ok(fd),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Connects a socket, bound or unbound, within [`CONNECT_TIMEOUT`].
pub(crate) fn connect(
    socket: &OwnedFd,
    connect: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    // The send timeout also applies to connect(2): socket(7).
    sockopt::set_socket_timeout(socket, Timeout::Send, Some(CONNECT_TIMEOUT))?;
    match connect(socket) {
        // The errors of TCP and Unix sockets for an expired timeout.
        Err(Errno::INPROGRESS | Errno::AGAIN) => Err(Errno::TIMEDOUT),
        done => {
            sockopt::set_socket_timeout(socket, Timeout::Send, None)?;
            done
        }
    }
}

/// Connects to the Unix socket at `path`; an abstract name begins with `@`. Returns `TimedOut` if
/// that takes longer than 10 s.
pub fn dial_unix(path: &Path) -> io::Result<OwnedFd> {
    let to = match path.as_os_str().as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(path)?,
    };
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    connect(&socket, |socket| rustix::net::connect(socket, &to))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;

    #[test]
    fn who_waits_for_one_that_says_nothing_looks_at_the_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let link = dial(&Addr::Tcp {
            host: "127.0.0.1".into(),
            port,
        })
        .expect("connected");
        let _silent = listener.accept().expect("one");
        let come = link.recv(&mut [0; 8], true).map_err(|error| error.kind());
        assert_eq!(come, Err(ErrorKind::WouldBlock));
    }
}
