//! Wire data: a bounded reader of a peer's message, and a message under construction.
//!
//! Also offsets in directory listings, as more than one protocol lists dots that no source does,
//! sinks and payloads in plain memory ([`payload`]), and the interface of a protocol's server half
//! to its driver: a [`Session`].
//!
//! Deliberately absent: any knowledge of message formats, which is the protocols'.

#![forbid(unsafe_code)]

mod offset;
pub mod payload;
mod put;
mod read;
mod session;
mod write;
mod xdr;

pub use offset::{AFTER_DOT, AFTER_DOTS, cookie_of, offset_of};
pub use put::{Buffered, Put};
pub use read::{Malformed, Reader, StreamReader};
pub use session::{
    ClientInfo, ClientThreads, Incoming, MessageSender, RequestTarget, Role, SavedState,
    ServeOutcome, Session, TlsPeer, Vocabulary,
};
pub use write::{LeWriter, Outgoing};
pub use xdr::{Xdr, XdrReader, padding};
