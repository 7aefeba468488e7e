//! Sources of an image's bytes.

#[cfg_attr(not(target_os = "linux"), path = "range/portable_file.rs")]
mod file;

use std::io;
use std::ops::Range;

use parking_lot::RwLockReadGuard;
use vfs::fd::BorrowedFd;
use vfs::{Patience, SourceStats};

pub use self::file::FileRanges;

/// An immutable byte sequence of known length, read in ranges.
pub trait RangeSource: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the patience needed to read `len` bytes from `at`.
    fn patience(&self, at: u64, len: usize) -> Patience;

    /// Fills `pieces`, which are sorted and do not overlap. All pieces are passed at once so that a
    /// remote source can issue the requests concurrently and merge adjacent pieces. Returns an
    /// error if a range is beyond the end.
    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()>;

    /// Reads as [`RangeSource::read`] does, and returns for each piece whether its bytes are those
    /// of the image, as far as they can be verified. No others may be used.
    fn read_each(&self, pieces: &mut [Piece<'_>]) -> io::Result<Vec<bool>> {
        self.read(pieces)?;
        Ok(vec![true; pieces.len()])
    }

    /// Asks the server of a remote source whether it answers: one request, which is not repeated
    /// and whose reply is not cached. Returns `Ok` at once for a local source.
    fn ping(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the statistics of requests to another server, and of the disk cache; empty for a
    /// local source.
    fn stats(&self) -> SourceStats {
        SourceStats::default()
    }

    /// Releases the contents of the disk cache, unless another process uses them or they are being
    /// read, and returns their size in bytes.
    fn evict(&self) -> u64 {
        0
    }

    /// Drops stored copies of the bytes of `range`, which have failed a check: the next read asks
    /// the server again. Returns whether there were any.
    fn drop_copies(&self, _range: Range<u64>) -> bool {
        false
    }

    /// Returns how many bytes to read ahead for a sequential reader.
    fn readahead_len(&self) -> u64;

    /// Returns the BLAKE3 hash of the aligned chunk `number` of [`sidecar::CHUNK_SIZE`] bytes, if
    /// the image has hashes that can be read.
    fn chunk_hash(&self, _number: u64) -> Option<sidecar::Hash> {
        None
    }

    /// Returns a file that holds the `len` bytes from `at` at the same offset, if there is one.
    fn file(&self, at: u64, len: usize) -> Option<FileGuard<'_>>;
}

/// A borrowed file whose bytes stay in place while this guard lives; hold it only briefly.
#[derive(Debug)]
pub struct FileGuard<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Prevents the bytes from being evicted.
    pub(crate) _eviction_guard: Option<RwLockReadGuard<'a, ()>>,
}

/// A range to read.
#[derive(Debug)]
pub struct Piece<'a> {
    /// The offset of its first byte.
    pub offset: u64,
    /// The buffer to fill.
    pub buffer: &'a mut [u8],
}

/// The size in bytes from which the fixed cost of a system call no longer matters.
pub(crate) const LOCAL_READAHEAD: u64 = 1 << 20;

/// Bytes in memory.
#[derive(Debug)]
pub struct MemoryRanges(pub Vec<u8>);

impl RangeSource for MemoryRanges {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn patience(&self, _at: u64, _len: usize) -> Patience {
        Patience::None
    }

    fn readahead_len(&self) -> u64 {
        LOCAL_READAHEAD
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        for piece in pieces {
            let bytes = usize::try_from(piece.offset)
                .ok()
                .and_then(|at| self.0.get(at..)?.get(..piece.buffer.len()))
                .ok_or(io::ErrorKind::UnexpectedEof)?;
            piece.buffer.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_filled_wherever_they_are() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &bytes).expect("written");
        let file = FileRanges::open(file.path()).expect("opened");
        let memory = MemoryRanges(bytes.clone());
        for source in [&file as &dyn RangeSource, &memory] {
            assert_eq!(source.len(), 5000);
            let (mut a, mut b, mut c) = ([0; 10], [0; 1500], [0; 7]);
            let mut pieces = [
                Piece {
                    offset: 3,
                    buffer: &mut a,
                },
                Piece {
                    offset: 13,
                    buffer: &mut b,
                },
                Piece {
                    offset: 4993,
                    buffer: &mut c,
                },
            ];
            source.read(&mut pieces).expect("read");
            assert_eq!(a, bytes[3..13]);
            assert_eq!(b, bytes[13..1513]);
            assert_eq!(c, bytes[4993..]);
            let mut beyond = [0; 8];
            let mut piece = [Piece {
                offset: 4993,
                buffer: &mut beyond,
            }];
            assert!(source.read(&mut piece).is_err());
        }
    }
}
