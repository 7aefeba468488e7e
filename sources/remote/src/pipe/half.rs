//! What a pipe is told by the client half of its protocol.

use vfs::Result;
use wire::Malformed;

/// The client half of a protocol, as a pipe drives it. Requests in flight are told apart by small numbers,
/// which are the half's to give and to use again.
pub trait Half: Send + 'static {
    /// What the protocol is called in errors.
    const NAME: &'static str;

    /// How many bytes of a message tell its length.
    const HEADER: usize;

    /// How many bytes stand before a payload that may be received apart, at most as a rule: so many are received for themselves,
    /// and what of them is payload already is copied.
    const DATA_HEAD: usize;

    /// What is kept of a head whose payload has landed.
    type Head: Send;

    /// What is told to the server without anybody waiting for its answer.
    type Aside: Send;

    /// What it takes to read a reply.
    type Reading: Copy + Send + Sync;

    /// What it takes to read a reply.
    fn reading(&self) -> Self::Reading;

    /// Whether files are taken that are handed over with replies; else the system closes them.
    fn takes_files(&self) -> bool {
        false
    }

    /// The length of the message that `head` begins with, or nothing as long as too little has come to
    /// tell.
    fn frame(&self, head: &[u8]) -> std::result::Result<Option<usize>, Malformed>;

    /// What follows the head that `head` begins with, if all that stands before a payload has come, and it is one that could be
    /// received anywhere: a good answer to a request in flight.
    fn apart(&self, head: &[u8]) -> Option<Apart>;

    /// Takes a message of which [`Half::apart`] has told, now that its payload has come behind `head`.
    fn landed(&mut self, number: usize, head: &[u8]) -> Self::Head;

    /// Nobody will answer a request: its server is lost, and whoever asked asks again.
    fn lost(&mut self, number: usize);

    /// Takes a whole message from the server. Where servers ask as well, what they are answered goes to `to`.
    fn receive(
        &mut self,
        message: &[u8],
        to: &mut Vec<u8>,
    ) -> std::result::Result<Received, Malformed>;

    /// The caller has no more use for a request's number.
    fn release(&mut self, number: usize);

    /// Encodes what asks the server to cancel a request; nothing and `false` if that cannot be asked.
    fn cancel(&mut self, number: usize, to: &mut Vec<u8>) -> bool;

    /// Encodes an aside, and says by what number it is answered.
    fn aside(&mut self, aside: &Self::Aside, to: &mut Vec<u8>) -> Result<usize>;
}

/// A payload that may be received apart from its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// The number of the request that it answers.
    pub number: usize,
    /// How many bytes stand before it.
    pub head: usize,
    /// How many bytes it is.
    pub len: usize,
    /// How many bytes stand behind it that mean nothing, up to [`Apart::MOST_BEHIND`].
    pub behind: usize,
}

impl Apart {
    /// XDR's padding.
    pub const MOST_BEHIND: usize = 3;
}

/// What a message from the server means.
pub enum Received {
    /// A request is answered: the message is its reply, unless it says what went wrong.
    Answer {
        /// The request's.
        number: usize,
        /// Whether it succeeded.
        result: Result<()>,
    },
    /// Nothing to anybody who waits.
    Nothing,
}
