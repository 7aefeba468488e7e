//! A complete copy, and reading from it.

use std::sync::Arc;

use vfs::{Caller, Cx, Errno, File, Result, Sink};

use super::sums::{CHUNK, Sums};
use crate::whole;

pub(super) struct Copy {
    data: Arc<dyn File>,
    sums: Arc<Sums>,
}

impl Copy {
    pub(super) fn new(data: Arc<dyn File>, sums: Arc<Sums>) -> Copy {
        Copy { data, sums }
    }

    pub(super) fn sums(&self) -> &Sums {
        &self.sums
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
        let size = self.sums.version.size;
        let end = offset.saturating_add(len.min(sink.room()) as u64).min(size);
        if end <= offset {
            return Ok(Some(0));
        }
        for number in offset / CHUNK..=(end - 1) / CHUNK {
            if !self.sums.is_good(number) && !self.verify(&cx, number)? {
                return Ok(None);
            }
        }
        match self.data.read(&cx, offset, (end - offset) as usize, sink) {
            Ok(0) => Ok(None),
            Err(errno) => turned_down(errno),
            Ok(read) => Ok(Some(read)),
        }
    }

    /// Returns the number of bytes that a read must return.
    pub(super) fn expected(&self, offset: u64, len: usize) -> usize {
        let rest = self.sums.version.size.saturating_sub(offset);
        usize::try_from(rest).map_or(len, |rest| rest.min(len))
    }

    fn verify(&self, cx: &Cx<'_>, number: u64) -> Result<bool> {
        cx.may_wait()?;
        match chunk(cx, &*self.data, number, self.sums.version.size) {
            Ok(bytes) => Ok(self.sums.verify(number, &bytes)),
            Err(errno) => turned_down(errno).map(|_| false),
        }
    }
}

/// Converts an error of the directory: readers see only requests to retry and cancellations.
fn turned_down(errno: Errno) -> Result<Option<usize>> {
    match errno {
        Errno::WOULD_BLOCK | Errno::PARKED | Errno::EINTR => Err(errno),
        _ => Ok(None),
    }
}

/// Reads chunk `number` of a file of `size` bytes; fewer bytes if the file ends early.
pub(super) fn chunk(cx: &Cx<'_>, file: &dyn File, number: u64, size: u64) -> Result<Vec<u8>> {
    let start = number * CHUNK;
    let len = CHUNK.min(size.saturating_sub(start)) as usize;
    whole::read(cx, file, start, len)
}
