//! Finished images in files, for checks and tests.

use std::fs::File;
use std::io;

use erofs::read::{Cluster, Error, Image, Storage};
use sys::positioned::FileExt;

/// An image on one device, in a file. Without a cache. May be used by several threads at once.
#[derive(Debug)]
pub struct FileStorage(pub File);

impl Storage for FileStorage {
    type Error = io::Error;
    type Decoded = Vec<u8>;

    fn devices(&self) -> u16 {
        1
    }

    fn read_at(&self, _device: u16, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, at)
    }

    fn decoded(&self, image: &Image, cluster: &Cluster) -> Result<Vec<u8>, Error<io::Error>> {
        cluster.decode(image, self)
    }
}
