//! The superblock, feature flags and the device table.

use bitflags::bitflags;
use crc::{Algorithm, CRC_32_ISCSI, Crc};

use super::record::records;

/// The magic number of a superblock.
pub const MAGIC: u32 = 0xe0f5_e1e2;

/// Offset in bytes of the superblock. Readers ignore all bytes before it.
pub const SUPERBLOCK_OFFSET: usize = 1024;

records! {
    /// The superblock, followed by [`Superblock::slots`] of 16 bytes each.
    pub struct Superblock: 128 {
        /// [`MAGIC`].
        magic: u32,
        /// [`checksum`] of the superblock's block, computed with zeros here; valid with
        /// [`Compat::CHECKSUM`].
        checksum: u32,
        /// [`Compat`].
        compat: u32,
        /// log2 of the block size in bytes.
        block_bits: u8,
        /// Number of 16-byte slots that follow: with [`Incompat::METABOX`], a [`MetaboxSlot`].
        slots: u8,
        /// Inode number of the root directory; bits 32 to 47 of `blocks` instead if
        /// [`Incompat::BIT48`] is set and `root_wide` is not 0.
        root_or_blocks_high: u16,
        /// Number of inodes.
        inodes: u64,
        /// Seconds since the Unix epoch, signed: the mtime of compact inodes, or the base of their
        /// own.
        epoch: u64,
        /// Nanoseconds of the mtime of compact inodes.
        epoch_nsec: u32,
        /// Number of blocks.
        blocks: u32,
        /// The block that inode numbers are relative to, in units of [`super::INODE_SLOT`].
        meta_block: u32,
        /// The block that shared attribute IDs are relative to, in units of 4 bytes.
        xattr_block: u32,
        /// The volume's UUID.
        uuid: [u8; 16],
        /// The volume name, terminated by NUL if shorter.
        volume: [u8; 16],
        /// [`Incompat`].
        incompat: u32,
        /// With [`Incompat::CONFIGS`], a bit for each [`super::Algorithm`] used, whose
        /// configurations follow the superblock; otherwise LZ4's maximum match distance, where 0
        /// means 65535.
        algorithms_or_distance: u16,
        /// Number of extra devices.
        devices: u16,
        /// Offset of the device table, in units of [`DeviceSlot::SIZE`] bytes from the start of the
        /// image.
        device_table: u16,
        /// log2 of the number of blocks in a directory block; 0 in every known image.
        directory_block_bits: u8,
        /// Number of long attribute name prefixes.
        prefixes: u8,
        /// Offset of the long prefixes, in units of 4 bytes: in the metabox inode, else in the
        /// packed inode with [`Incompat::FRAGMENTS`] (unless [`Compat::PLAIN_PREFIXES`]), else in
        /// the image.
        prefix_start: u32,
        /// Number of the packed inode, which holds fragments.
        packed: u64,
        /// 0 unless attribute name filters are of an unknown kind.
        filter_reserved: u8,
        /// The long prefix of attributes that identify files with shared contents.
        share_prefix: u8,
        /// Zeros.
        reserved: [u8; 2],
        /// Seconds from `epoch` to the creation of the image.
        build_time: u32,
        /// Inode number of the root directory with [`Incompat::BIT48`].
        root_wide: u64,
        /// Zeros.
        reserved2: [u8; 8],
    }

    /// The slot after the superblock with [`Incompat::METABOX`].
    pub struct MetaboxSlot: 16 {
        /// Number of the inode whose contents are other inodes.
        nid: u64,
        /// Zeros.
        reserved: [u8; 8],
    }

    /// An extra device.
    pub struct DeviceSlot: 128 {
        /// An identifier, for example a digest or name.
        tag: [u8; 64],
        /// Number of blocks.
        blocks: u32,
        /// Its first block in the unified address space of all devices; 0 if it is not mapped
        /// there.
        start: u32,
        /// Bits 32 to 47 of `blocks`, with [`Incompat::BIT48`].
        blocks_high: u16,
        /// Bits 32 to 47 of `start`, with [`Incompat::BIT48`].
        start_high: u16,
        /// Zeros.
        reserved: [u8; 52],
    }
}

bitflags! {
    /// Compatible features: a reader may ignore them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// The superblock's checksum is valid.
        const CHECKSUM = 0x1;
        /// Times are mtime, not ctime.
        const MTIME = 0x2;
        /// Attribute headers have a name filter.
        const XATTR_FILTER = 0x4;
        /// Shared attributes are in the metabox.
        const SHARED_IN_METABOX = 0x8;
        /// Long prefixes are in the image itself, even if there is a packed inode.
        const PLAIN_PREFIXES = 0x10;
        /// An attribute identifies files with shared contents.
        const SHARE_XATTRS = 0x20;
    }

    /// Incompatible features: a reader has to know them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// LZ4 data end at the end of their block, with zeros before them.
        const ZERO_PADDING = 0x1;
        /// Algorithm configurations follow the superblock; also allows clusters of more than a
        /// block.
        const CONFIGS = 0x2;
        /// Chunk-based files.
        const CHUNKS = 0x4;
        /// A device table; also allows two algorithms per file.
        const DEVICES = 0x8;
        /// A compressed file tail may follow the index.
        const TAIL_PACKING = 0x10;
        /// File tails in a packed inode; also allows partially shared clusters.
        const FRAGMENTS = 0x20;
        /// Long attribute name prefixes.
        const XATTR_PREFIXES = 0x40;
        /// 48-bit block numbers, extents, directories without `.`.
        const BIT48 = 0x80;
        /// Inodes within the metabox inode.
        const METABOX = 0x100;
    }
}

/// CRC-32C as in EROFS: not inverted at the end.
const CRC32C: Algorithm<u32> = Algorithm {
    xorout: 0,
    ..CRC_32_ISCSI
};

/// Returns the checksum of the superblock's block: `bytes` are those from [`SUPERBLOCK_OFFSET`] to
/// the end of that block, with zeros for the checksum itself. If blocks are not larger than
/// [`SUPERBLOCK_OFFSET`], they are a whole block.
pub fn checksum(bytes: &[u8]) -> u32 {
    const TABLE: Crc<u32> = Crc::<u32>::new(&CRC32C);
    TABLE.checksum(bytes)
}
