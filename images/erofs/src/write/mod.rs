//! Writer: the metadata of an image whose contents are already written.
//!
//! The caller first writes file contents, in blocks from block 1, and passes each inode with their
//! location ([`Body`]). [`Metadata::plan`] assigns a position to every inode, and
//! [`Metadata::write`] emits everything after the contents as one stream: directory blocks, shared
//! attributes, inodes with their inline data. [`Metadata::first_block`] returns block 0. So a mount
//! reads that block and one contiguous range, and the output is deterministic.
//!
//! Deliberately absent: I/O, compression, threads; blocks of other than 4096 bytes; block numbers
//! of more than 32 bits; compressed tails after the index, long attribute name prefixes, extra
//! devices.

mod dir;
mod index;
mod metadata;
mod superblock;
mod xattr;

use alloc::vec::Vec;
use core::fmt;

use crate::layout::{Algorithm, FileType};

pub use metadata::Metadata;
pub use xattr::{ibody_size, is_supported_name};

/// Size in bytes of a block.
pub const BLOCK: u64 = 4096;

/// Returns the number of blocks for `bytes`.
pub const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK)
}

/// Returns the maximum size in bytes of an inline tail of a file with `xattrs` bytes of attributes
/// ([`ibody_size`]): inode, attributes and tail fit in one block.
pub const fn max_inline_tail(xattrs: usize) -> usize {
    (BLOCK as usize).saturating_sub(crate::layout::ExtendedInode::SIZE + xattrs)
}

/// An inode to write.
#[derive(Clone, Debug)]
pub struct Inode {
    /// File type and permissions, as `st_mode`.
    pub mode: u16,
    /// Owner's user ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Modification time: seconds since the Unix epoch and nanoseconds.
    pub mtime: (i64, u32),
    /// Number of hard links.
    pub links: u32,
    /// Extended attributes by full name, for which [`is_supported_name`] holds.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its contents.
    pub body: Body,
}

impl Inode {
    /// Returns the file type for directory entries.
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

/// The contents of an inode.
#[derive(Clone, Debug)]
pub enum Body {
    /// A directory: its parent's index (the root is its own parent) and its children.
    Directory {
        /// Index of the parent.
        parent: usize,
        /// Name and index, sorted by name.
        children: Vec<(Vec<u8>, usize)>,
    },
    /// Contiguous blocks, and a tail after the last whole block that may be inline.
    Flat {
        /// Size in bytes.
        size: u64,
        /// The first block; any if there is none.
        block: u32,
        /// Whether the tail is inline rather than in a block of its own.
        inline: bool,
    },
    /// Chunks at any location.
    Chunks {
        /// Size in bytes.
        size: u64,
        /// log2 of the number of blocks in a chunk.
        block_bits: u8,
        /// The first block of each chunk, nothing for a hole.
        blocks: Vec<Option<u32>>,
    },
    /// Extents, each compressed or not.
    Compressed {
        /// Size in bytes.
        size: u64,
        /// The compression algorithm.
        algorithm: Algorithm,
        /// Sorted and contiguous.
        extents: Vec<Extent>,
        /// Offset in the packed inode of the data after the extents.
        fragment: Option<u64>,
    },
    /// A whole file in the packed inode ([`ImageParams::packed`]).
    Fragment {
        /// Size in bytes.
        size: u64,
        /// Its offset there, less than 2^63.
        offset: u64,
    },
    /// A device number ([`crate::layout::encode_device`]).
    Device(u32),
    /// No contents: a FIFO or socket.
    Empty,
}

/// An extent of a compressed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its offset in the file. An uncompressed extent may begin within a block; at most one extent
    /// begins in each block of the file.
    pub start: u64,
    /// Its length in the file in bytes.
    pub len: u64,
    /// Its first block in the image.
    pub block: u32,
    /// Number of blocks in the image if it is compressed, fewer than uncompressed; `None` if it is
    /// stored block by block.
    pub compressed_blocks: Option<u16>,
}

/// Properties of the whole image.
#[derive(Clone, Copy, Debug)]
pub struct ImageParams {
    /// The algorithm of compressed files, and the number of blocks in the largest physical cluster.
    pub compression: Option<(Algorithm, u16)>,
    /// The first block after the contents, where metadata may begin.
    pub next_block: u64,
    /// Index of the packed inode: a file without a name and without fragments.
    pub packed: Option<usize>,
}

/// The reason why an image cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitExceeded {
    /// The image exceeds 16 TiB, the limit of 32-bit block numbers.
    TooLarge,
    /// The attributes of the inode with this index exceed an inode's limit.
    TooManyXattrs(usize),
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitExceeded::TooLarge => "the image would have more than 16 TiB",
            LimitExceeded::TooManyXattrs(_) => "its extended attributes exceed the limit of EROFS",
        })
    }
}

impl core::error::Error for LimitExceeded {}
