//! Compact and extended inodes.

use super::record::records;

/// The unit of inode numbers in bytes: an inode begins at a multiple.
pub const INODE_SLOT: u64 = 32;

records! {
    /// An inode of 32 bytes: 32-bit size, 16-bit owner and group, and the image's mtime.
    pub struct CompactInode: 32 {
        /// [`Format`].
        format: u16,
        /// Encoded size of the attributes that follow: [`super::xattr_body_size`].
        xattr_count: u16,
        /// File type and permissions, as `st_mode`.
        mode: u16,
        /// Number of hard links; or bits 32 to 47 of a block number, if [`Format::one_link`].
        links_or_high: u16,
        /// Size in bytes.
        size: u32,
        /// Seconds after [`super::Superblock::epoch`]; 0 without [`super::Incompat::BIT48`].
        mtime: u32,
        /// Depends on type and data layout: the first block of a flat file, the number of blocks of
        /// a compressed one, [`super::ChunkFormat`], or [`encode_device`].
        data: u32,
        /// A 32-bit inode number for stat(2).
        ino: u32,
        /// Owner's user ID.
        uid: u16,
        /// Group ID.
        gid: u16,
        /// Zeros.
        reserved: u32,
    }

    /// An inode of 64 bytes.
    pub struct ExtendedInode: 64 {
        /// [`Format`].
        format: u16,
        /// Encoded size of the attributes that follow: [`super::xattr_body_size`].
        xattr_count: u16,
        /// File type and permissions, as `st_mode`.
        mode: u16,
        /// Bits 32 to 47 of a block number, with [`super::Incompat::BIT48`].
        high: u16,
        /// Size in bytes.
        size: u64,
        /// As [`CompactInode::data`].
        data: u32,
        /// A 32-bit inode number for stat(2).
        ino: u32,
        /// Owner's user ID.
        uid: u32,
        /// Group ID.
        gid: u32,
        /// Seconds since the Unix epoch, signed.
        mtime: u64,
        /// Nanoseconds of the mtime.
        mtime_nsec: u32,
        /// Number of hard links.
        links: u32,
        /// Zeros.
        reserved: [u8; 16],
    }
}

/// The `format` field of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Whether it is an [`ExtendedInode`].
    pub extended: bool,
    /// The data layout of its contents.
    pub layout: DataLayout,
    /// In a [`CompactInode`] other than a directory's: it has one link, and the link count field
    /// holds bits of a block number. In a directory: it has no entry `.`.
    pub one_link: bool,
}

impl Format {
    /// Parses `format`; returns nothing if unknown bits are set.
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

    /// Encodes the `format` field.
    pub fn encode(self) -> u16 {
        u16::from(self.extended) | (self.layout as u16) << 1 | u16::from(self.one_link) << 4
    }
}

/// The data layout of an inode's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLayout {
    /// Contiguous blocks.
    FlatPlain = 0,
    /// Compressed, with an index of 8 bytes for each logical cluster, or extents.
    CompressedFull = 1,
    /// Contiguous blocks; the last, partial block follows the inode and its attributes.
    FlatInline = 2,
    /// Compressed, with an index of 2 or 4 bytes for each logical cluster.
    CompressedCompact = 3,
    /// Chunks at any location.
    Chunks = 4,
}

impl DataLayout {
    /// Returns the layout with this number.
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

/// Decodes major and minor number from Linux's 32-bit form (`new_decode_dev`).
pub fn decode_device(data: u32) -> (u32, u32) {
    (data >> 8 & 0xfff, data & 0xff | data >> 12 & 0xf_ff00)
}

/// Encodes a device number, the reverse of [`decode_device`]. Returns nothing if major exceeds 12
/// bits or minor 20.
pub fn encode_device(major: u32, minor: u32) -> Option<u32> {
    if major > 0xfff || minor > 0xf_ffff {
        return None;
    }
    Some(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}
