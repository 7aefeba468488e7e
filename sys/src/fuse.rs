//! The device of FUSE.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Result;

/// `_IOR(229, 0, uint32_t)` of `linux/fuse.h`, which neither libc nor rustix has.
const FUSE_DEV_IOC_CLONE: u32 = 0x8004_e500;

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
}
