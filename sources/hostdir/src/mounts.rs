//! The file systems mounted below the root, in use or not.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
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
    let Ok(table) = sys::mounts::read() else {
        return Ok(None);
    };
    for mount in table {
        let Ok(below) = mount.target.strip_prefix(&root_path) else {
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
