//! Bytes far away, in memory, which note what is read of them.

use std::io;
use std::sync::{Arc, Mutex};

use image::{Held, MemoryRanges, Piece, RangeSource};
use vfs::Patience;

/// An image's bytes. Reading them takes full patience, and no file has them.
pub(crate) struct Far {
    pub(crate) bytes: MemoryRanges,
    /// Where each read began, and how many bytes it was for.
    reads: Mutex<Vec<(u64, u64)>>,
}

impl Far {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Far> {
        Arc::new(Far {
            bytes: MemoryRanges(bytes),
            reads: Mutex::default(),
        })
    }

    /// The reads since this was asked last.
    pub(crate) fn reads(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.reads.lock().expect("no panic holds it"))
    }

    /// Bytes since then.
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

    fn run(&self) -> u64 {
        self.bytes.run()
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let bytes: usize = pieces.iter().map(|piece| piece.into.len()).sum();
        let mut reads = self.reads.lock().expect("no panic holds it");
        reads.push((pieces.first().map_or(0, |piece| piece.at), bytes as u64));
        drop(reads);
        self.bytes.read(pieces)
    }

    fn file(&self, _at: u64, _len: usize) -> Option<Held<'_>> {
        None
    }
}
