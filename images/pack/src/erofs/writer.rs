//! Output of contents: results of jobs are appended to the image, and their locations recorded for
//! the inodes.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

use ::erofs::write::{BLOCK, Body, Extent, Inode, blocks, ibody_size, max_inline_tail};
use sidecar::CHUNK_SIZE;
use tempfile::SpooledTempFile;

use super::Options;
use super::codec::Piece;
use super::jobs::JobOutput;
use super::split::chunk_count;
use crate::output::Origin;
use crate::{Contents, Output};

/// The size in bytes from which the tail of an uncompressed file gets a block of its own, so that
/// the whole file can be mapped and sent directly; the block takes less than a sixteenth of it.
pub(super) const LARGE_FILE: u64 = 64 << 10;

/// The size in bytes from which the contents of a file begin with a chunk of hashes, in images that
/// have hashes, so that the same file in another image has the same hashes. The padding is 8 KiB
/// on average.
const ALIGNED_FILE: u64 = 256 << 10;

/// Size in bytes up to which inline tails are held in memory; beyond that they go to a file.
const MAX_TAILS_IN_MEMORY: usize = 32 << 20;

/// The block number of a file without data, where any is valid.
pub(super) const NO_BLOCK: u32 = 0;

/// The form in which a file is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileLayout {
    Flat,
    Compressed,
    /// In chunks of this many bytes.
    Chunks(u64),
}

/// A part of a file being stored.
pub(super) struct Segment {
    /// Index of the file among the visits.
    pub(super) at: usize,
    pub(super) contents: Arc<dyn Contents>,
    pub(super) layout: FileLayout,
    pub(super) range: Range<u64>,
    /// Whether it is the file's last one.
    pub(super) last: bool,
}

/// The inline tails of files.
pub(super) struct Tails {
    pub(super) file: SpooledTempFile,
    len: u64,
    /// Offset and length, by index of the file.
    pub(super) locations: HashMap<usize, (u64, usize)>,
}

/// Locations of data already stored, by hash and length.
type DedupeMap<T> = HashMap<([u8; 32], u64), T>;

/// The contents in the image so far.
pub(super) struct ContentsWriter<'a> {
    options: &'a Options,
    /// Maximum length of inline tails, by index; that of the packed inode is last.
    pub(super) inline_limits: Vec<usize>,
    tails: Tails,
    /// The extents so far of the current file.
    extents: Vec<Extent>,
    chunks: Vec<Option<u32>>,
    /// Number of bytes at its end that are to be packed.
    remainder: u64,
    stored_chunks: DedupeMap<u32>,
    /// Extents, relative to the segment's beginning, and the number of bytes left after them.
    stored_segments: DedupeMap<(Vec<Extent>, u64)>,
}

