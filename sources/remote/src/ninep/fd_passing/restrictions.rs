//! The check of a descriptor that a server passed.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use vfs::{BackingRestrictions, OpenFlags};

/// Returns the restrictions on `file`, or nothing if it must not be used.
pub(super) fn of(file: &OwnedFd) -> std::io::Result<Option<BackingRestrictions>> {
    let stat = fstat(file)?;
    let how = fcntl_getfl(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || how.contains(OFlags::PATH)
        || !sys::caller_independence::file_io_is_caller_independent(file)?
    {
        return Ok(None);
    }
    Ok(Some(BackingRestrictions {
        access: match how & OFlags::RWMODE {
            OFlags::RDONLY => OpenFlags::READ,
            OFlags::WRONLY => OpenFlags::WRITE,
            _ => OpenFlags::READ | OpenFlags::WRITE,
        },
        file: (stat.st_dev, stat.st_ino),
    }))
}
