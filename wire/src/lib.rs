//! Bytes on the wire: a bounded reader of what a peer sent, and a message under construction.
//!
//! And what the server half of a protocol is to whoever moves its bytes: a [`Session`].
//!
//! What it lacks on purpose: any idea of a message. A protocol says what follows what.

#![forbid(unsafe_code)]

mod read;
mod session;
mod write;

pub use read::{Malformed, Reader};
pub use session::{Answer, Incoming, Role, Session};
pub use write::{LeWriter, Outgoing};
