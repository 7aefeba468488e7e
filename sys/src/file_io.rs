//! Reads and writes of a file at an offset, for transports and sources: they continue short ones,
//! and read with limited patience.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::fs::copy_file_range;
use rustix::io::{Errno as Raw, ReadWriteFlags};
use vfs::copies::count_copied;
use vfs::{Errno, Patience, Result};

use crate::errno;

/// Fills `buffer` from `fd` at `offset` and returns the number of bytes: fewer at end of file only.
/// For a transport's [`vfs::Sink::file`]; see [`read_all`].
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
                count_copied(read);
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
pub fn supports_nowait(fd: BorrowedFd<'_>) -> bool {
    // Far beyond the end of any file, so that it cannot block. A read of no bytes would not do: the
    // kernel returns before it checks the flag.
    let far = i64::MAX as u64 - 1;
    let mut byte = [0];
    let mut one = [IoSliceMut::new(&mut byte)];
    rustix::io::preadv2(fd, &mut one, far, ReadWriteFlags::NOWAIT) != Err(Raw::OPNOTSUPP)
}

/// Writes all of `data` to `fd` at `offset` and returns the number of bytes: fewer only on an error
/// after the first byte. A descriptor opened to append ignores `offset`. For a transport's
/// [`vfs::Payload::file`].
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
                count_copied(more);
                written += more;
            }
            Err(Raw::INTR) => {}
            Err(_) if written > 0 => break,
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(written)
}

/// Copies up to `len` bytes of `fd` from `at` to the position of `to` with copy_file_range(2), and
/// returns their number: 0 at end of file only.
pub fn copy_range(fd: BorrowedFd<'_>, at: u64, to: &File, len: usize) -> Result<usize> {
    let mut from = at;
    loop {
        match copy_file_range(fd, Some(&mut from), to, None, len) {
            Err(Raw::INTR) => {}
            done => return done.map_err(errno),
        }
    }
}
