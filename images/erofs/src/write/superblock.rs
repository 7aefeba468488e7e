//! The first block of an image.

use alloc::vec;
use alloc::vec::Vec;

use super::BLOCK;
use crate::layout::{
    Algorithm, Compat, Incompat, Lz4Config, MAGIC, SUPERBLOCK_OFFSET, Superblock, ZstdConfig,
    checksum,
};

/// The values of a superblock.
pub(super) struct SuperblockValues {
    pub(super) root: u16,
    pub(super) inodes: u64,
    pub(super) epoch: (i64, u32),
    pub(super) blocks: u32,
    pub(super) meta_block: u32,
    pub(super) xattr_block: u32,
    pub(super) chunks: bool,
    pub(super) compression: Option<(Algorithm, u16)>,
    /// The number of the packed inode.
    pub(super) packed: Option<u64>,
}

/// Encodes the first block: zeros up to the superblock, which Linux ignores, then the superblock
/// and the compression configuration.
pub(super) fn first_block(values: &SuperblockValues) -> Vec<u8> {
    let mut incompat = Incompat::empty();
    incompat.set(Incompat::CHUNKS, values.chunks);
    incompat.set(Incompat::FRAGMENTS, values.packed.is_some());
    let mut algorithms = 0;
    let mut config = Vec::new();
    if let Some((algorithm, cluster_blocks)) = values.compression {
        incompat |= Incompat::ZERO_PADDING | Incompat::CONFIGS;
        algorithms = 1 << algorithm as u16;
        config = self::config(algorithm, cluster_blocks);
    }
    let mut superblock = Superblock {
        magic: MAGIC,
        checksum: 0,
        compat: (Compat::CHECKSUM | Compat::MTIME).bits(),
        block_bits: BLOCK.ilog2() as u8,
        slots: 0,
        root_or_blocks_high: values.root,
        inodes: values.inodes,
        epoch: values.epoch.0 as u64,
        epoch_nsec: values.epoch.1,
        blocks: values.blocks,
        meta_block: values.meta_block,
        xattr_block: values.xattr_block,
        uuid: [0; 16],
        volume: [0; 16],
        incompat: incompat.bits(),
        algorithms_or_distance: algorithms,
        devices: 0,
        device_table: 0,
        directory_block_bits: 0,
        prefixes: 0,
        prefix_start: 0,
        packed: values.packed.unwrap_or_default(),
        filter_reserved: 0,
        share_prefix: 0,
        reserved: [0; 2],
        build_time: 0,
        root_wide: 0,
        reserved2: [0; 8],
    };
    let mut block = vec![0; BLOCK as usize];
    let put = |block: &mut [u8], at: usize, bytes: &[u8]| {
        block[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(&mut block, SUPERBLOCK_OFFSET, &superblock.encode());
    put(&mut block, SUPERBLOCK_OFFSET + Superblock::SIZE, &config);
    superblock.checksum = checksum(&block[SUPERBLOCK_OFFSET..]);
    put(&mut block, SUPERBLOCK_OFFSET, &superblock.encode());
    block
}

/// Encodes the compression configuration, after its length.
fn config(algorithm: Algorithm, cluster_blocks: u16) -> Vec<u8> {
    let config = match algorithm {
        Algorithm::Lz4 => Lz4Config {
            max_distance: u16::MAX,
            max_cluster_blocks: cluster_blocks,
            reserved: [0; 10],
        }
        .encode()
        .to_vec(),
        Algorithm::Zstd => ZstdConfig {
            format: 0,
            // A window of 1 MiB, the maximum that Linux allocates.
            window_log: 10,
            reserved: [0; 4],
        }
        .encode()
        .to_vec(),
        Algorithm::Lzma | Algorithm::Deflate => unreachable!("nothing here compresses so"),
    };
    let mut bytes = (config.len() as u16).to_le_bytes().to_vec();
    bytes.extend(config);
    bytes
}
