//! File descriptors passed over a Unix socket with a message (`SCM_RIGHTS`, unix(7)).
//!
//! The kernel keeps such a message as a separate buffer (`unix_stream_read_generic()` in
//! `net/unix/af_unix.c`): the descriptor arrives with its first byte, and no bytes sent after it
//! are received by the same call.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Result;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends as much of `message` as possible, at least a byte with `wait`, and `file` with the first
/// byte; returns the number of bytes.
pub fn send_with_file(
    socket: BorrowedFd<'_>,
    message: &[u8],
    file: BorrowedFd<'_>,
    wait: bool,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    rights.push(SendAncillaryMessage::ScmRights(&files));
    let flags = match wait {
        true => SendFlags::NOSIGNAL,
        false => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    sendmsg(socket, &[IoSlice::new(message)], &mut rights, flags)
}

/// Receives into `buf`, and replaces `file` by the descriptor that arrived. Closes them if there
/// are several.
pub fn recv_with_file(
    socket: BorrowedFd<'_>,
    buf: &mut [u8],
    wait: bool,
    file: &mut Option<OwnedFd>,
) -> Result<usize> {
    let flags = match wait {
        true => RecvFlags::CMSG_CLOEXEC,
        false => RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    };
    // Space for one; the kernel closes those that do not fit.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut rights, flags)?;
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            // Its padding has room for a second descriptor, which is not expected.
            let first = files.next();
            *file = first.filter(|_| files.next().is_none());
        }
    }
    Ok(got.bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use crate::{Link, StreamLink, pair};

    use super::*;

    fn file(text: &str) -> OwnedFd {
        use std::io::Write as _;
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("written");
        file.into()
    }

    fn text(file: Option<OwnedFd>) -> String {
        let mut text = [0; 8];
        let len = file.map_or(0, |file| {
            rustix::io::pread(file, &mut text, 0).expect("read")
        });
        String::from_utf8_lossy(&text[..len]).into_owned()
    }

    /// This property identifies a descriptor's message: no later bytes are received with it.
    #[test]
    fn a_file_comes_with_the_first_byte_of_its_message_which_is_the_last_that_comes() {
        let (ours, theirs) = pair().expect("a socket pair");
        ours.send(b"before", true).expect("sent");
        for (message, name) in [(b"one", "1"), (b"two", "2")] {
            let file = file(name);
            let sent = ours.send_with_file(message, file.as_fd(), true);
            assert_eq!(sent.expect("sent"), 3);
        }
        ours.send(b"behind", true).expect("sent");
        let come = |most: usize| {
            let (mut buffer, mut file) = ([0; 64], None);
            let got = theirs.recv_with_file(&mut buffer[..most], true, &mut file);
            let got = got.expect("received");
            (
                String::from_utf8_lossy(&buffer[..got]).into_owned(),
                text(file),
            )
        };
        let is = |bytes: &str, file: &str| (bytes.to_owned(), file.to_owned());
        assert_eq!(come(64), is("beforeone", "1"));
        assert_eq!(come(1), is("t", "2"));
        assert_eq!(come(64), is("wobehind", ""));
    }

    /// A receiver that expects no descriptors gets none, and a message is sent without one where
    /// none can be passed.
    #[test]
    fn a_message_comes_without_what_nobody_asked_for() {
        let (ours, theirs) = pair().expect("a socket pair");
        ours.send_with_file(b"one", file("1").as_fd(), false)
            .expect("sent");
        let mut buffer = [0; 8];
        assert_eq!(theirs.recv(&mut buffer, true).expect("received"), 3);
        let (input, output) = rustix::pipe::pipe().expect("a pipe");
        let pipe = StreamLink::two_way(input, output, "pipe").expect("a link");
        pipe.send_with_file(b"two", file("2").as_fd(), true)
            .expect("sent");
        let mut none = None;
        let got = pipe.recv_with_file(&mut buffer, true, &mut none);
        assert_eq!((got.expect("received"), &buffer[..3]), (3, &b"two"[..]));
        assert!(none.is_none());
    }
}
