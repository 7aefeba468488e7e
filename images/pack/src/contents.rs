//! Sources of file contents.

#[cfg_attr(not(target_os = "linux"), path = "contents/copy.rs")]
mod lend;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use sys::positioned::FileExt;
use vfs::Sink;

/// Number of bytes read into memory at a time for copying.
const COPY_SIZE: u64 = 128 << 10;

/// The contents of a file. Several threads may read at once; each part is read once.
pub trait Contents: Send + Sync {
    /// Returns the size in bytes.
    fn len(&self) -> u64;

    /// Returns whether the size is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` from `offset`; returns an error if the file ends before.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Puts `range` into `sink`; returns an error if the file ends before. Data in a local file
    /// need not pass through memory.
    fn copy(&self, range: Range<u64>, sink: &mut dyn Sink) -> io::Result<()> {
        let mut buffer = vec![0; COPY_SIZE.min(range.end - range.start) as usize];
        for at in range.clone().step_by(COPY_SIZE as usize) {
            let piece = &mut buffer[..COPY_SIZE.min(range.end - at) as usize];
            self.read(at, piece)?;
            sink.bytes(piece);
        }
        Ok(())
    }

    /// Returns the ranges that may hold data, sorted; the rest are holes.
    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>>;

    /// Returns how many ranges it holds in memory.
    fn ranges_in_memory(&self) -> usize {
        0
    }

    /// Closes the file: no more reads follow.
    fn close(&self) {}
}

/// Bytes in memory.
pub struct Bytes(pub Vec<u8>);

impl Contents for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.0.get(offset..)?.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or_else(unexpected_end)?);
        Ok(())
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(whole_range(self.len()))
    }
}

/// Ranges of a local file, as a tar stream holds them; the gaps between them are holes.
pub struct FileRanges {
    /// The file with the data.
    pub(crate) file: Arc<File>,
    /// Size in bytes, holes included.
    pub(crate) len: u64,
    /// For each range its offset, its offset in `file`, and its length; sorted, disjoint and not
    /// empty.
    pub(crate) ranges: Vec<(u64, u64, u64)>,
}

impl Contents for FileRanges {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        if end > self.len {
            return Err(unexpected_end());
        }
        buffer.fill(0);
        let first = self
            .ranges
            .partition_point(|part| part.0 + part.2 <= offset);
        for &(at, position, len) in self.ranges[first..].iter().take_while(|part| part.0 < end) {
            let (from, to) = (at.max(offset), (at + len).min(end));
            let piece = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            self.file.read_exact_at(piece, position + (from - at))?;
        }
        Ok(())
    }

    fn copy(&self, range: Range<u64>, sink: &mut dyn Sink) -> io::Result<()> {
        if range.end > self.len {
            return Err(unexpected_end());
        }
        let mut done = range.start;
        let first = (self.ranges).partition_point(|part| part.0 + part.2 <= range.start);
        for &(at, position, len) in self.ranges[first..]
            .iter()
            .take_while(|part| part.0 < range.end)
        {
            let (from, to) = (at.max(range.start), (at + len).min(range.end));
            sink.zeros((from - done) as usize);
            let (position, len) = (position + (from - at), (to - from) as usize);
            if lend::to_sink(&self.file, position, len, sink)? < len {
                return Err(unexpected_end());
            }
            done = to;
        }
        sink.zeros((range.end - done) as usize);
        Ok(())
    }

    fn ranges_in_memory(&self) -> usize {
        self.ranges.len()
    }

    fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        let parts = self.ranges.iter();
        Ok(parts.map(|&(at, _, len)| at..at + len).collect())
    }
}

/// Returns one range, or none for an empty file.
pub(crate) fn whole_range(len: u64) -> Vec<Range<u64>> {
    match len {
        0 => Vec::new(),
        _ => std::iter::once(0..len).collect(),
    }
}

/// Returns the error for a file that is shorter than its size.
pub(crate) fn unexpected_end() -> io::Error {
    let what = "the file was changed while it was read: it ends before its size";
    io::Error::new(io::ErrorKind::UnexpectedEof, what)
}
