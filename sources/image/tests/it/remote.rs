//! A simulated remote source in memory that records reads.

use std::io;
use std::ops::Range;
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
    /// The range of bytes that are wrong in the next replies, and the number of these.
    wrong: Mutex<(Range<u64>, u32)>,
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
            wrong: Mutex::new((0..0, 0)),
        })
    }

    /// Makes the byte at `offset` wrong in the next `replies` that have it.
    pub(crate) fn reply_wrongly(&self, offset: u64, replies: u32) {
        self.reply_wrongly_within(offset..offset + 1, replies);
    }

    /// Makes the bytes of `range` wrong in the next `replies` that have some of them.
    pub(crate) fn reply_wrongly_within(&self, range: Range<u64>, replies: u32) {
        *self.wrong.lock() = (range, replies);
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
        let (wrong, replies) = &mut *self.wrong.lock();
        for piece in pieces {
            let end = piece.offset + piece.buffer.len() as u64;
            let (from, to) = (wrong.start.max(piece.offset), wrong.end.min(end));
            if *replies > 0 && from < to {
                let part = (from - piece.offset) as usize..(to - piece.offset) as usize;
                piece.buffer[part].iter_mut().for_each(|byte| *byte ^= 0x40);
                *replies -= 1;
            }
        }
        Ok(())
    }

    fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
        None
    }
}
