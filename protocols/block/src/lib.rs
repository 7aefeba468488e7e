//! Files as disks: the server halves of virtio's block device ([`virtio`]) and of NBD ([`nbd`]).
//!
//! A [`Disk`] is one regular file, with the size it had when it was opened. The guest or NBD client
//! has its own file system on it.
//!
//! Deliberately absent: partitions, image formats (the bytes are the file's), snapshots; queues,
//! sockets, threads and system calls.
//!
//! Lock order: a connection's handshake state, without other locks.

#![forbid(unsafe_code)]

mod disk;
pub mod nbd;
mod requests;
pub mod virtio;

pub use disk::Disk;
