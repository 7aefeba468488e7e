//! A request and its reply, where they lie in the guest's memory.
//!
//! Of this room only this file is unsafe: it copies from and to that memory.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use libc::iovec;
use rustix::io::Errno as Raw;
use vfs::{Errno, Patience, Payload, Result, Sink};
use wire::{Incoming, Outgoing};

use crate::memory::Memory;

/// A chain of descriptors that the device has and gives back. The first bytes of the request are
/// copied: what was read of them once does not change any more.
pub(crate) struct Chain {
    pub(crate) head: u16,
    pub(crate) request: Request,
    pub(crate) reply: Reply,
}

/// What the guest asks.
pub(crate) struct Request {
    bytes: Vec<u8>,
    area: Area,
}

/// Where it wants the answer.
pub(crate) struct Reply {
    area: Area,
    len: usize,
    /// The piece where the next byte goes, and how many bytes are before that piece.
    piece: usize,
    before: usize,
}

/// Memory of the guest, in pieces.
pub(crate) struct Area {
    pieces: Vec<iovec>,
    len: usize,
    /// Keeps it mapped.
    _memory: Arc<Memory>,
}

// SAFETY: the pieces point into memory that stays mapped as long as `memory`, is shared with a guest
// anyway, and is only ever copied from and to, by us or by the kernel.
unsafe impl Send for Area {}

// SAFETY: as above; nothing is handed out that could be looked at.
unsafe impl Sync for Area {}

impl Area {
    pub(crate) fn new(pieces: Vec<iovec>, memory: &Arc<Memory>) -> Area {
        Area {
            len: pieces.iter().map(|piece| piece.iov_len).sum(),
            pieces,
            _memory: memory.clone(),
        }
    }

    /// Calls `each` with what lies at `range`, piece by piece.
    fn each(&self, range: Range<usize>, mut each: impl FnMut(*mut u8, usize)) {
        let mut at = 0;
        for piece in &self.pieces {
            let (from, to) = (range.start.max(at), range.end.min(at + piece.iov_len));
            if from < to {
                each(
                    piece.iov_base.cast::<u8>().wrapping_add(from - at),
                    to - from,
                );
            }
            at += piece.iov_len;
            if at >= range.end {
                return;
            }
        }
    }

    /// Copies what lies at `at` on into `bytes`.
    fn load(&self, at: usize, bytes: &mut [u8]) {
        let mut done = 0;
        self.each(at..at + bytes.len(), |start, len| {
            // SAFETY: `each` gives memory that is mapped, and `bytes` has room for all that it gives. The
            // guest may write meanwhile: whatever bytes result are bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(start, bytes[done..done + len].as_mut_ptr(), len)
            };
            done += len;
        });
    }

    /// Copies `bytes` to what lies at `at` on.
    fn store(&self, at: usize, bytes: &[u8]) {
        let mut done = 0;
        self.each(at..at + bytes.len(), |start, len| {
            // SAFETY: as in `load`; nobody has a reference to the guest's memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..done + len].as_ptr(), start, len) };
            done += len;
        });
    }

    /// What lies at `range` as the kernel takes it, as much as it takes at once.
    fn vectors(&self, range: Range<usize>) -> Vec<iovec> {
        /// `IOV_MAX`
        const MOST: usize = 1024;
        let mut vectors = Vec::with_capacity(self.pieces.len().min(MOST));
        self.each(range, |start, len| {
            if vectors.len() < MOST {
                vectors.push(iovec {
                    iov_base: start.cast(),
                    iov_len: len,
                });
            }
        });
        vectors
    }
}

impl Request {
    /// `frame` says of the first bytes how many must be copied.
    pub(crate) fn new(area: Area, frame: &dyn Fn(&[u8]) -> Option<usize>) -> Request {
        /// Enough for most requests whole, and to tell of any how much is needed.
        const FIRST: usize = 256;
        let mut bytes = vec![0; area.len.min(FIRST)];
        area.load(0, &mut bytes);
        let wanted = frame(&bytes).unwrap_or(bytes.len()).min(area.len);
        let first = bytes.len();
        if wanted > first {
            bytes.resize(wanted, 0);
            area.load(first, &mut bytes[first..]);
        }
        Request { bytes, area }
    }
}

