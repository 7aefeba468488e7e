//! Builder of an image's sidecar.

use alloc::vec::Vec;

use crate::header::Header;
use crate::layout::{CHUNK_SIZE, Hash, HashLayout, hash};
use crate::manifest::{MAX_READAHEAD_RANGES, ReadaheadRange};

/// A builder that takes an image's bytes as they are written, and returns the hashes and header to
/// store after and before it. It holds only the image's hashes in memory.
#[derive(Default)]
pub struct Builder {
    hashes: Vec<u8>,
    /// The incomplete chunk at the end.
    partial_chunk: Vec<u8>,
    len: u64,
}

impl Builder {
    /// Appends bytes of the image.
    pub fn append(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if !self.partial_chunk.is_empty() {
            let missing = (CHUNK_SIZE as usize - self.partial_chunk.len()).min(bytes.len());
            let (now, rest) = bytes.split_at(missing);
            self.partial_chunk.extend(now);
            bytes = rest;
            if self.partial_chunk.len() < CHUNK_SIZE as usize {
                return;
            }
            self.hashes.extend(hash(&self.partial_chunk, false));
            self.partial_chunk.clear();
        }
        let (chunks, rest) = bytes.as_chunks::<{ CHUNK_SIZE as usize }>();
        for chunk in chunks {
            self.hashes.extend(hash(chunk, false));
        }
        self.partial_chunk.extend(rest);
    }

    /// Returns the length of the image's first chunk according to the bytes appended, as
    /// [`Builder::finish`] requires it.
    pub fn first_chunk(&self) -> usize {
        self.len.min(CHUNK_SIZE) as usize
    }

    /// Completes the sidecar. `first` is the final content of the image's first chunk, which may
    /// have changed since it was appended; `readahead` becomes the read-ahead list, truncated to
    /// its limit. Returns the bytes to store after the image, and the unsigned header. Returns
    /// nothing if the image is too large.
    pub fn finish(
        mut self,
        first: &[u8],
        readahead: &[ReadaheadRange],
    ) -> Option<(Vec<u8>, Header)> {
        if !self.partial_chunk.is_empty() {
            self.hashes.extend(hash(&self.partial_chunk, false));
        }
        let first: Hash = hash(first, true);
        self.hashes.get_mut(..first.len())?.copy_from_slice(&first);
        let shape = HashLayout::of(self.len)?;
        let mut behind = Vec::new();
        let mut hashes = self.hashes;
        for level in &shape.levels()[1..] {
            behind.resize((level.start - self.len) as usize, 0);
            behind.extend(&hashes);
            let chunks = hashes.chunks(CHUNK_SIZE as usize);
            hashes = chunks.flat_map(|chunk| hash(chunk, false)).collect();
        }
        let readahead = &readahead[..readahead.len().min(MAX_READAHEAD_RANGES as usize)];
        let mut manifest = hashes;
        manifest.extend(readahead.iter().flat_map(ReadaheadRange::encode));
        let header = Header::new(shape, readahead.len() as u32, &manifest);
        behind.extend(manifest);
        Some((behind, header))
    }
}
