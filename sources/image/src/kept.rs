//! What it takes to open an image that has hashes, read at once and kept: so opening one that is far away takes the time of two requests, one
//! for its beginning, and one for this.
//!
//! It is the end of the file, where the manifest is and the rest of a small image, and for a large one the chunks that have the root's inode, and the
//! hashes of that and of the superblock. Where the root is says the superblock, which nobody has verified then: if it lies, what is needed is read when it
//! is asked for, and refused then.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use erofs::layout::{INODE_SLOT, MAGIC, SUPERBLOCK_OFFSET, Superblock};
use sidecar::{CHUNK, Header, Shape};
use vfs::Patience;

use crate::range::{Held, Piece, RangeSource};

/// Bytes of the end: the hashes of 32 MiB, and as much again.
const END: u64 = 128 << 10;

/// An image of which some ranges are in memory.
pub(crate) struct Kept {
    inner: Arc<dyn RangeSource>,
    /// In order.
    ranges: Vec<(u64, Vec<u8>)>,
}

impl Kept {
    /// Reads what it takes to open the image in `inner`, which has `header`, and whose first chunk is `head`.
    pub(crate) fn read(
        inner: Arc<dyn RangeSource>,
        header: &Header,
        head: Vec<u8>,
    ) -> io::Result<Kept> {
        let rest = ranges(header, &head).into_iter();
        let rest = rest.map(|range| (range.start, vec![0; (range.end - range.start) as usize]));
        let mut ranges: Vec<_> = [(0, head)].into_iter().chain(rest).collect();
        let mut pieces: Vec<_> = ranges[1..]
            .iter_mut()
            .map(|(at, into)| Piece { at: *at, into })
            .collect();
        inner.read(&mut pieces)?;
        Ok(Kept { inner, ranges })
    }

    fn get(&self, piece: &Piece<'_>) -> Option<&[u8]> {
        let before = self.ranges.partition_point(|(at, _)| *at <= piece.at);
        let (at, bytes) = self.ranges.get(before.checked_sub(1)?)?;
        let from = usize::try_from(piece.at - at).ok()?;
        bytes.get(from..)?.get(..piece.into.len())
    }
}

/// Where it lies besides the first chunk, in order and apart from each other.
fn ranges(header: &Header, head: &[u8]) -> Vec<Range<u64>> {
    let (shape, manifest) = (header.shape(), header.manifest());
    let mut ranges = Vec::new();
    for mut number in [Some(0), root(head)].into_iter().flatten() {
        for level in 0..shape.levels().len() {
            if number >= shape.chunks(level) {
                break;
            }
            if (level, number) != (0, 0) {
                ranges.push(shape.chunk(level, number));
            }
            (number, _) = Shape::above(number);
        }
    }
    let end = manifest.end.saturating_sub(END).max(head.len() as u64);
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

/// The chunk in which the root's inode begins.
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
    let place = metadata.checked_add(root.checked_mul(INODE_SLOT)?)?;
    Some(place / CHUNK)
}

impl RangeSource for Kept {
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
                Some(bytes) => piece.into.copy_from_slice(bytes),
                None => far.push(Piece {
                    at: piece.at,
                    into: piece.into,
                }),
            }
        }
        match far.is_empty() {
            true => Ok(()),
            false => self.inner.read(&mut far),
        }
    }

    fn run(&self) -> u64 {
        self.inner.run()
    }

    fn file(&self, at: u64, len: usize) -> Option<Held<'_>> {
        self.inner.file(at, len)
    }
}
