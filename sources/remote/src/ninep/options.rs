//! The options of a session.

use p9::Dialect;

use crate::{ClientOwner, Timeouts};

/// The options of a 9P session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The tree to attach to (attach(5)).
    pub aname: String,
    /// The user's name in the attach. 9P2000 has no numeric IDs, so there it alone identifies the
    /// user.
    pub uname: String,
    /// The user ID that all callers act as. Without it, each caller acts as itself, with an attach
    /// of its own (v9fs's `access=user`). 9P2000 cannot do that: all callers act as `uname`.
    pub uid: Option<u32>,
    /// The msize to offer, in bytes.
    pub msize: u32,
    /// The best dialect to offer.
    pub version: Dialect,
    /// Whether payloads are received into and sent from the caller's memory, from the sizes at
    /// which that pays off, instead of being copied through message buffers.
    pub zerocopy: bool,
    /// The most bytes of payload in flight, if not the link's default
    /// ([`transports::Payloads::in_flight`]).
    pub in_flight: Option<usize>,
    /// The timeouts for a server that does not answer.
    pub timeouts: Timeouts,
    /// Whether to request open file descriptors ([`vfs::File::backing`]), which requires 9P2000.L
    /// and a Unix socket.
    pub fd_passing: bool,
    /// The client ID in lock requests, which no other client uses; one of its own if `None`.
    pub client_owner: Option<ClientOwner>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            aname: String::new(),
            uname: String::new(),
            uid: None,
            // The most that Linux offers on streams, which servers are used to.
            msize: (1 << 20) + 24,
            version: Dialect::Linux,
            zerocopy: true,
            in_flight: None,
            timeouts: Timeouts::default(),
            fd_passing: false,
            client_owner: None,
        }
    }
}
