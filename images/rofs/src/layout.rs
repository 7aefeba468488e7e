//! What lies in an image: its structures, read and written. All numbers are little-endian, nothing is aligned but data.

use alloc::vec::Vec;

/// Bytes of a block: the unit that files begin at. The only size that OSv reads.
pub const BLOCK: u64 = 512;

/// The first eight bytes of an image.
pub const MAGIC: u64 = 0xDEAD_BEAD;

/// The version of the layout.
pub const VERSION: u64 = 1;

/// How many blocks `bytes` take.
pub const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK)
}

/// The first block of an image: eight numbers of eight bytes, then zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The block that the tables begin at.
    pub tables_block: u64,
    /// How many blocks the tables take.
    pub tables_blocks: u64,
    /// Directory entries in all.
    pub entries: u64,
    /// Symbolic links in all.
    pub symlinks: u64,
    /// Inodes in all.
    pub inodes: u64,
}

impl Superblock {
    /// As it stands in an image.
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
        for (place, number) in block.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        block
    }
}

/// A directory entry: inode number (8 bytes), length of the name in bytes (2), name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode it names, from 1.
    pub inode: u64,
    /// Its name.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// Bytes of an entry without its name.
    pub const FIXED: usize = 10;

    /// Appends it to a table; the name is at most [`u16::MAX`] bytes.
    pub(crate) fn encode(&self, table: &mut Vec<u8>) {
        table.extend(self.inode.to_le_bytes());
        encode_text(self.name, table);
    }
}

/// Appends a length of two bytes and the text: how symbolic links stand in their table.
pub(crate) fn encode_text(text: &[u8], table: &mut Vec<u8>) {
    table.extend((text.len() as u16).to_le_bytes());
    table.extend(text);
}

/// What an inode is, and where what it has begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeKind {
    /// A directory: its children are `count` entries of the table, from the one of index `first`.
    Directory {
        /// Index of the first entry.
        first: u64,
        /// How many children it has.
        count: u64,
    },
    /// A file: `size` bytes from the block `block` of the image. An empty one has a block that is not its own.
    File {
        /// Where its data begins, in blocks of the image.
        block: u64,
        /// Bytes.
        size: u64,
    },
    /// A symbolic link: the index of its target in the table.
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
    /// What it is.
    pub kind: InodeKind,
}

impl Inode {
    /// Bytes of an inode.
    pub const BYTES: usize = 32;

    const DIRECTORY: u64 = 0x4000;
    const FILE: u64 = 0x8000;
    const SYMLINK: u64 = 0xA000;

    /// As it stands in an image.
    pub(crate) fn encode(&self) -> [u8; Inode::BYTES] {
        let (mode, offset, count) = match self.kind {
            InodeKind::Directory { first, count } => (Inode::DIRECTORY, first, count),
            InodeKind::File { block, size } => (Inode::FILE, block, size),
            InodeKind::Symlink { index } => (Inode::SYMLINK, index, 1),
        };
        let mut bytes = [0; Inode::BYTES];
        for (place, number) in bytes
            .chunks_exact_mut(8)
            .zip([mode, self.number, offset, count])
        {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads one; nothing for a mode that no inode has.
    pub(crate) fn decode(bytes: &[u8; Inode::BYTES]) -> Option<Inode> {
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
