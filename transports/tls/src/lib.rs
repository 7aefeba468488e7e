//! TLS 1.3 on an established connection: plain until
//! [`Link::start_tls`](transports::Link::start_tls), encrypted from then on (STARTTLS). A
//! connection that never starts TLS costs one check of a flag.
//!
//! An [`Acceptor`] or a [`Connector`] holds the certificates and trust anchors of one side, read
//! from files; a [`TlsLink`] adds either to another link. Deliberately absent: the decision when to
//! start TLS, which is a protocol's; resumption and early data, which allow replays of a request;
//! older versions of TLS; encryption by the kernel.
//!
//! Lock order: a link's input, its output, then the TLS state. No thread waits while it holds the
//! last.

#![forbid(unsafe_code)]

mod channel;
mod files;
mod link;
mod names;

pub use files::{Acceptor, ClientAuth, Connector, FilesError, ReadFile, TlsFiles};
pub use link::TlsLink;
