//! Sinks and payloads in plain memory: the ends of a read or write whose bytes a caller holds.

use sys::file_io::{pread_into, pwrite_all};
use vfs::copies::count_copied;
use vfs::fd::BorrowedFd;
use vfs::{Fill, Patience, Payload, Result, Sink};

/// A sink in the caller's memory.
pub struct SliceSink<'a> {
    buffer: &'a mut [u8],
    filled: usize,
}

impl<'a> SliceSink<'a> {
    /// Creates a sink that fills `buffer` from its start.
    pub fn new(buffer: &'a mut [u8]) -> SliceSink<'a> {
        SliceSink { buffer, filled: 0 }
    }

    /// Returns the bytes received so far.
    pub fn filled(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    fn take(&mut self, len: usize) -> &mut [u8] {
        let taken = &mut self.buffer[self.filled..][..len];
        self.filled += len;
        taken
    }
}

impl Sink for SliceSink<'_> {
    fn room(&self) -> usize {
        self.buffer.len() - self.filled
    }

    fn bytes(&mut self, data: &[u8]) {
        count_copied(data.len());
        self.take(data.len()).copy_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        self.take(len).fill(0);
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize> {
        let read = pread_into(fd, offset, &mut self.buffer[self.filled..][..len], patience)?;
        self.filled += read;
        Ok(read)
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        let filled = fill(&mut self.buffer[self.filled..][..len]);
        self.filled += filled.unwrap_or(0).min(len);
        Some(filled)
    }
}

/// A sink that grows, up to a limit.
pub struct VecSink {
    bytes: Vec<u8>,
    limit: usize,
}

impl VecSink {
    /// Creates a sink for up to `bound` bytes.
    pub fn new(bound: usize) -> VecSink {
        VecSink {
            bytes: Vec::new(),
            limit: bound,
        }
    }

    /// Returns the bytes received so far.
    pub fn filled(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the received bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends up to `len` bytes that `fill` writes.
    fn extend_with(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        assert!(
            len <= self.room(),
            "a source put in more than there is room for"
        );
        let before = self.bytes.len();
        if self.bytes.capacity() == 0 {
            // Memory from the system is zero already.
            self.bytes = vec![0; len];
        } else {
            self.bytes.resize(before + len, 0);
        }
        let filled = fill(&mut self.bytes[before..]);
        self.bytes.truncate(before + filled.unwrap_or(0));
        filled
    }
}

impl Sink for VecSink {
    fn room(&self) -> usize {
        self.limit - self.bytes.len()
    }

    fn bytes(&mut self, data: &[u8]) {
        assert!(
            data.len() <= self.room(),
            "a source put in more than there is room for"
        );
        count_copied(data.len());
        self.bytes.extend_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        assert!(
            len <= self.room(),
            "a source put in more than there is room for"
        );
        self.bytes.resize(self.bytes.len() + len, 0);
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize> {
        self.extend_with(len, |rest| pread_into(fd, offset, rest, patience))
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        Some(self.extend_with(len, fill))
    }
}

/// A payload in the caller's memory.
pub struct SlicePayload<'a> {
    rest: &'a [u8],
}

impl<'a> SlicePayload<'a> {
    /// Creates a payload of `bytes`.
    pub fn new(bytes: &'a [u8]) -> SlicePayload<'a> {
        SlicePayload { rest: bytes }
    }
}

impl Payload for SlicePayload<'_> {
    fn len(&self) -> usize {
        self.rest.len()
    }

    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        take(self.rest)?;
        self.rest = &[];
        Ok(())
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<usize> {
        let written = pwrite_all(fd, offset, self.rest)?;
        self.rest = &self.rest[written..];
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use sys::file_io::supports_nowait;
    use vfs::Errno;
    use vfs::fd::AsFd;

    #[test]
    fn a_cached_read_needs_no_patience_and_the_end_is_short() {
        let file = tempfile::tempfile_in(".").expect("a file");
        file.write_all_at(b"0123456789", 0).expect("writes");
        if !supports_nowait(file.as_fd()) {
            return eprintln!("skipped: this file system has no RWF_NOWAIT");
        }
        for patience in [Patience::None, Patience::Brief, Patience::Full] {
            let mut buffer = [0; 16];
            let mut sink = SliceSink::new(&mut buffer);
            assert_eq!(sink.file(file.as_fd(), 4, 16, patience), Ok(6));
            assert_eq!((sink.filled(), sink.room()), (&b"456789"[..], 10));
            assert_eq!(sink.file(file.as_fd(), 10, 10, patience), Ok(0));
        }
    }

    #[test]
    fn what_is_not_cached_would_block_and_leaves_nothing() {
        let file = tempfile::tempfile_in(".").expect("a file");
        let size = 8 << 20;
        file.write_all_at(&vec![7; size], 0).expect("writes");
        file.sync_all().expect("syncs");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("drops");
        let mut sink = VecSink::new(size);
        match sink.file(file.as_fd(), 0, size, Patience::Brief) {
            Ok(_) => eprintln!("skipped: this file system keeps its pages"),
            Err(errno) => {
                assert_eq!(errno, Errno::WOULD_BLOCK);
                assert_eq!(sink.room(), size);
            }
        }
        let mut sink = VecSink::new(size);
        assert_eq!(sink.file(file.as_fd(), 0, size, Patience::Full), Ok(size));
        assert!(sink.into_bytes().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn memory_goes_in_and_out_as_it_is() {
        let mut sink = VecSink::new(10);
        sink.bytes(b"ab");
        sink.zeros(3);
        assert_eq!((sink.filled(), sink.room()), (&b"ab\0\0\0"[..], 5));

        let file = tempfile::tempfile().expect("a file");
        let mut payload = SlicePayload::new(b"payload");
        assert_eq!(payload.file(file.as_fd(), 2), Ok(7));
        assert!(payload.is_empty());
        let mut back = [0; 9];
        file.read_exact_at(&mut back, 0).expect("reads");
        assert_eq!(&back, b"\0\0payload");

        let mut payload = SlicePayload::new(b"kept");
        assert_eq!(payload.bytes(&mut |_| Err(Errno::EIO)), Err(Errno::EIO));
        assert_eq!(payload.len(), 4);
        assert_eq!(payload.bytes(&mut |_| Ok(())), Ok(()));
        assert!(payload.is_empty());
    }
}
