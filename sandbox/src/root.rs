//! A root directory that consists of a few paths of the first one, at the same names.
//!
//! It is an empty file system in memory, in which the paths are mounted and nothing else: neither
//! programs nor libraries, no devices, and of `/proc` only the processes of the PID namespace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};
use rustix::{mount, process};

use crate::{Error, VisiblePath, at};

/// Makes `paths` the only ones that this process can name. It has to be alone in its mount
/// namespace.
pub(crate) fn enter(paths: &[VisiblePath]) -> Result<(), Error> {
    // Mounts of the host below the paths appear here as well, and none of these there.
    mount::mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .map_err(at("separating mounts"))?;
    let root =
        file_system("tmpfs", &[("mode", "0755"), ("size", "1M")]).map_err(at("creating a root"))?;
    attach(&root, Path::new("/")).map_err(at("mounting a root"))?;
    process::fchdir(&root).map_err(at("entering the root"))?;
    fs::create_dir("proc").map_err(at("proc"))?;
    let proc = file_system("proc", &[("subset", "pid")])
        // Before Linux 5.8.
        .or_else(|_| file_system("proc", &[]));
    match proc {
        Ok(proc) => attach(&proc, Path::new("proc")).map_err(at("mounting /proc"))?,
        // In a container with parts of /proc covered, whose other processes are in it as well.
        Err(_) => bind(&VisiblePath {
            path: "/proc".into(),
            writable: false,
        })
        .map_err(at("/proc"))?,
    }
    let mut paths: Vec<_> = paths.iter().collect();
    paths.sort_by_key(|visible| &visible.path);
    for visible in paths {
        bind(visible).map_err(at(visible.path.display().to_string()))?;
    }
    sys::namespaces::set_mount_attributes(Path::new("."), MountAttrFlags::MOUNT_ATTR_RDONLY, false)
        .map_err(at("root"))?;
    process::pivot_root(".", ".").map_err(at("changing the root"))?;
    mount::unmount(".", UnmountFlags::DETACH).map_err(at("leaving the first root"))?;
    process::chdir("/").map_err(at("/"))
}

/// Creates a file system that is not mounted anywhere.
fn file_system(kind: &str, options: &[(&str, &str)]) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let context = mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        mount::fsconfig_set_string(&context, *key, *value)?;
    }
    mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let attributes = match kind {
        // Writing its files would change the kernel's settings.
        "proc" => attributes | MountAttrFlags::MOUNT_ATTR_RDONLY,
        _ => attributes,
    };
    mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn attach(tree: &rustix::fd::OwnedFd, at: &Path) -> rustix::io::Result<()> {
    mount::move_mount(tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Mounts a path of the first root, with all mounts below it, at the same name below the working
/// directory.
fn bind(visible: &VisiblePath) -> io::Result<()> {
    let relative = visible.path.strip_prefix("/");
    let target = relative.map_err(|_| io::Error::from(Errno::INVAL))?;
    let target = PathBuf::from(".").join(target);
    if visible.path.is_dir() {
        fs::create_dir_all(&target)?;
    } else {
        fs::create_dir_all(target.parent().unwrap_or(Path::new(".")))?;
        fs::File::create(&target)?;
    }
    mount::mount_bind_recursive(&visible.path, &target)?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !visible.writable);
    sys::namespaces::set_mount_attributes(&target, attributes, true)
}
