//! A source: read-only file-system images in EROFS or ROFS format.
//!
//! The image's bytes come from a [`RangeSource`], for example a file or memory. Small reads
//! (metadata, tails of files) and decoded clusters go through a bounded cache. Uncompressed file
//! contents go from the image file directly to the transport, bypassing the cache, since the
//! kernel's page cache already holds them. An image with hashes (`sidecar`) is always read through
//! the cache, and every byte is verified before it enters. Images are untrusted input: a malicious
//! image can show wrong contents, but no call panics or loops, and memory use is bounded by the
//! cache limit and a few clusters per call.
//!
//! Nodes are created on lookup; the inode number identifies a node completely. An image must not
//! change while it is open.
//!
//! A format implements the `format` module's trait; file-system behaviour above it is the same for
//! all formats.
//!
//! On other systems than Linux there is no disk cache, and no lazy image.
//!
//! Deliberately absent: writing (returns `EROFS`), and any knowledge of where images come from.
//!
//! Lock order: a cache's table is locked for lookups and updates, never while bytes are read or
//! decoded; a caller that waits for another's load holds only that load's lock. The table of known
//! nodes is locked for single lookups.

#![forbid(unsafe_code)]

mod cache;
#[cfg(target_os = "linux")]
mod disk_cache;
mod erofs;
mod file;
mod format;
mod fs;
#[cfg(target_os = "linux")]
mod lazy;
mod node;
mod preload;
#[cfg_attr(not(target_os = "linux"), path = "priority/elsewhere.rs")]
mod priority;
mod range;
mod readahead;
mod rofs;
mod storage;
mod trust;
mod verified;
mod xattr;

#[cfg(target_os = "linux")]
pub use disk_cache::{
    AllowedReads, CachedImage, CachedSource, DerivedImage, DiskCacheEntry, DiskCacheOptions,
    ImageIdentity, ImageUser, Verification,
};
pub use fs::{DEFAULT_CACHE, ImageFs, OpenError};
#[cfg(target_os = "linux")]
pub use lazy::{LazyImage, LazyName};
pub use range::{FileGuard, FileRanges, MemoryRanges, Piece, RangeSource};
pub use sidecar::{Hash, PublicKey};
pub use trust::{Trust, Untrusted};
