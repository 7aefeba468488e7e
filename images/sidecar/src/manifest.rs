//! The manifest: the top level of hashes, and the hot list.

use alloc::vec::Vec;
use core::ops::Range;

use crate::Broken;
use crate::header::Header;
use crate::shape::{CHUNK, HASH, Hash};

/// Maximum number of ranges in a hot list: half a MiB.
pub const MOST_HOT: u32 = 1 << 16;

/// A range of the image's chunks worth reading ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot {
    /// The first chunk.
    pub first: u32,
    /// Number of chunks, at least one.
    pub count: u32,
}

impl Hot {
    pub(crate) const SIZE: usize = 8;

    /// Returns the range in bytes, which may end beyond the image.
    pub fn range(&self) -> Range<u64> {
        let first = u64::from(self.first);
        first * CHUNK..(first + u64::from(self.count)) * CHUNK
    }

    pub(crate) fn encode(&self) -> [u8; Hot::SIZE] {
        let mut bytes = [0; Hot::SIZE];
        bytes[..4].copy_from_slice(&self.first.to_le_bytes());
        bytes[4..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }
}

/// A manifest verified against the header's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    top: Vec<u8>,
    /// The hot list, in the order of reading.
    pub hot: Vec<Hot>,
}

impl Manifest {
    /// Parses and verifies `bytes`, which are those at [`Header::manifest`].
    pub fn parse(header: &Header, bytes: &[u8]) -> Result<Manifest, Broken> {
        let range = header.manifest();
        if bytes.len() as u64 != range.end - range.start
            || header.root_with(bytes) != *header.root()
        {
            return Err(Broken::Damaged("the root does not match the hashes"));
        }
        let (top, ranges) = bytes.split_at(bytes.len() - header.hot() * Hot::SIZE);
        let chunks = header.shape().chunks(0);
        let (ranges, _) = ranges.as_chunks::<{ Hot::SIZE }>();
        let hot = ranges.iter().map(|bytes| {
            let [a, b, c, d, rest @ ..] = *bytes;
            let hot = Hot {
                first: u32::from_le_bytes([a, b, c, d]),
                count: u32::from_le_bytes(rest),
            };
            let end = u64::from(hot.first) + u64::from(hot.count);
            match hot.count > 0 && end <= chunks {
                true => Ok(hot),
                false => Err(Broken::Damaged("a hot range beyond the image")),
            }
        });
        Ok(Manifest {
            hot: hot.collect::<Result<_, _>>()?,
            top: top.to_vec(),
        })
    }

    /// Returns the hash of a chunk of the top level.
    pub fn hash(&self, number: u64) -> Option<Hash> {
        let at = usize::try_from(number).ok()?.checked_mul(HASH)?;
        self.top.get(at..)?.first_chunk().copied()
    }
}
