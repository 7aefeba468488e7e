//! A simulated remote source in memory that records reads.

use std::io;
use std::sync::Arc;

use image::{FileGuard, MemoryRanges, Piece, RangeSource};
use parking_lot::Mutex;
use vfs::Patience;

/// An image's bytes. Reading them takes full patience, and no file backs them.
pub(crate) struct Far {
    pub(crate) bytes: MemoryRanges,
    run: u64,
    /// The offset and length of each read.
    reads: Mutex<Vec<(u64, u64)>>,
    /// The offset of a byte that is wrong in the next replies, and their number.
    wrong: Mutex<(u64, u32)>,
}

impl Far {
    /// Returns a source with the read-ahead length of a local disk.
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Far> {
        Far::with_run(bytes, 1 << 20)
    }

    /// Returns a source with a read-ahead length of `run` bytes.
    pub(crate) fn with_run(bytes: Vec<u8>, run: u64) -> Arc<Far> {
        Arc::new(Far {
            bytes: MemoryRanges(bytes),
            run,
            reads: Mutex::default(),
            wrong: Mutex::default(),
        })
    }

    /// Makes the byte at `offset` wrong in the next `replies` that have it.
    pub(crate) fn reply_wrongly(&self, offset: u64, replies: u32) {
        *self.wrong.lock() = (offset, replies);
    }

    /// Returns the reads since the last call.
    pub(crate) fn reads(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.reads.lock())
    }

    /// Returns the number of bytes read since the last call.
    pub(crate) fn fetched(&self) -> u64 {
        self.reads().iter().map(|(_, len)| len).sum()
    }
}

impl RangeSource for Far {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn patience(&self, _at: u64, _len: usize) -> Patience {
        Patience::Full
    }

    fn readahead_len(&self) -> u64 {
        self.run
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let bytes: usize = pieces.iter().map(|piece| piece.buffer.len()).sum();
        let mut reads = self.reads.lock();
        reads.push((pieces.first().map_or(0, |piece| piece.offset), bytes as u64));
        drop(reads);
        self.bytes.read(pieces)?;
        let (at, replies) = &mut *self.wrong.lock();
        for piece in pieces {
            let end = piece.offset + piece.buffer.len() as u64;
            if *replies > 0 && (piece.offset..end).contains(at) {
                piece.buffer[(*at - piece.offset) as usize] ^= 0x40;
                *replies -= 1;
            }
        }
        Ok(())
    }

    fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
        None
    }
}
