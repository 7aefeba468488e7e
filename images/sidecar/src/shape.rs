//! Where the hashes of an image lie.

use alloc::vec::Vec;
use core::ops::Range;

use crate::header::HEADER;

/// Bytes that have a hash of their own: what the source over images reads at once, so that no read grows for the sake of its hash; the hashes
/// are a 512th of the image.
pub const CHUNK: u64 = 16 << 10;

/// Bytes of a hash.
pub const HASH: usize = 32;

/// A hash.
pub type Hash = [u8; HASH];

/// Hashes in a chunk.
const FANOUT: u64 = CHUNK / HASH as u64;

/// The hash of a chunk: of the image's first one (`first`), as if the header were zeros.
pub fn hash(chunk: &[u8], first: bool) -> Hash {
    let header = match first {
        true => HEADER.min(chunk.len()),
        false => 0,
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[0; HEADER][..header]);
    hasher.update(&chunk[header..]);
    *hasher.finalize().as_bytes()
}

/// Where the image and each level of hashes above it lie: level 0 is the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    levels: Vec<Range<u64>>,
}

impl Shape {
    /// Of an image of so many bytes; nothing if they are too many for the hashes to have a place.
    pub fn of(image: u64) -> Option<Shape> {
        let mut levels = Vec::from([Range {
            start: 0,
            end: image,
        }]);
        let mut hashes = image.div_ceil(CHUNK);
        while hashes > FANOUT {
            let start = levels.last()?.end.checked_next_multiple_of(CHUNK)?;
            let end = start.checked_add(hashes * HASH as u64)?;
            levels.push(start..end);
            hashes = hashes.div_ceil(FANOUT);
        }
        Some(Shape { levels })
    }

    /// The image, and each level of hashes that lies by itself.
    pub fn levels(&self) -> &[Range<u64>] {
        &self.levels
    }

    /// Chunks of a level.
    pub fn chunks(&self, level: usize) -> u64 {
        let Range { start, end } = self.levels[level];
        (end - start).div_ceil(CHUNK)
    }

    /// Where a chunk of a level lies, which it has.
    pub fn chunk(&self, level: usize, number: u64) -> Range<u64> {
        let Range { start, end } = self.levels[level];
        let at = start + number * CHUNK;
        at..end.min(at + CHUNK)
    }

    /// Where the hash of a chunk is: the chunk of the level above, or of the manifest's hashes if there is none, and the
    /// bytes in it.
    pub fn above(number: u64) -> (u64, Range<usize>) {
        let at = (number % FANOUT) as usize * HASH;
        (number / FANOUT, at..at + HASH)
    }

    /// Hashes in the manifest.
    pub fn top(&self) -> u64 {
        self.chunks(self.levels.len() - 1)
    }

    /// Where the manifest begins.
    pub fn manifest(&self) -> u64 {
        self.levels.last().map_or(0, |level| level.end)
    }
}
