//! Making the sidecar of an image.

use alloc::vec::Vec;

use crate::header::Header;
use crate::manifest::{Hot, MOST_HOT};
use crate::shape::{CHUNK, Hash, Shape, hash};

/// Takes an image's bytes as they are written, and makes of them what comes behind and before it. Of the image it keeps the hashes.
#[derive(Default)]
pub struct Builder {
    hashes: Vec<u8>,
    /// The beginning of the chunk that is not whole yet, up to a chunk.
    begun: Vec<u8>,
    len: u64,
}

impl Builder {
    /// The next bytes of the image.
    pub fn append(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if !self.begun.is_empty() {
            let missing = (CHUNK as usize - self.begun.len()).min(bytes.len());
            let (now, rest) = bytes.split_at(missing);
            self.begun.extend(now);
            bytes = rest;
            if self.begun.len() < CHUNK as usize {
                return;
            }
            self.hashes.extend(hash(&self.begun, false));
            self.begun.clear();
        }
        let (chunks, rest) = bytes.as_chunks::<{ CHUNK as usize }>();
        for chunk in chunks {
            self.hashes.extend(hash(chunk, false));
        }
        self.begun.extend(rest);
    }

    /// How long the image's first chunk is, by what was appended: [`Builder::finish`] wants to see it.
    pub fn first_chunk(&self) -> usize {
        self.len.min(CHUNK) as usize
    }

    /// The image is whole. `first` is its first chunk as it is now, which may have been changed since it was appended; `hot` becomes the hot
    /// list, as far as there is room for it. Gives what comes behind the image, and its header, which nobody has signed. Nothing if the
    /// image is too large.
    pub fn finish(mut self, first: &[u8], hot: &[Hot]) -> Option<(Vec<u8>, Header)> {
        if !self.begun.is_empty() {
            self.hashes.extend(hash(&self.begun, false));
        }
        let first: Hash = hash(first, true);
        self.hashes.get_mut(..first.len())?.copy_from_slice(&first);
        let shape = Shape::of(self.len)?;
        let mut behind = Vec::new();
        let mut hashes = self.hashes;
        for level in &shape.levels()[1..] {
            behind.resize((level.start - self.len) as usize, 0);
            behind.extend(&hashes);
            let chunks = hashes.chunks(CHUNK as usize);
            hashes = chunks.flat_map(|chunk| hash(chunk, false)).collect();
        }
        let hot = &hot[..hot.len().min(MOST_HOT as usize)];
        let mut manifest = hashes;
        manifest.extend(hot.iter().flat_map(Hot::encode));
        let header = Header::new(shape, hot.len() as u32, &manifest);
        behind.extend(manifest);
        Some((behind, header))
    }
}
