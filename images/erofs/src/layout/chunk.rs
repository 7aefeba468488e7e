//! Files of chunks.
//!
//! Behind the inode and its attributes, from a multiple of the entry's own size: for each chunk a block number of 4 bytes
//! ([`BLOCK_MAP_ENTRY`]) or a [`ChunkIndex`].

use super::record::records;

/// Bytes of an entry that is a block number alone.
pub const BLOCK_MAP_ENTRY: usize = 4;

/// The block number of a hole, where block numbers have 32 bits.
pub const NULL_BLOCK: u64 = 0xffff_ffff;

/// The block number of a hole, where block numbers have 48 bits.
pub const NULL_BLOCK_48: u64 = 0xffff_ffff_ffff;

records! {
    /// Where a chunk is.
    pub struct ChunkIndex: 8 {
        /// Bits 32 to 47 of the block number, with [`ChunkFormat::bit48`].
        block_high: u16,
        /// The device: 0 for the first.
        device: u16,
        /// The block number on that device.
        block: u32,
    }
}

/// What the field `data` says of an inode of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkFormat {
    /// log2 of the blocks of a chunk, up to 31.
    pub block_bits: u8,
    /// Whether entries are [`ChunkIndex`]es.
    pub indexes: bool,
    /// Whether block numbers have 48 bits.
    pub bit48: bool,
}

impl ChunkFormat {
    /// What `data` says; nothing if it says what is not known here.
    pub fn parse(data: u32) -> Option<ChunkFormat> {
        let format = data & 0xffff;
        (format & !0x7f == 0).then_some(ChunkFormat {
            block_bits: (format & 0x1f) as u8,
            indexes: format & 0x20 != 0,
            bit48: format & 0x40 != 0,
        })
    }

    /// As the field `data`.
    pub fn encode(self) -> u32 {
        u32::from(self.block_bits & 0x1f)
            | u32::from(self.indexes) << 5
            | u32::from(self.bit48) << 6
    }
}
