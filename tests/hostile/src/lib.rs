//! Clients that misbehave on real sockets, and the servers to try them on.
//!
//! - [`peer`] is a client of nothing but bytes, with helpers for those who behave;
//! - [`client`] is an ordinary client of every protocol over sockets, with [`rpc`] for NFS;
//! - [`user`] makes an attacker another user of this host, and so another client;
//! - [`guest`] is a virtual machine monitor and its guest, of nothing but messages and memory;
//! - [`server`] is the engine with 9P, or a virtiofs device, over a tree in memory or a directory of the host, in
//!   this process;
//! - [`process`] is the same in a process of its own, whose memory is measured.
//!
//! The tests are in `tests/it`. What holds for all of them: whatever a client does, it gets errors or
//! loses its own connection, and a second client ([`peer::Bystander`]) notices nothing.

#![forbid(unsafe_code)]

pub mod client;
pub mod guest;
pub mod peer;
pub mod process;
pub mod rpc;
pub mod server;
pub mod user;
