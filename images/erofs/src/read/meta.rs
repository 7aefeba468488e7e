//! Block-wise reads of metadata.

use alloc::vec::Vec;

use super::{Error, Image, Storage};

/// A reader of small pieces that are close together, with a buffer of the last blocks.
pub(super) struct MetadataReader<'a, S> {
    pub(super) image: &'a Image,
    storage: &'a S,
    pub(super) metabox: bool,
    start: u64,
    buffer: Vec<u8>,
}

impl<'a, S: Storage> MetadataReader<'a, S> {
    /// Reads metadata of the primary device, or of the metabox.
    pub(super) fn new(image: &'a Image, storage: &'a S, metabox: bool) -> MetadataReader<'a, S> {
        MetadataReader {
            image,
            storage,
            metabox,
            start: 0,
            buffer: Vec::new(),
        }
    }

    /// Returns the `len` bytes (few) from `at`.
    pub(super) fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8], Error<S::Error>> {
        let block = self.image.block_size();
        let end = at
            .checked_add(len as u64)
            .and_then(|end| end.checked_next_multiple_of(block))
            .ok_or(Error::Corrupt("metadata beyond the address space"))?;
        if at < self.start || end > self.start + self.buffer.len() as u64 {
            let start = at / block * block;
            self.buffer.clear();
            self.buffer.resize((end - start) as usize, 0);
            self.start = start;
            let read = self
                .image
                .metadata(self.storage, self.metabox, start, &mut self.buffer);
            if read.is_err() {
                self.buffer.clear();
            }
            read?;
        }
        let first = (at - self.start) as usize;
        Ok(&self.buffer[first..first + len])
    }
}
