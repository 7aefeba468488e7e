//! Block-wise reads of metadata.

use alloc::vec::Vec;

use super::{Error, Image, Storage};

/// A reader of small pieces that are close together, with a buffer of the last blocks.
pub(super) struct Meta<'a, S> {
    pub(super) image: &'a Image,
    storage: &'a S,
    pub(super) metabox: bool,
    at: u64,
    window: Vec<u8>,
}

impl<'a, S: Storage> Meta<'a, S> {
    /// Reads metadata of the primary device, or of the metabox.
    pub(super) fn new(image: &'a Image, storage: &'a S, metabox: bool) -> Meta<'a, S> {
        Meta {
            image,
            storage,
            metabox,
            at: 0,
            window: Vec::new(),
        }
    }

    /// Returns the `len` bytes (few) from `at`.
    pub(super) fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8], Error<S::Error>> {
        let block = self.image.block_size();
        let end = at
            .checked_add(len as u64)
            .and_then(|end| end.checked_next_multiple_of(block))
            .ok_or(Error::Corrupt("metadata beyond the address space"))?;
        if at < self.at || end > self.at + self.window.len() as u64 {
            let start = at / block * block;
            self.window.clear();
            self.window.resize((end - start) as usize, 0);
            self.at = start;
            let read = self
                .image
                .metadata(self.storage, self.metabox, start, &mut self.window);
            if read.is_err() {
                self.window.clear();
            }
            read?;
        }
        let first = (at - self.at) as usize;
        Ok(&self.window[first..first + len])
    }
}
