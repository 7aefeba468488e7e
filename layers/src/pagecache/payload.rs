//! The cache's ends of reads and writes of what is below.

use std::fs::File;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use vfs::{Errno, Fill, Patience, Payload, Result, Sink};

use super::cached::Cached;
use super::pages::Piece;

/// Takes what comes from below into the cache, piece by piece as it comes, unless the file was changed since it was asked for.
pub(super) struct Filling<'a> {
    file: &'a Cached,
    epoch: u64,
    /// What has not come yet.
    rest: Range<u64>,
    /// What a program has asked for of it, if it reads at random.
    asked: Option<Range<u64>>,
}

impl<'a> Filling<'a> {
    pub(super) fn new(
        file: &'a Cached,
        epoch: u64,
        range: Range<u64>,
        asked: Option<Range<u64>>,
    ) -> Filling<'a> {
        Filling {
            file,
            epoch,
            rest: range,
            asked,
        }
    }

    fn fill(&mut self, len: usize, data: Option<&[u8]>) {
        let end = self.rest.start + len as u64;
        let mut state = self.file.lock();
        if state.epoch == self.epoch {
            let range = self.rest.start..end;
            match &self.asked {
                Some(asked) => state.pages.bring(range, data, asked),
                None => state.pages.fill(range, data),
            }
        }
        drop(state);
        self.file.changed();
        self.rest.start = end;
    }
}

impl Sink for Filling<'_> {
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
        /// At a time.
        const PART: usize = 128 << 10;
        let file = File::from(fd.try_clone_to_owned()?);
        let mut buffer = vec![0; PART.min(len)];
        let mut done = 0;
        while done < len {
            let part = PART.min(len - done);
            match file.read_at(&mut buffer[..part], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => {
                    self.bytes(&buffer[..read]);
                    done += read;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // What came before the error is good; the next read meets the error again.
                Err(_) if done > 0 => break,
                Err(error) => return Err(Errno::from(error)),
            }
        }
        Ok(done)
    }

    /// Its memory moves while nobody holds the lock.
    fn lend(&mut self, _: usize, _: Fill<'_>) -> Option<Result<usize>> {
        None
    }
}

/// Gives pieces of the cache as one: sources send what is in one piece from where it is.
pub(super) struct Pieces<'a> {
    whole: &'a [u8],
}

impl<'a> Pieces<'a> {
    /// `pieces`, put together in `buffer` unless there is one only.
    pub(super) fn new(pieces: &'a [Piece], buffer: &'a mut Vec<u8>) -> Pieces<'a> {
        if let [one] = pieces {
            return Pieces { whole: one.bytes() };
        }
        buffer.clear();
        for piece in pieces {
            buffer.extend_from_slice(piece.bytes());
        }
        Pieces { whole: buffer }
    }
}

impl Payload for Pieces<'_> {
    fn len(&self) -> usize {
        self.whole.len()
    }

    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        take(self.whole)?;
        self.whole = &[];
        Ok(())
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<usize> {
        let file = File::from(fd.try_clone_to_owned()?);
        let mut done = 0;
        while !self.whole.is_empty() {
            match file.write_at(self.whole, offset + done as u64) {
                Ok(written) => {
                    self.whole = &self.whole[written..];
                    done += written;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) if done > 0 => break,
                Err(error) => return Err(Errno::from(error)),
            }
        }
        Ok(done)
    }
}
