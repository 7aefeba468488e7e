//! `-o remount`: changes the flags of an existing mount without a request to its server.
//!
//! The kernel's FUSE accepts `ro`, `rw` and the other flags of all file systems, and ignores the
//! rest (`fuse_parse_param` in `fs/fuse/inode.c`). mount(8) runs its helper with the options of
//! fstab(5) and of the existing mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::mount::{MountFlags, mount_remount};
use sys::mounts::MountEntry;
use transports::fusedev::MountFlag;

use super::options::MountOption;
use crate::{CommandResult, Failure};

/// Applies the flags in `options` to the mount at `dir`. Unknown options are ignored if `sloppy`,
/// and an error otherwise.
pub(super) fn remount(dir: &Path, options: &[MountOption], sloppy: bool) -> CommandResult {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", dir.display()));
    let at = mount_point(dir).map_err(|error| failed(&error))?;
    let mounted = sys::mounts::at(&at).map_err(|error| failed(&error))?;
    let Some(mut flags) = mounted.as_ref().and_then(flags_of) else {
        return Err(failed(&"expected a mount of barge"));
    };
    for option in options {
        match option {
            MountOption::Flag(flag) => flag.apply(&mut flags),
            MountOption::Unknown(text) if !sloppy => {
                return Err(Failure::usage(format!("unknown mount option '{text}'")));
            }
            _ => {}
        }
    }
    mount_remount(&at, flags, "").map_err(|error| failed(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path of a mount point as the kernel shows it. The mount itself is not accessed: its
/// server may not reply.
fn mount_point(dir: &Path) -> std::io::Result<PathBuf> {
    match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
            Ok(fs::canonicalize(".")?.join(name))
        }
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => fs::canonicalize(dir),
    }
}

/// Returns the flags of a mount, if it is one of barge.
fn flags_of(mount: &MountEntry) -> Option<MountFlags> {
    if !["fuse.barge", "erofs"].contains(&mount.kind.as_str()) {
        return None;
    }
    let mut flags = MountFlags::empty();
    for list in [&mount.super_options, &mount.options] {
        // A read-only mount may have a writable superblock, and vice versa.
        for name in list.split(',').filter(|&name| name != "rw") {
            if let Some(flag) = MountFlag::named(name) {
                flag.apply(&mut flags);
            }
        }
    }
    Some(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_a_mount_of_barge() {
        let table = b"21 1 0:5 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 21 0:40 / /mnt/a\\040b rw,nosuid,nodev,relatime shared:2 - fuse.barge dir:/x ro,user_id=0\n\
            31 21 0:41 / /mnt/c rw,nosuid - ext4 /dev/vdb rw\n\
            32 31 0:42 / /mnt/c ro,noexec,relatime master:3 - erofs /i ro,sync\n";
        let mounts = sys::mounts::parse(table);
        let flags = |at: &str| {
            let mount = mounts.iter().rfind(|mount| mount.target == Path::new(at));
            mount.and_then(flags_of)
        };
        let (nosuid, nodev) = (MountFlags::NOSUID, MountFlags::NODEV);
        assert_eq!(flags("/mnt/a b"), Some(MountFlags::RDONLY | nosuid | nodev));
        let image = MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::SYNCHRONOUS;
        assert_eq!(flags("/mnt/c"), Some(image));
        assert_eq!((flags("/"), flags("/mnt")), (None, None));
    }
}
