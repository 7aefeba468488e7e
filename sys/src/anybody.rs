//! Which file systems read and write an open file whoever asks.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;
use rustix::io::Result;

/// Those that do, past the page cache too, by their types (`include/uapi/linux/magic.h`).
const FOR_ANYBODY: [u64; 6] = [
    0xef53,      // ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
];

/// Whether reading and writing what is open of a file system of this type is known not to depend on who does it.
pub fn reads_for_anybody(magic: u64) -> bool {
    FOR_ANYBODY.contains(&magic)
}

/// The same of the file system that `file` is on.
pub fn is_for_anybody(file: impl AsFd) -> Result<bool> {
    Ok(reads_for_anybody(fstatfs(file)?.f_type as u64))
}
