//! How a connection wants payloads to travel: `docs/design/zerocopy.md` has what was measured.

use std::os::fd::BorrowedFd;

use rustix::fs::OFlags;
use rustix::net::{AddressFamily, sockopt};

/// How many bytes of payloads may be on their way, and from what size on, bytes, they shall travel apart from the messages that they
/// are of. Nothing here has a wish for their alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payloads {
    /// Received where they are wanted, behind what stands before them: one receipt more.
    pub land: usize,
    /// Sent from where they are: one piece more in a system call.
    pub gather: usize,
    /// Sent as the pages that a file has in memory: some system calls more.
    pub pages: usize,
    /// What may be on its way at a time, asked for or sent: beyond that, a transfer goes on when something of it has come. It may
    /// always have one message on its way.
    pub in_flight: usize,
}

impl Payloads {
    /// Never: all payloads are copied from and to the buffers of messages.
    pub const INLINE: Payloads = Payloads {
        land: usize::MAX,
        gather: usize::MAX,
        pages: usize::MAX,
        in_flight: IN_FLIGHT,
    };

    /// Of a stream of bytes that takes no pages.
    pub(crate) const STREAM: Payloads = Payloads {
        land: LAND,
        gather: GATHER,
        ..Payloads::INLINE
    };

    /// Of `fd`. One that somebody else has made not to wait takes no pages: splice(2) has no word for waiting nevertheless.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Payloads {
        let waits =
            rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
        let pages = match sockopt::socket_domain(fd) {
            _ if !waits => usize::MAX,
            Ok(AddressFamily::UNIX) => PAGES_BY_UNIX,
            Ok(AddressFamily::INET | AddressFamily::INET6) => PAGES_BY_TCP,
            _ => usize::MAX,
        };
        Payloads {
            pages,
            ..Payloads::STREAM
        }
    }

    /// With another bound on what may be on its way, if one is given.
    pub fn within(self, in_flight: Option<usize>) -> Payloads {
        Payloads {
            in_flight: in_flight.unwrap_or(self.in_flight),
            ..self
        }
    }
}

/// What 10 Gbit/s carry in 13 ms: more than any way within a data centre holds.
const IN_FLIGHT: usize = 16 << 20;

/// From here on copying costs more than a receipt.
const LAND: usize = 32 << 10;

/// About where copying costs as much as a piece more in a system call.
const GATHER: usize = 8 << 10;

/// From here on a file's pages are worth being moved instead of copied, by a Unix socket and by TCP.
const PAGES_BY_UNIX: usize = 64 << 10;
const PAGES_BY_TCP: usize = 256 << 10;

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
        assert_eq!(pages(one.into()), PAGES_BY_UNIX);
        assert_eq!(pages(other.into()), usize::MAX);
        let (input, output) = rustix::pipe::pipe().expect("a pipe");
        let pipe = StreamLink::two_way(input, output, "pipe").expect("a link");
        assert_eq!(pipe.payloads().pages, usize::MAX);
    }
}
