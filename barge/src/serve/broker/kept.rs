//! Connections on their way from a process that serves to its successor, through the broker, which
//! keeps their descriptors and reads nothing.
//!
//! Each descriptor is passed in a packet with the position of its connection. The first one of a
//! connection is a file with its state, the second one the connection itself.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use engine::HandedConnection;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::child::message;

/// The descriptors of each connection.
pub(super) type KeptDescriptors = Vec<Vec<OwnedFd>>;

/// Maximum size of the state of a connection in bytes: that of a guest with millions of nodes.
const MAX_STATE: u64 = 1 << 30;

/// The head of the file of a connection. The states of its session and of its transport follow.
#[derive(Serialize, Deserialize)]
struct Head {
    listener: String,
    peer: String,
    session: usize,
}

/// Sends `connections` to the broker. `file` returns a new file in memory, which the filter of
/// system calls does not permit the process to create.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    connections: Vec<HandedConnection>,
    file: impl Fn() -> io::Result<OwnedFd>,
) -> io::Result<()> {
    for (position, connection) in connections.into_iter().enumerate() {
        let state = write(&connection, file()?)?;
        for fd in std::iter::once(&state).chain(&connection.fds) {
            message::send(socket, &position, Some(fd.as_fd()))?;
        }
    }
    Ok(())
}

/// Sends descriptors that the broker keeps.
pub(super) fn pass_on(socket: BorrowedFd<'_>, kept: &KeptDescriptors) -> io::Result<()> {
    for (position, fds) in kept.iter().enumerate() {
        for fd in fds {
            message::send(socket, &position, Some(fd.as_fd()))?;
        }
    }
    Ok(())
}

/// Receives descriptors until the other end is closed, and `most` at most.
pub(super) fn receive(socket: BorrowedFd<'_>, most: usize) -> KeptDescriptors {
    let mut kept: KeptDescriptors = Vec::new();
    let mut last = None;
    for _ in 0..most {
        match message::receive::<usize>(socket) {
            Ok((position, Some(fd))) => {
                if last.replace(position) != Some(position) {
                    kept.push(Vec::new());
                }
                if let Some(own) = kept.last_mut() {
                    own.push(fd);
                }
            }
            // An error other than the end is one of the process, whose connections are lost.
            Ok((_, None)) | Err(_) => return kept,
        }
    }
    tracing::warn!("connections beyond the limit of {most} descriptors are closed");
    kept
}

/// Returns the connections of `kept`. Logs those whose state is invalid, and closes them.
pub(super) fn connections(kept: KeptDescriptors) -> Vec<HandedConnection> {
    let connection = |fds: Vec<OwnedFd>| {
        let mut fds = fds.into_iter();
        let state = fds.next()?;
        let parsed = parse(state, fds.collect());
        parsed
            .inspect_err(|error| tracing::warn!("a connection that was handed over: {error}"))
            .ok()
    };
    kept.into_iter().filter_map(connection).collect()
}

/// Returns a new file for [`send`].
pub(super) fn file() -> io::Result<OwnedFd> {
    Ok(memfd_create("barge-connection", MemfdFlags::CLOEXEC)?)
}

/// Writes the states of a connection to `file`.
fn write(connection: &HandedConnection, file: OwnedFd) -> io::Result<OwnedFd> {
    let head = Head {
        listener: connection.listener.clone(),
        peer: connection.peer.clone(),
        session: connection.session.len(),
    };
    let mut file = File::from(file);
    let head = serde_json::to_vec(&head)?;
    file.write_all(&(head.len() as u32).to_le_bytes())?;
    for part in [&head, &connection.session, &connection.transport] {
        file.write_all(part)?;
    }
    Ok(file.into())
}

fn parse(state: OwnedFd, fds: Vec<OwnedFd>) -> io::Result<HandedConnection> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut file = File::from(state);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(MAX_STATE).read_to_end(&mut bytes)?;
    let (len, rest) = bytes.split_first_chunk().ok_or_else(invalid)?;
    let len = u32::from_le_bytes(*len) as usize;
    let (head, rest) = rest.split_at_checked(len).ok_or_else(invalid)?;
    let head: Head = serde_json::from_slice(head)?;
    let (session, transport) = rest.split_at_checked(head.session).ok_or_else(invalid)?;
    Ok(HandedConnection {
        listener: head.listener,
        peer: head.peer,
        session: session.to_vec(),
        transport: transport.to_vec(),
        fds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed() -> HandedConnection {
        let (fd, _) = message::pair().expect("a pair");
        HandedConnection {
            listener: "unix:/a".into(),
            peer: "tcp:10.0.0.1:700".into(),
            session: vec![1, 2, 3],
            transport: vec![4],
            fds: vec![fd],
        }
    }

    #[test]
    fn connections_arrive_with_their_descriptors() {
        let (here, there) = message::pair().expect("a pair");
        let two = HandedConnection {
            listener: "unix:/b".into(),
            ..handed()
        };
        send(here.as_fd(), vec![handed(), two], file).expect("sent");
        drop(here);
        let kept = receive(there.as_fd(), 100);
        assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        let (here, there) = message::pair().expect("a pair");
        pass_on(here.as_fd(), &kept).expect("sent");
        drop(here);
        let all = connections(receive(there.as_fd(), 100));
        let [one, two] = &all[..] else {
            panic!("{all:?}");
        };
        let expected = handed();
        assert_eq!(
            (&one.listener, &one.peer),
            (&expected.listener, &expected.peer)
        );
        assert_eq!(
            (&one.session, &one.transport),
            (&expected.session, &expected.transport)
        );
        assert_eq!((two.listener.as_str(), two.fds.len()), ("unix:/b", 1));
    }

    #[test]
    fn a_truncated_state_and_too_many_descriptors_are_refused() {
        let whole = {
            let mut file = File::from(
                file()
                    .and_then(|file| write(&handed(), file))
                    .expect("a file"),
            );
            file.rewind().expect("a file");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).expect("read");
            bytes
        };
        for len in 0..whole.len() - 1 {
            let mut file = File::from(file().expect("a file"));
            file.write_all(&whole[..len]).expect("written");
            assert!(parse(file.into(), Vec::new()).is_err(), "{len} bytes");
        }
        let (here, there) = message::pair().expect("a pair");
        send(here.as_fd(), vec![handed(), handed()], file).expect("sent");
        let kept = receive(there.as_fd(), 3);
        assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }
}
