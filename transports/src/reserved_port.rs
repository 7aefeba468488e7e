//! Connections from reserved ports, which only the superuser may bind and which servers therefore
//! trust (`secure` of exports(5)).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::{StreamLink, dial};

/// The ports that Linux's clients use: lower ones belong to many services.
const PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

/// Does the same as [`crate::dial()`] for a TCP port, from a reserved port, which takes the
/// privilege to bind it.
pub fn dial_from_reserved(host: &str, port: u16) -> io::Result<StreamLink> {
    dial::link(
        dial::connect_to_any(host, port, connect)?,
        format!("tcp:{host}:{port}"),
    )
}

fn connect(to: SocketAddr) -> io::Result<OwnedFd> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    for port in PORTS.rev() {
        let fd = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // A port whose last connection had another destination can be reused at once.
        sockopt::set_socket_reuseaddr(&fd, true)?;
        let from = match to {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], port)),
            SocketAddr::V6(_) => SocketAddr::from(([0; 16], port)),
        };
        match rustix::net::bind(&fd, &from)
            .and_then(|()| dial::connect(&fd, |fd| rustix::net::connect(fd, &to)))
        {
            Ok(()) => return Ok(fd),
            // The port is in use, or was just used for a connection to this server.
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            Err(error @ (Errno::ACCESS | Errno::PERM)) => {
                let why = format!(
                    "{}: reserved ports require privileges",
                    io::Error::from(error)
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        "all reserved ports are in use",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_sees_reserved_ports_and_each_connection_has_its_own() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: reserved ports need root");
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let links = [(); 2].map(|()| dial_from_reserved("127.0.0.1", port).expect("connected"));
        let from = links
            .each_ref()
            .map(|_| listener.accept().expect("one").1.port());
        assert!(from.iter().all(|port| PORTS.contains(port)), "{from:?}");
        assert_ne!(from[0], from[1]);
    }
}
