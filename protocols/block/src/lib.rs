//! Files as disks: the server halves of virtio's block device ([`virtio`]) and of NBD ([`nbd`]).
//!
//! A [`Disk`] is one regular file, as long as it was when it was opened. The guest, or whoever speaks NBD, has its
//! own file system on it.
//!
//! What it lacks on purpose: partitions, formats of images (the bytes are the file's), snapshots; queues, sockets,
//! threads and system calls.
//!
//! Lock order: a connection's phase, and nothing under it.

#![forbid(unsafe_code)]

mod disk;
pub mod nbd;
mod requests;
pub mod virtio;

pub use disk::Disk;
