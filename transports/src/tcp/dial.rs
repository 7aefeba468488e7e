//! Connecting to TCP servers that may not respond.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::{Addr, StreamLink};

/// The interval at which [`crate::Link::recv`] of a dialled connection returns `WouldBlock` while
/// it waits, so that the caller can check the time: long enough to cost nothing.
pub const RECV_INTERVAL: Duration = Duration::from_secs(1);

/// The timeout for connecting to each of a host's addresses: a little longer than three lost SYNs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to `addr`. Returns `TimedOut` if that takes longer than 10 s, and `Unsupported` for any
/// address other than TCP's.
pub fn dial(addr: &Addr) -> io::Result<StreamLink> {
    let Addr::Tcp { host, port } = addr else {
        return Err(needs_linux("a connection other than TCP"));
    };
    let mut why = io::Error::from(ErrorKind::NotFound);
    for to in (host.as_str(), *port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&to, CONNECT_TIMEOUT) {
            Ok(stream) => return StreamLink::new(stream, addr.to_string()),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Returns `Unsupported`: only Linux's connections begin at reserved ports.
pub fn dial_from_reserved(_: &str, _: u16) -> io::Result<StreamLink> {
    Err(needs_linux("a reserved port"))
}

fn needs_linux(what: &str) -> io::Error {
    io::Error::new(ErrorKind::Unsupported, format!("{what} needs Linux"))
}
