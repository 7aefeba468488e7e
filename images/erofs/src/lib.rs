//! EROFS, the read-only file system that Linux mounts: what it is on disk, a reader and a writer of it.
//!
//! - [`layout`]: the structures, each read and written by one definition;
//! - [`read`]: superblock, inodes, directories, attributes, and where contents are;
//! - [`decode`]: LZ4, MicroLZMA, DEFLATE and Zstandard;
//! - [`check`]: whether all of an image is sound;
//! - [`mod@write`]: metadata of an image under construction.
//!
//! What it lacks on purpose: I/O, caches, threads, clocks and the standard library; but for `read::InFile`, which comes with the feature `std`.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod check;
pub mod decode;
pub mod layout;
pub mod read;
pub mod write;
