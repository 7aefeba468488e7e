//! Compressed files.
//!
//! A file is cut into logical clusters of a block (or more: [`MapHeader::cluster_bits`]). A physical cluster, one or more blocks, decodes to an
//! *extent*, which begins anywhere in a logical cluster, its head, and lasts until the next extent begins.
//!
//! Behind the inode and its attributes, from a multiple of 8 bytes, is a [`MapHeader`]. Behind it
//! - [`super::DataLayout::CompressedFull`]: 8 bytes of zeros, then a [`LclusterIndex`] for each logical cluster; or, with
//!   [`Advise::EXTENTS`], beginnings of [`Extent`]s of [`Advise::extent_size`];
//! - [`super::DataLayout::CompressedCompact`]: packs ([`CompactPack`]). Of 8 bytes for 2 clusters until the place is a multiple of 32; then, with
//!   [`Advise::COMPACT_2B`], as many as there can be of 32 bytes for 16 clusters; the rest of 8 bytes again.

use bitflags::bitflags;

use super::record::records;

/// Bytes that a physical cluster may have.
pub const MAX_PCLUSTER: u32 = 1 << 20;

/// Bytes that a physical cluster may decode to.
pub const MAX_PCLUSTER_DECODED: u32 = 12 << 20;

/// [`MapHeader::cluster_bits`]: the whole file is in the packed inode, and all of the header is the offset there.
pub const WHOLE_IN_PACKED: u8 = 0x80;

/// [`LclusterIndex::advise`]: the physical cluster decodes to more than is of this extent.
pub const PARTIAL_REF: u16 = 1 << 15;

/// This bit of the distance to the head says that the rest is the blocks of the physical cluster: in the first logical cluster
/// behind a head.
pub const CLUSTER_BLOCKS: u16 = 1 << 11;

/// [`Extent::encoded`]: the physical cluster decodes to more than is of this extent.
pub const EXTENT_PARTIAL: u32 = 1 << 27;

/// [`Extent::encoded`]: its bytes on disk. Above [`EXTENT_PARTIAL`] is the [`Algorithm`] plus one, 0 for none.
pub const EXTENT_LENGTH_MASK: u32 = (MAX_PCLUSTER << 1) - 1;

records! {
    /// What an index begins with.
    pub struct MapHeader: 8 {
        /// With [`Advise::FRAGMENT`] the offset in the packed inode; with [`Advise::INLINE`] the bytes of the file's end in its upper half;
        /// with [`Advise::EXTENTS`] bits 0 to 31 of the number of extents.
        place: u32,
        /// [`Advise`].
        advise: u16,
        /// The [`Algorithm`]s of heads of both kinds, 4 bits each.
        algorithms: u8,
        /// log2 of the blocks of a logical cluster, in 4 bits, and [`WHOLE_IN_PACKED`].
        cluster_bits: u8,
    }

    /// A logical cluster.
    pub struct LclusterIndex: 8 {
        /// [`LclusterKind`] and [`PARTIAL_REF`].
        advise: u16,
        /// Of a head: where in it the extent begins.
        offset: u16,
        /// Of a head: the block. Of others: in the lower half the distance back to the head, or [`CLUSTER_BLOCKS`]; in the upper
        /// half the distance to the next head.
        data: u32,
    }

    /// An extent, of which a file has the first 4, 8, 16 or 32 bytes each. Of those of 4 bytes each decodes to a logical cluster, and lies behind the one
    /// before; the first's place is a u64 before the first extent.
    pub struct Extent: 32 {
        /// [`EXTENT_LENGTH_MASK`], [`EXTENT_PARTIAL`] and the algorithm.
        encoded: u32,
        /// Where it is on disk, in bytes.
        place: u32,
        /// Bits 32 to 63 of that.
        place_high: u32,
        /// Where it is in the file, in bytes.
        offset: u32,
        /// Bits 32 to 63 of that.
        offset_high: u32,
        /// Zeros.
        reserved: [u8; 12],
    }

    /// How LZ4 was used. Configurations are behind the superblock, in the order of [`Algorithm`], each behind a u16 of its bytes.
    pub struct Lz4Config: 14 {
        /// Bytes that a match reaches back, 0 for 65535.
        max_distance: u16,
        /// Blocks of the largest physical cluster, 0 for one.
        max_cluster_blocks: u16,
        /// Zeros.
        reserved: [u8; 10],
    }

    /// How LZMA was used.
    pub struct LzmaConfig: 14 {
        /// Bytes of the largest dictionary.
        dictionary: u32,
        /// 0: MicroLZMA.
        format: u16,
        /// Zeros.
        reserved: [u8; 8],
    }

    /// How DEFLATE was used.
    pub struct DeflateConfig: 6 {
        /// log2 of the window, 8 to 15.
        window_bits: u8,
        /// Zeros.
        reserved: [u8; 5],
    }

    /// How Zstandard was used.
    pub struct ZstdConfig: 6 {
        /// 0: frames.
        format: u8,
        /// log2 of the window, less 10.
        window_log: u8,
        /// Zeros.
        reserved: [u8; 4],
    }
}

bitflags! {
    /// What a [`MapHeader`] says of a file's index.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Advise: u16 {
        /// Of a compact index: there are packs of 2 bytes a cluster.
        const COMPACT_2B = 0x01;
        /// Of a full index: extents instead (the same bit).
        const EXTENTS = 0x01;
        /// Physical clusters of more than a block, of the first algorithm.
        const BIG_1 = 0x02;
        /// The same of the second, and of those that are not compressed.
        const BIG_2 = 0x04;
        /// The file's end is compressed behind the index.
        const INLINE = 0x08;
        /// Data that are not compressed are rotated: what is at an offset of a block in the file is there on disk.
        const INTERLACED = 0x10;
        /// The file's last extent is in the packed inode.
        const FRAGMENT = 0x20;
    }
}

