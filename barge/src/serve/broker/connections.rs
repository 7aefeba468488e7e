//! Connections on their way from a process that serves to its successor, through the broker, which
//! holds their descriptors and reads nothing. Those of devices that it keeps are the same.
//!
//! Each descriptor is passed in a packet with the position of its connection. The first one of a
//! connection is a file with its state, and the next ones are the connection's own; the state has
//! their number. Then come those of open files without a name, which stay open only until the
//! session has been resumed. They are sent after the other descriptors of all connections, so that
//! a limit costs files before it costs connections.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use engine::SuspendedConnection;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use wire::SavedState;

use crate::child::message;

/// The descriptors of each connection.
pub(super) type ConnectionDescriptors = Vec<Vec<OwnedFd>>;

/// Maximum size of the state of a connection in bytes: that of a guest with millions of nodes.
const MAX_STATE: u64 = 1 << 30;

/// The head of the file of a connection. The states of its session and of its transport follow.
#[derive(Serialize, Deserialize)]
struct Head {
    listener: String,
    peer: String,
    /// The length of the session's state in bytes.
    session: usize,
    /// The number of the connection's own descriptors.
    fds: usize,
}

/// Sends `connections` to the broker.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    connections: Vec<SuspendedConnection>,
) -> io::Result<()> {
    let mut files = Vec::new();
    for (position, connection) in connections.into_iter().enumerate() {
        let state = state_file(&connection)?;
        for fd in std::iter::once(&state).chain(&connection.fds) {
            message::send(socket, &position, Some(fd.as_fd()))?;
        }
        files.extend(
            connection
                .session
                .files
                .into_iter()
                .map(|file| (position, file)),
        );
    }
    for (position, file) in files {
        message::send(socket, &position, Some(file.as_fd()))?;
    }
    Ok(())
}

/// Sends descriptors that the broker holds.
pub(super) fn pass_on(socket: BorrowedFd<'_>, passed: &ConnectionDescriptors) -> io::Result<()> {
    for (position, fds) in passed.iter().enumerate() {
        for fd in fds {
            message::send(socket, &position, Some(fd.as_fd()))?;
        }
    }
    Ok(())
}

/// Receives descriptors until the other end is closed, and `most` at most.
pub(super) fn receive(socket: BorrowedFd<'_>, most: usize) -> ConnectionDescriptors {
    let mut passed: BTreeMap<usize, Vec<OwnedFd>> = BTreeMap::new();
    let mut is_complete = false;
    for _ in 0..most {
        match message::receive::<usize>(socket) {
            Ok((position, Some(fd))) => passed.entry(position).or_default().push(fd),
            // An error other than the end is one of the process, whose connections are lost.
            Ok((_, None)) | Err(_) => {
                is_complete = true;
                break;
            }
        }
    }
    if !is_complete {
        tracing::warn!("files and connections beyond the limit of {most} descriptors are closed");
    }
    passed.into_values().collect()
}

/// Returns the connections of `passed`. Logs those whose state is invalid, and closes them.
pub(super) fn connections(passed: ConnectionDescriptors) -> Vec<SuspendedConnection> {
    let connection = |fds: Vec<OwnedFd>| {
        let mut fds = fds.into_iter();
        let state = fds.next()?;
        let parsed = parse(state, fds.collect());
        parsed
            .inspect_err(|error| tracing::warn!("a connection of an earlier process: {error}"))
            .ok()
    };
    passed.into_iter().filter_map(connection).collect()
}

/// Returns a file in memory with the states of a connection.
pub(super) fn state_file(connection: &SuspendedConnection) -> io::Result<OwnedFd> {
    let head = Head {
        listener: connection.listener.clone(),
        peer: connection.peer.clone(),
        session: connection.session.bytes.len(),
        fds: connection.fds.len(),
    };
    let mut file = File::from(memfd_create("barge-connection", MemfdFlags::CLOEXEC)?);
    let head = serde_json::to_vec(&head)?;
    file.write_all(&(head.len() as u32).to_le_bytes())?;
    for part in [&head, &connection.session.bytes, &connection.transport] {
        file.write_all(part)?;
    }
    Ok(file.into())
}

