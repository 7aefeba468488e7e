//! Misbehaving clients on real sockets, and servers to test with them.
//!
//! - [`raw_client`] is a byte-level 9P client, with helpers for well-behaved use;
//! - [`client`] is an ordinary client of every socket protocol, with [`rpc`] for NFS;
//! - [`user`] runs an attacker as another user of this host, and so as another client;
//! - [`guest`] is a virtual machine monitor and its guest, at the level of messages and memory;
//! - [`server`] runs the engine in this process, with a socket protocol or a virtiofs device, over
//!   a tree in memory or a directory of the host;
//! - [`process`] runs it in a separate process, whose memory is measured.
//!
//! The tests are in `tests/it`. Their common property: a misbehaving client gets errors or loses
//! its own connection, and a second client ([`client`]) is not affected.

#![forbid(unsafe_code)]

pub mod client;
pub mod guest;
pub mod process;
pub mod raw_client;
pub mod rpc;
pub mod server;
pub mod user;
