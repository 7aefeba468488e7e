//! File systems served by another server.
//!
//! - [`ninep`] connects over 9P: the client half of the protocol ([`p9::client`]) joined to a
//!   connection ([`transports::Link`]).
//! - [`nfs`] connects over NFS ([`::nfs::client`]), and reconnects after a lost connection.
//! - [`virtiofs`] connects to a vhost-user device: the client half of FUSE ([`fuse::client`])
//!   joined to a driver ([`virtqueue::driver`]), without a virtual machine.
//!
//! `connection` carries the messages of the protocols that run over a stream; `timeouts` holds the
//! timeouts for servers that do not answer, `client_owner` the name of a client.
//!
//! [`Url`] names a server and one of its trees.

#![forbid(unsafe_code)]

mod absolute;
mod cancel;
mod client_owner;
mod connection;
mod deferred;
mod error;
mod file;
mod locks;
pub mod nfs;
pub mod ninep;
mod timeouts;
mod url;
#[cfg_attr(not(target_os = "linux"), path = "virtiofs/elsewhere.rs")]
pub mod virtiofs;
mod xattr;

pub use absolute::{absolute_path, absolute_text, absolute_url};
pub use client_owner::{BadClientOwner, ClientOwner};
pub use error::ConnectError;
pub use timeouts::{Retry, Timeouts};
pub use url::{BadUrl, Url, bytes, id};
