//! Writing: what an image's metadata look like once it is known where contents are.
//!
//! Who drives it writes contents first, in blocks from block 1, and tells of each inode what came of it ([`Body`]).
//! [`Metadata::plan`] then gives every inode its place, and [`Metadata::write`] puts out all that follows the contents, in one
//! stream: blocks of directories, shared attributes, inodes with what is inline. [`Metadata::first_block`] is the block that the image
//! begins with. So a mount reads that block and then one contiguous piece, and the same inodes make the same bytes.
//!
//! What it lacks on purpose: I/O, compression, threads; blocks other than of 4096 bytes; block numbers of more than 32 bits; compressed
//! ends of files behind their index, long prefixes of names, devices besides the first.

mod dir;
mod index;
mod place;
mod superblock;
mod xattr;

use alloc::vec::Vec;
use core::fmt;

use crate::layout::{Algorithm, FileType};

pub use place::Metadata;
pub use xattr::{can_name, own_size};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// Blocks that `bytes` take.
pub const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK)
}

/// How much of a file's end can be inline if its attributes take `xattrs` bytes ([`own_size`]): inode, attributes and end
/// are in one block.
pub const fn inline_room(xattrs: usize) -> usize {
    (BLOCK as usize).saturating_sub(crate::layout::ExtendedInode::SIZE + xattrs)
}

/// An inode to write.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Kind and permissions, as `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of last change: seconds since the Unix epoch and nanoseconds.
    pub mtime: (i64, u32),
    /// Hard links.
    pub links: u32,
    /// Extended attributes by whole name, each of which [`can_name`].
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// What it has.
    pub body: Body,
}

impl Inode {
    /// Its kind, as entries tell it.
    pub(crate) fn file_type(&self) -> FileType {
        match self.mode & 0o170_000 {
            0o100_000 => FileType::File,
            0o040_000 => FileType::Directory,
            0o020_000 => FileType::CharDevice,
            0o060_000 => FileType::BlockDevice,
            0o010_000 => FileType::Fifo,
            0o140_000 => FileType::Socket,
            0o120_000 => FileType::Symlink,
            _ => FileType::Unknown,
        }
    }
}

/// What an inode has.
#[derive(Clone, Debug)]
pub enum Body {
    /// A directory: its parent's index among the inodes (the root's is its own), and its children.
    Directory {
        /// Index of the parent.
        parent: usize,
        /// Name and index, sorted by name.
        children: Vec<(Vec<u8>, usize)>,
    },
    /// Blocks that follow each other, and an end that may be inline: what is behind the last whole block.
    Flat {
        /// Bytes.
        size: u64,
        /// The first block; any if there is none.
        block: u32,
        /// Whether the end is inline rather than in a block of its own.
        inline: bool,
    },
    /// Chunks, each anywhere.
    Chunks {
        /// Bytes.
        size: u64,
        /// log2 of the blocks of a chunk.
        block_bits: u8,
        /// The first block of each chunk, nothing for a hole.
        blocks: Vec<Option<u32>>,
    },
    /// Extents, each compressed or not.
    Compressed {
        /// Bytes.
        size: u64,
        /// What compressed it.
        algorithm: Algorithm,
        /// In order, without gaps.
        extents: Vec<Extent>,
        /// What is behind them is in the packed inode, from here on.
        end: Option<u64>,
    },
    /// A file in the packed inode ([`Common::packed`]).
    Packed {
        /// Bytes.
        size: u64,
        /// Where it begins there, below 2^63.
        at: u64,
    },
    /// A device's number ([`crate::layout::encode_device`]).
    Device(u32),
    /// Nothing: a pipe, a socket.
    Nothing,
}

/// A part of a compressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte in the file. Where it is not compressed, and at most one extent begins in any block of the file.
    pub start: u64,
    /// Its bytes in the file.
    pub len: u64,
    /// Its first block in the image.
    pub block: u32,
    /// Its blocks there, if it is compressed: fewer than it has bytes for. Nothing if it is as it is in the file, block by block.
    pub packed: Option<u16>,
}

/// What the whole image has in common.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// What compressed files are compressed by, and the blocks of the largest physical cluster.
    pub compression: Option<(Algorithm, u16)>,
    /// The block behind the last one of contents: the first that metadata may have.
    pub next_block: u64,
    /// Index of the packed inode among the inodes: a file without a name, of which nothing is in the packed inode.
    pub packed: Option<usize>,
}

/// Why there can be no such image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impossible {
    /// More than the 16 TiB that block numbers of 32 bits reach.
    TooLarge,
    /// The attributes of the inode of this index take more than an inode's can.
    TooManyXattrs(usize),
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Impossible::TooLarge => "the image would have more than 16 TiB",
            Impossible::TooManyXattrs(_) => {
                "its extended attributes take more than EROFS has room for"
            }
        })
    }
}

impl core::error::Error for Impossible {}
