//! The preferences for a descriptor of Linux.

use std::os::fd::BorrowedFd;

use rustix::fs::OFlags;
use rustix::net::{AddressFamily, sockopt};

use super::Payloads;

impl Payloads {
    /// Returns the preferences for `fd`. A descriptor that was made nonblocking elsewhere supports
    /// no pages: splice(2) has no flag to wait nevertheless.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Payloads {
        let waits =
            rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
        let pages = match sockopt::socket_domain(fd) {
            _ if !waits => usize::MAX,
            Ok(AddressFamily::UNIX) => PAGES_OVER_UNIX,
            Ok(AddressFamily::INET | AddressFamily::INET6) => PAGES_OVER_TCP,
            _ => usize::MAX,
        };
        Payloads {
            pages,
            ..Payloads::STREAM
        }
    }
}

/// The sizes from which on splicing a file's pages is faster than copying, over Unix sockets and
/// TCP.
const PAGES_OVER_UNIX: usize = 64 << 10;
const PAGES_OVER_TCP: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::{Link, StreamLink};

    #[test]
    fn pages_go_by_sockets_that_wait() {
        let pages = |fd: OwnedFd| {
            let link = StreamLink::new(fd, "test").expect("a link");
            link.payloads().pages
        };
        let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        other.set_nonblocking(true).expect("set");
        assert_eq!(pages(one.into()), PAGES_OVER_UNIX);
        assert_eq!(pages(other.into()), usize::MAX);
        let (input, output) = rustix::pipe::pipe().expect("a pipe");
        let pipe = StreamLink::two_way(input, output, "pipe").expect("a link");
        assert_eq!(pipe.payloads().pages, usize::MAX);
    }
}
