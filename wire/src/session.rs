use std::ops::Range;
use std::sync::Arc;

use vfs::fd::OwnedFd;
use vfs::{Call, Errno, Patience, Payload, Result as Answered};

use crate::{Malformed, Outgoing};

/// A client's connection to a protocol's server half, as its driver sees it.
///
/// It holds the protocol's state and answers one message at a time; the driver provides threads,
/// sockets, queues and the order of replies. Dropping it ends the client: its files are closed and
/// its locks released.
pub trait Session: Send + Sync {
    /// Returns how many bytes of the message that starts with `head` must be contiguous in
    /// [`Incoming::bytes`], or `None` if `head` is too short to tell. Normally this is the whole
    /// message; it excludes the payload if a protocol's messages contain their length and
    /// transports may keep the payload elsewhere (FUSE's WRITE). An error closes the connection:
    /// the stream has lost its framing, or the peer announces more than was negotiated.
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed>;

    /// Returns how a complete message affects the order of others.
    fn role(&self, message: &[u8]) -> Result<Role, Malformed>;

    /// Returns an upper bound on the reply to a complete message in bytes, as far as the message
    /// determines it; 0 for replies of some kilobytes, or if a bound below `large_reply` would be
    /// costly to compute. A bound of `large_reply` or more is reserved in the memory budget before
    /// the message is served.
    fn reply_bound(&self, _message: &[u8], _large: usize) -> usize {
        0
    }

    /// Serves a complete message and writes the reply to `out`, which is empty, unless `patience`
    /// is insufficient: then it has no effect and `out` stays empty. An error closes the
    /// connection.
    ///
    /// May run in several threads at once, for different messages.
    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, Malformed>;

    /// Returns whether the request that was served last with `call` ended because the call was
    /// cancelled, without an effect: it can be served again.
    fn was_interrupted(&self, _call: &Call) -> bool {
        false
    }

    /// Returns the client's threads, if they are on this host and it reports their signals
    /// ([`Role::Interrupt`]).
    fn client_threads(&self) -> Option<Arc<dyn ClientThreads>> {
        None
    }

    /// Returns the id of the client's thread that waits for the reply to `message`; 0 if unknown.
    fn waiting_thread(&self, _message: &[u8]) -> u32 {
        0
    }

    /// Returns whether `message` needs no service if its client cancels it before that begins:
    /// [`Session::answer_interrupted`] answers it.
    fn may_be_interrupted(&self, _message: &[u8]) -> bool {
        false
    }

    /// Writes `EINTR` to `out`, which is empty, as the reply to `message`, whose service has not
    /// begun. Returns false, and leaves `out` empty, unless it [may be
    /// interrupted](Session::may_be_interrupted).
    fn answer_interrupted(&self, _message: &dyn Incoming, _out: &mut dyn Outgoing) -> bool {
        false
    }

    /// Writes the protocol's general error (`EIO`, `SYSTEM_ERR`) to `out`, which is empty, as the
    /// reply to `message`, whose service failed unexpectedly. Returns false, and leaves `out`
    /// empty, if the protocol has none: then the connection is closed. Has no side effects, takes
    /// no lock and does not panic.
    fn answer_failure(&self, _message: &dyn Incoming, _out: &mut dyn Outgoing) -> bool {
        false
    }

    /// Completes [`ServeOutcome::StartTls`]: TLS has started, and `peer` has the names of the
    /// peer's certificate.
    fn tls_started(&self, _peer: TlsPeer) {}

    /// Returns the protocol's name and vocabulary, to interpret [`Call::note_operation`] and
    /// [`Call::note_error`]. By default, requests are not distinguished.
    fn vocabulary(&self) -> &'static Vocabulary {
        Vocabulary::none()
    }

    /// Returns the object of the request in `message`, as far as look-ups in memory tell, for the
    /// log of slow requests. Called after `call` was served, so that the request may have removed
    /// the object from the session's tables. `message` is complete or not, and not trusted.
    fn target(&self, _call: &Call, _message: &[u8]) -> RequestTarget {
        RequestTarget::default()
    }

    /// Returns information about the client, for monitoring.
    fn client_info(&self) -> ClientInfo {
        ClientInfo::default()
    }

    /// Returns the state with which another process that serves the same trees can continue this
    /// session, over the same connection and with all that the client knows: the protocol's server
    /// half there has a constructor for it. Returns `None`, with the reason in the log, if the
    /// session cannot be continued, which is the default.
    ///
    /// Called when no message is being served, and none is served afterwards. The state is valid
    /// once this session is dropped, which closes its files and releases its locks. May block.
    /// `call` is one of the connection's.
    fn save_state(&self, _call: &Call) -> Option<SavedState> {
        None
    }

    /// Provides a channel for messages without a request: called once, before the first message, if
    /// the transport supports them. Most protocols have no such messages.
    fn set_message_sender(&self, _voice: Arc<dyn MessageSender>) {}
}

