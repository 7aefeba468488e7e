//! Compression into fixed-size output: as much input as fits.

use std::io;

use ::erofs::write::{BLOCK, blocks};
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective::ZSTD_e_flush;
use zstd::zstd_safe::{
    CCtx, CParameter, ErrorCode, InBuffer, OutBuffer, ResetDirective, compress_bound,
    get_error_name,
};

use super::Compression;

/// log2 of Zstandard's window size, as recorded in the superblock.
const ZSTD_WINDOW: u32 = 20;

/// The start of a single-segment frame header with a 4-byte content size, which follows (RFC 8878,
/// section 3.1.1.1): fsck.erofs rejects frames without a size.
const ZSTD_HEADER: [u8; 5] = [0x28, 0xb5, 0x2f, 0xfd, 0xa0];

/// Size in bytes of that header, content size included.
const ZSTD_HEADER_SIZE: usize = ZSTD_HEADER.len() + 4;

/// Size in bytes of the header that the compressor writes for an unknown size.
const ZSTD_STREAM_HEADER_SIZE: usize = 6;

/// An empty last block (RFC 8878, section 3.1.1.2), which completes a frame after any whole block.
const ZSTD_LAST_BLOCK: [u8; 3] = [1, 0, 0];

/// Maximum input of one Zstandard block, as its compressor divides it: flushing after such steps
/// does not enlarge the output.
const ZSTD_MAX_BLOCK: usize = 128 << 10;

/// The input size in bytes up to which a level uses other parameters, with a more thorough search.
const ZSTD_SMALL_INPUT: usize = 256 << 10;

/// Minimum input in bytes of a step: the entropy tables of each take about a hundred bytes.
const ZSTD_MIN_STEP: usize = 1 << 10;

/// The level from which Zstandard optimises across a block, so that small blocks make the output 5
/// % larger. From here on whole frames are tried.
const ZSTD_MIN_OPTIMAL_LEVEL: i32 = 13;

/// The maximum number of tries to fill the output. mkfs.erofs bisects until nothing is left.
const MAX_TRIES: usize = 4;

/// A part of a segment as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Size in bytes, uncompressed.
    pub(super) len: u64,
    /// Number of compressed blocks; `None` if the piece is not compressed.
    pub(super) compressed_blocks: Option<u16>,
}

/// A stored segment: its pieces in order, and their contiguous blocks.
pub(super) struct CompressedSegment {
    pub(super) pieces: Vec<Piece>,
    pub(super) blocks: Vec<u8>,
    /// Number of bytes at its end that are not included.
    pub(super) remainder: u64,
}

/// A compressor with its buffers; each thread has its own.
pub(super) struct Codec {
    kind: Kind,
    /// Maximum size in bytes of compressed output.
    cluster: usize,
    output: Vec<u8>,
}

enum Kind {
    Lz4 { level: i32 },
    Zstd(Box<Zstd>),
}

impl Codec {
    /// Returns nothing if contents are not to be compressed.
    pub(super) fn new(compression: Compression, cluster: u32) -> io::Result<Option<Codec>> {
        let kind = match compression {
            Compression::None => return Ok(None),
            Compression::Lz4(level) => Kind::Lz4 { level },
            Compression::Zstd(level) => Kind::Zstd(Box::new(Zstd::new(level)?)),
        };
        Ok(Some(Codec {
            kind,
            cluster: cluster as usize,
            output: vec![0; cluster as usize],
        }))
    }

