//! Layout of an image's hashes.

use alloc::vec::Vec;
use core::ops::Range;

use crate::header::HEADER_SIZE;

/// Size in bytes of a hashed chunk, equal to the segment that the image source reads, so that
/// verification does not enlarge reads; the hashes take 1/512 of the image's size.
pub const CHUNK_SIZE: u64 = 16 << 10;

/// Size in bytes of a hash.
pub const HASH_SIZE: usize = 32;

/// A hash.
pub type Hash = [u8; HASH_SIZE];

/// Number of hashes in a chunk.
const FANOUT: u64 = CHUNK_SIZE / HASH_SIZE as u64;

/// Returns the hash of a chunk; of the image's first one (`first`), as if the header were zeros.
pub fn hash(chunk: &[u8], first: bool) -> Hash {
    let header = match first {
        true => HEADER_SIZE.min(chunk.len()),
        false => 0,
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[0; HEADER_SIZE][..header]);
    hasher.update(&chunk[header..]);
    *hasher.finalize().as_bytes()
}

/// The ranges of the image and of each level of hashes above it: level 0 is the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashLayout {
    levels: Vec<Range<u64>>,
}

impl HashLayout {
    /// Returns the layout for an image of this size in bytes; nothing if offsets would overflow.
    pub fn of(image: u64) -> Option<HashLayout> {
        let mut levels = Vec::from([Range {
            start: 0,
            end: image,
        }]);
        let mut hashes = image.div_ceil(CHUNK_SIZE);
        while hashes > FANOUT {
            let start = levels.last()?.end.checked_next_multiple_of(CHUNK_SIZE)?;
            let end = start.checked_add(hashes * HASH_SIZE as u64)?;
            levels.push(start..end);
            hashes = hashes.div_ceil(FANOUT);
        }
        Some(HashLayout { levels })
    }

    /// Returns the ranges of the image, and of each level of hashes outside the manifest.
    pub fn levels(&self) -> &[Range<u64>] {
        &self.levels
    }

    /// Returns the number of chunks in a level.
    pub fn chunks(&self, level: usize) -> u64 {
        let Range { start, end } = self.levels[level];
        (end - start).div_ceil(CHUNK_SIZE)
    }

    /// Returns the range of a chunk of a level, which must exist.
    pub fn chunk(&self, level: usize, number: u64) -> Range<u64> {
        let Range { start, end } = self.levels[level];
        let at = start + number * CHUNK_SIZE;
        at..end.min(at + CHUNK_SIZE)
    }

    /// Returns the location of a chunk's hash: the number of the chunk in the level above (or in
    /// the manifest's hashes, if there is none), and the range in it.
    pub fn hash_location(number: u64) -> (u64, Range<usize>) {
        let at = (number % FANOUT) as usize * HASH_SIZE;
        (number / FANOUT, at..at + HASH_SIZE)
    }

    /// Returns the number of hashes in the manifest.
    pub fn top_hashes(&self) -> u64 {
        self.chunks(self.levels.len() - 1)
    }

    /// Returns the offset of the manifest.
    pub fn manifest_offset(&self) -> u64 {
        self.levels.last().map_or(0, |level| level.end)
    }
}