/// The threads of a client on this host that wait for replies.
pub trait ClientThreads: Send + Sync {
    /// Returns for each of `threads` whether it has received a signal that will end it, in the same
    /// order. False if that is unknown. May take a while.
    fn are_ending(&self, threads: &[u32]) -> Vec<bool>;
}

/// The state of a session on its way to another process ([`Session::save_state`]).
#[derive(Debug, Default)]
pub struct SavedState {
    /// The state itself, which the other process loads.
    pub bytes: Vec<u8>,
    /// Descriptors of open files without a name, in the order in which the state mentions them:
    /// the other process finds their nodes with these. Some at the end may be missing, and such
    /// files are lost then.
    pub files: Vec<OwnedFd>,
}

/// A protocol's names for its requests and errors.
#[derive(Debug)]
pub struct Vocabulary {
    /// The protocol's name, in lower case.
    pub protocol: &'static str,
    /// The names of requests, indexed by noted number; those with an empty name are counted
    /// together.
    pub operations: Vec<String>,
    /// Returns the name of an error.
    pub error: fn(u16) -> String,
}

impl Vocabulary {
    /// The number for errors that are counted together, as there are too many.
    pub const OTHER_ERROR: u16 = u16::MAX;

    /// Returns the vocabulary of a protocol that notes nothing.
    pub fn none() -> &'static Vocabulary {
        static NONE: Vocabulary = Vocabulary {
            protocol: "",
            operations: Vec::new(),
            error: Vocabulary::errno,
        };
        &NONE
    }

    /// Returns the symbol of an errno.
    pub fn errno(number: u16) -> String {
        match number {
            Vocabulary::OTHER_ERROR => "other".into(),
            number => format!("{:?}", Errno::from_raw(number.into())),
        }
    }
}

/// Information about a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientInfo {
    /// The version, or dialect, of the protocol; empty if not negotiated yet.
    pub version: String,
    /// The user and what it has attached to; empty if unknown.
    pub user: String,
}

/// The object of a request, for the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTarget {
    /// The name of the share; `None` if unknown or if the share has no name.
    pub share: Option<String>,
    /// The inode number of the node; for requests with a name, usually that of the directory.
    pub inode: Option<u64>,
    /// The path of the node, or a name in the request, whichever is known; not escaped.
    pub name: Option<String>,
    /// The offset in bytes of a read or write.
    pub offset: Option<u64>,
}

/// The authenticated peer of an encrypted connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPeer {
    /// The names in its certificate, as `email:alice@example.org`, `DNS:host.example.org` or
    /// `URI:spiffe://example.org/x`; `None` without a certificate.
    pub names: Option<Vec<String>>,
}

/// A channel for messages of a session that are not replies. It does not keep the connection alive.
pub trait MessageSender: Send + Sync {
    /// Sends a complete message after the current output, from any thread, without waiting: bytes
    /// that the link does not accept are sent with the connection's next output. Returns `false`,
    /// without sending, if the peer is gone, or does not read its messages.
    fn send(&self, message: &[u8]) -> bool;
}

/// A received message, complete. The transport passes its payload to a file without exposing how.
pub trait Incoming {
    /// Returns the message, at least as many bytes as [`Session::frame`] required.
    fn bytes(&self) -> &[u8];

    /// Returns how many bytes arrived, payload included.
    fn size(&self) -> usize;

    /// Returns whether an earlier process may have begun to serve the message, as it ended before
    /// the client got a reply. Only the transport tells, never the client.
    fn is_repeated(&self) -> bool {
        false
    }

    /// Calls `write` with the part of the message in `range`: the payload of a request. The range
    /// lies within the length that the message announces, which may exceed [`Incoming::bytes`].
    /// Returns `EINVAL` if fewer bytes arrived.
    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> Answered<usize>,
    ) -> Answered<usize>;
}

/// The effect of a message on the order of others. Ids are chosen by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A normal request. No two with the same id are in flight at once.
    Request {
        /// Its id.
        id: u64,
    },
    /// A request to cancel another one; answered after that, if it is in flight.
    Cancel {
        /// Its id.
        id: u64,
        /// The id of the other.
        target: u64,
    },
    /// A report that a signal has reached the client's thread that waits for another request, the
    /// first one for that request. The signal ends a wait for a lock. It ends other requests only
    /// if it ends the thread ([`ClientThreads`]).
    Interrupt {
        /// Its id.
        id: u64,
        /// The id of the other.
        target: u64,
    },
    /// A request that cancels all those in flight, and is answered after them.
    Reset {
        /// Its id.
        id: u64,
    },
}

/// The result of serving a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeOutcome {
    /// The reply is in `out`.
    Done,
    /// The same, and TLS starts after the reply (STARTTLS). No other request may be in flight, and
    /// no bytes may have arrived after the request.
    StartTls,
    /// It needs more patience.
    WouldBlock,
    /// It waits for an event: serve it again when its call is woken.
    Parked,
}
