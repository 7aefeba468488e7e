//! Images for the kernel's EROFS.

use std::io;
use std::sync::Arc;

use image::{DiskCacheOptions, FileRanges, LazyImage};

use super::{Image, open_error, trust};

impl Image {
    /// Opens the image for the kernel's EROFS, with its local file in `cache`, or returns nothing
    /// if it cannot be mounted so. The path must not lead into the image.
    pub(crate) fn open_lazy(&self, cache: &DiskCacheOptions) -> io::Result<Option<LazyImage>> {
        let (file, devices) = self.file()?;
        if !devices.is_empty() {
            return Ok(None);
        }
        let source = Arc::new(FileRanges::open(file)?);
        LazyImage::open(
            source,
            &self.to_string(),
            None,
            &trust(&self.keys, None)?,
            cache,
        )
        .map_err(open_error)
    }
}
