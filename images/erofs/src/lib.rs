//! EROFS, the read-only file system that Linux mounts: what it is on disk.
//!
//! - [`layout`]: the structures, each read and written by one definition.
//! - [`write`]: metadata of an image under construction.
//!
//! What it lacks on purpose: I/O, threads, clocks and the standard library.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod layout;
pub mod write;
