//! ROFS version 1, the read-only image that OSv boots from: its layout, a reader and a writer.
//!
//! An image is, in this order: a [`Superblock`], the data of files, then in one piece the tables of directory entries,
//! symbolic links and inodes. So it is mounted by two reads: the superblock's block, and [`Superblock::tables`], of which
//! [`Tables::parse`] makes what answers everything but contents.
//!
//! What it lacks on purpose: I/O (who reads and writes has the bytes), permissions, owners, times, extended attributes,
//! devices, holes (the format has none of them). It takes no locks.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod layout;
mod read;
mod write;

pub use layout::{BLOCK, Entry, Inode, InodeKind, MAGIC, Superblock, VERSION, blocks};
pub use read::{Broken, Child, Tables};
pub use write::{Finished, TooLong, Writer};