    /// Compresses a segment; returns nothing if the gain is too small. Up to `leave` bytes at its
    /// end may be left to be stored elsewhere if their output would not fill its blocks.
    pub(super) fn compress(
        &mut self,
        bytes: &[u8],
        leave: usize,
    ) -> io::Result<Option<CompressedSegment>> {
        let mut packed = CompressedSegment {
            pieces: Vec::new(),
            blocks: Vec::new(),
            remainder: 0,
        };
        if let Kind::Zstd(zstd) = &mut self.kind {
            // The output for a segment depends only on the segment.
            zstd.reset_ratio();
        }
        let mut rest = bytes;
        while rest.len() > leave {
            // Output with as many blocks as the input is not worth decoding.
            let most = (blocks(rest.len() as u64) - 1) as usize * BLOCK as usize;
            let capacity = most.min(self.cluster);
            let (mut read, mut wrote) = match capacity {
                0 => (rest.len(), rest.len()),
                capacity => self.compress_fill(rest, capacity)?,
            };
            // All input was read, and more than half of the last block is empty: the input of that
            // block is left. For a smaller gap, compressing again costs more than it saves.
            let over = wrote % BLOCK as usize;
            let full = wrote - over;
            if leave > 0
                && read == rest.len()
                && full > 0
                && (1..BLOCK as usize / 2).contains(&over)
            {
                let (less, into) = self.compress_fill(rest, full)?;
                match rest.len() - less <= leave {
                    true => (read, wrote) = (less, into),
                    // More than `leave` would be left.
                    false => (read, wrote) = self.compress_fill(rest, capacity)?,
                }
            }
            let taken = blocks(wrote as u64);
            if read as u64 > taken * BLOCK {
                // Compressed data are at the end of their blocks.
                let begins = packed.blocks.len() + taken as usize * BLOCK as usize - wrote;
                packed.blocks.resize(begins, 0);
                packed.blocks.extend(&self.output[..wrote]);
                packed.pieces.push(Piece {
                    len: read as u64,
                    compressed_blocks: Some(taken as u16),
                });
                rest = &rest[read..];
            } else {
                let whole = (read / BLOCK as usize).max(1) * BLOCK as usize;
                let (plain, behind) = rest.split_at(whole.min(rest.len()));
                packed.blocks.extend(plain);
                let padded = packed.blocks.len().next_multiple_of(BLOCK as usize);
                packed.blocks.resize(padded, 0);
                packed.pieces.push(Piece {
                    len: plain.len() as u64,
                    compressed_blocks: None,
                });
                rest = behind;
            }
        }
        packed.remainder = rest.len() as u64;
        // At least 2 % must be saved; otherwise uncompressed data are faster to read.
        let (before, after) = (
            blocks((bytes.len() - rest.len()) as u64),
            packed.blocks.len() as u64 / BLOCK,
        );
        Ok((after * 50 <= before * 49).then_some(packed))
    }

    /// Compresses the beginning of `bytes` into at most `capacity` bytes of [`Codec::output`].
    /// Returns the number of bytes read and written.
    fn compress_fill(&mut self, bytes: &[u8], capacity: usize) -> io::Result<(usize, usize)> {
        let to = &mut self.output[..capacity];
        match &mut self.kind {
            Kind::Lz4 { level: 0 } => lzzzz::lz4::compress_fill(bytes, to),
            Kind::Lz4 { level } => lzzzz::lz4_hc::compress_fill(bytes, to, *level),
            Kind::Zstd(zstd) => return zstd.compress_fill(bytes, to),
        }
        .map_err(io::Error::other)
    }
}

struct Zstd {
    context: CCtx<'static>,
    level: i32,
    scratch: Vec<u8>,
    /// Bytes of input per 1024 bytes of output, last measured.
    ratio: u64,
}

