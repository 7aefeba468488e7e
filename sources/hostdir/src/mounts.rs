//! The file systems mounted below the root, seen or not: proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use vfs::Result;

use crate::device::{self, Device};
use crate::tree::{self, Tree};

/// The devices below the root that are not among `seen`. What cannot be opened is left out.
pub(crate) fn unseen(tree: &Arc<Tree>, seen: &[Arc<Device>]) -> Result<Vec<Arc<Device>>> {
    let Some(root) = tree.table_root() else {
        return Ok(Vec::new());
    };
    let root_fd = root.fd(vfs::Patience::Full)?;
    let number = rustix::path::DecInt::from_fd(&*root_fd);
    let Ok(path) = rustix::fs::readlinkat(tree.proc_fds(), number, Vec::new()) else {
        return Ok(Vec::new());
    };
    let root_path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else {
        return Ok(Vec::new());
    };
    let mut devices: Vec<Arc<Device>> = Vec::new();
    for point in table.split(|&b| b == b'\n').filter_map(mount_point) {
        let Ok(below) = point.strip_prefix(&root_path) else {
            continue;
        };
        if below.as_os_str().is_empty() {
            continue;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let Ok(fd) = tree.open(|| {
            rustix::fs::openat2(
                &*root_fd,
                below.as_os_str().as_bytes(),
                flags,
                Mode::empty(),
                resolve,
            )
        }) else {
            continue;
        };
        let dev = device::dev_of(&tree::stat(fd.as_fd())?);
        if seen.iter().chain(&devices).any(|device| device.dev == dev) {
            continue;
        }
        if let Ok((node, _)) = tree.enter(None, fd, None) {
            devices.push(node.device().clone());
        }
    }
    Ok(devices)
}

/// The fifth field of a line, with the octal escapes of blanks taken back.
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
