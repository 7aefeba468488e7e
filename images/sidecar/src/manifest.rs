//! The manifest: the top level of hashes, and the read-ahead list.

use alloc::vec::Vec;
use core::ops::Range;

use crate::VerifyError;
use crate::header::Header;
use crate::layout::{CHUNK_SIZE, HASH_SIZE, Hash};

/// Maximum number of ranges in a read-ahead list: half a MiB.
pub const MAX_READAHEAD_RANGES: u32 = 1 << 16;

/// A range of the image's chunks worth reading ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadaheadRange {
    /// The first chunk.
    pub first: u32,
    /// Number of chunks, at least one.
    pub count: u32,
}

impl ReadaheadRange {
    pub(crate) const SIZE: usize = 8;

    /// Returns the range in bytes, which may end beyond the image.
    pub fn range(&self) -> Range<u64> {
        let first = u64::from(self.first);
        first * CHUNK_SIZE..(first + u64::from(self.count)) * CHUNK_SIZE
    }

    pub(crate) fn encode(&self) -> [u8; ReadaheadRange::SIZE] {
        let mut bytes = [0; ReadaheadRange::SIZE];
        bytes[..4].copy_from_slice(&self.first.to_le_bytes());
        bytes[4..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }
}

/// A manifest verified against the header's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    top_hashes: Vec<u8>,
    /// The read-ahead list, in the order of reading.
    pub readahead_list: Vec<ReadaheadRange>,
}

impl Manifest {
    /// Parses and verifies `bytes`, which are those at [`Header::manifest_range`].
    pub fn parse(header: &Header, bytes: &[u8]) -> Result<Manifest, VerifyError> {
        let range = header.manifest_range();
        if bytes.len() as u64 != range.end - range.start
            || header.compute_root(bytes) != *header.root()
        {
            return Err(VerifyError::Corrupt("the root does not match the hashes"));
        }
        let (top, ranges) =
            bytes.split_at(bytes.len() - header.readahead_count() * ReadaheadRange::SIZE);
        let chunks = header.layout().chunks(0);
        let (ranges, _) = ranges.as_chunks::<{ ReadaheadRange::SIZE }>();
        let readahead = ranges.iter().map(|bytes| {
            let [a, b, c, d, rest @ ..] = *bytes;
            let range = ReadaheadRange {
                first: u32::from_le_bytes([a, b, c, d]),
                count: u32::from_le_bytes(rest),
            };
            let end = u64::from(range.first) + u64::from(range.count);
            match range.count > 0 && end <= chunks {
                true => Ok(range),
                false => Err(VerifyError::Corrupt("a read-ahead range beyond the image")),
            }
        });
        Ok(Manifest {
            readahead_list: readahead.collect::<Result<_, _>>()?,
            top_hashes: top.to_vec(),
        })
    }

    /// Returns the hash of a chunk of the top level.
    pub fn hash(&self, number: u64) -> Option<Hash> {
        let at = usize::try_from(number).ok()?.checked_mul(HASH_SIZE)?;
        self.top_hashes.get(at..)?.first_chunk().copied()
    }
}
