//! Compressed files.
//!
//! A file is divided into logical clusters (lclusters) of one block or more
//! ([`MapHeader::cluster_bits`]). A physical cluster (pcluster), one or more blocks, decodes to an
//! *extent*, which begins anywhere in a logical cluster, its head, and ends where the next extent
//! begins.
//!
//! After the inode and its attributes, aligned to 8 bytes, follows a [`MapHeader`]. After that
//! - [`super::DataLayout::CompressedFull`]: 8 bytes of zeros, then a [`LclusterIndex`] for each
//!   logical cluster; or, with [`Advise::EXTENTS`], prefixes of [`Extent`]s of
//!   [`Advise::extent_size`] bytes;
//! - [`super::DataLayout::CompressedCompact`]: packs ([`CompactPack`]). Packs of 8 bytes for 2
//!   clusters up to an offset aligned to 32; then, with [`Advise::COMPACT_2B`], as many packs of 32
//!   bytes for 16 clusters as fit; then packs of 8 bytes again.

use bitflags::bitflags;

use super::record::records;

/// Maximum size in bytes of a physical cluster.
pub const MAX_PCLUSTER: u32 = 1 << 20;

/// Maximum decoded size in bytes of a physical cluster.
pub const MAX_PCLUSTER_DECODED: u32 = 12 << 20;

/// A flag in [`MapHeader::cluster_bits`]: the whole file is in the packed inode, and the rest of
/// the header is the offset there.
pub const FRAGMENT_INODE: u8 = 0x80;

/// A flag in [`LclusterIndex::advise`]: the physical cluster decodes to more than this extent.
pub const PARTIAL_REF: u16 = 1 << 15;

/// A flag in the distance to the head, in the first logical cluster after a head: the remaining
/// bits are the number of blocks of the physical cluster.
pub const D0_CBLKCNT: u16 = 1 << 11;

/// A flag in [`Extent::encoded`]: the physical cluster decodes to more than this extent.
pub const EXTENT_PARTIAL: u32 = 1 << 27;

/// The bits of [`Extent::encoded`] with its size in bytes on disk. Above [`EXTENT_PARTIAL`] is the
/// [`Algorithm`] plus one, or 0 for none.
pub const EXTENT_LENGTH_MASK: u32 = (MAX_PCLUSTER << 1) - 1;

records! {
    /// The header of an index.
    pub struct MapHeader: 8 {
        /// With [`Advise::FRAGMENT`], the offset in the packed inode; with [`Advise::INLINE`], the
        /// size in bytes of the file's tail in the upper half; with [`Advise::EXTENTS`], bits 0 to
        /// 31 of the number of extents.
        place: u32,
        /// [`Advise`].
        advise: u16,
        /// The [`Algorithm`]s of both kinds of heads, 4 bits each.
        algorithms: u8,
        /// log2 of the number of blocks in a logical cluster, in 4 bits, and [`FRAGMENT_INODE`].
        cluster_bits: u8,
    }

    /// The index entry of a logical cluster.
    pub struct LclusterIndex: 8 {
        /// [`LclusterKind`] and [`PARTIAL_REF`].
        advise: u16,
        /// In a head: the offset in the cluster at which the extent begins.
        offset: u16,
        /// In a head: the block number. In others: in the lower half the distance back to the head,
        /// or [`D0_CBLKCNT`]; in the upper half the distance to the next head.
        data: u32,
    }

    /// An extent, stored as its first 4, 8, 16 or 32 bytes. An extent of 4 bytes decodes to one
    /// logical cluster, and follows the previous one on disk; the offset of the first is a u64
    /// before the first extent.
    pub struct Extent: 32 {
        /// [`EXTENT_LENGTH_MASK`], [`EXTENT_PARTIAL`] and the algorithm.
        encoded: u32,
        /// Its offset on disk in bytes.
        place: u32,
        /// Bits 32 to 63 of `place`.
        place_high: u32,
        /// Its offset in the file in bytes.
        offset: u32,
        /// Bits 32 to 63 of `offset`.
        offset_high: u32,
        /// Zeros.
        reserved: [u8; 12],
    }

    /// The LZ4 configuration. Configurations follow the superblock in the order of [`Algorithm`],
    /// each after a u16 with its size in bytes.
    pub struct Lz4Config: 14 {
        /// Maximum match distance in bytes; 0 means 65535.
        max_distance: u16,
        /// Maximum number of blocks in a physical cluster; 0 means one.
        max_cluster_blocks: u16,
        /// Zeros.
        reserved: [u8; 10],
    }

    /// The LZMA configuration.
    pub struct LzmaConfig: 14 {
        /// Maximum dictionary size in bytes.
        dictionary: u32,
        /// The format; 0 is MicroLZMA.
        format: u16,
        /// Zeros.
        reserved: [u8; 8],
    }

    /// The DEFLATE configuration.
    pub struct DeflateConfig: 6 {
        /// log2 of the window size, 8 to 15.
        window_bits: u8,
        /// Zeros.
        reserved: [u8; 5],
    }

    /// The Zstandard configuration.
    pub struct ZstdConfig: 6 {
        /// The format; 0 is Zstandard frames.
        format: u8,
        /// log2 of the window size, minus 10.
        window_log: u8,
        /// Zeros.
        reserved: [u8; 4],
    }
}

