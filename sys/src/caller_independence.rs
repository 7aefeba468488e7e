//! File systems whose reads and writes of an open file do not depend on the calling user.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;
use rustix::io::Result;

/// The types of those file systems, also for direct I/O (`include/uapi/linux/magic.h`).
const CALLER_INDEPENDENT: [u64; 6] = [
    0xef53,      // ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
];

/// Returns whether reads and writes of open files on a file system of this type are known not to
/// depend on the calling user.
pub fn io_is_caller_independent(magic: u64) -> bool {
    CALLER_INDEPENDENT.contains(&magic)
}

/// Returns the same for the file system of `file`.
pub fn file_io_is_caller_independent(file: impl AsFd) -> Result<bool> {
    Ok(io_is_caller_independent(fstatfs(file)?.f_type as u64))
}
