//! The device of FUSE.

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

/// /dev/fuse, opened for a mount to come. Reading from it does not wait.
pub fn open_device() -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    open("/dev/fuse", flags, Mode::empty())
}

/// Another descriptor of the mount that `mounted` serves, with replies of its own: what is read from one is
/// answered there (FUSE_DEV_IOC_CLONE, Linux 4.2).
pub fn clone_device(mounted: BorrowedFd<'_>) -> Result<OwnedFd> {
    let device = open_device()?;
    let number: RawFd = mounted.as_raw_fd();
    // SAFETY: FUSE_DEV_IOC_CLONE reads one 32-bit number, which outlives the call; both descriptors are open.
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

/// Lets the mount that `mounted` serves read and write `file` by itself from now on, by the number that is answered, in the
/// calling thread's name, whoever asks (FUSE_DEV_IOC_BACKING_OPEN, Linux 6.9). `EPERM` unless INIT agreed on passthrough and
/// the thread has `CAP_SYS_ADMIN`; `ELOOP` if the file is on a file system that is itself stacked on another.
pub fn open_backing(mounted: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<NonZeroU32> {
    let map = BackingMap {
        fd: file.as_raw_fd(),
        flags: 0,
        padding: 0,
    };
    // SAFETY: FUSE_DEV_IOC_BACKING_OPEN reads a `struct fuse_backing_map`, which outlives the call; both descriptors are open.
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

/// Ends what [`open_backing`] began, for those who open files from now on.
pub fn close_backing(mounted: BorrowedFd<'_>, number: NonZeroU32) -> Result<()> {
    let number = number.get();
    // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads one 32-bit number, which outlives the call; the descriptor is open.
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
        // EINVAL or EPERM, by the kernel's version.
        assert!(clone_device(device.as_fd()).is_err());
    }

    #[test]
    fn a_device_that_serves_nothing_reads_no_files() {
        let Ok(device) = open_device() else {
            eprintln!("skipped: there is no /dev/fuse here");
            return;
        };
        // By the kernel's version: ENOTTY, EINVAL or EPERM.
        assert!(open_backing(device.as_fd(), device.as_fd()).is_err());
        assert!(close_backing(device.as_fd(), NonZeroU32::MIN).is_err());
    }
}
