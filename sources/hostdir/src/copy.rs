//! Copying between files on the server.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno as Raw;
use sys::errno;
use vfs::{Cx, Errno, Patience, Result};

use crate::file::HostFile;

/// The most bytes to copy on a lane's own thread: about as many as one large read or write.
const SHORT: u64 = 1 << 20;

/// The bytes to copy between two checks for cancellation. Large, because file systems that share
/// blocks do so per call.
const STEP: u64 = 128 << 20;

/// The buffer size where the kernel does not copy.
const BUFFER: usize = 256 << 10;

/// Copies with copy_file_range(2), or with reads and writes if the kernel cannot copy between the
/// two.
pub(crate) fn any(
    from: &HostFile,
    cx: &Cx<'_>,
    offset: u64,
    to: &HostFile,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    if len > SHORT {
        cx.may_wait()?;
    }
    from.node().device().brief(cx.patience)?;
    to.node().device().brief(cx.patience)?;
    let (from_fd, to_fd) = (from.fd(cx.patience)?, to.fd(cx.patience)?);
    from.node().device().tree.act(cx)?;
    let mut copied = 0;
    while copied < len {
        if copied > 0 && cx.call.check().is_err() {
            break;
        }
        let (mut at, mut to_at) = (offset + copied, to_offset + copied);
        let step = (len - copied).min(STEP) as usize;
        match rustix::fs::copy_file_range(&*from_fd, Some(&mut at), &*to_fd, Some(&mut to_at), step)
        {
            Ok(0) => break,
            Ok(more) => copied += more as u64,
            Err(Raw::INTR) => {}
            Err(_) if copied > 0 => break,
            Err(Raw::XDEV | Raw::OPNOTSUPP | Raw::NOSYS) => {
                cx.may_wait()?;
                return through_memory(cx, from_fd.as_fd(), offset, to_fd.as_fd(), to_offset, len);
            }
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(copied)
}

/// Clones with FICLONERANGE: all or nothing.
pub(crate) fn clone(
    from: &HostFile,
    cx: &Cx<'_>,
    offset: u64,
    to: &HostFile,
    to_offset: u64,
    len: u64,
) -> Result<u64> {
    if len == 0 {
        return Ok(0);
    }
    // The ioctl writes out dirty pages first.
    from.node().device().long(cx.patience)?;
    let (from_fd, to_fd) = (from.fd(cx.patience)?, to.fd(cx.patience)?);
    from.node().device().tree.act(cx)?;
    match sys::clone::clone_range(from_fd.as_fd(), offset, len, to_fd.as_fd(), to_offset) {
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