impl Zstd {
    fn new(level: i32) -> io::Result<Zstd> {
        let mut context = CCtx::create();
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::WindowLog(ZSTD_WINDOW),
            CParameter::ContentSizeFlag(level >= ZSTD_MIN_OPTIMAL_LEVEL),
        ] {
            context.set_parameter(parameter).map_err(zstd_error)?;
        }
        Ok(Zstd {
            context,
            level,
            scratch: Vec::new(),
            ratio: 0,
        })
    }

    fn reset_ratio(&mut self) {
        self.ratio = 3 << 10;
    }

    /// Emulates LZ4's `compress_fill`, which Zstandard lacks.
    fn compress_fill(&mut self, bytes: &[u8], to: &mut [u8]) -> io::Result<(usize, usize)> {
        let filled = match self.level {
            ZSTD_MIN_OPTIMAL_LEVEL.. => self.fill_by_frames(bytes, to),
            _ => self.fill_by_blocks(bytes, to),
        }?;
        // If no input fits, the data are stored uncompressed.
        Ok(if filled.0 == 0 {
            (to.len(), to.len())
        } else {
            filled
        })
    }

    /// Compresses whole frames of estimated sizes: the first estimate comes from the last ratio,
    /// the next ones from the result of each try.
    fn fill_by_frames(&mut self, bytes: &[u8], to: &mut [u8]) -> io::Result<(usize, usize)> {
        let capacity = to.len() as u64;
        let guess =
            |gain: u64| (capacity * gain / 1024).clamp(capacity, bytes.len() as u64) as usize;
        let mut len = guess(self.ratio);
        // The largest input that fitted, and the smallest that did not.
        let (mut best, mut over) = ((0, 0), bytes.len() + 1);
        for _ in 0..MAX_TRIES {
            self.scratch.resize(compress_bound(len), 0);
            let wrote = self.context.compress2(&mut self.scratch[..], &bytes[..len]);
            let wrote = wrote.map_err(zstd_error)?;
            self.ratio = len as u64 * 1024 / wrote as u64;
            if wrote <= to.len() {
                best = (len, wrote);
                to[..wrote].copy_from_slice(&self.scratch[..wrote]);
                if len == bytes.len() || wrote >= full_threshold(to.len()) {
                    break;
                }
            } else {
                over = len;
            }
            // Slightly less than estimated: a result that fits is worth more than a full one.
            let next =
                guess(self.ratio - self.ratio / 128).clamp(best.0 + 1, over.max(best.0 + 2) - 1);
            if next == len || next >= over {
                break;
            }
            len = next;
        }
        Ok(best)
    }

    /// Compresses input in steps sized by the ratio so far, with a flush after each, so that the
    /// frame can end there; a step that does not fit is discarded. So each byte is compressed about
    /// once.
    fn fill_by_blocks(&mut self, bytes: &[u8], to: &mut [u8]) -> io::Result<(usize, usize)> {
        // The compressor's header is replaced by a longer one.
        let begins = ZSTD_HEADER_SIZE - ZSTD_STREAM_HEADER_SIZE;
        let ends = to.len() - ZSTD_LAST_BLOCK.len();
        let mut most = ZSTD_MAX_BLOCK;
        while most >= ZSTD_MIN_STEP {
            let (read, wrote) = self.compress_blocks(bytes, &mut to[begins..ends], most)?;
            if read > 0 {
                let end = begins + wrote;
                to[..ZSTD_HEADER.len()].copy_from_slice(&ZSTD_HEADER);
                to[ZSTD_HEADER.len()..ZSTD_HEADER_SIZE]
                    .copy_from_slice(&(read as u32).to_le_bytes());
                to[end..][..ZSTD_LAST_BLOCK.len()].copy_from_slice(&ZSTD_LAST_BLOCK);
                return Ok((read, end + ZSTD_LAST_BLOCK.len()));
            }
            most /= 4;
        }
        Ok((0, 0))
    }

    /// Compresses blocks of a frame, in steps of at most `most` bytes; reads nothing if the first
    /// did not fit.
    fn compress_blocks(
        &mut self,
        bytes: &[u8],
        to: &mut [u8],
        most: usize,
    ) -> io::Result<(usize, usize)> {
        let likely = to.len() as u64 * self.ratio / 1024;
        let bytes = &bytes[..bytes.len().min(ZSTD_SMALL_INPUT.max(2 * likely as usize))];
        self.context
            .reset(ResetDirective::SessionOnly)
            .map_err(zstd_error)?;
        self.context
            .set_pledged_src_size(Some(bytes.len() as u64))
            .map_err(zstd_error)?;
        let (mut read, mut wrote) = (0, 0);
        while read < bytes.len() && wrote < full_threshold(to.len()) {
            let fits = (to.len() - wrote) as u64 * self.ratio / 1024;
            // Slightly less than estimated: a result that fits is worth more than a full one.
            let step = (fits - fits / 8) as usize;
            let step = step.clamp(ZSTD_MIN_STEP, most).min(bytes.len() - read);
            let mut input = InBuffer::around(&bytes[read..read + step]);
            let mut output = OutBuffer::around_pos(&mut *to, wrote);
            let left = self
                .context
                .compress_stream2(&mut output, &mut input, ZSTD_e_flush);
            let (left, taken, end) = (left.map_err(zstd_error)?, input.pos(), output.pos());
            if left > 0 || taken < step {
                // The next step may compress as badly.
                self.ratio = (self.ratio - self.ratio / 8).max(1024);
                break;
            }
            self.ratio = step as u64 * 1024 / (end - wrote).max(1) as u64;
            (read, wrote) = (read + step, end);
        }
        Ok((read, wrote))
    }
}

