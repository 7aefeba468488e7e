//! Namespaces of the calling thread, and the attributes of mounts.

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::mount::MountAttrFlags;
use rustix::thread::UnshareFlags;

/// The flags that [`unshare`] accepts.
const SEPARABLE: UnshareFlags = UnshareFlags::FS
    .union(UnshareFlags::NEWNS)
    .union(UnshareFlags::NEWNET)
    .union(UnshareFlags::NEWIPC)
    .union(UnshareFlags::NEWPID)
    .union(UnshareFlags::NEWUSER);

/// Moves the calling thread, or for a PID namespace its later children, to new namespaces
/// (unshare(2)). With `FS` it gets a root and working directory of its own. Other flags are
/// ignored. Returns `PERM` without `CAP_SYS_ADMIN` or a new user namespace, and `INVAL` for the
/// latter if the process has several threads.
pub fn unshare(namespaces: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: neither memory nor descriptors are affected.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(namespaces & SEPARABLE)
    }
}

/// Sets and clears attributes of the mount at `path` below `dir`, or of `dir` itself if the path is
/// empty, and with `recursive` of those below it (mount_setattr(2), Linux 5.12). Where the call is
/// missing, attributes are only set, and only those of the mount at a path below the working
/// directory.
pub fn change_mount(
    dir: BorrowedFd<'_>,
    path: &Path,
    set: MountAttrFlags,
    clear: MountAttrFlags,
    recursive: bool,
) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let request = libc::mount_attr {
        attr_set: set.bits().into(),
        attr_clr: clear.bits().into(),
        propagation: 0,
        userns_fd: 0,
    };
    let flags = match recursive {
        true => libc::AT_RECURSIVE | libc::AT_EMPTY_PATH,
        false => libc::AT_EMPTY_PATH,
    };
    // SAFETY: the path ends in NUL, and the request has the given size; both outlive the call.
    #[allow(unsafe_code)]
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dir.as_raw_fd(),
            name.as_ptr(),
            flags,
            &raw const request,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOSYS) => {
            use rustix::mount::MountFlags;
            let mut classic = MountFlags::BIND;
            for (new, old) in [
                (MountAttrFlags::MOUNT_ATTR_RDONLY, MountFlags::RDONLY),
                (MountAttrFlags::MOUNT_ATTR_NOSUID, MountFlags::NOSUID),
                (MountAttrFlags::MOUNT_ATTR_NODEV, MountFlags::NODEV),
                (MountAttrFlags::MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC),
            ] {
                classic.set(old, set.contains(new));
            }
            Ok(rustix::mount::mount_remount(path, classic, c"")?)
        }
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_a_namespace_alone() {
        let current = || std::fs::read_link("/proc/thread-self/ns/net").expect("procfs");
        let before = current();
        let enter = move || unshare(UnshareFlags::NEWNET).map(|()| current());
        let entered = std::thread::spawn(enter);
        match entered.join().expect("no panic") {
            Ok(entered) => assert_ne!(entered, before),
            Err(error) => assert_eq!(error, rustix::io::Errno::PERM),
        }
        assert_eq!(current(), before);
    }
}
