//! A reader of untrusted images.
//!
//! An [`Image`] holds the superblock's values. Everything else is read on demand through a
//! [`Storage`], which may cache what was read and decoded; the reader caches only the special
//! inodes. It ignores [`crate::layout::XattrHeader::filter`].
//!
//! On any image, every call terminates, with memory bounded by a few times
//! [`crate::layout::MAX_PCLUSTER`] and [`crate::layout::MAX_PCLUSTER_DECODED`] plus the requested
//! length: extents have these maximum lengths, and special inodes cannot refer to each other in
//! cycles.

mod contents;
mod dir;
mod extents;
mod index;
mod inode;
mod mapping;
mod memory;
mod meta;
mod superblock;
mod xattr;

use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use crate::decode::decode;
use crate::layout::Algorithm;

pub use contents::{Contents, Location, Mapping};
pub use dir::{DirBlock, Entries, Entry};
pub use inode::Inode;
pub use memory::{MemoryStorage, OutOfBounds};
pub use superblock::Image;
pub use xattr::XattrVisitor;

/// Maximum offset in bytes, so that sums of offsets and lengths cannot overflow.
const MAX_OFFSET: u64 = 1 << 62;

/// Access to an image's devices and decoded clusters.
pub trait Storage {
    /// The error of a failed read.
    type Error;

    /// Decoded bytes, possibly shared with a cache.
    type Decoded: Deref<Target = [u8]>;

    /// Returns the number of devices: 1 for an image without extra devices, or with them in the
    /// same file.
    fn devices(&self) -> u16;

    /// Fills `into` from offset `at` of a device. Returns an error if the range ends beyond the
    /// end.
    fn read_at(&self, device: u16, at: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Returns the decoded bytes of `cluster` of `image`: [`Cluster::decode`], or a cached result.
    fn decoded(
        &self,
        image: &Image,
        cluster: &Cluster,
    ) -> Result<Self::Decoded, Error<Self::Error>>;
}

/// The reason why an image cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The storage failed.
    Storage(E),
    /// The image is invalid: a description of the invalid part.
    Corrupt(&'static str),
    /// The image uses an unsupported feature.
    Unsupported(&'static str),
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Storage(error) => error.fmt(f),
            Error::Corrupt(what) => write!(f, "corrupt image: {what}"),
            Error::Unsupported(what) => write!(f, "not supported: {what}"),
        }
    }
}

/// A compressed cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    /// The device it is on; `None` if it is in the metabox.
    pub device: Option<u16>,
    /// Its offset in bytes.
    pub offset: u64,
    /// Its size in bytes, up to [`crate::layout::MAX_PCLUSTER`].
    pub encoded: u32,
    /// The number of bytes to decode, up to [`crate::layout::MAX_PCLUSTER_DECODED`]; the rest is
    /// ignored.
    pub decoded: u32,
    /// The compression algorithm.
    pub algorithm: Algorithm,
}

impl Cluster {
    /// Reads and decodes the cluster.
    pub fn decode<S: Storage>(
        &self,
        image: &Image,
        storage: &S,
    ) -> Result<Vec<u8>, Error<S::Error>> {
        let mut encoded = alloc::vec![0; self.encoded as usize];
        match self.device {
            Some(device) => storage
                .read_at(device, self.offset, &mut encoded)
                .map_err(Error::Storage)?,
            None => image.metadata(storage, true, self.offset, &mut encoded)?,
        }
        decode(self.algorithm, &encoded, self.decoded as usize)
    }
}
