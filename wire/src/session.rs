use std::ops::Range;
use std::sync::Arc;

use vfs::{Call, Errno, Patience, Payload, Result as Answered};

use crate::{Malformed, Outgoing};

/// One client's connection to a protocol's server half, as whoever moves its bytes sees it.
///
/// It holds the protocol's state and answers one message at a time; threads, sockets, queues
/// and the order of replies are the driver's. Dropping it ends the client: its files are closed
/// and its locks go.
pub trait Session: Send + Sync {
    /// How many bytes of the message that `head` begins with must stand together in
    /// [`Incoming::bytes`], or nothing as long as too little of it has come to tell: all of it, as a
    /// rule; without its payload, where a protocol's messages say themselves how long they are and
    /// transports may keep the payload elsewhere (FUSE's WRITE). An error closes the connection: the
    /// peer cannot be followed any more, or announces more than was agreed on.
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed>;

    /// What a whole message means to the order of things.
    fn role(&self, message: &[u8]) -> Result<Role, Malformed>;

    /// The most bytes that the reply to a whole message takes, as far as the message tells; 0 for
    /// replies of some kilobytes, or where that is less than `large` and takes effort to find out.
    /// So much memory is set aside before the message is served, if it is `large` or more.
    fn reply_bound(&self, _message: &[u8], _large: usize) -> usize {
        0
    }

    /// Answers a whole message into `out`, which is empty, unless `patience` is too short for it:
    /// then nothing has happened and nothing is in `out`. An error closes the connection.
    ///
    /// May run in several threads at once, for different messages.
    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<Answer, Malformed>;

    /// Answers `message`, which failed in a way that the session itself has no answer for, into
    /// `out`, which is empty: with the protocol's general error (`EIO`, `SYSTEM_ERR`). Returns
    /// false, and leaves `out` empty, if the protocol has none: then the connection is closed.
    /// Changes nothing, takes no lock and does not panic.
    fn answer_failure(&self, _message: &dyn Incoming, _out: &mut dyn Outgoing) -> bool {
        false
    }

    /// The connection has been secured, as [`Answer::Secure`] asked, and `peer` is at its other end.
    fn secured(&self, _peer: Certified) {}

    /// The protocol's name and words, by which [`Call::note`] and [`Call::note_fault`] are to be read; without any, requests are
    /// not told apart.
    fn vocabulary(&self) -> &'static Vocabulary {
        Vocabulary::none()
    }

    /// What is known of the client by now, for those who look on.
    fn facts(&self) -> Facts {
        Facts::default()
    }

    /// The peer can be spoken to from now on: called once, before its first message, where the transport carries what
    /// nobody asked for. Most protocols have nothing of the kind.
    fn can_speak(&self, _voice: Arc<dyn Voice>) {}
}

/// What a protocol calls what it does.
#[derive(Debug)]
pub struct Vocabulary {
    /// Its own name, in small letters.
    pub protocol: &'static str,
    /// Its words for requests, by the numbers that are noted; those with an empty one are counted together.
    pub words: Vec<String>,
    /// Its word for why something failed.
    pub fault: fn(u16) -> String,
}

impl Vocabulary {
    /// A fault that is not told apart from others, of which there are too many.
    pub const OTHER_FAULT: u16 = u16::MAX;

    /// That of a protocol that notes nothing.
    pub fn none() -> &'static Vocabulary {
        static NONE: Vocabulary = Vocabulary {
            protocol: "",
            words: Vec::new(),
            fault: Vocabulary::errno,
        };
        &NONE
    }

    /// The word for a fault that is an errno: its symbol.
    pub fn errno(number: u16) -> String {
        match number {
            Vocabulary::OTHER_FAULT => "other".into(),
            number => format!("{:?}", Errno::from_raw(number.into())),
        }
    }
}

/// What is known of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Which version, or dialect, of the protocol is spoken; empty if that is open.
    pub version: String,
    /// Who has come, and to what; empty if nobody has said so.
    pub user: String,
}

/// Who is at the other end of a connection that nobody else can read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certified {
    /// The names in the certificate by which it has shown who it is, as `email:alice@example.org`,
    /// `DNS:host.example.org` or `URI:spiffe://example.org/x`; nothing if it has shown none.
    pub names: Option<Vec<String>>,
}

/// What a session says to its peer that is no reply. Whoever keeps one keeps no connection alive.
pub trait Voice: Send + Sync {
    /// Sends a whole message, behind what is being sent, from any thread, and does not wait: what the link does not take
    /// goes with whatever the connection does next. Not (`false`) if the peer is gone, or leaves what it was sent lying.
    fn say(&self, message: &[u8]) -> bool;
}

/// A whole message as it came. The transport lends what it carries to a file without showing
/// how.
pub trait Incoming {
    /// The message, or at least as much of it as [`Session::frame`] said.
    fn bytes(&self) -> &[u8];

    /// How many bytes have come, its payload included.
    fn size(&self) -> usize;

    /// Has `write` write the part of the message that `range` covers: the payload of a request.
    /// The range lies within the message as long as it says to be, which may be longer than
    /// [`Incoming::bytes`]; if less has come, `EINVAL`.
    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> Answered<usize>,
    ) -> Answered<usize>;
}

/// What a message means to the order of things. Ids are the peer's own names for its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A request like any other. No two of one id are in flight at once.
    Request {
        /// Its name.
        id: u64,
    },
    /// Asks that another be cancelled; answered after that one has been, if it is in flight.
    Cancel {
        /// Its name.
        id: u64,
        /// The other's.
        target: u64,
    },
    /// Cancels everything in flight, and is answered after all of that has been.
    Reset {
        /// Its name.
        id: u64,
    },
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The reply stands in `out`.
    Done,
    /// The same, and all that follows it on this connection is to be secured (STARTTLS). Nothing else may be in
    /// flight, and nothing may have come behind the request.
    Secure,
    /// It needs more patience.
    WouldBlock,
    /// It waits: serve it again when its call is woken.
    Parked,
}
