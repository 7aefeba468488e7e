//! Inodes of both sizes.

use super::record::records;

/// Bytes that inodes' numbers count in: an inode begins at a multiple.
pub const INODE_SLOT: u64 = 32;

records! {
    /// An inode of 32 bytes: sizes and owners of small numbers, and the image's own time.
    pub struct CompactInode: 32 {
        /// [`Format`].
        format: u16,
        /// How much of attributes follows: [`super::xattr_body_size`].
        xattr_count: u16,
        /// Kind and permissions, as `st_mode`.
        mode: u16,
        /// Hard links; or bits 32 to 47 of a block number, if [`Format::one_link`].
        links_or_high: u16,
        /// Bytes.
        size: u32,
        /// Seconds behind [`super::Superblock::epoch`]: only with [`super::Incompat::BIT48`] other than 0.
        mtime: u32,
        /// By kind and data layout: the first block of a flat file, the blocks of a compressed one, [`super::ChunkFormat`], or
        /// [`encode_device`].
        data: u32,
        /// A number of 32 bits for stat(2).
        ino: u32,
        /// Owner.
        uid: u16,
        /// Group.
        gid: u16,
        /// Zeros.
        reserved: u32,
    }

    /// An inode of 64 bytes.
    pub struct ExtendedInode: 64 {
        /// [`Format`].
        format: u16,
        /// How much of attributes follows: [`super::xattr_body_size`].
        xattr_count: u16,
        /// Kind and permissions, as `st_mode`.
        mode: u16,
        /// Bits 32 to 47 of a block number, with [`super::Incompat::BIT48`].
        high: u16,
        /// Bytes.
        size: u64,
        /// As [`CompactInode::data`].
        data: u32,
        /// A number of 32 bits for stat(2).
        ino: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Seconds since the Unix epoch, signed.
        mtime: u64,
        /// Nanoseconds.
        mtime_nsec: u32,
        /// Hard links.
        links: u32,
        /// Zeros.
        reserved: [u8; 16],
    }
}

/// What an inode's first field says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Whether it is an [`ExtendedInode`].
    pub extended: bool,
    /// Where the contents are.
    pub layout: DataLayout,
    /// Of a [`CompactInode`] that is no directory: it has one link, and its number of links is bits of a block number. Of a
    /// directory: it has no entry `.`.
    pub one_link: bool,
}

impl Format {
    /// What `format` says; nothing if it says what is not known here.
    pub fn parse(format: u16) -> Option<Format> {
        if format & !0x1f != 0 {
            return None;
        }
        Some(Format {
            extended: format & 1 != 0,
            layout: DataLayout::from_number(format >> 1 & 7)?,
            one_link: format & 0x10 != 0,
        })
    }

    /// As an inode's first field.
    pub fn encode(self) -> u16 {
        u16::from(self.extended) | (self.layout as u16) << 1 | u16::from(self.one_link) << 4
    }
}

/// Where the contents of an inode are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLayout {
    /// In blocks that follow each other.
    FlatPlain = 0,
    /// Compressed; an index of 8 bytes for each logical cluster, or extents.
    CompressedFull = 1,
    /// In blocks that follow each other; the last, partial block is behind the inode and its attributes.
    FlatInline = 2,
    /// Compressed; an index of 2 or 4 bytes for each logical cluster.
    CompressedCompact = 3,
    /// In chunks anywhere.
    Chunks = 4,
}

impl DataLayout {
    /// The layout of this number.
    pub fn from_number(number: u16) -> Option<DataLayout> {
        Some(match number {
            0 => DataLayout::FlatPlain,
            1 => DataLayout::CompressedFull,
            2 => DataLayout::FlatInline,
            3 => DataLayout::CompressedCompact,
            4 => DataLayout::Chunks,
            _ => return None,
        })
    }
}

/// Major and minor number of a device of Linux's 32 bits (`new_decode_dev`).
pub fn decode_device(data: u32) -> (u32, u32) {
    (data >> 8 & 0xfff, data & 0xff | data >> 12 & 0xf_ff00)
}

/// The reverse of [`decode_device`]; nothing beyond 12 bits of major and 20 of minor number.
pub fn encode_device(major: u32, minor: u32) -> Option<u32> {
    if major > 0xfff || minor > 0xf_ffff {
        return None;
    }
    Some(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}
