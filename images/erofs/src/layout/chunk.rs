//! Chunk-based files.
//!
//! After the inode and its attributes, aligned to the size of an entry, follows for each chunk a
//! block number of 4 bytes ([`BLOCK_MAP_ENTRY`]) or a [`ChunkIndex`].

use super::record::records;

/// Size in bytes of an entry that is only a block number.
pub const BLOCK_MAP_ENTRY: usize = 4;

/// The block number of a hole, for 32-bit block numbers.
pub const NULL_BLOCK: u64 = 0xffff_ffff;

/// The block number of a hole, for 48-bit block numbers.
pub const NULL_BLOCK_48: u64 = 0xffff_ffff_ffff;

records! {
    /// The location of a chunk.
    pub struct ChunkIndex: 8 {
        /// Bits 32 to 47 of the block number, with [`ChunkFormat::bit48`].
        block_high: u16,
        /// The device: 0 is the primary one.
        device: u16,
        /// The block number on that device.
        block: u32,
    }
}

/// The `data` field of a chunk-based inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFormat {
    /// log2 of the number of blocks in a chunk, up to 31.
    pub block_bits: u8,
    /// Whether entries are [`ChunkIndex`]es.
    pub indexes: bool,
    /// Whether block numbers have 48 bits.
    pub bit48: bool,
}

impl ChunkFormat {
    /// Parses `data`; returns nothing if unknown bits are set.
    pub fn parse(data: u32) -> Option<ChunkFormat> {
        let format = data & 0xffff;
        (format & !0x7f == 0).then_some(ChunkFormat {
            block_bits: (format & 0x1f) as u8,
            indexes: format & 0x20 != 0,
            bit48: format & 0x40 != 0,
        })
    }

    /// Encodes the `data` field.
    pub fn encode(self) -> u32 {
        u32::from(self.block_bits & 0x1f)
            | u32::from(self.indexes) << 5
            | u32::from(self.bit48) << 6
    }
}
