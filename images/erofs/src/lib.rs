//! EROFS, the read-only file system of Linux: on-disk format, reader and writer.
//!
//! - [`layout`]: the on-disk structures, each with a parser and an encoder from one definition;
//! - [`read`]: superblock, inodes, directories, attributes and the location of contents;
//! - [`decode`]: LZ4, MicroLZMA, DEFLATE and Zstandard;
//! - [`check`]: verification of a whole image;
//! - [`mod@write`]: the metadata of a new image.
//!
//! Deliberately absent: I/O, caches, threads, clocks and the standard library.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod check;
pub mod decode;
pub mod layout;
pub mod read;
pub mod write;
