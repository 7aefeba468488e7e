//! The superblock, what an image asks of its reader, and the table of devices.

use bitflags::bitflags;
use crc::{Algorithm, CRC_32_ISCSI, Crc};

use super::record::records;

/// What a superblock begins with.
pub const MAGIC: u32 = 0xe0f5_e1e2;

/// Where the superblock is. What is before it no reader looks at.
pub const SUPERBLOCK_OFFSET: usize = 1024;

records! {
    /// The superblock. [`Superblock::slots`] of 16 bytes each follow it.
    pub struct Superblock: 128 {
        /// [`MAGIC`].
        magic: u32,
        /// [`checksum`] of the block that the superblock is in, with zeros here; counts with [`Compat::CHECKSUM`].
        checksum: u32,
        /// [`Compat`].
        compat: u32,
        /// Bytes of a block, as a power of two.
        block_bits: u8,
        /// How many slots of 16 bytes follow: with [`Incompat::METABOX`] a [`MetaboxSlot`].
        slots: u8,
        /// The number of the root directory; with [`Incompat::BIT48`] and a number in `root_wide`, bits 32 to 47 of
        /// `blocks` instead.
        root_or_blocks_high: u16,
        /// How many inodes there are.
        inodes: u64,
        /// Seconds since the Unix epoch, signed: the mtime of compact inodes, which count from here.
        epoch: u64,
        /// Nanoseconds of the mtime of compact inodes.
        epoch_nsec: u32,
        /// Blocks of the image.
        blocks: u32,
        /// The block that inodes' numbers count from, in steps of [`super::INODE_SLOT`].
        meta_block: u32,
        /// The block that the numbers of shared attributes count from, in steps of 4 bytes.
        xattr_block: u32,
        /// The image's own number.
        uuid: [u8; 16],
        /// Its name, ended by NUL if shorter.
        volume: [u8; 16],
        /// [`Incompat`].
        incompat: u32,
        /// With [`Incompat::CONFIGS`] a bit for each [`super::Algorithm`] used, whose configurations follow the superblock; else LZ4's
        /// furthest distance, 0 for 65535.
        algorithms_or_distance: u16,
        /// Devices besides the first.
        devices: u16,
        /// Where the table of devices is, in units of [`DeviceSlot::SIZE`] bytes from the start of the image.
        device_table: u16,
        /// log2 of the blocks of a directory block; 0 in every known image.
        directory_block_bits: u8,
        /// Long prefixes of names of attributes.
        prefixes: u8,
        /// Where the long prefixes are, in units of 4 bytes, in the metabox's inode, else in the packed inode with
        /// [`Incompat::FRAGMENTS`] (unless [`Compat::PLAIN_PREFIXES`]), else in the image.
        prefix_start: u32,
        /// The number of the inode that fragments are packed in.
        packed: u64,
        /// 0 unless filters of names of attributes are of a kind not known here.
        filter_reserved: u8,
        /// The long prefix of attributes that tell which files share contents.
        share_prefix: u8,
        /// Zeros.
        reserved: [u8; 2],
        /// Seconds that the image was made behind `epoch`.
        build_time: u32,
        /// The number of the root directory with [`Incompat::BIT48`].
        root_wide: u64,
        /// Zeros.
        reserved2: [u8; 8],
    }

    /// What follows the superblock with [`Incompat::METABOX`].
    pub struct MetaboxSlot: 16 {
        /// The number of the inode whose contents are other inodes.
        nid: u64,
        /// Zeros.
        reserved: [u8; 8],
    }

    /// A device besides the first.
    pub struct DeviceSlot: 128 {
        /// What tells it from others: a digest, a name.
        tag: [u8; 64],
        /// Its blocks.
        blocks: u32,
        /// Where it begins among the blocks of all devices put together, 0 for nowhere.
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
    /// What an image has that a reader need not know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// The superblock's checksum counts.
        const CHECKSUM = 0x1;
        /// Times are mtime, not ctime.
        const MTIME = 0x2;
        /// Headers of attributes have a filter of names.
        const XATTR_FILTER = 0x4;
        /// Shared attributes are in the metabox.
        const SHARED_IN_METABOX = 0x8;
        /// Long prefixes are in the image itself even if there is a packed inode.
        const PLAIN_PREFIXES = 0x10;
        /// An attribute tells which files share contents.
        const SHARE_XATTRS = 0x20;
    }

    /// What an image has that its reader has to know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Compressed data of LZ4 end at the end of their block, zeros are in front.
        const ZERO_PADDING = 0x1;
        /// Configurations of algorithms follow the superblock; also says that clusters may be of more than a block.
        const CONFIGS = 0x2;
        /// Files of chunks.
        const CHUNKS = 0x4;
        /// A table of devices; also says that a file may have two algorithms.
        const DEVICES = 0x8;
        /// Compressed data of a file's end may lie behind its index.
        const TAIL_PACKING = 0x10;
        /// Ends of files in a packed inode; also says that clusters may be shared in part.
        const FRAGMENTS = 0x20;
        /// Long prefixes of names of attributes.
        const XATTR_PREFIXES = 0x40;
        /// Block numbers of 48 bits, extents, directories without `.`.
        const BIT48 = 0x80;
        /// Inodes within an inode.
        const METABOX = 0x100;
    }
}

/// CRC-32C as EROFS has it: not inverted at the end.
const CRC32C: Algorithm<u32> = Algorithm {
    xorout: 0,
    ..CRC_32_ISCSI
};

/// The checksum of the block with the superblock: of `bytes` from [`SUPERBLOCK_OFFSET`] to the end of that block, with zeros
/// for the checksum itself. Where a block is not larger than [`SUPERBLOCK_OFFSET`], a whole block from there.
pub fn checksum(bytes: &[u8]) -> u32 {
    const TABLE: Crc<u32> = Crc::<u32>::new(&CRC32C);
    TABLE.checksum(bytes)
}
