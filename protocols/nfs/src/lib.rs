//! NFS versions 3 (RFC 1813), 4.0 (RFC 7530), 4.1 (RFC 8881) and 4.2 (RFC 7862), with the other
//! protocols that v3 needs, such as MOUNT and NLM: messages, the server half and the client half.
//!
//! The crate uses no sockets, threads, system calls or clock: a session turns calls into replies.

#![forbid(unsafe_code)]

pub mod client;
pub mod mount;
pub mod nlm;
pub mod nsm;
pub mod portmap;
mod rpc;
pub mod rquota;
pub mod server;
pub mod v3;
pub mod v4;

/// The ALPN protocol name of RPC over TLS (RFC 9289 section 8.2).
pub const ALPN: &[u8] = b"sunrpc";
