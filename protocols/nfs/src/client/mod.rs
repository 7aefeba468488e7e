//! The client half: what to ask, and what a server's answer may be.
//!
//! [`Calls`] is a connection's state: which calls are in flight, by their ids. [`v3`] and [`v4`] have what
//! is asked of a server, each as a value that writes its arguments and reads its results, in the words of
//! the file-system traits. A server is never trusted: whatever does not read as what was asked for is
//! [`wire::Malformed`].
//!
//! What it lacks on purpose: bytes on their way, threads, clocks, and what to do while an answer is awaited,
//! when a connection is lost or a server begins anew: that is whoever moves the bytes' business.

mod answer;
mod calls;
mod credential;
mod lands;
pub mod start_tls;
pub mod v3;
pub mod v4;

pub use answer::{Limits, Listed, Made, Page, ReadData, Tree, Written};
pub use calls::{Apart, Body, Calls, Received};
pub use credential::Credentials;
pub use lands::Lands;

use vfs::Errno;

pub use crate::v3::Stable;

/// What is asked of a server.
pub trait Ask {
    /// What it answers.
    type Answer<'r>;

    /// Which call of which program it is.
    const PROCEDURE: Procedure;

    /// Writes the arguments but for the payload, which they end in.
    fn put(&self, to: &mut Vec<u8>);

    /// What the arguments end in, to be padded to units of 4 bytes.
    fn payload(&self) -> &[u8] {
        &[]
    }

    /// About how many bytes the answer has at most, if that is many.
    fn room(&self) -> usize {
        0
    }

    /// How the answer has to begin for its payload to be received apart, if it may be.
    fn lands(&self) -> Option<Lands> {
        None
    }

    /// Reads the results.
    fn answer<'r>(&self, results: &'r [u8]) -> Result<Self::Answer<'r>, Failure>;

    /// Reads the results of which `head` stands before `payload`, which has been received apart as [`Ask::lands`] allowed.
    fn landed<'r>(&self, _head: &'r [u8], _payload: &'r [u8]) -> Result<Self::Answer<'r>, Failure> {
        Err(wire::Malformed::new("expected no payload").into())
    }
}

/// Which call of which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Procedure {
    pub program: u32,
    pub version: u32,
    pub number: u32,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server says so.
    Refused(Errno),
    /// It takes long: ask again, in a while, as a new call.
    Later,
    /// The server's state of this client, or of what it has open, is not what the client takes it for.
    State(v4::Status),
    /// It is none.
    Malformed(wire::Malformed),
}

impl Failure {
    /// What to tell whoever knows of errnos only.
    pub fn errno(&self) -> Errno {
        match self {
            Failure::Refused(errno) => *errno,
            Failure::Later => Errno::EAGAIN,
            Failure::State(_) | Failure::Malformed(_) => Errno::EIO,
        }
    }
}

impl From<wire::Malformed> for Failure {
    fn from(what: wire::Malformed) -> Failure {
        Failure::Malformed(what)
    }
}
