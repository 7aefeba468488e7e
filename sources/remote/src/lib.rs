//! A source: a file system that another server has.
//!
//! - [`ninep`] is one over 9P: the client half of the protocol ([`p9::client`]) joined to a connection
//!   ([`transports::Link`]).
//! - [`nfs`] is one over NFS ([`::nfs::client`]), over a connection that comes again when it is lost.
//! - [`virtiofs`] is one over a vhost-user device: the client half of FUSE ([`fuse::client`]) joined to a
//!   driver ([`virtqueue::driver`]), without a virtual machine.
//!
//! `pipe` moves messages for those that speak over a stream; `silence` is what is
//! done about servers that do not answer.
//!
//! [`Url`] says what to connect to.

#![forbid(unsafe_code)]

mod cancel;
mod error;
mod file;
mod locks;
pub mod nfs;
pub mod ninep;
mod pipe;
mod silence;
mod tender;
mod url;
pub mod virtiofs;
mod xattr;

pub use error::ConnectError;
pub use silence::{Retry, Silence};
pub use url::{BadUrl, Url, bytes, id};
