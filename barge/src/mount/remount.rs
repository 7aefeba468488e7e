//! `-o remount`: changes the flags of an existing mount without a request to its server.
//!
//! The kernel's FUSE accepts `ro`, `rw` and the other flags of all file systems, and ignores the
//! rest (`fuse_parse_param` in `fs/fuse/inode.c`). mount(8) runs its helper with the options of
//! fstab(5) and of the existing mount.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::mount::{MountFlags, mount_remount};
use transports::fusedev::MountFlag;

use super::options::MountOption;
use crate::{CommandResult, Failure};

/// Applies the flags in `options` to the mount at `dir`. Unknown options are ignored if `sloppy`,
/// and an error otherwise.
pub(super) fn remount(dir: &Path, options: &[MountOption], sloppy: bool) -> CommandResult {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", dir.display()));
    let at = mount_point(dir).map_err(|error| failed(&error))?;
    let table = fs::read("/proc/self/mountinfo").map_err(|error| failed(&error))?;
    let Some(mut flags) = flags_of(&table, &at) else {
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

/// Returns the flags of the topmost mount at `at`, if that is one of barge, from the table of
/// proc_pid_mountinfo(5).
fn flags_of(table: &[u8], at: &Path) -> Option<MountFlags> {
    let lines = table.split(|&byte| byte == b'\n');
    let mut mounts = lines.filter_map(|line| {
        let fields: Vec<_> = line.split(|&byte| byte == b' ').collect();
        let dash = fields.iter().position(|&field| field == b"-")?;
        let (point, options) = (*fields.get(4)?, *fields.get(5)?);
        let (kind, of_super) = (*fields.get(dash + 1)?, *fields.get(dash + 3)?);
        let here = Path::new(OsStr::from_bytes(&unescaped(point))) == at;
        here.then_some((kind, [of_super, options]))
    });
    let (kind, options) = mounts.next_back()?;
    if ![&b"fuse.barge"[..], b"erofs"].contains(&kind) {
        return None;
    }
    let mut flags = MountFlags::empty();
    for option in options
        .iter()
        .flat_map(|list| list.split(|&byte| byte == b','))
    {
        // A read-only mount may have a writable superblock, and vice versa.
        let named = std::str::from_utf8(option)
            .ok()
            .filter(|&name| name != "rw");
        if let Some(flag) = named.and_then(MountFlag::named) {
            flag.apply(&mut flags);
        }
    }
    Some(flags)
}

/// Decodes octal escapes, for example those of spaces.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => (plain.push(byte), rest = &behind[3..]),
            None => (plain.push(first), rest = behind),
        };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_topmost_mount_at_the_place() {
        let table = b"21 1 0:5 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 21 0:40 / /mnt/a\\040b rw,nosuid,nodev,relatime shared:2 - fuse.barge dir:/x ro,user_id=0\n\
            31 21 0:41 / /mnt/c rw,nosuid - ext4 /dev/vdb rw\n\
            32 31 0:42 / /mnt/c ro,noexec,relatime master:3 - erofs /i ro,sync\n";
        let flags = |at: &str| flags_of(table, Path::new(at));
        let (nosuid, nodev) = (MountFlags::NOSUID, MountFlags::NODEV);
        assert_eq!(flags("/mnt/a b"), Some(MountFlags::RDONLY | nosuid | nodev));
        let image = MountFlags::RDONLY | MountFlags::NOEXEC | MountFlags::SYNCHRONOUS;
        assert_eq!(flags("/mnt/c"), Some(image));
        assert_eq!((flags("/"), flags("/mnt")), (None, None));
    }
}
