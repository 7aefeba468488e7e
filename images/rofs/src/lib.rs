//! ROFS version 1, the read-only image format that OSv boots from: on-disk format, reader and
//! writer.
//!
//! An image consists of a [`Superblock`], the data of files, then contiguous tables of directory
//! entries, symbolic links and inodes. So a mount needs two reads: the superblock's block, and
//! [`Superblock::tables`], from which [`Tables::parse`] makes a structure that answers everything
//! but file contents.
//!
//! Deliberately absent: I/O (callers read and write the bytes), permissions, owners, times,
//! extended attributes, devices and holes (the format has none of them). It takes no locks.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod layout;
mod read;
mod write;

pub use layout::{BLOCK, Entry, Inode, InodeKind, MAGIC, Superblock, VERSION, blocks};
pub use read::{Child, Corrupt, Tables};
pub use write::{Metadata, TooLong, Writer};
