//! Sinks and payloads between the cache and the source.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use sys::file_io::pread_into;
use vfs::{Fill, Patience, Result, Sink};
use wire::payload::SlicePayload;

use super::cached::Cached;
use super::pages::Piece;

/// A sink that stores data in the cache as it arrives, unless the file was changed since the
/// request.
pub(super) struct CacheSink<'a> {
    file: &'a Cached,
    epoch: u64,
    /// The range that has not arrived yet.
    rest: Range<u64>,
    /// The range that a program requested, if it reads at random.
    requested: Option<Range<u64>>,
}

impl<'a> CacheSink<'a> {
    pub(super) fn new(
        file: &'a Cached,
        epoch: u64,
        range: Range<u64>,
        requested: Option<Range<u64>>,
    ) -> CacheSink<'a> {
        CacheSink {
            file,
            epoch,
            rest: range,
            requested,
        }
    }

    fn fill(&mut self, len: usize, data: Option<&[u8]>) {
        let end = self.rest.start + len as u64;
        let mut state = self.file.lock();
        if state.epoch == self.epoch {
            let range = self.rest.start..end;
            match &self.requested {
                Some(requested) => state.pages.insert_pages(range, data, requested),
                None => state.pages.fill(range, data),
            }
        }
        drop(state);
        self.file.changed();
        self.rest.start = end;
    }
}

impl Sink for CacheSink<'_> {
    fn room(&self) -> usize {
        (self.rest.end - self.rest.start) as usize
    }

    fn bytes(&mut self, data: &[u8]) {
        self.fill(data.len(), Some(data));
    }

    fn zeros(&mut self, len: usize) {
        self.fill(len, None);
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64, len: usize, _: Patience) -> Result<usize> {
        /// In bytes per read.
        const PART: usize = 128 << 10;
        let mut buffer = vec![0; PART.min(len)];
        let mut done = 0;
        while done < len {
            let part = &mut buffer[..PART.min(len - done)];
            match pread_into(fd, offset + done as u64, part, Patience::Full) {
                Ok(0) => break,
                Ok(read) => {
                    self.bytes(&buffer[..read]);
                    done += read;
                }
                // Data before the error is valid; the next read meets the error again.
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Refuses: the cache's memory may move while its lock is not held.
    fn lend(&mut self, _: usize, _: Fill<'_>) -> Option<Result<usize>> {
        None
    }
}

/// Returns the pieces as one payload, joined in `buffer` unless there is only one: a source sends a
/// single piece without a copy.
pub(super) fn join<'a>(pieces: &'a [Piece], buffer: &'a mut Vec<u8>) -> SlicePayload<'a> {
    if let [one] = pieces {
        return SlicePayload::new(one.bytes());
    }
    buffer.clear();
    for piece in pieces {
        buffer.extend_from_slice(piece.bytes());
    }
    SlicePayload::new(buffer)
}
