//! Bytes on the wire: a bounded reader of what a peer sent, and a message under construction.
//!
//! Offsets of listings too, since more than one protocol shows dots that no source lists.
//! And what the server half of a protocol is to whoever moves its bytes: a [`Session`].
//!
//! What it lacks on purpose: any idea of a message. A protocol says what follows what.

#![forbid(unsafe_code)]

mod offset;
mod put;
mod read;
mod session;
mod write;
mod xdr;

pub use offset::{BEHIND_DOT, BEHIND_DOTS, cookie_of, offset_of};
pub use put::{Buffered, Put};
pub use read::{Malformed, Reader};
pub use session::{Answer, Certified, Facts, Incoming, Role, Session, Vocabulary, Voice};
pub use write::{LeWriter, Outgoing};
pub use xdr::{Xdr, XdrReader, padding};
