//! The on-disk structures and constants, each defined only here.
//!
//! Each structure is declared once with `records!`, which generates its parser and encoder. Fields
//! have their on-disk form; a field with several meanings has a method for each. Everything is
//! little-endian and packed. Only lengths are checked here: the reader validates field values.
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
    Advise, Algorithm, CompactPack, D0_CBLKCNT, DeflateConfig, EXTENT_LENGTH_MASK, EXTENT_PARTIAL,
    Extent, ExtentCount, FRAGMENT_INODE, LclusterIndex, LclusterKind, Lz4Config, LzmaConfig,
    MAX_PCLUSTER, MAX_PCLUSTER_DECODED, MapHeader, PARTIAL_REF, ZstdConfig,
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
