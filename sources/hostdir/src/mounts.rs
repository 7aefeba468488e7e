//! The file systems mounted below the root, in use or not: proc_pid_mountinfo(5).

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use vfs::Result;

use crate::tree::{Tree, TreeDevice};

/// Calls `visit` on the mounts below the root, each open for reading, and returns the first result.
/// Skips mounts that cannot be opened or have no kernel handles.
pub(crate) fn find<T>(
    tree: &Arc<Tree>,
    visit: impl Fn(&Arc<TreeDevice>, BorrowedFd<'_>) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let Some(root) = tree.root() else {
        return Ok(None);
    };
    let root_fd = root.fd(vfs::Patience::Full)?;
    let Some(root_path) = tree.host.proc_fds.path_of(root_fd.as_fd()) else {
        return Ok(None);
    };
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else {
        return Ok(None);
    };
    for point in table.split(|&b| b == b'\n').filter_map(mount_point) {
        let Ok(below) = point.strip_prefix(&root_path) else {
            continue;
        };
        if below.as_os_str().is_empty() {
            continue;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let below = below.as_os_str().as_bytes();
        let open = || rustix::fs::openat2(&*root_fd, below, flags, Mode::empty(), resolve);
        let Ok((node, _)) = tree
            .host
            .open(open)
            .and_then(|fd| tree.enter(None, fd, None))
        else {
            continue;
        };
        if node.device().mount().is_none() {
            continue;
        }
        let path = node.fd(vfs::Patience::Full)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let host = &tree.host;
        let Ok(mount) = host.open(|| host.proc_fds.reopen(path.as_fd(), flags)) else {
            continue;
        };
        if let Some(found) = visit(node.tree_device(), mount.as_fd())? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Decodes the fifth field of a line, with octal escapes for blanks.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let mut field = line.split(|&b| b == b' ').nth(4)?;
    let mut path = Vec::with_capacity(field.len());
    while let Some((&byte, rest)) = field.split_first() {
        let escaped = rest.first_chunk::<3>().filter(|_| byte == b'\\');
        let octal = escaped
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                path.push(byte);
                field = &rest[3..];
            }
            None => {
                path.push(byte);
                field = rest;
            }
        }
    }
    Some(Path::new(std::ffi::OsStr::from_bytes(&path)).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_may_have_blanks() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134x rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line), Some(PathBuf::from(r"/mnt 2\x")));
        assert_eq!(mount_point(b""), None);
        assert_eq!(mount_point(br"1 2 3 4 /a\9"), Some(PathBuf::from(r"/a\9")));
    }
}
