//! Sinks and payloads in plain memory, and file reads and writes for transports.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno as Raw, ReadWriteFlags};
use vfs::copies::copied;
use vfs::{Errno, Fill, Patience, Payload, Result, Sink};

use crate::errno;

/// Fills `buffer` from `fd` at `offset` and returns the number of bytes: fewer at end of file only.
/// For a transport's [`Sink::file`]; see [`read_all`].
pub fn pread_into(
    fd: BorrowedFd<'_>,
    offset: u64,
    buffer: &mut [u8],
    patience: Patience,
) -> Result<usize> {
    read_all(buffer.len(), patience, |filled, flags| {
        let (rest, at) = (&mut buffer[filled..], offset + filled as u64);
        if flags.is_empty() {
            return rustix::io::pread(fd, rest, at);
        }
        rustix::io::preadv2(fd, &mut [IoSliceMut::new(rest)], at, flags)
    })
}

/// Reads until `len` bytes are complete or the end of file. `read` is passed the number of bytes so
/// far.
///
/// With less than full patience it reads only cached data, with `RWF_NOWAIT`: one system call if
/// all of it is cached. Returns `WOULD_BLOCK` if some is not, or the file system does not support
/// the flag. A source whose files are always in memory uses full patience and avoids the
/// restriction.
pub fn read_all(
    len: usize,
    patience: Patience,
    mut read: impl FnMut(usize, ReadWriteFlags) -> rustix::io::Result<usize>,
) -> Result<usize> {
    let flags = match patience {
        Patience::Full => ReadWriteFlags::empty(),
        Patience::None | Patience::Brief => ReadWriteFlags::NOWAIT,
    };
    let mut filled = 0;
    while filled < len {
        match read(filled, flags) {
            Ok(0) => break,
            Ok(read) => {
                copied(read);
                filled += read;
            }
            Err(Raw::INTR) => {}
            Err(Raw::AGAIN | Raw::OPNOTSUPP) if patience < Patience::Full => {
                return Err(Errno::WOULD_BLOCK);
            }
            // Bytes before the error are valid; the next read returns the error.
            Err(_) if filled > 0 => break,
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(filled)
}

/// Returns whether `fd`, open for reading, can report that a read would block (`RWF_NOWAIT`).
pub fn tells_waiting(fd: BorrowedFd<'_>) -> bool {
    // Far beyond the end of any file, so that it cannot block. A read of no bytes would not do: the
    // kernel returns before it checks the flag.
    let far = i64::MAX as u64 - 1;
    let mut byte = [0];
    let mut one = [IoSliceMut::new(&mut byte)];
    rustix::io::preadv2(fd, &mut one, far, ReadWriteFlags::NOWAIT) != Err(Raw::OPNOTSUPP)
}

/// Writes all of `data` to `fd` at `offset` and returns the number of bytes: fewer only on an error
/// after the first byte. A descriptor opened to append ignores `offset`. For a transport's
/// [`Payload::file`].
pub fn pwrite_all(fd: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Result<usize> {
    write_all(data.len(), |written| {
        rustix::io::pwrite(fd, &data[written..], offset + written as u64)
    })
}

/// Writes until `len` bytes are written, and returns their number: fewer only on an error after the
/// first. `write` is passed the number of bytes so far.
pub fn write_all(
    len: usize,
    mut write: impl FnMut(usize) -> rustix::io::Result<usize>,
) -> Result<usize> {
    let mut written = 0;
    while written < len {
        match write(written) {
            Ok(0) => break,
            Ok(more) => {
                copied(more);
                written += more;
            }
            Err(Raw::INTR) => {}
            Err(_) if written > 0 => break,
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(written)
}

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
        copied(data.len());
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
    bound: usize,
}

impl VecSink {
    /// Creates a sink for up to `bound` bytes.
    pub fn new(bound: usize) -> VecSink {
        VecSink {
            bytes: Vec::new(),
            bound,
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
    fn grown(
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
        self.bound - self.bytes.len()
    }

    fn bytes(&mut self, data: &[u8]) {
        assert!(
            data.len() <= self.room(),
            "a source put in more than there is room for"
        );
        copied(data.len());
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
        self.grown(len, |rest| pread_into(fd, offset, rest, patience))
    }

    fn lend(&mut self, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        Some(self.grown(len, fill))
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
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_cached_read_needs_no_patience_and_the_end_is_short() {
        let file = tempfile::tempfile_in(".").expect("a file");
        file.write_all_at(b"0123456789", 0).expect("writes");
        if !tells_waiting(file.as_fd()) {
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
