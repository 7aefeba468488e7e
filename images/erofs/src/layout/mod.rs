//! The structures on disk, and what their numbers mean: the only place that says so.
//!
//! Each structure is told once, by `records!`, which makes a parser and an encoder of it. Fields are as they lie on
//! disk; a field of several meanings has a method for each. Everything is little-endian and packed. Nothing is checked here
//! beyond lengths: what a field may say is the reader's business.
//!
//! Source: Linux's `fs/erofs/erofs_fs.h`, and `Documentation/filesystems/erofs.rst`.

mod chunk;
mod compressed;
mod dirent;
mod inode;
mod record;
mod superblock;
mod xattr;

#[cfg(test)]
mod tests;

pub use chunk::{BLOCK_MAP_ENTRY, ChunkFormat, ChunkIndex, NULL_BLOCK, NULL_BLOCK_48};
pub use compressed::{
    Advise, Algorithm, CLUSTER_BLOCKS, CompactPack, DeflateConfig, EXTENT_LENGTH_MASK,
    EXTENT_PARTIAL, Extent, ExtentCount, LclusterIndex, LclusterKind, Lz4Config, LzmaConfig,
    MAX_PCLUSTER, MAX_PCLUSTER_DECODED, MapHeader, PARTIAL_REF, WHOLE_IN_PACKED, ZstdConfig,
};
pub use dirent::{Dirent, FileType, METABOX_NID};
pub use inode::{
    CompactInode, DataLayout, ExtendedInode, Format, INODE_SLOT, decode_device, encode_device,
};
pub use superblock::{
    Compat, DeviceSlot, Incompat, MAGIC, MetaboxSlot, SUPERBLOCK_OFFSET, Superblock, checksum,
};
pub use xattr::{
    LONG_PREFIX, XattrEntry, XattrHeader, prefix_name, xattr_body_size, xattr_count_for,
};
