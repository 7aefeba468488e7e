//! FUSE as virtiofs and /dev/fuse carry it: messages, the server half and the client half.
//!
//! - [`layout`] defines the structures and [`message`] the table of requests, from which their
//!   types, decoding and encoding are generated; [`dirent`] handles directory entries.
//! - [`server`] answers requests from a [`vfs::Export`]; [`client`] encodes requests and checks
//!   replies.
//!
//! Deliberately absent: queues, devices, threads and clocks. The transport drives a
//! [`wire::Session`]. The server only replies to requests: it sends no notifications.
//!
//! Sources: Linux `include/uapi/linux/fuse.h`, `fs/fuse`; virtiofsd 1.14 for the INIT flags
//! granted.

#![forbid(unsafe_code)]

pub mod client;
mod convert;
pub mod dirent;
pub mod layout;
pub mod message;
pub mod numbers;
pub mod server;

pub use message::{DecodeError, Header, Opcode, Request, WireFormat};
