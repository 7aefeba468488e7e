//! A request and its reply in the guest's memory.
//!
//! This file is unsafe because it copies from and to that memory.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use libc::iovec;
use rustix::io::Errno as Raw;
use vfs::copies::count_copied;
use vfs::{Errno, Fill, Patience, Payload, Result, Sink};
use vm_memory::GuestAddress;
use wire::{Incoming, Outgoing};

use crate::dirty_log::DirtyLog;
use crate::memory::Memory;

/// A descriptor chain that the device owns until it is returned as used. The first bytes of the
/// request are copied: once read, they cannot change any more.
///
/// The object is reused for other chains, to save allocations.
pub(crate) struct Chain {
    pub(crate) head: u16,
    pub(crate) request: Request,
    pub(crate) reply: Reply,
}

impl Chain {
    /// Creates an empty chain.
    pub(crate) fn new(memory: &Arc<Memory>) -> Chain {
        Chain {
            head: 0,
            request: Request {
                is_repeated: false,
                bytes: Vec::new(),
                area: Area::new(memory),
            },
            reply: Reply {
                area: Area::new(memory),
                len: 0,
                piece: 0,
                before: 0,
                vectors: Pieces::default(),
            },
        }
    }

    /// Resets it to the chain with the head descriptor `head`, without any buffers yet.
    pub(crate) fn begin(&mut self, head: u16, memory: &Arc<Memory>) {
        self.head = head;
        self.request.is_repeated = false;
        self.request.area.clear(memory);
        self.reply.area.clear(memory);
    }

    /// Returns an error if memory was not there when it was accessed ([`Memory::check`]).
    pub(crate) fn check_memory(&self) -> io::Result<()> {
        self.request.area.memory.check()
    }

    /// Adds a buffer in `memory`, device-writable or device-readable; returns false if it is
    /// outside.
    pub(crate) fn add(&mut self, at: GuestAddress, len: usize, written: bool) -> bool {
        let area = match written {
            true => &mut self.reply.area,
            false => &mut self.request.area,
        };
        area.len += len;
        area.memory.pieces(at, len, &mut area.pieces.0)
    }

    /// Removes its buffers: the request is empty, and there is no room for a reply.
    pub(crate) fn clear(&mut self) {
        for area in [&mut self.request.area, &mut self.reply.area] {
            area.pieces.0.clear();
            area.len = 0;
        }
    }

    /// Marks its device-writable buffers in `log`: all of them, as a reply that failed may have
    /// been longer before.
    pub(crate) fn mark_dirty(&self, log: &DirtyLog) {
        let area = &self.reply.area;
        for piece in &area.pieces.0 {
            let start = piece.iov_base.cast::<u8>();
            let mark = |address, len| log.mark(address, len);
            area.memory.each_guest_range(start, piece.iov_len, mark);
        }
    }

    /// Completes it after the last buffer. `frame` returns how many bytes must be copied, given the
    /// first ones.
    pub(crate) fn complete(&mut self, frame: &dyn Fn(&[u8]) -> Option<usize>) {
        self.request.load(frame);
        self.reply.seek(0);
    }
}

/// The device-readable part of a chain.
pub(crate) struct Request {
    /// See [`Incoming::is_repeated`].
    pub(crate) is_repeated: bool,
    bytes: Vec<u8>,
    area: Area,
}

/// The device-writable part of a chain.
pub(crate) struct Reply {
    area: Area,
    len: usize,
    /// The buffer for the next byte, and the number of bytes before that buffer.
    piece: usize,
    before: usize,
    /// The vectors of the last system call, kept to reuse their memory.
    vectors: Pieces,
}

/// Buffers in memory, as vectors for the kernel.
#[derive(Default)]
struct Pieces(Vec<iovec>);

// SAFETY: the pointers refer to a guest's memory, which stays mapped as long as the area that
// contains them holds it, is shared with a guest anyway, and is only copied from and to, by us or
// the kernel.
unsafe impl Send for Pieces {}

// SAFETY: as above; no references into the memory are handed out.
unsafe impl Sync for Pieces {}

/// Buffers in the guest's memory.
struct Area {
    pieces: Pieces,
    len: usize,
    /// Keeps it mapped.
    memory: Arc<Memory>,
}

impl Area {
    fn new(memory: &Arc<Memory>) -> Area {
        Area {
            pieces: Pieces::default(),
            len: 0,
            memory: memory.clone(),
        }
    }

