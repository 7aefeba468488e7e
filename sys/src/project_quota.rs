//! Project quotas of file systems (ext4, XFS): the project of a directory, and its limits
//! (quotactl(2), ioctl_xfs_fsgetxattr(2)).

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Result;

/// `_IOR('X', 31, struct fsxattr)` of `linux/fs.h`, which neither libc nor rustix has.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;

/// `FS_XFLAG_PROJINHERIT`: new objects in the directory belong to its project.
const PROJECT_IS_INHERITED: u32 = 0x200;

/// `PRJQUOTA` of `linux/quota.h`.
const PROJECT: i32 = 2;

/// `Q_SETQUOTA` of `linux/quota.h`.
const SET_QUOTA: i32 = 0x80_0008;

/// `QIF_BLIMITS` and `QIF_ILIMITS`: these limits are valid, other fields are not.
const SPACE_IS_VALID: u32 = 1;
const INODES_ARE_VALID: u32 = 4;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct ExtendedAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk`. Limits of space are in units of 1 KiB.
#[repr(C)]
#[derive(Default)]
struct DiskQuota {
    block_limit: u64,
    block_soft_limit: u64,
    bytes: u64,
    inode_limit: u64,
    inode_soft_limit: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

/// Returns the project that new objects in the directory `dir` belong to, if there is one. Returns
/// `ENOTTY` or `EOPNOTSUPP` if the file system has no projects.
pub fn inherited_project(dir: BorrowedFd<'_>) -> Result<Option<u32>> {
    let mut attributes = ExtendedAttributes::default();
    // SAFETY: FS_IOC_FSGETXATTR writes a `struct fsxattr`, which outlives the call.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::ioctl(
            dir.as_raw_fd(),
            FS_IOC_FSGETXATTR as libc::Ioctl,
            &raw mut attributes,
        )
    };
    crate::check(answer)?;
    let inherited = attributes.flags & PROJECT_IS_INHERITED != 0 && attributes.project != 0;
    Ok(inherited.then_some(attributes.project))
}

/// Sets the hard limits of `project` on the file system of `file`, in bytes, rounded down to 1 KiB,
/// and in inodes, without soft ones (quotactl_fd(2), Linux 5.14). `None` leaves a limit as it is.
/// Returns `EPERM` without CAP_SYS_ADMIN, and `ESRCH` or `ENOSYS` if the file system does not
/// enforce project quotas.
pub fn set_limits(
    file: BorrowedFd<'_>,
    project: u32,
    bytes: Option<u64>,
    inodes: Option<u64>,
) -> Result<()> {
    let valid = |limit: Option<u64>, flag| if limit.is_some() { flag } else { 0 };
    let quota = DiskQuota {
        block_limit: bytes.unwrap_or(0) / 1024,
        inode_limit: inodes.unwrap_or(0),
        valid: valid(bytes, SPACE_IS_VALID) | valid(inodes, INODES_ARE_VALID),
        ..DiskQuota::default()
    };
    // `QCMD` of `linux/quota.h`.
    let command = (SET_QUOTA << 8) | PROJECT;
    // SAFETY: Q_SETQUOTA reads a `struct if_dqblk`, which outlives the call; the descriptor is
    // open.
    #[allow(unsafe_code)]
    let answer = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            file.as_raw_fd(),
            command,
            project,
            &raw const quota,
        )
    };
    crate::check(answer as libc::c_int).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_directory_without_a_project_has_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = std::fs::File::open(dir.path()).expect("open");
        let found = inherited_project(dir.as_fd());
        assert!(!matches!(found, Ok(Some(_))), "{found:?}");
        assert!(set_limits(dir.as_fd(), 1 << 30, Some(1 << 40), None).is_err());
    }
}
