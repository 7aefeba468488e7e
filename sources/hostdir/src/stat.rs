//! Attributes of objects as statx(2) returns them, and what tells one object from another.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, RawMode, Statx, StatxFlags};
use sys::errno;
use sys::handle::FileHandle;
use vfs::{Name, Result, siphash};

/// Returns the attributes of `fd`'s object.
pub(crate) fn stat(fd: BorrowedFd<'_>) -> Result<Statx> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, mask).map_err(errno)
}

/// Returns the attributes of the child `name` of the directory `dir`.
pub(crate) fn stat_child(dir: BorrowedFd<'_>, name: Name<'_>) -> Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(dir, name.bytes(), flags, mask).map_err(errno)
}

/// Returns `st_dev` as one number.
pub(crate) fn dev_of(stx: &Statx) -> u64 {
    rustix::fs::makedev(stx.stx_dev_major, stx.stx_dev_minor)
}

/// Returns whether these are the attributes of one object.
pub(crate) fn is_same(one: &Statx, other: &Statx) -> bool {
    (dev_of(one), one.stx_ino) == (dev_of(other), other.stx_ino)
}

/// Returns whether these are the attributes of a directory.
pub(crate) fn is_directory(stx: &Statx) -> bool {
    FileType::from_raw_mode(RawMode::from(stx.stx_mode)) == FileType::Directory
}

/// Returns whether the object still has a name.
pub(crate) fn has_name(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::NLINK)
        .is_ok_and(|stx| stx.stx_nlink > 0)
}

/// Returns a value that differs between incarnations of an inode number: a hash of the kernel
/// handle, which all file systems with handles provide, or else of the time of birth.
pub(crate) fn incarnation_of(fd: BorrowedFd<'_>) -> u64 {
    /// An arbitrary constant: a collision has no advantage for anyone, and the value must not
    /// change.
    const KEY: siphash::Key = *b"barge generation";
    let bytes = match FileHandle::of(fd) {
        Ok(handle) => [&handle.kind().to_le_bytes(), handle.bytes()].concat(),
        Err(_) => match stat(fd) {
            Ok(stx) => [
                stx.stx_btime.tv_sec.to_le_bytes(),
                i64::from(stx.stx_btime.tv_nsec).to_le_bytes(),
            ]
            .concat(),
            Err(_) => Vec::new(),
        },
    };
    siphash::hash(&KEY, &bytes)
}
