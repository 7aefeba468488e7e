//! Quotas that the kernel enforces: shares whose directory belongs to a project of ext4 or XFS.
//!
//! The first process, which has the privileges, sets the limits of the project. The process that
//! serves finds them in statfs(2), and then counts nothing itself.

use std::fs::File;
use std::os::fd::AsFd;

use layers::disk_quota::DiskLimits;
use rustix::thread::CapabilitySet;
use sys::project_quota::{inherited_project, set_limits};
use vfs::StatFs;

use super::share::Share;
use crate::source::Source;

/// Sets the limits of the projects of those of `shares` that have a quota and a project. Without
/// project quotas or privileges, shares are counted by the process that serves.
pub(super) fn apply(shares: &[Share]) {
    for share in shares {
        let Source::Tree(sources::Source::HostDir(path)) = &share.named.source else {
            continue;
        };
        if share.quota == DiskLimits::default() {
            continue;
        }
        let Ok(dir) = File::open(share.path_here(path)) else {
            continue;
        };
        let Ok(Some(project)) = inherited_project(dir.as_fd()) else {
            continue;
        };
        let DiskLimits { bytes, inodes } = share.quota;
        let set = set_limits(dir.as_fd(), project, bytes, inodes);
        match set {
            Ok(()) => tracing::info!("{}: limited project {project}", path.display()),
            Err(error) => tracing::info!(
                "{}: the limits of project {project} cannot be set, and the share is counted: {error}",
                path.display()
            ),
        }
    }
}

/// Returns whether the kernel enforces `limits` on the share with the statistics `stat`, for this
/// process: CAP_SYS_RESOURCE would override them.
pub(super) fn is_in_force(limits: DiskLimits, stat: &StatFs) -> bool {
    shows(limits, stat) && !sys::caps::have_all(CapabilitySet::SYS_RESOURCE)
}

/// Returns whether the statistics of a share show `limits`: the size of a file system is that of
/// the project.
fn shows(limits: DiskLimits, stat: &StatFs) -> bool {
    let size = stat.blocks.saturating_mul(stat.bsize.into());
    limits.bytes.is_none_or(|bytes| size <= bytes)
        && limits
            .inodes
            .is_none_or(|inodes| (1..=inodes).contains(&stat.files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_show_the_limits_in_force() {
        let stat = StatFs {
            bsize: 4096,
            blocks: 256,
            files: 100,
            ..StatFs::default()
        };
        let shown = |bytes, inodes| shows(DiskLimits { bytes, inodes }, &stat);
        assert!(shown(Some(1 << 20), Some(100)));
        assert!(!shown(Some((1 << 20) - 1), None));
        assert!(!shown(None, Some(99)));
        // btrfs has no number of inodes.
        let limits = DiskLimits {
            bytes: None,
            inodes: Some(5),
        };
        assert!(!shows(limits, &StatFs::default()));
    }
}
