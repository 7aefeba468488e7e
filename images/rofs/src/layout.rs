//! The on-disk structures, with their encoding and decoding. All numbers are little-endian; only
//! file data are aligned.

use alloc::vec::Vec;

/// Size in bytes of a block, the unit in which files begin. The only size that OSv supports.
pub const BLOCK: u64 = 512;

/// The magic number: the first eight bytes of an image.
pub const MAGIC: u64 = 0xDEAD_BEAD;

/// The version of the layout.
pub const VERSION: u64 = 1;

/// Returns the number of blocks for `bytes`.
pub const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK)
}

/// The superblock, the first block of an image: eight numbers of eight bytes, then zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The first block of the tables.
    pub tables_block: u64,
    /// Number of blocks in the tables.
    pub tables_blocks: u64,
    /// Total number of directory entries.
    pub entries: u64,
    /// Total number of symbolic links.
    pub symlinks: u64,
    /// Total number of inodes.
    pub inodes: u64,
}

impl Superblock {
    /// Returns the on-disk form.
    pub fn encode(&self) -> [u8; BLOCK as usize] {
        let numbers = [
            MAGIC,
            VERSION,
            BLOCK,
            self.tables_block,
            self.tables_blocks,
            self.entries,
            self.symlinks,
            self.inodes,
        ];
        let mut block = [0; BLOCK as usize];
        for (field, number) in block.chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        block
    }
}

/// A directory entry: inode number (8 bytes), length of the name in bytes (2), name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The number of the inode it names, from 1.
    pub inode: u64,
    /// Its name.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Size in bytes of an entry without its name.
    pub const FIXED_SIZE: usize = 10;

    /// Appends the entry to a table; the name is at most [`u16::MAX`] bytes.
    pub(crate) fn encode(&self, table: &mut Vec<u8>) {
        table.extend(self.inode.to_le_bytes());
        encode_text(self.name, table);
    }
}

/// Appends a length of two bytes and the text, the form of symbolic links in their table.
pub(crate) fn encode_text(text: &[u8], table: &mut Vec<u8>) {
    table.extend((text.len() as u16).to_le_bytes());
    table.extend(text);
}

/// The type of an inode, and the location of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeKind {
    /// A directory: its children are `count` entries of the table, from index `first`.
    Directory {
        /// Index of the first entry.
        first: u64,
        /// Number of children.
        count: u64,
    },
    /// A file: `size` bytes from the block `block` of the image. The block of an empty file is not
    /// its own.
    File {
        /// The first block of its data in the image.
        block: u64,
        /// Size in bytes.
        size: u64,
    },
    /// A symbolic link: the index of its target in the table of links.
    Symlink {
        /// Index of the target.
        index: u64,
    },
}

/// An inode: mode, number, data offset and count, eight bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its number, from 1.
    pub number: u64,
    /// Its type.
    pub kind: InodeKind,
}

impl Inode {
    /// Size in bytes of an inode.
    pub const SIZE: usize = 32;

    const DIRECTORY: u64 = 0x4000;
    const FILE: u64 = 0x8000;
    const SYMLINK: u64 = 0xA000;

    /// Returns the on-disk form.
    pub(crate) fn encode(&self) -> [u8; Inode::SIZE] {
        let (mode, offset, count) = match self.kind {
            InodeKind::Directory { first, count } => (Inode::DIRECTORY, first, count),
            InodeKind::File { block, size } => (Inode::FILE, block, size),
            InodeKind::Symlink { index } => (Inode::SYMLINK, index, 1),
        };
        let mut bytes = [0; Inode::SIZE];
        for (field, number) in bytes
            .chunks_exact_mut(8)
            .zip([mode, self.number, offset, count])
        {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes an inode; returns nothing if its mode is invalid.
    pub(crate) fn decode(bytes: &[u8; Inode::SIZE]) -> Option<Inode> {
        let (numbers, _) = bytes.as_chunks();
        let number = |at: usize| u64::from_le_bytes(numbers[at]);
        let (offset, count) = (number(2), number(3));
        let kind = match number(0) {
            Inode::DIRECTORY => InodeKind::Directory {
                first: offset,
                count,
            },
            Inode::FILE => InodeKind::File {
                block: offset,
                size: count,
            },
            Inode::SYMLINK => InodeKind::Symlink { index: offset },
            _ => return None,
        };
        Some(Inode {
            number: number(1),
            kind,
        })
    }
}
