//! Messages between a process that serves and its parent.
//!
//! Each is one packet of a Unix socket, as JSON. A request passes the socket for its reply, so that
//! requests do not wait for each other. A reply may pass a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use transports::fd_passing::{recv_with_file, send_with_file};

/// Maximum size of a message in bytes: that of a packet with Linux's default send buffer.
const MAX_MESSAGE: usize = 208 << 10;

/// Returns the two ends of a socket for messages.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Sends a message, and a descriptor with it if `passed` is one.
pub(crate) fn send(
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
pub(crate) fn receive<M: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> io::Result<(M, Option<OwnedFd>)> {
    let (mut text, mut passed) = (vec![0; MAX_MESSAGE], None);
    let len = rustix::io::retry_on_intr(|| recv_with_file(socket, &mut text, true, &mut passed))?;
    match len {
        0 if is_closed(socket) => Err(io::ErrorKind::UnexpectedEof.into()),
        len => match serde_json::from_slice(&text[..len]) {
            Ok(message) => Ok((message, passed)),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        },
    }
}

/// Returns the next message if one has arrived. Errors are those of [`receive`].
pub(crate) fn receive_now<M: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<M>> {
    let mut state = [PollFd::new(&socket, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut state, Some(&Timespec::default())))?;
    match state[0].revents().is_empty() {
        true => Ok(None),
        false => receive(socket).map(|(message, _)| Some(message)),
    }
}

/// Returns whether the other end of a socket was closed. A packet without bytes does not mean that.
fn is_closed(socket: BorrowedFd<'_>) -> bool {
    let mut state = [PollFd::new(&socket, PollFlags::RDHUP)];
    let closed = PollFlags::RDHUP | PollFlags::HUP;
    let polled = rustix::io::retry_on_intr(|| poll(&mut state, Some(&Timespec::default())));
    polled.is_err() || state[0].revents().intersects(closed)
}

/// A reply, or the error of the request.
#[derive(Serialize, Deserialize)]
enum Outcome<R> {
    Reply(R),
    Failed { errno: Option<i32>, message: String },
}

/// Sends a request, and waits for the reply. Returns it with the descriptor that was passed, or the
/// error that the parent has returned.
pub(crate) fn ask<R: DeserializeOwned>(
    channel: BorrowedFd<'_>,
    request: &impl Serialize,
) -> io::Result<(R, Option<OwnedFd>)> {
    let (here, there) = pair()?;
    send(channel, request, Some(there.as_fd()))?;
    drop(there);
    match receive(here.as_fd())? {
        (Outcome::Reply(reply), passed) => Ok((reply, passed)),
        (Outcome::Failed { errno, message }, _) => Err(match errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::other(message),
        }),
    }
}

/// The socket for the reply to a request. The request fails if it is dropped.
pub(crate) struct ReplySocket(OwnedFd);

impl ReplySocket {
    /// Sends the reply and a descriptor, or the error.
    pub(crate) fn reply<R: Serialize>(self, reply: io::Result<(R, Option<OwnedFd>)>) {
        let (outcome, passed) = match reply {
            Ok((reply, passed)) => (Outcome::Reply(reply), passed),
            Err(error) => {
                let errno = error.raw_os_error();
                let message = error.to_string();
                (Outcome::Failed { errno, message }, None)
            }
        };
        // The process may have ended.
        let _ = send(self.0.as_fd(), &outcome, passed.as_ref().map(AsFd::as_fd));
    }
}

/// Waits for the next request. Packets that are no requests are ignored.
pub(crate) fn next_request<Q: DeserializeOwned>(
    channel: BorrowedFd<'_>,
) -> io::Result<(Q, ReplySocket)> {
    loop {
        match receive(channel) {
            Ok((request, Some(to))) => return Ok((request, ReplySocket(to))),
            Ok((_, None)) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the error of a request that got another reply than its own.
pub(crate) fn unexpected(reply: &impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("expected another reply than {reply:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_and_its_reply_arrive_with_descriptors() {
        let (here, there) = pair().expect("a pair");
        let parent = std::thread::spawn(move || {
            let (number, to) = next_request::<u32>(there.as_fd()).expect("a request");
            let file = tempfile::tempfile().expect("a file");
            to.reply(Ok((number + 1, Some(file.into()))));
            let (_, to) = next_request::<u32>(there.as_fd()).expect("a request");
            to.reply::<u32>(Err(io::Error::from_raw_os_error(13)));
            let (_, to) = next_request::<u32>(there.as_fd()).expect("a request");
            to.reply::<u32>(Err(io::Error::other("in words")));
            drop(next_request::<u32>(there.as_fd()).expect("a request"));
        });
        let (reply, passed) = ask::<u32>(here.as_fd(), &41).expect("a reply");
        assert!(reply == 42 && passed.is_some());
        let failed = || ask::<u32>(here.as_fd(), &1).expect_err("no reply");
        assert_eq!(failed().raw_os_error(), Some(13));
        assert_eq!(failed().to_string(), "in words");
        assert_eq!(failed().kind(), io::ErrorKind::UnexpectedEof);
        parent.join().expect("no panic");
    }

    #[test]
    fn other_packets_and_a_closed_socket_are_errors() {
        let (here, there) = pair().expect("a pair");
        let kind = |text: &[u8]| {
            rustix::io::write(&here, text).expect("sent");
            let received = receive::<(u32, String)>(there.as_fd());
            received.expect_err("no message").kind()
        };
        for text in [&b"{}"[..], b"\xff", b"[1]", b"[", b"[1,2]", b""] {
            assert_eq!(kind(text), io::ErrorKind::InvalidData, "{text:?}");
        }
        drop(here);
        let received = receive::<u32>(there.as_fd()).expect_err("closed");
        assert_eq!(received.kind(), io::ErrorKind::UnexpectedEof);
    }
}
