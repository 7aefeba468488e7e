//! UDP sockets: a message per datagram, in both directions.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use sys::diag;
use vfs::Origin;
use vfs::peer::Owner;

/// A socket that receives datagrams and sends answers.
pub struct DatagramSocket(UdpSocket);

impl DatagramSocket {
    /// The maximum size of a datagram without IP and UDP headers (RFC 768).
    pub const MAX_SIZE: usize = 65_507;

    /// Binds a socket to this address.
    pub fn bind(host: &str, port: u16) -> io::Result<DatagramSocket> {
        DatagramSocket::from_socket(UdpSocket::bind((host, port))?)
    }

    /// Uses a bound socket.
    pub fn from_socket(socket: UdpSocket) -> io::Result<DatagramSocket> {
        socket.set_nonblocking(true)?;
        Ok(DatagramSocket(socket))
    }

    /// Returns the port that it is bound to.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Waits for a datagram and receives it into `into`; returns its length and sender, or `None`
    /// once `stop` is readable.
    pub fn receive(
        &self,
        into: &mut [u8],
        stop: BorrowedFd<'_>,
    ) -> io::Result<Option<(usize, SocketAddr)>> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(&self.0, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                done => done?,
            };
            if !fds[0].revents().is_empty() {
                return Ok(None);
            }
            match self.0.recv_from(into) {
                Ok(received) => return Ok(Some(received)),
                // An earlier answer was refused by its host, or there was no datagram after all.
                Err(error)
                    if [
                        ErrorKind::WouldBlock,
                        ErrorKind::Interrupted,
                        ErrorKind::ConnectionRefused,
                    ]
                    .contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the origin of a datagram from `from`.
    pub fn origin(&self, from: SocketAddr) -> Origin {
        let (addr, port) = (from.ip().to_canonical(), from.port());
        if !diag::is_local(addr).unwrap_or(addr.is_loopback()) {
            return Origin::Remote { addr, port };
        }
        let local = self.0.local_addr().ok();
        let owner = local.and_then(|local| diag::udp_owner(self.0.as_fd(), from, local).ok()?);
        match owner {
            Some(uid) => Origin::Local {
                addr: Some(addr),
                owner: Owner {
                    uid,
                    gid: None,
                    groups: None,
                },
            },
            None => Origin::Unidentified { addr: Some(addr) },
        }
    }

    /// Sends a datagram to `to`.
    pub fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.0.send_to(bytes, to).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn datagrams_come_and_are_answered_until_it_stops() {
        let datagrams = DatagramSocket::bind("127.0.0.1", 0).expect("bound");
        let at = ("127.0.0.1", datagrams.port().expect("a port"));
        let client = UdpSocket::bind(("127.0.0.1", 0)).expect("bound");
        client.send_to(b"ping", at).expect("sent");
        let mut bytes = [0; 8];
        let never = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let received = datagrams
            .receive(&mut bytes, never.as_fd())
            .expect("received");
        let (len, from) = received.expect("a datagram");
        assert_eq!(&bytes[..len], b"ping");
        datagrams.send(b"pong", from).expect("sent");
        let (len, _) = client.recv_from(&mut bytes).expect("received");
        assert_eq!(&bytes[..len], b"pong");
        let stop = eventfd(1, EventfdFlags::CLOEXEC).expect("an eventfd");
        assert!(
            datagrams
                .receive(&mut bytes, stop.as_fd())
                .expect("no error")
                .is_none()
        );
    }
}
