//! Reads and writes of a file at an offset, on systems where no source lends descriptors of files:
//! each returns `EOPNOTSUPP`.

use vfs::fd::BorrowedFd;
use vfs::{Errno, Patience, Result};

/// Reads from a descriptor, as [`vfs::Sink::file`] does.
pub fn pread_into(_: BorrowedFd<'_>, _: u64, _: &mut [u8], _: Patience) -> Result<usize> {
    Err(Errno::EOPNOTSUPP)
}

/// Writes to a descriptor, as [`vfs::Payload::file`] does.
pub fn pwrite_all(_: BorrowedFd<'_>, _: u64, _: &[u8]) -> Result<usize> {
    Err(Errno::EOPNOTSUPP)
}

/// Copies from a descriptor to a file within the kernel.
pub fn copy_range(_: BorrowedFd<'_>, _: u64, _: &std::fs::File, _: usize) -> Result<usize> {
    Err(Errno::EOPNOTSUPP)
}