    /// Removes its buffers, and sets its memory to `memory`.
    fn clear(&mut self, memory: &Arc<Memory>) {
        self.pieces.0.clear();
        self.len = 0;
        if !Arc::ptr_eq(&self.memory, memory) {
            self.memory = memory.clone();
        }
    }

    /// Calls `each` with the memory of `range`, buffer by buffer.
    fn each(&self, range: Range<usize>, mut each: impl FnMut(*mut u8, usize)) {
        let mut at = 0;
        for piece in &self.pieces.0 {
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

    /// Copies the memory from `at` on into `bytes`.
    fn load(&self, at: usize, bytes: &mut [u8]) {
        let mut done = 0;
        self.each(at..at + bytes.len(), |start, len| {
            // SAFETY: `each` passes mapped memory, and `bytes` has room for all of it. The guest
            // may write concurrently: any bytes are valid.
            unsafe {
                std::ptr::copy_nonoverlapping(start, bytes[done..done + len].as_mut_ptr(), len)
            };
            done += len;
        });
    }

    /// Copies `bytes` into the memory from `at` on.
    fn store(&self, at: usize, bytes: &[u8]) {
        let mut done = 0;
        self.each(at..at + bytes.len(), |start, len| {
            // SAFETY: as in `load`; there are no references to the guest's memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..done + len].as_ptr(), start, len) };
            done += len;
        });
    }

    /// Sets `vectors` to the memory of `range`, as much as the kernel accepts in one call.
    fn vectors(&self, range: Range<usize>, vectors: &mut Vec<iovec>) {
        /// `IOV_MAX`
        const MOST: usize = 1024;
        vectors.clear();
        self.each(range, |start, len| {
            if vectors.len() < MOST {
                vectors.push(iovec {
                    iov_base: start.cast(),
                    iov_len: len,
                });
            }
        });
    }
}

impl Request {
    fn load(&mut self, frame: &dyn Fn(&[u8]) -> Option<usize>) {
        /// Enough for most complete requests, and to determine the needed length of any.
        const FIRST: usize = 256;
        let Request { bytes, area, .. } = self;
        let first = area.len.min(FIRST);
        bytes.resize(first, 0);
        area.load(0, bytes);
        let wanted = frame(bytes).unwrap_or(first).min(area.len);
        if wanted > first {
            bytes.resize(wanted, 0);
            area.load(first, &mut bytes[first..]);
        }
    }
}

impl Incoming for Request {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn size(&self) -> usize {
        self.area.len
    }

    fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> Result<usize>,
    ) -> Result<usize> {
        if range.start > range.end || range.end > self.area.len {
            return Err(Errno::EINVAL);
        }
        write(&mut RequestPayload {
            area: &self.area,
            rest: range,
        })
    }
}

/// A part of a request, to be written to a file.
struct RequestPayload<'a> {
    area: &'a Area,
    rest: Range<usize>,
}

impl Payload for RequestPayload<'_> {
    fn len(&self) -> usize {
        self.rest.len()
    }

    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut copy = vec![0; self.rest.len().min(64 << 10)];
        while !self.rest.is_empty() {
            let len = self.rest.len().min(copy.len());
            count_copied(len);
            self.area.load(self.rest.start, &mut copy[..len]);
            take(&copy[..len])?;
            self.rest.start += len;
        }
        Ok(())
    }

    fn file(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<usize> {
        let mut vectors = Vec::new();
        let written = sys::file_io::write_all(self.rest.len(), |written| {
            let rest = self.rest.start + written..self.rest.end;
            self.area.vectors(rest, &mut vectors);
            // SAFETY: the vectors refer to mapped memory.
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
    fn put(&mut self, mut bytes: &[u8]) {
        count_copied(bytes.len());
        while let (Some(piece), false) = (self.area.pieces.0.get(self.piece), bytes.is_empty()) {
            let at = self.len - self.before;
            let len = bytes.len().min(piece.iov_len - at);
            let start = piece.iov_base.cast::<u8>().wrapping_add(at);
            // SAFETY: `at + len` lies within the buffer, which is mapped; there are no references
            // to it.
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
        while let Some(piece) = self.area.pieces.0.get(self.piece)
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
        let Reply { area, vectors, .. } = self;
        let read = sys::file_io::read_all(len, patience, |read, flags| {
            let vectors = &mut vectors.0;
            area.vectors(start + read..start + len, vectors);
            // SAFETY: the vectors refer to mapped memory without references to it.
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

    /// A guest's memory is never lent, as the guest may change it.
    fn lend(&mut self, _: usize, _: Fill<'_>) -> Option<Result<usize>> {
        None
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
