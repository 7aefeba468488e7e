//! Requests of the process that serves to the broker, and replies.
//!
//! Each message is one packet of a Unix socket, as JSON. A request passes the socket for its reply,
//! so that requests do not wait for each other. A reply may pass a descriptor.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::SendFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use transports::fd_passing::{recv_with_file, send_with_file};

use super::parts::Part;

/// Maximum size of a message in bytes: that of a packet with Linux's default send buffer.
const MAX_MESSAGE: usize = 208 << 10;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Listens at an address of the configuration, which may be there several times: `place` counts
    /// from 0.
    Listen { addr: String, place: usize },
    /// Binds a UDP socket at a host of the configuration.
    BindUdp { host: String, port: u16 },
    /// Connects a UDP socket to an NFS client.
    ConnectUdp { to: SocketAddr },
    /// Opens a file of the configuration to read it.
    Read { path: OsString },
    /// Creates a file that the configuration names.
    Create { path: OsString },
    /// Queries the user database for a user or a group.
    Find { key: UserKey },
    /// Queries the user database for the groups of a user.
    GroupsOfUser { user: Entry },
    /// Clients are served: sets the environment of the command of `--run`.
    Ready { environment: Vec<(String, String)> },
    /// The configuration has been read again, with this result.
    Reloaded { status: String },
    /// Asks for the names of the parts whose figures the status page shows.
    Parts,
    /// Asks for figures of a part, which are read from the passed descriptor.
    Figures { part: Part, wanted: Wanted },
}

/// The key of an entry of the user database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum UserKey {
    Uid(u32),
    User(Vec<u8>),
    Gid(u32),
    Group(Vec<u8>),
}

/// The figures of a process that serves, as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wanted {
    Status,
    Troubles,
}

/// Maximum size of the figures of a process in bytes.
pub(super) const MAX_FIGURES: u64 = 4 << 20;

/// A user with the primary group, or a group, whose id is then in both places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) id: u32,
    pub(super) gid: u32,
}

/// A reply.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    /// The passed socket listens at this address.
    Listening {
        addr: String,
    },
    /// The requested descriptor is passed.
    Descriptor,
    Parts {
        parts: Vec<Part>,
    },
    /// The user or group, if it exists.
    Found {
        entry: Option<Entry>,
    },
    Groups {
        gids: Vec<u32>,
    },
    /// The request failed.
    Failed {
        errno: Option<i32>,
        message: String,
    },
}

impl Reply {
    pub(super) fn failed(error: &io::Error) -> Reply {
        Reply::Failed {
            errno: error.raw_os_error(),
            message: error.to_string(),
        }
    }
}

/// Sends a message, and a descriptor with it if `passed` is one.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    passed: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    rustix::io::retry_on_intr(|| match passed {
        Some(passed) => send_with_file(socket, &text, passed, true),
        None => rustix::net::send(socket, &text, SendFlags::NOSIGNAL),
    })?;
    Ok(())
}

/// Waits for a message, and returns it with the descriptor that was passed. Returns an error of
/// kind `UnexpectedEof` if the other end was closed, and `InvalidData` if it is no such message.
pub(super) fn receive<M: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<(M, Option<OwnedFd>)> {
    let (mut text, mut passed) = (vec![0; MAX_MESSAGE], None);
    let len = rustix::io::retry_on_intr(|| recv_with_file(socket, &mut text, true, &mut passed))?;
    match len {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        len => Ok((serde_json::from_slice(&text[..len])?, passed)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair")
    }

    #[test]
    fn a_message_arrives_with_its_descriptor() {
        let (here, there) = pair();
        let file = tempfile::tempfile().expect("a file");
        let key = UserKey::User(b"a\xff".to_vec());
        let request = Request::Find { key: key.clone() };
        send(here.as_fd(), &request, Some(file.as_fd())).expect("sent");
        let (received, passed) = receive::<Request>(there.as_fd()).expect("received");
        assert!(matches!(received, Request::Find { key: found } if found == key));
        assert!(passed.is_some());
        send(here.as_fd(), &Reply::Done, None).expect("sent");
        let (received, passed) = receive::<Reply>(there.as_fd()).expect("received");
        assert!(matches!(received, Reply::Done) && passed.is_none());
    }

    #[test]
    fn other_packets_and_a_closed_socket_are_errors() {
        let (here, there) = pair();
        let kind = |text: &[u8]| {
            rustix::io::write(&here, text).expect("sent");
            let received = receive::<Request>(there.as_fd());
            received.expect_err("no request").kind()
        };
        for text in [&b"{}"[..], b"\xff", b"{\"Listen\":{}}", b"[", b"\"Ready\""] {
            assert_eq!(kind(text), io::ErrorKind::InvalidData, "{text:?}");
        }
        drop(here);
        let received = receive::<Request>(there.as_fd()).expect_err("closed");
        assert_eq!(received.kind(), io::ErrorKind::UnexpectedEof);
    }
}