bitflags! {
    /// The flags of a [`MapHeader`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Advise: u16 {
        /// In a compact index: there are packs of 2 bytes per cluster.
        const COMPACT_2B = 0x01;
        /// In a full index: a list of extents instead (the same bit).
        const EXTENTS = 0x01;
        /// Physical clusters of the first algorithm may have more than a block.
        const BIG_1 = 0x02;
        /// The same for the second algorithm and for uncompressed clusters.
        const BIG_2 = 0x04;
        /// The compressed tail of the file follows the index.
        const INLINE = 0x08;
        /// Uncompressed data are rotated, so that data keep their offset within a block on disk.
        const INTERLACED = 0x10;
        /// The file's last extent is in the packed inode.
        const FRAGMENT = 0x20;
    }
}

impl Advise {
    /// Returns the size in bytes of an extent, with [`Advise::EXTENTS`]: 4, 8, 16 or 32.
    pub fn extent_size(self) -> usize {
        4 << (self.bits() >> 1 & 3)
    }
}

/// The number of extents of a [`MapHeader`] with [`Advise::EXTENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentCount(pub u64);

impl ExtentCount {
    /// Returns the count from `header`: `place`, and the two bytes after `advise`.
    pub fn of(header: &MapHeader) -> ExtentCount {
        let high = u16::from_le_bytes([header.algorithms, header.cluster_bits]);
        ExtentCount(u64::from(header.place) | u64::from(high) << 32)
    }
}

/// The kind of a logical cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LclusterKind {
    /// The head of an uncompressed extent.
    Plain = 0,
    /// The head of an extent compressed with the first algorithm.
    Head1 = 1,
    /// No extent begins in it.
    Nonhead = 2,
    /// The head of an extent compressed with the second algorithm.
    Head2 = 3,
}

impl LclusterKind {
    /// Returns the kind in the lowest two bits.
    pub fn from_number(number: u16) -> LclusterKind {
        match number & 3 {
            0 => LclusterKind::Plain,
            1 => LclusterKind::Head1,
            2 => LclusterKind::Nonhead,
            _ => LclusterKind::Head2,
        }
    }
}

/// A compression algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Algorithm {
    Lz4 = 0,
    Lzma = 1,
    Deflate = 2,
    Zstd = 3,
}

impl Algorithm {
    /// Returns the algorithm with this number.
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

/// A group of logical clusters in a compact index: their kinds and numbers, then
/// [`CompactPack::block`] in the last 4 bytes.
///
/// A number is a head's offset, or the distance back to the head, or [`D0_CBLKCNT`] with a
/// number of blocks; in the last cluster, if it is not a head, it is the distance to the next head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactPack {
    bytes: [u8; 32],
    /// Size in bytes: 8 or 32.
    size: usize,
    /// Bits in a number.
    number_bits: u32,
}

impl CompactPack {
    /// Returns an empty pack of `size` bytes, 8 (2 clusters) or 32 (16), for logical clusters of
    /// `cluster_bits` (log2 of bytes).
    pub fn new(size: usize, cluster_bits: u32) -> CompactPack {
        assert!([8, 32].contains(&size), "there are packs of 8 and 32 bytes");
        CompactPack {
            bytes: [0; 32],
            size,
            number_bits: cluster_bits.max(D0_CBLKCNT.ilog2() + 1),
        }
    }

    /// Parses `bytes`; returns nothing if their number is not 8 or 32, or the clusters are too
    /// large for the pack.
    pub fn parse(bytes: &[u8], cluster_bits: u32) -> Option<CompactPack> {
        if ![8, 32].contains(&bytes.len()) {
            return None;
        }
        let mut pack = CompactPack::new(bytes.len(), cluster_bits);
        pack.bytes[..bytes.len()].copy_from_slice(bytes);
        (pack.number_bits + 2 <= pack.entry_bits()).then_some(pack)
    }

    /// Returns the on-disk form.
    pub fn encode(&self) -> &[u8] {
        &self.bytes[..self.size]
    }

    /// Returns the number of logical clusters.
    pub fn clusters(&self) -> usize {
        if self.size == 8 { 2 } else { 16 }
    }

    /// Returns the kind and number of a cluster, counted from 0.
    pub fn get(&self, cluster: usize) -> (LclusterKind, u16) {
        assert!(cluster < self.clusters(), "{cluster} is not in the pack");
        let at = cluster as u32 * self.entry_bits();
        let value = self.word(at) >> (at % 8);
        let number = value & ((1 << self.number_bits) - 1);
        let kind = LclusterKind::from_number((value >> self.number_bits) as u16);
        (kind, number as u16)
    }

    /// Sets the kind and number of a cluster whose bits are zeros.
    pub fn set(&mut self, cluster: usize, kind: LclusterKind, number: u16) {
        assert!(cluster < self.clusters(), "{cluster} is not in the pack");
        let at = cluster as u32 * self.entry_bits();
        let value = u32::from(number) | (kind as u32) << self.number_bits;
        let word = self.word(at) | value << (at % 8);
        let first = (at / 8) as usize;
        self.bytes[first..first + 4].copy_from_slice(&word.to_le_bytes());
    }

    /// Returns the base of the block numbers of extents that begin in this pack: without
    /// [`Advise::BIG_1`] the block before the first, with it the first.
    pub fn block(&self) -> u32 {
        self.word((self.size as u32 - 4) * 8)
    }

    /// Sets the base of block numbers.
    pub fn set_block(&mut self, block: u32) {
        self.bytes[self.size - 4..self.size].copy_from_slice(&block.to_le_bytes());
    }

    /// Returns the bits of a cluster's kind and number together, including unused ones.
    fn entry_bits(&self) -> u32 {
        ((self.size - 4) * 8 / self.clusters()) as u32
    }

    fn word(&self, bit: u32) -> u32 {
        let first = (bit / 8) as usize;
        let bytes = self.bytes[first..first + 4].try_into();
        u32::from_le_bytes(bytes.expect("4 bytes"))
    }
}
