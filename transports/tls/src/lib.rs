//! TLS 1.3 around a connection that is already there: plain until [`Link::secure`](transports::Link::secure), sealed
//! from then on (STARTTLS). Whoever never asks for it pays one look at a flag.
//!
//! An [`Acceptor`] or a [`Connector`] is what one side shows and trusts, read from files; a [`TlsLink`] is a link with
//! either around another link. What it lacks on purpose: any idea of when to begin, which is a protocol's; resumption
//! and early data, which let a request be sent twice; older versions of TLS; encryption by the kernel.
//!
//! Lock order: a link's input, its output, then the connection's keys. Nothing waits under the last.

#![forbid(unsafe_code)]

mod channel;
mod files;
mod link;
mod names;

pub use files::{Acceptor, BadFiles, Connector, Demand, Files};
pub use link::TlsLink;