impl Incoming for Request {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn size(&self) -> usize {
        self.area.len
    }

    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> Result<usize>,
    ) -> Result<usize> {
        if range.start > range.end || range.end > self.area.len {
            return Err(Errno::EINVAL);
        }
        write(&mut Part {
            area: &self.area,
            rest: range,
        })
    }
}

/// A part of a request, to be written.
struct Part<'a> {
    area: &'a Area,
    rest: Range<usize>,
}

impl Payload for Part<'_> {
    fn len(&self) -> usize {
        self.rest.len()
    }

    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut copy = vec![0; self.rest.len().min(64 << 10)];
        while !self.rest.is_empty() {
            let len = self.rest.len().min(copy.len());
            self.area.load(self.rest.start, &mut copy[..len]);
            take(&copy[..len])?;
            self.rest.start += len;
        }
        Ok(())
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<usize> {
        let written = sys::payload::write_all(self.rest.len(), |written| {
            let vectors = self.area.vectors(self.rest.start + written..self.rest.end);
            // SAFETY: the vectors are of memory that is mapped.
            answer(unsafe {
                libc::pwritev(
                    fd.as_raw_fd(),
                    vectors.as_ptr(),
                    vectors.len() as libc::c_int,
                    (offset + written as u64) as libc::off_t,
                )
            })
        })?;
        self.rest.start += written;
        Ok(written)
    }
}

impl Reply {
    pub(crate) fn new(area: Area) -> Reply {
        Reply {
            area,
            len: 0,
            piece: 0,
            before: 0,
        }
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while let (Some(piece), false) = (self.area.pieces.get(self.piece), bytes.is_empty()) {
            let at = self.len - self.before;
            let len = bytes.len().min(piece.iov_len - at);
            let start = piece.iov_base.cast::<u8>().wrapping_add(at);
            // SAFETY: `at + len` lies within the piece, which is mapped; nobody has a reference to it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, len) };
            bytes = &bytes[len..];
            self.len += len;
            if at + len == piece.iov_len {
                self.before += piece.iov_len;
                self.piece += 1;
            }
        }
    }

    fn seek(&mut self, len: usize) {
        (self.len, self.piece, self.before) = (len, 0, 0);
        while let Some(piece) = self.area.pieces.get(self.piece)
            && self.before + piece.iov_len <= len
        {
            self.before += piece.iov_len;
            self.piece += 1;
        }
    }
}

impl Sink for Reply {
    fn room(&self) -> usize {
        self.area.len - self.len
    }

    fn bytes(&mut self, data: &[u8]) {
        self.put(data);
    }

    fn zeros(&mut self, len: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut rest = len;
        while rest > 0 {
            let some = rest.min(ZEROS.len());
            self.put(&ZEROS[..some]);
            rest -= some;
        }
    }

    fn file(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        patience: Patience,
    ) -> Result<usize> {
        let len = len.min(self.room());
        let start = self.len;
        let read = sys::payload::read_all(len, patience, |read, flags| {
            let vectors = self.area.vectors(start + read..start + len);
            // SAFETY: the vectors are of memory that is mapped, and that nobody has a reference to.
            answer(unsafe {
                libc::preadv2(
                    fd.as_raw_fd(),
                    vectors.as_ptr(),
                    vectors.len() as libc::c_int,
                    (offset + read as u64) as libc::off_t,
                    flags.bits() as libc::c_int,
                )
            })
        })?;
        self.seek(start + read);
        Ok(read)
    }
}

impl Outgoing for Reply {
    fn len(&self) -> usize {
        self.len
    }

    fn patch(&mut self, at: usize, data: &[u8]) {
        self.area.store(at, data);
    }

    fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.seek(len);
        }
    }
}

impl transports::Exchange for Chain {
    fn split(&mut self) -> (&dyn Incoming, &mut dyn Outgoing) {
        (&self.request, &mut self.reply)
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

fn answer(result: isize) -> rustix::io::Result<usize> {
    usize::try_from(result)
        .map_err(|_| Raw::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Raw::IO))
}
