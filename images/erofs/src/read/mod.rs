//! A reader that trusts no image.
//!
//! An [`Image`] is what the superblock says. Everything else is read when it is asked for, through a [`Storage`], which may keep what was
//! read and decoded; the reader keeps nothing but its few special inodes. It does not look at [`crate::layout::XattrHeader::filter`].
//!
//! Whatever an image says, a call ends, and takes no more memory than [`crate::layout::MAX_PCLUSTER`] and [`crate::layout::MAX_PCLUSTER_DECODED`] a few times, and as
//! much as it is asked for: an extent is at most that long, and special inodes do not lead to each other in circles.

mod contents;
mod dir;
mod extents;
#[cfg(feature = "std")]
mod file;
mod index;
mod inode;
mod memory;
mod meta;
mod superblock;
mod xattr;

use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use crate::decode::decode;
use crate::layout::Algorithm;

pub use contents::{Contents, Run, What};
pub use dir::{Block, Entries, Entry};
#[cfg(feature = "std")]
pub use file::InFile;
pub use inode::Inode;
pub use memory::{BeyondEnd, InMemory};
pub use superblock::Image;
pub use xattr::Each;

/// Where an image is: its devices, and what was decoded off them.
pub trait Storage {
    /// Why nothing could be read.
    type Error;

    /// Decoded bytes, perhaps shared with a cache.
    type Decoded: Deref<Target = [u8]>;

    /// How many devices there are: 1 for an image without others, or with others that are in the same file.
    fn devices(&self) -> u16;

    /// Fills `into` with what is `at` bytes into a device. Beyond its end is an error.
    fn read_at(&self, device: u16, at: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// What `cluster` of `image` decodes to: [`Cluster::decode`], or what that was before.
    fn decoded(
        &self,
        image: &Image,
        cluster: &Cluster,
    ) -> Result<Self::Decoded, Error<Self::Error>>;
}

/// Why an image cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// Its storage said so.
    Storage(E),
    /// It says what cannot be: expected, and where.
    Corrupt(&'static str),
    /// It has what is not known here.
    Unsupported(&'static str),
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Storage(error) => error.fmt(f),
            Error::Corrupt(what) => write!(f, "corrupt image: {what}"),
            Error::Unsupported(what) => write!(f, "unknown to barge: {what}"),
        }
    }
}

/// Encoded bytes, and what they decode to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cluster {
    /// The device that they are on; `None` for the contents of the metabox.
    pub device: Option<u16>,
    /// Where, in bytes.
    pub place: u64,
    /// Their number, up to [`crate::layout::MAX_PCLUSTER`].
    pub encoded: u32,
    /// How many bytes they decode to at least, up to [`crate::layout::MAX_PCLUSTER_DECODED`]: the rest does not count.
    pub decoded: u32,
    /// How.
    pub algorithm: Algorithm,
}

impl Cluster {
    /// Reads and decodes it.
    pub fn decode<S: Storage>(
        &self,
        image: &Image,
        storage: &S,
    ) -> Result<Vec<u8>, Error<S::Error>> {
        let mut encoded = alloc::vec![0; self.encoded as usize];
        match self.device {
            Some(device) => storage
                .read_at(device, self.place, &mut encoded)
                .map_err(Error::Storage)?,
            None => image.metadata(storage, true, self.place, &mut encoded)?,
        }
        decode(self.algorithm, &encoded, self.decoded as usize)
    }
}
