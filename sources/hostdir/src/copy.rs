//! Copying between files on the server.

use std::os::fd::BorrowedFd;

use rustix::io::Errno as Raw;
use sys::errno;
use vfs::{Cx, Errno, Patience, Result};

/// The most bytes to copy on a lane's own thread: about as many as one large read or write.
pub(crate) const MAX_INLINE: u64 = 1 << 20;

/// The bytes to copy between two checks for cancellation. Large, because file systems that share
/// blocks do so per call.
const STEP: u64 = 128 << 20;

/// The buffer size where the kernel does not copy.
const BUFFER: usize = 256 << 10;

/// Copies with copy_file_range(2), or with reads and writes if the kernel cannot copy between the
/// two, as the thread's identity. Returns the number of bytes copied.
pub(crate) fn range(
    cx: &Cx<'_>,
    from: BorrowedFd<'_>,
    offset: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    let mut copied = 0;
    while copied < len {
        if copied > 0 && cx.call.check().is_err() {
            break;
        }
        let (mut at, mut to_at) = (offset + copied, to_offset + copied);
        let step = (len - copied).min(STEP) as usize;
        match rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), step) {
            Ok(0) => break,
            Ok(more) => copied += more as u64,
            Err(Raw::INTR) => {}
            Err(_) if copied > 0 => break,
            Err(Raw::XDEV | Raw::OPNOTSUPP | Raw::NOSYS) => {
                cx.check_may_block()?;
                return through_memory(cx, from, offset, to, to_offset, len);
            }
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(copied)
}

/// Clones with FICLONERANGE: all or nothing. Returns `len`.
pub(crate) fn clone(
    from: BorrowedFd<'_>,
    offset: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    match sys::clone::clone_range(from, offset, len, to, to_offset) {
        Ok(()) => Ok(len),
        Err(Raw::NOTTY) => Err(Errno::EOPNOTSUPP),
        Err(error) => Err(errno(error)),
    }
}

fn through_memory(
    cx: &Cx<'_>,
    from: BorrowedFd<'_>,
    offset: u64,
    to: BorrowedFd<'_>,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    let mut buffer = vec![0; BUFFER.min(len as usize)];
    let mut copied = 0;
    while copied < len {
        if copied > 0 && cx.call.check().is_err() {
            break;
        }
        let step = buffer.len().min((len - copied) as usize);
        let moved =
            sys::file_io::pread_into(from, offset + copied, &mut buffer[..step], Patience::Full)
                .and_then(|read| sys::file_io::pwrite_all(to, to_offset + copied, &buffer[..read]));
        match moved {
            Ok(0) => break,
            Ok(moved) => copied += moved as u64,
            Err(_) if copied > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(copied)
}
