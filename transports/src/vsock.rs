//! Sockets between a host and its guests: the kernel's (vsock(7)), and Unix sockets that a virtual
//! machine monitor connects to those of its guest, as Firecracker, cloud-hypervisor and
//! vhost-device-vsock do (Firecracker, `docs/vsock.md`).
//!
//! With such a monitor's socket at `PATH`, a guest's connection to port N of its host arrives at
//! the listener at `PATH_N`; a host's connection to port N of the guest begins with a request at
//! `PATH`, which the monitor answers with a line.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sys::vsock::VsockAddr;

/// Listens at a port of this machine, 0 for one that the system chooses, and returns the port. With
/// `cid`, accepts only connections to that context id of this machine.
pub(crate) fn listen(cid: Option<u32>, port: u32) -> io::Result<(OwnedFd, u32)> {
    let addr = VsockAddr {
        cid: cid.unwrap_or(VsockAddr::ANY),
        port: if port == 0 { VsockAddr::ANY_PORT } else { port },
    };
    let socket = socket()?;
    rustix::net::bind(&socket, &addr)?;
    // The backlog of std.
    rustix::net::listen(&socket, 128)?;
    let at = VsockAddr::of(&rustix::net::getsockname(&socket)?);
    Ok((socket, at.map_or(port, |at| at.port)))
}

/// Connects to a port of the machine `cid`, or of this machine's host.
pub(crate) fn connect(cid: Option<u32>, port: u32) -> io::Result<OwnedFd> {
    let cid = cid.unwrap_or(VsockAddr::HOST);
    let socket = socket()?;
    rustix::net::connect(&socket, &VsockAddr { cid, port })?;
    Ok(socket)
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::VSOCK,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Returns the path at which to listen for the guest of the monitor at `path`, for host port
/// `port`.
pub(crate) fn uds_of_port(path: &Path, port: u32) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(format!("_{port}"));
    path.into()
}

/// The time within which a monitor must connect to its guest, which has to be running.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects, through the monitor at `path`, to port `port` of its guest.
pub(crate) fn connect_uds(path: &Path, port: u32) -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(MONITOR_TIMEOUT))?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
    let answer = read_line(&mut stream)?;
    let there = answer
        .strip_prefix("OK ")
        .is_some_and(|at| at.parse::<u32>().is_ok());
    if !there {
        let why = format!("expected the monitor to answer 'OK PORT', got '{answer}'");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    stream.set_read_timeout(None)?;
    Ok(stream.into())
}

/// Reads a line and returns it without its end. The bytes after it, from the guest, are not read.
fn read_line(stream: &mut UnixStream) -> io::Result<String> {
    /// The length of "OK ", a port and the line end.
    const MOST: usize = 32;
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => {
                let why = "no program listens on this port in the guest";
                return Err(io::Error::new(ErrorKind::ConnectionRefused, why));
            }
            Ok(_) if byte == *b"\n" => break,
            Ok(_) if line.len() == MOST => {
                let why = "expected a short line from the monitor";
                return Err(io::Error::new(ErrorKind::InvalidData, why));
            }
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::{Addr, Link, dial};

    /// Dials through a monitor that responds `answer`.
    fn dialled(answer: &'static str) -> io::Result<Vec<u8>> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("vm");
        let monitor = UnixListener::bind(&path).expect("bound");
        let monitor = std::thread::spawn(move || {
            let (mut stream, _) = monitor.accept().expect("one");
            assert_eq!(read_line(&mut stream).expect("a line"), "CONNECT 5640");
            stream.write_all(answer.as_bytes()).expect("written");
        });
        let link = dial(&Addr::VsockUds { path, port: 5640 });
        monitor.join().expect("no panic");
        let mut buf = vec![0; 16];
        let got = link?.recv(&mut buf, true)?;
        buf.truncate(got);
        Ok(buf)
    }

    #[test]
    fn through_a_monitor_the_guest_is_heard_from_behind_the_line() {
        assert_eq!(dialled("OK 1073741824\nhello").expect("there"), b"hello");
    }

    #[test]
    fn a_monitor_that_refuses_or_talks_is_an_error() {
        let kind = |answer| dialled(answer).expect_err(answer).kind();
        assert_eq!(kind(""), ErrorKind::ConnectionRefused);
        assert_eq!(kind("OK"), ErrorKind::ConnectionRefused);
        assert_eq!(kind("OK x\n"), ErrorKind::InvalidData);
        assert_eq!(kind("ERR 1\n"), ErrorKind::InvalidData);
        assert_eq!(
            kind("OK 11111111111111111111111111111111111111111\n"),
            ErrorKind::InvalidData
        );
    }
}
