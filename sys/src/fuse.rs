//! The FUSE device.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};

/// `_IOR(229, 0, uint32_t)` of `linux/fuse.h`, which neither libc nor rustix has.
const FUSE_DEV_IOC_CLONE: u32 = 0x8004_e500;

/// `_IOW(229, 1, struct fuse_backing_map)`, likewise.
const FUSE_DEV_IOC_BACKING_OPEN: u32 = 0x4010_e501;

/// `_IOW(229, 2, uint32_t)`, likewise.
const FUSE_DEV_IOC_BACKING_CLOSE: u32 = 0x4004_e502;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: RawFd,
    flags: u32,
    padding: u64,
}

/// Opens /dev/fuse for a new mount. Reads do not block.
pub fn open_device() -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    open("/dev/fuse", flags, Mode::empty())
}

/// Opens another descriptor of the mount that `mounted` serves, with a processing queue of its own:
/// a request that is read from one is answered on it (FUSE_DEV_IOC_CLONE, Linux 4.2).
pub fn clone_device(mounted: BorrowedFd<'_>) -> Result<OwnedFd> {
    let device = open_device()?;
    let number: RawFd = mounted.as_raw_fd();
    // SAFETY: FUSE_DEV_IOC_CLONE reads one 32-bit number, which outlives the call; both descriptors
    // are open.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::ioctl(
            device.as_fd().as_raw_fd(),
            FUSE_DEV_IOC_CLONE as libc::Ioctl,
            &raw const number,
        )
    };
    crate::check(answer)?;
    Ok(device)
}

/// Registers `file` as a backing file with the mount that `mounted` serves and returns its backing
/// id: the kernel may then read and write it directly, with the calling thread's credentials for
/// all users (FUSE_DEV_IOC_BACKING_OPEN, Linux 6.9). Returns `EPERM` unless INIT negotiated
/// passthrough and the thread has `CAP_SYS_ADMIN`; `ELOOP` if the file is on a file system that is
/// itself stacked on another.
pub fn open_backing(mounted: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<NonZeroU32> {
    let map = BackingMap {
        fd: file.as_raw_fd(),
        flags: 0,
        padding: 0,
    };
    // SAFETY: FUSE_DEV_IOC_BACKING_OPEN reads a `struct fuse_backing_map`, which outlives the call;
    // both descriptors are open.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::ioctl(
            mounted.as_raw_fd(),
            FUSE_DEV_IOC_BACKING_OPEN as libc::Ioctl,
            &raw const map,
        )
    };
    let number = crate::check(answer)?;
    NonZeroU32::new(number as u32).ok_or(Errno::INVAL)
}

/// Removes the registration of [`open_backing`], for later opens of files.
pub fn close_backing(mounted: BorrowedFd<'_>, number: NonZeroU32) -> Result<()> {
    let number = number.get();
    // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads one 32-bit number, which outlives the call; the
    // descriptor is open.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::ioctl(
            mounted.as_raw_fd(),
            FUSE_DEV_IOC_BACKING_CLOSE as libc::Ioctl,
            &raw const number,
        )
    };
    crate::check(answer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_serves_nothing_has_no_clones() {
        let Ok(device) = open_device() else {
            eprintln!("skipped: there is no /dev/fuse here");
            return;
        };
        // EINVAL or EPERM, depending on the kernel's version.
        assert!(clone_device(device.as_fd()).is_err());
    }

    #[test]
    fn a_device_that_serves_nothing_reads_no_files() {
        let Ok(device) = open_device() else {
            eprintln!("skipped: there is no /dev/fuse here");
            return;
        };
        // Depending on the kernel's version: ENOTTY, EINVAL or EPERM.
        assert!(open_backing(device.as_fd(), device.as_fd()).is_err());
        assert!(close_backing(device.as_fd(), NonZeroU32::MIN).is_err());
    }
}
