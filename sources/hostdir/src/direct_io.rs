//! Direct I/O, bypassing the host's page cache.
//!
//! `O_DIRECT` requires aligned memory, offset and length. A client aligns offset and length as its
//! own device requires; the transport's memory may be aligned (a guest's pages) or not (a message).
//! If it is not, which the host reports as `EINVAL`, the bytes are copied through an aligned
//! buffer. Reads of any range work; writes have to be aligned by the client, as on a local file.

use std::os::fd::BorrowedFd;

use sys::file_io;
use vfs::{Errno, Patience, Payload, Result, Sink};

/// A page, which satisfies every block device.
const ALIGN: usize = 4096;

/// The bytes to copy through the buffer at once.
const STEP: usize = 1 << 20;

/// Reads up to `len` bytes at `offset` into `sink`.
pub(crate) fn read(
    fd: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    sink: &mut dyn Sink,
) -> Result<usize> {
    match sink.file(fd, offset, len, Patience::Full) {
        Err(Errno::EINVAL) => read_aligned(fd, offset, len, sink),
        done => done,
    }
}

fn read_aligned(fd: BorrowedFd<'_>, offset: u64, len: usize, sink: &mut dyn Sink) -> Result<usize> {
    let mut memory = Vec::new();
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let before = (at % ALIGN as u64) as usize;
        let wanted = (len - done).min(STEP);
        let buffer = aligned(&mut memory, (before + wanted).next_multiple_of(ALIGN));
        let read = match file_io::pread_into(fd, at - before as u64, buffer, Patience::Full) {
            Err(_) if done > 0 => break,
            read => read?,
        };
        let got = read.saturating_sub(before).min(wanted);
        sink.bytes(&buffer[before..][..got]);
        done += got;
        if got < wanted {
            break;
        }
    }
    Ok(done)
}

/// Writes `data` at `offset`.
pub(crate) fn write(fd: BorrowedFd<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
    match data.file(fd, offset) {
        Err(Errno::EINVAL) => write_aligned(fd, offset, data),
        done => done,
    }
}

fn write_aligned(fd: BorrowedFd<'_>, offset: u64, data: &mut dyn Payload) -> Result<usize> {
    let mut memory = Vec::new();
    let len = data.len();
    let buffer = aligned(&mut memory, len);
    let mut filled = 0;
    data.bytes(&mut |piece| {
        buffer[filled..][..piece.len()].copy_from_slice(piece);
        filled += piece.len();
        Ok(())
    })?;
    file_io::pwrite_all(fd, offset, buffer)
}

/// Returns `len` aligned bytes in `memory`.
fn aligned(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    memory.resize(memory.len().max(len + ALIGN), 0);
    let start = memory.as_ptr().align_offset(ALIGN);
    &mut memory[start..][..len]
}
