//! Errors of listening at an address.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use transports::Addr;

use super::owner;

/// Returns why listening at `addr` failed, and a remedy.
pub(crate) fn listen_error(addr: &Addr, error: &io::Error) -> String {
    let known = match addr {
        Addr::Tcp { port, .. } => tcp(*port, error.kind()),
        Addr::Unix(path) if !path.as_os_str().as_bytes().starts_with(b"@") => unix(path, error),
        Addr::VsockUds { path, port } => {
            let mut at = path.as_os_str().to_owned();
            at.push(format!("_{port}"));
            unix(Path::new(&at), error)
        }
        Addr::Vsock { port, .. } => vsock(*port, error),
        Addr::Unix(_) | Addr::Fd(_) => None,
    };
    format!("{addr}: {}", known.unwrap_or_else(|| error.to_string()))
}

fn tcp(port: u16, error: ErrorKind) -> Option<String> {
    match error {
        ErrorKind::AddrInUse => Some(match owner::port_owner(port) {
            Some(owner) => format!("the port is in use by {owner}: stop it, or choose another port"),
            None => "the port is in use, by another user's program or in another network namespace \
                     (ss -ltnp as root shows the program): choose another port"
                .into(),
        }),
        ErrorKind::PermissionDenied if port < first_unprivileged_port() => Some(format!(
            "ports below {0} require privileges: choose one from {0} on, or run barge as root or with CAP_NET_BIND_SERVICE",
            first_unprivileged_port()
        )),
        ErrorKind::AddrNotAvailable => {
            Some("this host has no such address: use 127.0.0.1 for this host only, 0.0.0.0 for others too".into())
        }
        _ => None,
    }
}

/// Returns the first port that needs no privileges (ip(7)).
fn first_unprivileged_port() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let port = text.ok().and_then(|text| text.trim().parse().ok());
    port.unwrap_or(1024)
}

/// Maximum length of a path in a socket address, without the terminating zero (unix(7)), bytes.
const SUN_LEN: usize = 107;

fn unix(path: &Path, error: &io::Error) -> Option<String> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let len = path.as_os_str().len();
    if len > SUN_LEN {
        return Some(format!(
            "expected a socket path of at most {SUN_LEN} bytes, got {len}: choose a shorter one, such as /tmp/s"
        ));
    }
    match error.kind() {
        ErrorKind::AddrInUse => {
            let is_socket =
                fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
            Some(match (is_socket, owner::socket_owner(path)) {
                (false, _) => {
                    "the path exists and is not a socket: remove it, or choose another path".into()
                }
                (true, Some(owner)) => {
                    format!("the socket is in use by {owner}: stop it, or choose another path")
                }
                (true, None) => {
                    "the socket is in use by another program: stop it, or choose another path"
                        .into()
                }
            })
        }
        ErrorKind::NotFound => Some(format!(
            "the directory {0} does not exist: mkdir -p {0}",
            dir.display()
        )),
        ErrorKind::NotADirectory => Some(format!("{} is not a directory", dir.display())),
        ErrorKind::PermissionDenied => Some(format!(
            "this user cannot create files in {}: choose a path in a directory of your own, such as $XDG_RUNTIME_DIR",
            dir.display()
        )),
        _ => None,
    }
}

fn vsock(port: u32, error: &io::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::AddrInUse => Some("the port is in use by another program: choose another port".into()),
        ErrorKind::PermissionDenied if port < 1024 => {
            Some("ports below 1024 require privileges: choose one from 1024 on, or run barge as root".into())
        }
        ErrorKind::AddrNotAvailable => {
            Some("this host has no such CID: use vsock:PORT, without a CID, for all its guests".into())
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => Some(
            "this kernel has no vsock: modprobe vhost_vsock, or use vsock-uds:PATH:PORT for monitors that map vsock to Unix sockets".into(),
        ),
        _ => None,
    }
}