impl<'a> ContentsWriter<'a> {
    pub(super) fn new(
        inodes: &[Inode],
        options: &'a Options,
        output: &Output,
    ) -> ContentsWriter<'a> {
        let limit = |inode: &Inode| max_inline_tail(ibody_size(&inode.xattrs));
        ContentsWriter {
            options,
            inline_limits: inodes.iter().map(limit).chain([0]).collect(),
            tails: Tails {
                file: tempfile::spooled_tempfile_in(MAX_TAILS_IN_MEMORY, output.temp_dir()),
                len: 0,
                locations: HashMap::new(),
            },
            extents: Vec::new(),
            chunks: Vec::new(),
            remainder: 0,
            stored_chunks: HashMap::new(),
            stored_segments: HashMap::new(),
        }
    }

    pub(super) fn into_tails(self) -> Tails {
        self.tails
    }

    /// Appends the result of a segment's job.
    pub(super) fn write_segment(
        &mut self,
        segment: &Segment,
        done: JobOutput,
        output: &mut Output,
    ) -> io::Result<()> {
        let is_large = segment.contents.len() >= ALIGNED_FILE;
        if segment.range.start == 0 && is_large && output.has_hashes() {
            output.pad(CHUNK_SIZE)?;
        }
        match segment.layout {
            FileLayout::Chunks(chunk) => self.write_chunks(segment, chunk, &done, output),
            FileLayout::Compressed => self.write_compressed(segment, &done, output),
            FileLayout::Flat => self.write_plain(segment, &done.bytes, output),
        }
    }

    /// Appends uncompressed bytes, with the file's tail inline if possible.
    fn write_plain(
        &mut self,
        segment: &Segment,
        bytes: &[u8],
        output: &mut Output,
    ) -> io::Result<()> {
        let inline = self.inline_tail(segment);
        let (whole, end) = bytes.split_at(bytes.len() - inline);
        let begins = output.position();
        output.append(whole)?;
        self.finish_plain(segment, begins, end, output)
    }

    /// Appends a segment directly from its source, uncompressed, and returns its origin.
    pub(super) fn copy_plain(
        &mut self,
        segment: &Segment,
        output: &mut Output,
    ) -> io::Result<Origin> {
        let Range { start, end } = segment.range;
        let mut inline = vec![0; self.inline_tail(segment)];
        let whole = end - inline.len() as u64;
        let begins = output.position();
        let mut origin = Origin::Zeros;
        if start < whole {
            origin = output.copy(&*segment.contents, start..whole)?;
        }
        if !inline.is_empty() {
            segment.contents.read(whole, &mut inline)?;
        }
        self.finish_plain(segment, begins, &inline, output)?;
        Ok(origin)
    }

    /// Returns the number of bytes of an uncompressed segment that are stored inline.
    fn inline_tail(&self, segment: &Segment) -> usize {
        let size = segment.range.end;
        let tail = (size % BLOCK) as usize;
        let inline = segment.last
            && tail <= self.inline_limits[segment.at]
            && size < LARGE_FILE
            && !(self.options.dedupe && segment.layout == FileLayout::Compressed);
        if inline { tail } else { 0 }
    }

    /// Finishes an uncompressed segment, all of which except `inline` was appended from `begins`
    /// on.
    fn finish_plain(
        &mut self,
        segment: &Segment,
        begins: u64,
        inline: &[u8],
        output: &mut Output,
    ) -> io::Result<()> {
        let block = match output.position() == begins {
            true => NO_BLOCK,
            false => block_at(begins)?,
        };
        output.pad(BLOCK)?;
        if !inline.is_empty() {
            self.tails.file.write_all(inline)?;
            let location = (self.tails.len, inline.len());
            self.tails.locations.insert(segment.at, location);
            self.tails.len += inline.len() as u64;
        }
        self.extend([Extent {
            start: segment.range.start,
            len: segment.range.end - segment.range.start,
            block,
            compressed_blocks: None,
        }]);
        Ok(())
    }

    fn write_compressed(
        &mut self,
        segment: &Segment,
        done: &JobOutput,
        output: &mut Output,
    ) -> io::Result<()> {
        let start = segment.range.start;
        let key = (done.hashes.first()).map(|&hash| (hash, done.bytes.len() as u64));
        let stored = key.and_then(|key| self.stored_segments.get(&key));
        // Only the last segment of a file can be packed in part.
        if let Some((extents, left)) = stored.filter(|(_, left)| *left == 0 || segment.last) {
            self.remainder = *left;
            self.extend_from(start, extents.clone());
            return Ok(());
        }
        let first = block_at(output.position())?;
        // An uncompressed file does not get an index only for its tail.
        let is_plain = self
            .extents
            .iter()
            .all(|extent| extent.compressed_blocks.is_none());
        let packed = done.compressed.as_ref();
        let extents = match packed.filter(|packed| !packed.pieces.is_empty() || !is_plain) {
            None => {
                self.write_plain(segment, &done.bytes, output)?;
                vec![Extent {
                    start: 0,
                    len: done.bytes.len() as u64,
                    block: first,
                    compressed_blocks: None,
                }]
            }
            Some(packed) => {
                output.append(&packed.blocks)?;
                let (mut at, mut block) = (0, first);
                let extent = |piece: &Piece| {
                    let extent = Extent {
                        start: at,
                        len: piece.len,
                        block,
                        compressed_blocks: piece.compressed_blocks,
                    };
                    at += piece.len;
                    block += piece
                        .compressed_blocks
                        .map_or(blocks(piece.len) as u32, u32::from);
                    extent
                };
                let extents: Vec<Extent> = packed.pieces.iter().map(extent).collect();
                self.remainder = packed.remainder;
                self.extend_from(start, extents.clone());
                extents
            }
        };
        if let Some(key) = key {
            self.stored_segments.insert(key, (extents, self.remainder));
        }
        Ok(())
    }

    /// Adds the extents of a segment that begins at `start`.
    fn extend_from(&mut self, start: u64, extents: Vec<Extent>) {
        self.extend(extents.into_iter().map(|extent| Extent {
            start: start + extent.start,
            ..extent
        }));
    }

    /// Adds extents to the file; contiguous uncompressed ones are merged.
    fn extend(&mut self, extents: impl IntoIterator<Item = Extent>) {
        for extent in extents {
            match self.extents.last_mut() {
                Some(last)
                    if (last.compressed_blocks, extent.compressed_blocks) == (None, None)
                        && last.len.is_multiple_of(BLOCK)
                        && u64::from(last.block) + last.len / BLOCK == u64::from(extent.block) =>
                {
                    last.len += extent.len;
                }
                _ => self.extents.push(extent),
            }
        }
    }

    fn write_chunks(
        &mut self,
        segment: &Segment,
        chunk: u64,
        done: &JobOutput,
        output: &mut Output,
    ) -> io::Result<()> {
        if self.chunks.is_empty() {
            self.chunks = vec![None; chunk_count(segment.contents.len(), chunk)];
        }
        let first = (segment.range.start / chunk) as usize;
        for (number, bytes) in done.bytes.chunks(chunk as usize).enumerate() {
            let key = done
                .hashes
                .get(number)
                .map(|&hash| (hash, bytes.len() as u64));
            let stored = key.and_then(|key| self.stored_chunks.get(&key)).copied();
            let block = match stored {
                Some(block) => block,
                None => {
                    let block = block_at(output.position())?;
                    output.append(bytes)?;
                    output.pad(BLOCK)?;
                    if let Some(key) = key {
                        self.stored_chunks.insert(key, block);
                    }
                    block
                }
            };
            self.chunks[first + number] = Some(block);
        }
        Ok(())
    }

    /// Returns the body of the file whose last segment was put, and the number of bytes at its end
    /// that are to be packed, with their offset still unset.
    pub(super) fn take_body(&mut self, segment: &Segment) -> (Body, u64) {
        let left = std::mem::take(&mut self.remainder);
        (self.build_body(segment, left), left)
    }

    fn build_body(&mut self, segment: &Segment, left: u64) -> Body {
        let size = segment.contents.len();
        let extents = std::mem::take(&mut self.extents);
        if let FileLayout::Chunks(chunk) = segment.layout {
            return chunked_body(size, chunk, std::mem::take(&mut self.chunks));
        }
        match (&extents[..], self.options.compression.algorithm()) {
            // An uncompressed file needs no index.
            ([extent], _) if extent.compressed_blocks.is_none() && left == 0 => Body::Flat {
                size,
                block: extent.block,
                inline: self.tails.locations.contains_key(&segment.at),
            },
            (_, Some(algorithm)) => Body::Compressed {
                size,
                algorithm,
                extents,
                fragment: (left > 0).then_some(0),
            },
            _ => unreachable!("what is not compressed is in one piece"),
        }
    }
}

/// Returns the body of a file of chunks.
pub(super) fn chunked_body(size: u64, chunk: u64, blocks: Vec<Option<u32>>) -> Body {
    Body::Chunks {
        size,
        block_bits: (chunk / BLOCK).ilog2() as u8,
        blocks,
    }
}

/// Returns the number of the block at this offset.
fn block_at(position: u64) -> io::Result<u32> {
    u32::try_from(position / BLOCK)
        .map_err(|_| io::Error::other("the image would have more than 16 TiB"))
}
