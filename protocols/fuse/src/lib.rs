//! FUSE, as virtiofs and /dev/fuse speak it: messages, and both halves of the protocol.
//!
//! - [`layout`] has the structures, [`message`] the table of requests, from which come their types,
//!   decoding and encoding; [`dirent`] has the entries of directories.
//! - [`server`] answers them over a [`vfs::Export`]; [`client`] asks.
//!
//! What it lacks on purpose: queues, devices, threads, clocks. Whoever moves the bytes drives a
//! [`wire::Session`]. Nothing is ever sent that was not asked for: no notifications.
//!
//! Sources: Linux `include/uapi/linux/fuse.h`, `fs/fuse`; virtiofsd 1.14 for what is granted.

#![forbid(unsafe_code)]

pub mod client;
pub mod dirent;
pub mod layout;
pub mod message;
pub mod numbers;
pub mod server;
mod words;

pub use message::{Form, Header, Opcode, Request, Undecodable};