impl Advise {
    /// Bytes of an extent, with [`Advise::EXTENTS`]: 4, 8, 16 or 32.
    pub fn extent_size(self) -> usize {
        4 << (self.bits() >> 1 & 3)
    }
}

/// The number of extents of a [`MapHeader`] with [`Advise::EXTENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentCount(pub u64);

impl ExtentCount {
    /// Off `header`: `place`, and the two bytes behind `advise`.
    pub fn of(header: &MapHeader) -> ExtentCount {
        let high = u16::from_le_bytes([header.algorithms, header.cluster_bits]);
        ExtentCount(u64::from(header.place) | u64::from(high) << 32)
    }
}

/// What a logical cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LclusterKind {
    /// The head of an extent that is not compressed.
    Plain = 0,
    /// The head of an extent by the first algorithm.
    Head1 = 1,
    /// No extent begins in it.
    Nonhead = 2,
    /// The head of an extent by the second algorithm.
    Head2 = 3,
}

impl LclusterKind {
    /// The kind in the lowest two bits.
    pub fn from_number(number: u16) -> LclusterKind {
        match number & 3 {
            0 => LclusterKind::Plain,
            1 => LclusterKind::Head1,
            2 => LclusterKind::Nonhead,
            _ => LclusterKind::Head2,
        }
    }
}

/// What compressed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Algorithm {
    Lz4 = 0,
    Lzma = 1,
    Deflate = 2,
    Zstd = 3,
}

impl Algorithm {
    /// The algorithm of this number.
    pub fn from_number(number: u8) -> Option<Algorithm> {
        Some(match number {
            0 => Algorithm::Lz4,
            1 => Algorithm::Lzma,
            2 => Algorithm::Deflate,
            3 => Algorithm::Zstd,
            _ => return None,
        })
    }
}

/// Some logical clusters of a compact index: their kinds and numbers, then in the last 4 bytes [`CompactPack::block`].
///
/// A number is a head's offset, or the distance back to the head, or [`CLUSTER_BLOCKS`] with blocks; of the last cluster, if that is no head, it is
/// the distance to the next head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactPack {
    bytes: [u8; 32],
    /// Bytes of the pack: 8 or 32.
    size: usize,
    /// Bits of a number.
    number_bits: u32,
}

impl CompactPack {
    /// Zeros for `size` bytes, 8 (2 clusters) or 32 (16), for logical clusters of `cluster_bits` (log2 of bytes).
    pub fn new(size: usize, cluster_bits: u32) -> CompactPack {
        assert!([8, 32].contains(&size), "there are packs of 8 and 32 bytes");
        CompactPack {
            bytes: [0; 32],
            size,
            number_bits: cluster_bits.max(CLUSTER_BLOCKS.ilog2() + 1),
        }
    }

    /// Reads it off `bytes`, which are 8 or 32; nothing for other lengths, and for clusters too large for it.
    pub fn parse(bytes: &[u8], cluster_bits: u32) -> Option<CompactPack> {
        if ![8, 32].contains(&bytes.len()) {
            return None;
        }
        let mut pack = CompactPack::new(bytes.len(), cluster_bits);
        pack.bytes[..bytes.len()].copy_from_slice(bytes);
        (pack.number_bits + 2 <= pack.entry_bits()).then_some(pack)
    }

    /// As it lies on disk.
    pub fn encode(&self) -> &[u8] {
        &self.bytes[..self.size]
    }

    /// How many logical clusters it has.
    pub fn clusters(&self) -> usize {
        if self.size == 8 { 2 } else { 16 }
    }

    /// Kind and number of a cluster, from 0.
    pub fn get(&self, cluster: usize) -> (LclusterKind, u16) {
        assert!(cluster < self.clusters(), "{cluster} is not in the pack");
        let at = cluster as u32 * self.entry_bits();
        let value = self.word(at) >> (at % 8);
        let number = value & ((1 << self.number_bits) - 1);
        let kind = LclusterKind::from_number((value >> self.number_bits) as u16);
        (kind, number as u16)
    }

    /// Sets kind and number of a cluster whose bits are zeros.
    pub fn set(&mut self, cluster: usize, kind: LclusterKind, number: u16) {
        assert!(cluster < self.clusters(), "{cluster} is not in the pack");
        let at = cluster as u32 * self.entry_bits();
        let value = u32::from(number) | (kind as u32) << self.number_bits;
        let word = self.word(at) | value << (at % 8);
        let first = (at / 8) as usize;
        self.bytes[first..first + 4].copy_from_slice(&word.to_le_bytes());
    }

    /// Where the blocks of what begins here are counted from: without [`Advise::BIG_1`] the block before the first, with it the first.
    pub fn block(&self) -> u32 {
        self.word((self.size as u32 - 4) * 8)
    }

    /// Sets it, behind all clusters.
    pub fn set_block(&mut self, block: u32) {
        self.bytes[self.size - 4..self.size].copy_from_slice(&block.to_le_bytes());
    }

    /// Bits of kind and number together, with what is not used.
    fn entry_bits(&self) -> u32 {
        ((self.size - 4) * 8 / self.clusters()) as u32
    }

    fn word(&self, bit: u32) -> u32 {
        let first = (bit / 8) as usize;
        let bytes = self.bytes[first..first + 4].try_into();
        u32::from_le_bytes(bytes.expect("4 bytes"))
    }
}
