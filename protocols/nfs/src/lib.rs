//! NFS: versions 3 (RFC 1813), 4.0 (RFC 7530), 4.1 (RFC 8881) and 4.2 (RFC 7862), with what v3 needs
//! beside it, MOUNT and NLM: messages, the server half and the client half.
//!
//! No sockets, no threads, no system calls, no clock of its own: a session answers records.

#![forbid(unsafe_code)]

pub mod client;
pub mod mount;
pub mod nlm;
pub mod nsm;
pub mod portmap;
mod rpc;
pub mod server;
pub mod v3;
pub mod v4;

/// What RPC is called inside TLS (ALPN; RFC 9289 section 8.2).
pub const ALPN: &[u8] = b"sunrpc";
