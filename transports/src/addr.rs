use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address to connect to or to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addr {
    /// `tcp:HOST:PORT`; an IPv6 address is in brackets.
    Tcp {
        /// A host name or address.
        host: String,
        /// A port; 0 lets the system choose one.
        port: u16,
    },
    /// `unix:PATH`; `@NAME` is an abstract name, without a file (unix(7)).
    Unix(PathBuf),
    /// `vsock:[CID:]PORT`: a port of a host or guest, vsock(7). Without CID a listener accepts
    /// connections to any CID, and a client connects to its host.
    Vsock {
        /// A context id.
        cid: Option<u32>,
        /// A port; 0 lets the system choose one.
        port: u32,
    },
    /// `vsock-uds:PATH:PORT`: vsock emulated with Unix sockets by a virtual machine monitor: a
    /// listener for the guest binds `PATH_PORT`; a client requests a port of the guest at `PATH`.
    VsockUds {
        /// The monitor's socket.
        path: PathBuf,
        /// A port of the host, or of the guest.
        port: u32,
    },
    /// `fd:N`: an inherited descriptor: a connection, or a listening socket.
    Fd(i32),
}

/// The error for a malformed address, with the expected syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAddr(String);

impl fmt::Display for BadAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadAddr {}

impl FromStr for Addr {
    type Err = BadAddr;

    fn from_str(text: &str) -> Result<Addr, BadAddr> {
        let bad = |expected: &str| BadAddr(format!("bad address '{text}': expected {expected}"));
        match text.split_once(':') {
            Some(("tcp", rest)) => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("tcp:HOST:PORT"))?;
                let port = port.parse().map_err(|_| bad("a port from 0 to 65535"))?;
                let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
                    Some(bracketed) => bracketed.ok_or_else(|| bad("tcp:[ADDRESS]:PORT"))?,
                    None if host.contains(':') => return Err(bad("tcp:[ADDRESS]:PORT")),
                    None => host,
                };
                if host.is_empty() {
                    return Err(bad("tcp:HOST:PORT"));
                }
                Ok(Addr::Tcp {
                    host: host.to_owned(),
                    port,
                })
            }
            Some(("vsock", rest)) => {
                let (cid, port) = match rest.split_once(':') {
                    Some((cid, port)) => (Some(cid.parse().map_err(|_| bad(VSOCK_SYNTAX))?), port),
                    None => (None, rest),
                };
                let port = vsock_port(port).ok_or_else(|| bad(VSOCK_SYNTAX))?;
                Ok(Addr::Vsock { cid, port })
            }
            Some(("vsock-uds", rest)) => {
                let (path, port) = rest.rsplit_once(':').ok_or_else(|| bad(VSOCK_UDS_SYNTAX))?;
                let port = vsock_port(port).filter(|&port| port > 0 && !path.is_empty());
                Ok(Addr::VsockUds {
                    path: path.into(),
                    port: port.ok_or_else(|| bad(VSOCK_UDS_SYNTAX))?,
                })
            }
            Some(("unix", path)) if !path.is_empty() => Ok(Addr::Unix(path.into())),
            Some(("fd", number)) => match number.parse() {
                Ok(fd) if fd >= 0 => Ok(Addr::Fd(fd)),
                _ => Err(bad("fd:N, the number of an inherited descriptor")),
            },
            _ => Err(bad(ADDR_SYNTAX)),
        }
    }
}

const ADDR_SYNTAX: &str = "tcp:HOST:PORT, unix:PATH, vsock:[CID:]PORT, vsock-uds:PATH:PORT or fd:N";

const VSOCK_SYNTAX: &str = "vsock:[CID:]PORT, both of them numbers";

const VSOCK_UDS_SYNTAX: &str = "vsock-uds:PATH:PORT, a port from 1 to 4294967294";

/// Parses a vsock port. All ones mean any port (`VMADDR_PORT_ANY`) and are refused.
fn vsock_port(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&port| port != u32::MAX)
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Addr::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Addr::Unix(path) => write!(f, "unix:{}", path.display()),
            Addr::Vsock { cid: None, port } => write!(f, "vsock:{port}"),
            Addr::Vsock {
                cid: Some(cid),
                port,
            } => write!(f, "vsock:{cid}:{port}"),
            Addr::VsockUds { path, port } => write!(f, "vsock-uds:{}:{port}", path.display()),
            Addr::Fd(fd) => write!(f, "fd:{fd}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written() {
        for text in [
            "tcp:127.0.0.1:5640",
            "tcp:[::1]:564",
            "tcp:host:0",
            "unix:/run/s",
            "unix:@n",
            "vsock:5640",
            "vsock:2:5640",
            "vsock-uds:/run/vm:a:5640",
            "fd:3",
        ] {
            assert_eq!(
                text.parse::<Addr>().map(|addr| addr.to_string()).as_deref(),
                Ok(text)
            );
        }
    }

    #[test]
    fn what_is_no_address_says_what_was_expected() {
        for (text, expected) in [
            ("tcp:5640", "tcp:HOST:PORT"),
            ("tcp::5640", "tcp:HOST:PORT"),
            ("tcp:h:70000", "a port"),
            ("tcp:::1:5640", "tcp:[ADDRESS]:PORT"),
            ("unix:", "unix:PATH"),
            ("fd:-1", "fd:N"),
            ("vsock:", "vsock:[CID:]PORT"),
            ("vsock:host:5640", "vsock:[CID:]PORT"),
            ("vsock:2:4294967295", "vsock:[CID:]PORT"),
            ("vsock-uds:5640", "vsock-uds:PATH:PORT"),
            ("vsock-uds::5640", "vsock-uds:PATH:PORT"),
            ("vsock-uds:/run/vm:0", "vsock-uds:PATH:PORT"),
            ("udp:h:1", "tcp:HOST:PORT, unix:PATH, vsock:"),
            ("", "tcp:HOST:PORT, unix:PATH, vsock:"),
        ] {
            let error = text.parse::<Addr>().expect_err(text).to_string();
            assert!(
                error.contains(expected) && error.contains(&format!("'{text}'")),
                "{error}"
            );
        }
    }
}