fn parse(state: OwnedFd, mut fds: Vec<OwnedFd>) -> io::Result<SuspendedConnection> {
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
    if fds.len() < head.fds {
        return Err(io::Error::other(
            "a descriptor is missing, as after a disconnection",
        ));
    }
    let files = fds.split_off(head.fds);
    Ok(SuspendedConnection {
        listener: head.listener,
        peer: head.peer,
        session: SavedState {
            bytes: session.to_vec(),
            files,
        },
        transport: transport.to_vec(),
        fds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(contents: &str) -> OwnedFd {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(contents.as_bytes()).expect("written");
        file.into()
    }

    fn contents_of(fd: &OwnedFd) -> String {
        let mut file = File::from(fd.try_clone().expect("a descriptor"));
        file.rewind().expect("a file");
        let mut contents = String::new();
        file.read_to_string(&mut contents).expect("read");
        contents
    }

    fn handed() -> SuspendedConnection {
        let (fd, _) = message::pair().expect("a pair");
        SuspendedConnection {
            listener: "unix:/a".into(),
            peer: "tcp:10.0.0.1:700".into(),
            session: SavedState {
                bytes: vec![1, 2, 3],
                files: vec![file_of("one"), file_of("another")],
            },
            transport: vec![4],
            fds: vec![fd],
        }
    }

    #[test]
    fn connections_arrive_with_their_descriptors() {
        let (here, there) = message::pair().expect("a pair");
        let mut two = handed();
        two.listener = "unix:/b".into();
        two.session.files = vec![file_of("the second's")];
        send(here.as_fd(), vec![handed(), two]).expect("sent");
        drop(here);
        let passed = receive(there.as_fd(), 100);
        assert_eq!(passed.iter().map(Vec::len).collect::<Vec<_>>(), [4, 3]);
        let (here, there) = message::pair().expect("a pair");
        pass_on(here.as_fd(), &passed).expect("sent");
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
            (&one.session.bytes, &one.transport),
            (&expected.session.bytes, &expected.transport)
        );
        assert_eq!(one.fds.len(), 1);
        assert_eq!((two.listener.as_str(), two.fds.len()), ("unix:/b", 1));
        let files = |connection: &SuspendedConnection| -> Vec<_> {
            connection.session.files.iter().map(contents_of).collect()
        };
        assert_eq!(files(one), ["one", "another"]);
        assert_eq!(files(two), ["the second's"]);
    }

    #[test]
    fn a_limit_costs_files_before_connections() {
        for (most, expected) in [(4, [0, 0]), (5, [1, 0]), (7, [2, 1])] {
            let (here, there) = message::pair().expect("a pair");
            send(here.as_fd(), vec![handed(), handed()]).expect("sent");
            let all = connections(receive(there.as_fd(), most));
            let files: Vec<_> = all.iter().map(|one| one.session.files.len()).collect();
            assert_eq!(files, expected, "{most} descriptors");
            assert!(all.iter().all(|one| one.fds.len() == 1));
        }
        let (here, there) = message::pair().expect("a pair");
        send(here.as_fd(), vec![handed(), handed()]).expect("sent");
        let all = connections(receive(there.as_fd(), 3));
        assert_eq!(all.len(), 1, "one without its own descriptor is closed");
    }

    #[test]
    fn a_truncated_state_and_too_many_descriptors_are_refused() {
        let whole = {
            let mut file = File::from(state_file(&handed()).expect("a file"));
            file.rewind().expect("a file");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).expect("read");
            bytes
        };
        for len in 0..=whole.len() {
            let state = tempfile::tempfile().expect("a file");
            (&state).write_all(&whole[..len]).expect("written");
            let parsed = parse(state.into(), handed().fds);
            // The state of the transport is what follows that of the session.
            assert_eq!(parsed.is_ok(), len >= whole.len() - 1, "{len} bytes");
        }
        let (here, there) = message::pair().expect("a pair");
        send(here.as_fd(), vec![handed(), handed()]).expect("sent");
        let passed = receive(there.as_fd(), 3);
        assert_eq!(passed.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }
}