/// Returns the output size that counts as full: the rest is not worth another try, or another
/// block.
fn full_threshold(capacity: usize) -> usize {
    capacity - capacity / 64
}

fn zstd_error(code: ErrorCode) -> io::Error {
    io::Error::other(get_error_name(code))
}

#[cfg(test)]
mod tests {
    use zstd::zstd_safe::get_frame_content_size;

    use super::*;

    /// Returns random bytes below `step`: a smaller `step` makes them more compressible.
    fn noise(len: usize, step: u32) -> Vec<u8> {
        let mut state = 1u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) % step) as u8
        };
        (0..len).map(next).collect()
    }

    fn unpacked(packed: &CompressedSegment) -> Vec<u8> {
        let (mut bytes, mut rest) = (Vec::new(), &packed.blocks[..]);
        for piece in &packed.pieces {
            let len = piece.len as usize;
            let taken = piece.compressed_blocks.map_or(blocks(piece.len), u64::from) * BLOCK;
            let (stored, behind) = rest.split_at(taken as usize);
            rest = behind;
            if piece.compressed_blocks.is_none() {
                bytes.extend(&stored[..len]);
                continue;
            }
            let begins = stored.iter().position(|&byte| byte != 0).expect("a frame");
            let size = get_frame_content_size(&stored[begins..]);
            assert_eq!(size.expect("a head"), Some(piece.len));
            bytes.extend(zstd::bulk::decompress(&stored[begins..], len).expect("a frame"));
        }
        assert!(rest.is_empty());
        bytes
    }

    #[test]
    fn what_is_left_of_a_segment_is_its_end() {
        const LEAVE: usize = 16 << 10;
        let bytes = noise(330_000, 4);
        let mut codec = (Codec::new(Compression::Zstd(3), 64 << 10).expect("made"))
            .expect("one that compresses");
        let mut left = Vec::new();
        for len in (290_000..330_000).step_by(2000) {
            let packed = codec.compress(&bytes[..len], LEAVE).expect("packed");
            let packed = packed.expect("smaller");
            let stored = &bytes[..len - packed.remainder as usize];
            assert!(unpacked(&packed) == *stored, "{len}");
            left.push(packed.remainder);
        }
        // The last block is more than half full for some sizes, and not for others.
        assert!(left.contains(&0), "{left:?}");
        assert!(left.iter().any(|left| *left > 0), "{left:?}");
        assert!(left.iter().all(|left| *left <= LEAVE as u64), "{left:?}");
    }

    #[test]
    fn what_zstandard_fills_clusters_with_comes_back() {
        let mixed = [
            noise(300_000, 4),
            noise(5000, 256),
            noise(200_001, 40),
            vec![0; 400_000],
        ];
        let segments = [
            vec![7; 1 << 20],
            noise(1 << 20, 3),
            mixed.concat(),
            noise(5000, 2),
        ];
        for level in [1, 3, ZSTD_MIN_OPTIMAL_LEVEL] {
            for cluster in [4096, 64 << 10, 1 << 20] {
                let mut codec = (Codec::new(Compression::Zstd(level), cluster).expect("made"))
                    .expect("one that compresses");
                let mut pack =
                    |bytes: &[u8]| codec.compress(bytes, 0).expect("packed").expect("smaller");
                for bytes in &segments {
                    let packed = pack(bytes);
                    assert!(unpacked(&packed) == *bytes, "{level}, {cluster}");
                    let most = packed
                        .pieces
                        .iter()
                        .flat_map(|piece| piece.compressed_blocks)
                        .max();
                    assert!(most.is_some_and(|most| u32::from(most) * BLOCK as u32 <= cluster));
                }
                // Earlier segments have no influence.
                let alone = pack(&segments[2]);
                pack(&segments[0]);
                assert!(pack(&segments[2]).blocks == alone.blocks);
            }
        }
    }
}
