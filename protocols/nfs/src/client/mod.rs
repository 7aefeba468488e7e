//! The client half: encodes calls to a server, and decodes its replies.
//!
//! [`Calls`] is a connection's state: the calls in flight by XID. [`v3`] and [`v4`] have a type for
//! each request, which encodes its arguments and decodes its results in terms of the file-system
//! traits. The server is not trusted: a reply that is not a valid answer to its call is
//! [`wire::Malformed`].
//!
//! Deliberately absent: I/O, threads, clocks, and the policy for delays, lost connections and
//! restarts of the server. These are the driver's task.

mod calls;
mod credential;
mod results;
mod separate_payload;
pub mod start_tls;
pub mod v3;
pub mod v4;

pub use calls::{Body, Calls, Received, SplitReply};
pub use credential::Credentials;
pub use results::{DirPage, Limits, ListedEntry, NodeInfo, ReadData, Tree, Written};
pub use separate_payload::SeparatePayload;

use vfs::Errno;

pub use crate::v3::Stable;

/// A call without the type of its results.
pub trait CallArguments {
    /// Returns the procedure that it calls.
    fn procedure(&self) -> Procedure;

    /// Writes the arguments without the payload at their end.
    fn put(&self, to: &mut Vec<u8>);

    /// Returns the payload at the end of the arguments, without its padding to 4 bytes.
    fn payload(&self) -> &[u8] {
        &[]
    }

    /// Returns the approximate maximum length of the reply in bytes; 0 if it is short.
    fn max_reply(&self) -> usize {
        0
    }

    /// Returns the form of replies whose payload may be received separately; `None` if there is
    /// none.
    fn separate_payload(&self) -> Option<SeparatePayload> {
        None
    }
}

/// A call that can be made to a server.
pub trait ClientCall: CallArguments {
    /// The decoded results.
    type Answer<'r>;

    /// Decodes the results.
    fn answer<'r>(&self, results: &'r [u8]) -> Result<Self::Answer<'r>, Failure>;

    /// Decodes results that consist of `head` and `payload`, which has been received separately as
    /// [`CallArguments::separate_payload`] allows.
    fn answer_with_payload<'r>(
        &self,
        _head: &'r [u8],
        _payload: &'r [u8],
    ) -> Result<Self::Answer<'r>, Failure> {
        Err(wire::Malformed::new("expected no payload").into())
    }
}

/// A procedure of an RPC program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Procedure {
    pub program: u32,
    pub version: u32,
    pub number: u32,
}

/// The reason for which a call has no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server returned an error.
    Error(Errno),
    /// The server is busy: retry later with a new call.
    Delay,
    /// The server has lost or rejects the client's lease, session, open or lock state.
    State(v4::Status),
    /// The reply is malformed.
    Malformed(wire::Malformed),
}

impl Failure {
    /// Returns the errno to report to callers.
    pub fn errno(&self) -> Errno {
        match self {
            Failure::Error(errno) => *errno,
            Failure::Delay => Errno::EAGAIN,
            Failure::State(_) | Failure::Malformed(_) => Errno::EIO,
        }
    }
}

impl From<wire::Malformed> for Failure {
    fn from(what: wire::Malformed) -> Failure {
        Failure::Malformed(what)
    }
}
