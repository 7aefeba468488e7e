//! Compression into a given room: as much input as fits.

use std::io;

use ::erofs::write::{BLOCK, blocks};
use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, compress_bound};

use super::Compression;

/// log2 of the furthest that Zstandard reaches back: what the superblock says.
const ZSTD_WINDOW: u32 = 20;

/// How often Zstandard tries to come closer to the room there is. mkfs.erofs halves what is left as long as there is anything.
const TRIES: usize = 4;

/// A part of a segment as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Bytes of the segment.
    pub(super) len: u64,
    /// Blocks that they are compressed into; nothing if they are not.
    pub(super) packed: Option<u16>,
}

/// A segment as it is stored: pieces in order, and their blocks one behind the other.
pub(super) struct Packed {
    pub(super) pieces: Vec<Piece>,
    pub(super) blocks: Vec<u8>,
}

/// A compressor with its memory; a thread's own.
pub(super) struct Codec {
    kind: Kind,
    /// The most bytes to compress into.
    cluster: usize,
    room: Vec<u8>,
}

enum Kind {
    Lz4 { level: i32 },
    Zstd(Box<Zstd>),
}

impl Codec {
    /// Nothing if contents are not to be compressed.
    pub(super) fn new(compression: Compression, cluster: u32) -> io::Result<Option<Codec>> {
        let kind = match compression {
            Compression::None => return Ok(None),
            Compression::Lz4(level) => Kind::Lz4 { level },
            Compression::Zstd(level) => Kind::Zstd(Box::new(Zstd::new(level)?)),
        };
        Ok(Some(Codec {
            kind,
            cluster: cluster as usize,
            room: vec![0; cluster as usize],
        }))
    }

    /// Compresses a segment; nothing if that is not worth it.
    pub(super) fn pack(&mut self, bytes: &[u8]) -> io::Result<Option<Packed>> {
        let mut packed = Packed {
            pieces: Vec::new(),
            blocks: Vec::new(),
        };
        if let Kind::Zstd(zstd) = &mut self.kind {
            // What a segment becomes depends on nothing but itself.
            zstd.forget();
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            // What takes as many blocks as it has is not worth reading through a codec.
            let most = (blocks(rest.len() as u64) - 1) as usize * BLOCK as usize;
            let room = most.min(self.cluster);
            let (read, wrote) = match room {
                0 => (rest.len(), rest.len()),
                room => self.fill(rest, room)?,
            };
            let taken = blocks(wrote as u64);
            if read as u64 > taken * BLOCK {
                // It lies at the end of its blocks.
                let begins = packed.blocks.len() + taken as usize * BLOCK as usize - wrote;
                packed.blocks.resize(begins, 0);
                packed.blocks.extend(&self.room[..wrote]);
                packed.pieces.push(Piece {
                    len: read as u64,
                    packed: Some(taken as u16),
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
                    packed: None,
                });
                rest = behind;
            }
        }
        // At least a fiftieth saved: else it is better to be read as it is.
        let (before, after) = (
            blocks(bytes.len() as u64),
            packed.blocks.len() as u64 / BLOCK,
        );
        Ok((after * 50 <= before * 49).then_some(packed))
    }

    /// Compresses the beginning of `bytes` into at most `room` bytes of [`Codec::room`]: says how much of it, and into how many.
    fn fill(&mut self, bytes: &[u8], room: usize) -> io::Result<(usize, usize)> {
        let to = &mut self.room[..room];
        match &mut self.kind {
            Kind::Lz4 { level: 0 } => lzzzz::lz4::compress_fill(bytes, to),
            Kind::Lz4 { level } => lzzzz::lz4_hc::compress_fill(bytes, to, *level),
            Kind::Zstd(zstd) => return zstd.fill(bytes, to),
        }
        .map_err(io::Error::other)
    }
}

struct Zstd {
    compressor: Compressor<'static>,
    scratch: Vec<u8>,
    /// How many bytes of input came of 1024 of output last.
    gain: u64,
}

impl Zstd {
    fn new(level: i32) -> io::Result<Zstd> {
        let mut compressor = Compressor::new(level)?;
        compressor.set_parameter(CParameter::WindowLog(ZSTD_WINDOW))?;
        Ok(Zstd {
            compressor,
            scratch: Vec::new(),
            gain: 0,
        })
    }

    fn forget(&mut self) {
        self.gain = 3 << 10;
    }

    /// There is no such call, so it is guessed: from how the last input came out, then from how the guess did.
    fn fill(&mut self, bytes: &[u8], to: &mut [u8]) -> io::Result<(usize, usize)> {
        let room = to.len() as u64;
        let guess = |gain: u64| (room * gain / 1024).clamp(room, bytes.len() as u64) as usize;
        let mut len = guess(self.gain);
        // What fitted, and the least that did not.
        let (mut best, mut over) = ((0, 0), bytes.len() + 1);
        for _ in 0..TRIES {
            self.scratch.resize(compress_bound(len), 0);
            let wrote = self
                .compressor
                .compress_to_buffer(&bytes[..len], &mut self.scratch[..])?;
            self.gain = len as u64 * 1024 / wrote as u64;
            if wrote <= to.len() {
                best = (len, wrote);
                to[..wrote].copy_from_slice(&self.scratch[..wrote]);
                // A sixty-fourth of the room is less than another try is worth.
                if len == bytes.len() || wrote >= to.len() - to.len() / 64 {
                    break;
                }
            } else {
                over = len;
            }
            // A little below what it should be: to fit is worth more than to fill.
            let next =
                guess(self.gain - self.gain / 128).clamp(best.0 + 1, over.max(best.0 + 2) - 1);
            if next == len || next >= over {
                break;
            }
            len = next;
        }
        // It did not fit at all: as it is, then.
        Ok(if best.0 == 0 {
            (to.len(), to.len())
        } else {
            best
        })
    }
}
