//! Preloading of the ranges needed to open an image with hashes, so that opening a remote image
//! takes two round trips: one for its first chunk, one for all of these ranges.
//!
//! The ranges are the end of the file (the manifest, all hashes if they are few, and the rest of a
//! small image) and, for a large image, the chunk with the root's inode and the hashes above that
//! chunk and above the superblock's. The root's position comes from the superblock, which is not
//! verified yet: if it is wrong, the needed chunks are read and verified on demand.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use erofs::layout::{INODE_SLOT, MAGIC, SUPERBLOCK_OFFSET, Superblock};
use sidecar::{CHUNK_SIZE, HashLayout, Header};
use vfs::Patience;

use crate::range::{FileGuard, Piece, RangeSource};

/// Bytes preloaded from the end of the file: the hashes of 32 MiB, and as much again.
const TAIL_BYTES: u64 = 128 << 10;

/// The maximum size of hashes that are preloaded as a whole, those of 256 MiB.
const MAX_HASHES: u64 = 512 << 10;

/// An image with some ranges preloaded into memory.
pub(crate) struct Preloaded {
    inner: Arc<dyn RangeSource>,
    /// Sorted by their offsets.
    ranges: Vec<PreloadedRange>,
}

/// Bytes of an image in memory.
struct PreloadedRange {
    offset: u64,
    bytes: Vec<u8>,
    /// Whether a byte has failed a check. The inner source is asked for all of them then.
    is_dropped: AtomicBool,
}

impl Preloaded {
    /// Preloads the ranges needed to open the image in `inner`, which has `header` and the first
    /// chunk `head`.
    pub(crate) fn read(
        inner: Arc<dyn RangeSource>,
        header: &Header,
        head: Vec<u8>,
    ) -> io::Result<Preloaded> {
        let rest = ranges(header, &head).into_iter();
        let rest = rest.map(|range| (range.start, vec![0; (range.end - range.start) as usize]));
        let ranges = [(0, head)].into_iter().chain(rest);
        let ranges = ranges.map(|(offset, bytes)| PreloadedRange {
            offset,
            bytes,
            is_dropped: AtomicBool::new(false),
        });
        let mut ranges: Vec<_> = ranges.collect();
        let mut pieces: Vec<_> = ranges[1..]
            .iter_mut()
            .map(|range| Piece {
                offset: range.offset,
                buffer: &mut range.bytes,
            })
            .collect();
        inner.read(&mut pieces)?;
        Ok(Preloaded { inner, ranges })
    }

    fn get(&self, piece: &Piece<'_>) -> Option<&[u8]> {
        let before = (self.ranges).partition_point(|range| range.offset <= piece.offset);
        let range = self.ranges.get(before.checked_sub(1)?)?;
        if range.is_dropped.load(Ordering::Relaxed) {
            return None;
        }
        let from = usize::try_from(piece.offset - range.offset).ok()?;
        range.bytes.get(from..)?.get(..piece.buffer.len())
    }
}

/// Returns the ranges to preload other than the first chunk, sorted and disjoint.
fn ranges(header: &Header, head: &[u8]) -> Vec<Range<u64>> {
    let (shape, manifest) = (header.layout(), header.manifest_range());
    let mut ranges = Vec::new();
    for mut number in [Some(0), root(head)].into_iter().flatten() {
        for level in 0..shape.levels().len() {
            if number >= shape.chunks(level) {
                break;
            }
            if (level, number) != (0, 0) {
                ranges.push(shape.chunk(level, number));
            }
            (number, _) = HashLayout::hash_location(number);
        }
    }
    let hashes = match shape.levels().len() {
        0 | 1 => manifest.start,
        _ => shape.chunk(1, 0).start,
    };
    let mut end = manifest.end.saturating_sub(TAIL_BYTES);
    if manifest.end.saturating_sub(hashes) <= MAX_HASHES {
        end = end.min(hashes);
    }
    let end = end.max(head.len() as u64);
    ranges.push(manifest.start.min(end)..manifest.end);
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let joins = next.start <= range.end;
        if joins {
            range.end = range.end.max(next.end);
        }
        joins
    });
    ranges
}

/// Returns the chunk in which the root's inode begins.
fn root(head: &[u8]) -> Option<u64> {
    let superblock = Superblock::parse(head.get(SUPERBLOCK_OFFSET..)?)?;
    if superblock.magic != MAGIC {
        return None;
    }
    let metadata = u64::from(superblock.meta_block).checked_shl(superblock.block_bits.into())?;
    let root = match superblock.root_wide {
        0 => superblock.root_or_blocks_high.into(),
        root => root,
    };
    let offset = metadata.checked_add(root.checked_mul(INODE_SLOT)?)?;
    Some(offset / CHUNK_SIZE)
}

impl RangeSource for Preloaded {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn patience(&self, at: u64, len: usize) -> Patience {
        self.inner.patience(at, len)
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let mut far = Vec::new();
        for piece in pieces {
            match self.get(piece) {
                Some(bytes) => piece.buffer.copy_from_slice(bytes),
                None => far.push(Piece {
                    offset: piece.offset,
                    buffer: piece.buffer,
                }),
            }
        }
        match far.is_empty() {
            true => Ok(()),
            false => self.inner.read(&mut far),
        }
    }

    fn readahead_len(&self) -> u64 {
        self.inner.readahead_len()
    }

    fn stats(&self) -> vfs::SourceStats {
        self.inner.stats()
    }

    fn evict(&self) -> u64 {
        self.inner.evict()
    }

    fn ping(&self) -> io::Result<()> {
        self.inner.ping()
    }

    fn drop_copies(&self, range: Range<u64>) -> bool {
        let mut were_any = false;
        for preloaded in &self.ranges {
            let end = preloaded.offset + preloaded.bytes.len() as u64;
            if preloaded.offset < range.end && range.start < end {
                were_any |= !preloaded.is_dropped.swap(true, Ordering::Relaxed);
            }
        }
        self.inner.drop_copies(range) || were_any
    }

    fn file(&self, at: u64, len: usize) -> Option<FileGuard<'_>> {
        self.inner.file(at, len)
    }
}
