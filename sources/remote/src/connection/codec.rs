//! The interface between a connection and the client half of its protocol.

use vfs::Result;
use wire::Malformed;

/// The client half of a protocol, as a connection drives it. Requests in flight are identified by
/// small numbers, which the codec allocates and reuses.
pub trait ClientCodec: Send + 'static {
    /// The protocol's name in errors.
    const NAME: &'static str;

    /// The number of bytes that suffice to know a message's length.
    const HEADER: usize;

    /// The usual maximum size of the head before a payload that can land in lent memory. This many
    /// bytes are received first, and payload among them is copied.
    const DATA_HEAD: usize;

    /// Whether a request that a server has left unanswered for the timeout is sent again over a new
    /// connection, by the connection's user: then a connection that is not soft fails with the
    /// error of [`crate::Timeouts`].
    const RESENDS_AFTER_TIMEOUT: bool;

    /// The part of a head that is kept after its payload has landed.
    type Head: Send;

    /// A request whose reply no caller waits for.
    type Background: Send;

    /// The parameters for decoding a reply.
    type DecodeParams: Copy + Send + Sync;

    /// The parameters for decoding a reply.
    fn decode_params(&self) -> Self::DecodeParams;

    /// Returns whether file descriptors passed with replies are accepted; otherwise the kernel
    /// closes them.
    fn accepts_fds(&self) -> bool {
        false
    }

    /// Returns the length of the message that `head` begins with, or `None` if more bytes are
    /// needed.
    fn frame(&self, head: &[u8]) -> std::result::Result<Option<usize>, Malformed>;

    /// Returns the layout of the message that `head` begins with, if its head is complete and its
    /// payload can be received anywhere: it is a successful reply to a request in flight.
    fn payload_layout(&self, head: &[u8]) -> Option<PayloadLayout>;

    /// Accepts a message that [`ClientCodec::payload_layout`] described, after its payload has been
    /// received.
    fn payload_received(&mut self, number: usize, head: &[u8]) -> Self::Head;

    /// Drops a request whose server is lost; the caller sends it again.
    fn lost(&mut self, number: usize);

    /// Accepts a whole message from the server. The reply to a request of the server is appended to
    /// `to`.
    fn receive(
        &mut self,
        message: &[u8],
        to: &mut Vec<u8>,
    ) -> std::result::Result<Received, Malformed>;

    /// Releases a request's number.
    fn release(&mut self, number: usize);

    /// Releases the number of an answered request whose caller has stopped waiting. Returns the
    /// background request that undoes what the server has established for it, if there is any.
    fn abandon(&mut self, number: usize) -> Option<Self::Background> {
        self.release(number);
        None
    }

    /// Encodes the cancellation of a request, or returns `false` if the protocol has none.
    fn cancel(&mut self, number: usize, to: &mut Vec<u8>) -> bool;

    /// Encodes a background request, and returns the number of its reply.
    fn encode_background(&mut self, aside: &Self::Background, to: &mut Vec<u8>) -> Result<usize>;
}

/// The layout of a message whose payload can be received apart from its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadLayout {
    /// The number of the answered request.
    pub number: usize,
    /// The length of the head, in bytes.
    pub head: usize,
    /// The length of the payload, in bytes.
    pub len: usize,
    /// The number of padding bytes after the payload, up to [`PayloadLayout::MAX_PADDING`].
    pub padding: usize,
}

impl PayloadLayout {
    /// The most padding of XDR.
    pub const MAX_PADDING: usize = 3;
}

/// The meaning of a message from the server.
pub enum Received {
    /// The reply to a request, or its error.
    Reply {
        /// The request's number.
        number: usize,
        /// The request's result.
        result: Result<()>,
    },
    /// No reply to a request.
    Nothing,
}
