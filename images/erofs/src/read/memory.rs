//! Images in memory.

use alloc::vec::Vec;
use core::fmt;

use super::{Cluster, Error, Image, Storage};

/// An image on one device, in memory. Without a cache.
#[derive(Clone, Copy, Debug)]
pub struct MemoryStorage<'a>(pub &'a [u8]);

/// The error of a read beyond the end of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds;

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("beyond the end of the image")
    }
}

impl Storage for MemoryStorage<'_> {
    type Error = OutOfBounds;
    type Decoded = Vec<u8>;

    fn devices(&self) -> u16 {
        1
    }

    fn read_at(&self, _device: u16, at: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let bytes = usize::try_from(at)
            .ok()
            .and_then(|at| self.0.get(at..)?.get(..into.len()));
        into.copy_from_slice(bytes.ok_or(OutOfBounds)?);
        Ok(())
    }

    fn decoded(&self, image: &Image, cluster: &Cluster) -> Result<Vec<u8>, Error<OutOfBounds>> {
        cluster.decode(image, self)
    }
}
