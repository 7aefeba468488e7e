//! A complete copy, and reading from it.

use std::sync::Arc;

use vfs::{Caller, Cx, Errno, File, Result, Sink};

use super::checksums::{CHUNK, Checksums};
use crate::full_io;

pub(super) struct CachedCopy {
    data: Arc<dyn File>,
    checksums: Arc<Checksums>,
}

impl CachedCopy {
    pub(super) fn new(data: Arc<dyn File>, sums: Arc<Checksums>) -> CachedCopy {
        CachedCopy {
            data,
            checksums: sums,
        }
    }

    pub(super) fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    /// Reads as [`File::read`] does, after verifying the chunks. Returns `None`, with nothing in
    /// the sink, if the copy is invalid, and fewer bytes than expected if it was truncated
    /// meanwhile.
    pub(super) fn read(
        &self,
        cx: &Cx<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<Option<usize>> {
        let cx = cx.on_behalf_of(&Caller::ROOT);
        let size = self.checksums.version.size;
        let end = offset.saturating_add(len.min(sink.room()) as u64).min(size);
        if end <= offset {
            return Ok(Some(0));
        }
        for number in offset / CHUNK..=(end - 1) / CHUNK {
            if !self.checksums.is_verified(number) && !self.verify(&cx, number)? {
                return Ok(None);
            }
        }
        match self.data.read(&cx, offset, (end - offset) as usize, sink) {
            Ok(0) => Ok(None),
            Err(errno) => directory_error(errno),
            Ok(read) => Ok(Some(read)),
        }
    }

    /// Returns the number of bytes that a read must return.
    pub(super) fn expected(&self, offset: u64, len: usize) -> usize {
        let rest = self.checksums.version.size.saturating_sub(offset);
        usize::try_from(rest).map_or(len, |rest| rest.min(len))
    }

    fn verify(&self, cx: &Cx<'_>, number: u64) -> Result<bool> {
        cx.check_may_block()?;
        match read_chunk(cx, &*self.data, number, self.checksums.version.size) {
            Ok(bytes) => Ok(self.checksums.verify(number, &bytes)),
            Err(errno) => directory_error(errno).map(|_| false),
        }
    }
}

/// Converts an error of the directory: readers see only requests to retry and cancellations.
fn directory_error(errno: Errno) -> Result<Option<usize>> {
    match errno {
        Errno::WOULD_BLOCK | Errno::PARKED | Errno::EINTR => Err(errno),
        _ => Ok(None),
    }
}

/// Reads chunk `number` of a file of `size` bytes; fewer bytes if the file ends early.
pub(super) fn read_chunk(cx: &Cx<'_>, file: &dyn File, number: u64, size: u64) -> Result<Vec<u8>> {
    let start = number * CHUNK;
    let len = CHUNK.min(size.saturating_sub(start)) as usize;
    full_io::read_full(cx, file, start, len)
}
