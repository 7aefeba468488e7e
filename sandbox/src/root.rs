//! A root directory that consists of a few paths of the first one, at the same names, and of
//! objects of the first one, at names of their own.
//!
//! It is an empty file system in memory, in which these are mounted and nothing else: neither
//! programs nor libraries, no devices, and of `/proc` only the processes of the PID namespace.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use rustix::{mount, process};

use crate::{Error, Object, VisiblePath, at};

/// The directory of the objects.
const OBJECTS: &str = "/.objects";

/// Returns the path of the object `number` in a root of its own.
pub fn object_path(number: u32) -> PathBuf {
    Path::new(OBJECTS).join(number.to_string())
}

/// Returns whether the root of this process, which is its own, has the object `number`, without
/// reaching the object: its file system may hang.
pub fn has_object(number: u32) -> bool {
    let name = number.to_string();
    let mut listed = fs::read_dir(OBJECTS).into_iter().flatten().flatten();
    listed.any(|entry| *entry.file_name() == *name)
}

/// Makes `paths` and `objects` the only ones that this process can name. It has to be alone in its
/// mount namespace. Its working directory stays, but has only those of the paths that are below it.
pub(crate) fn enter(paths: &[VisiblePath], objects: &[Object]) -> Result<(), Error> {
    let directory = env::current_dir().unwrap_or_else(|_| "/".into());
    // Mounts of the host below the paths appear here as well, and none of these there.
    separate(Path::new("/")).map_err(at("separating mounts"))?;
    let routes = routes(paths, &directory)?;
    let whole = routes.iter().find(|(_, route)| route.end == Path::new("/"));
    let root = match whole {
        Some((visible, route)) => copy(&route.end, visible.writable),
        None => file_system("tmpfs", &[("mode", "0755"), ("size", "1M")]).map_err(Into::into),
    };
    let root = root.map_err(at("creating a root"))?;
    attach_at(&root, Path::new("/")).map_err(at("mounting a root"))?;
    process::fchdir(&root).map_err(at("entering the root"))?;
    fs::create_dir_all("proc").map_err(at("proc"))?;
    let proc = file_system("proc", &[("subset", "pid")])
        // Before Linux 5.8.
        .or_else(|_| file_system("proc", &[]));
    match proc {
        Ok(proc) => attach_at(&proc, Path::new("proc")).map_err(at("mounting /proc"))?,
        // In a container with parts of /proc covered, whose other processes are in it as well.
        Err(_) => bind(Path::new("/proc"), false).map_err(at("/proc"))?,
    }
    fs::create_dir_all(below(&directory)).map_err(at(directory.display().to_string()))?;
    let others = routes
        .iter()
        .filter(|(_, route)| route.end != Path::new("/"));
    for (visible, route) in others {
        let created = route.create();
        created
            .and_then(|()| match route.covered {
                true => Ok(()),
                false => bind(&route.end, visible.writable),
            })
            .map_err(at(visible.path.display().to_string()))?;
    }
    for object in objects {
        let path = object_path(object.number);
        attach_object(object, &below(&path)).map_err(at(path.display().to_string()))?;
    }
    if whole.is_none() {
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
        change_mount(CWD, ".", read_only, MountAttrFlags::empty(), false).map_err(at("root"))?;
    }
    process::pivot_root(".", ".").map_err(at("changing the root"))?;
    mount::unmount(".", UnmountFlags::DETACH).map_err(at("leaving the first root"))?;
    process::chdir(&directory).map_err(at(directory.display().to_string()))
}

/// Copies the mount of `object`, with all mounts below it: an object for the root of another
/// process, from which `..` does not lead out. Mounts of the host below the object appear in the
/// copy as well, once that is in a root. Needs `CAP_SYS_ADMIN`, and an object in this process's
/// mount namespace.
pub fn copy_object(object: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = COPY | OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::AT_RECURSIVE;
    Ok(mount::open_tree(object, "", flags)?)
}

/// Returns whether this process may copy mounts: its mount namespace belongs to its user namespace.
pub fn can_copy() -> bool {
    mount::open_tree(CWD, "/", COPY).is_ok()
}

/// Adds `object`, whose descriptor is a copy of a mount, to the root of `process`, which has a root
/// of its own. Needs Linux 5.12 and `CAP_SYS_ADMIN`. Starts a thread. Returns an error if the
/// process has no root of its own.
pub fn add(process: Pid, object: &Object) -> Result<(), Error> {
    let tree = object.descriptor.as_fd();
    let change = || {
        let set = attributes(tree, object.writable)?;
        change_mount(tree, "", set, MountAttrFlags::empty(), true)
    };
    let add = || {
        // The process cannot write to its root; a mount of its own for this thread can.
        let root = mount::open_tree(CWD, "/", COPY)?;
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
        change_mount(&root, "", MountAttrFlags::empty(), read_only, false)?;
        process::fchdir(&root)?;
        let path = object_path(object.number);
        create_place(object, &below(&path))?;
        attach_at(tree, &path)?;
        Ok(separate(&path)?)
    };
    change()
        .and_then(|()| in_namespace_of(process, add))
        .map_err(at(format!("adding object {}", object.number)))
}

/// Removes the object `number` from the root of `process`; its open files stay usable. Does nothing
/// if it is not there. Starts a thread.
pub fn remove(process: Pid, number: u32) -> Result<(), Error> {
    in_namespace_of(process, || {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        match mount::unmount(object_path(number), flags) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    })
    .map_err(at(format!("removing object {number}")))
}

/// Runs `change` on a thread in the mount namespace of `process`, which has a root of its own.
fn in_namespace_of(process: Pid, change: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
    let run = || {
        enter_namespace_of(process)?;
        change()
    };
    let done = std::thread::scope(|scope| scope.spawn(run).join());
    done.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// Mounts `object` at `place`, a path below the working directory.
fn attach_object(object: &Object, place: &Path) -> io::Result<()> {
    create_place(object, place)?;
    attach_at(&object.descriptor, place)?;
    separate(place)?;
    let set = attributes(object.descriptor.as_fd(), object.writable)?;
    sys::namespaces::change_mount(CWD, place, set, MountAttrFlags::empty(), true)
}

/// Creates an empty object to mount `object` at.
fn create_place(object: &Object, place: &Path) -> io::Result<()> {
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent)?;
    }
    let kind = FileType::from_raw_mode(fstat(&object.descriptor)?.st_mode);
    match kind {
        FileType::Directory => fs::create_dir_all(place),
        _ => fs::File::create(place).map(drop),
    }
}

/// Makes mounts of the host below `path` appear there as well, and none of these in the host.
fn separate(path: &Path) -> rustix::io::Result<()> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount::mount_change(path, flags)
}

/// Moves the calling thread to the mount namespace of `process`, which has a root of its own.
fn enter_namespace_of(process: Pid) -> io::Result<()> {
    let namespace = fs::File::open(format!("/proc/{}/ns/mnt", process.as_raw_nonzero()))?;
    if namespace.metadata()?.ino() == fs::metadata("/proc/thread-self/ns/mnt")?.ino() {
        return Err(io::Error::other(
            "expected a process with a root of its own",
        ));
    }
    sys::namespaces::unshare(UnshareFlags::FS)?;
    Ok(move_into_link_name_space(
        namespace.as_fd(),
        Some(LinkNameSpaceType::Mount),
    )?)
}

/// The flags for a mount that is not attached anywhere.
const COPY: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// Copies the mount at `path`, with all mounts below it.
fn copy(path: &Path, writable: bool) -> io::Result<OwnedFd> {
    let tree = mount::open_tree(CWD, path, COPY | OpenTreeFlags::AT_RECURSIVE)?;
    let set = attributes(tree.as_fd(), writable)?;
    change_mount(&tree, "", set, MountAttrFlags::empty(), true)?;
    Ok(tree)
}

/// Creates a file system that is not mounted anywhere.
fn file_system(kind: &str, options: &[(&str, &str)]) -> rustix::io::Result<OwnedFd> {
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

fn attach_at(tree: impl AsFd, at: &Path) -> rustix::io::Result<()> {
    mount::move_mount(tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Mounts a path of the first root, with all mounts below it, at the same name below the working
/// directory.
fn bind(path: &Path, writable: bool) -> io::Result<()> {
    let target = below(path);
    mount::mount_bind_recursive(path, &target)?;
    let object = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let set = attributes(object.as_fd(), writable)?;
    sys::namespaces::change_mount(CWD, &target, set, MountAttrFlags::empty(), true)
}

/// Returns the attributes of a mount of `object`.
fn attributes(object: BorrowedFd<'_>, writable: bool) -> io::Result<MountAttrFlags> {
    // An image may be in a device.
    let kind = FileType::from_raw_mode(fstat(object)?.st_mode);
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID;
    attributes.set(
        MountAttrFlags::MOUNT_ATTR_NODEV,
        kind != FileType::BlockDevice,
    );
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !writable);
    Ok(attributes)
}

fn change_mount(
    dir: impl AsFd,
    path: &str,
    set: MountAttrFlags,
    clear: MountAttrFlags,
    recursive: bool,
) -> io::Result<()> {
    sys::namespaces::change_mount(dir.as_fd(), Path::new(path), set, clear, recursive)
}

/// Returns the name of an absolute path below the working directory.
fn below(path: &Path) -> PathBuf {
    Path::new(".").join(path.strip_prefix("/").unwrap_or(path))
}

/// Follows `paths`, and returns them in an order in which none hides another one. Omits those that
/// do not exist.
fn routes<'a>(
    paths: &'a [VisiblePath],
    directory: &Path,
) -> Result<Vec<(&'a VisiblePath, Route)>, Error> {
    let mut routes = Vec::new();
    for visible in paths {
        match Route::of(&visible.path, directory) {
            Ok(route) => routes.push((visible, route)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at(visible.path.display().to_string())(error)),
        }
    }
    // Of several names of one path, the writable one comes first.
    routes.sort_by(|(a, one), (b, other)| (&one.end, b.writable).cmp(&(&other.end, a.writable)));
    let mut all: Vec<(&VisiblePath, Route)> = Vec::new();
    for (visible, mut route) in routes {
        let covers = |(other, above): &(&VisiblePath, Route)| {
            route.end.starts_with(&above.end) && (other.writable || !visible.writable)
        };
        route.covered = all.iter().any(covers);
        all.push((visible, route));
    }
    Ok(all)
}

/// The way of a path through symbolic links.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    /// The directories on it, as absolute paths without links.
    directories: Vec<PathBuf>,
    /// The symbolic links on it, and their contents.
    links: Vec<(PathBuf, PathBuf)>,
    /// The absolute path that it leads to.
    end: PathBuf,
    /// Whether that is a directory.
    to_directory: bool,
    /// Whether it is below a path that is mounted and as writable.
    covered: bool,
}

impl Route {
    /// Maximum number of symbolic links, as Linux's.
    const MAX_LINKS: usize = 40;

    /// Follows `path` from `directory`.
    fn of(path: &Path, directory: &Path) -> io::Result<Route> {
        let parts = |path: &Path| -> VecDeque<OsString> {
            path.components()
                .map(|part| part.as_os_str().to_owned())
                .collect()
        };
        let mut rest = parts(&directory.join(path));
        let mut route = Route {
            directories: Vec::new(),
            links: Vec::new(),
            end: "/".into(),
            to_directory: true,
            covered: false,
        };
        while let Some(part) = rest.pop_front() {
            match Path::new(&part).components().next() {
                Some(Component::RootDir) => route.end = "/".into(),
                Some(Component::ParentDir) => drop(route.end.pop()),
                Some(Component::Normal(name)) => {
                    let next = route.end.join(name);
                    let metadata = fs::symlink_metadata(&next)?;
                    if metadata.is_symlink() {
                        let to = fs::read_link(&next)?;
                        let mut expanded = parts(&to);
                        expanded.append(&mut rest);
                        rest = expanded;
                        route.links.push((next, to));
                        if route.links.len() > Route::MAX_LINKS {
                            return Err(Errno::LOOP.into());
                        }
                    } else {
                        if !rest.is_empty() {
                            route.directories.push(next.clone());
                        }
                        route.end = next;
                    }
                }
                _ => {}
            }
        }
        route.to_directory = fs::metadata(&route.end)?.is_dir();
        Ok(route)
    }

    /// Creates the directories and links below the working directory, and an object to mount at.
    /// Those that exist stay.
    fn create(&self) -> io::Result<()> {
        for directory in &self.directories {
            fs::create_dir_all(below(directory))?;
        }
        for (link, to) in &self.links {
            let link = below(link);
            if fs::symlink_metadata(&link).is_err() {
                if let Some(parent) = link.parent() {
                    fs::create_dir_all(parent)?;
                }
                symlink(to, link)?;
            }
        }
        let end = below(&self.end);
        if fs::symlink_metadata(&end).is_ok() {
            return Ok(());
        }
        match self.to_directory {
            true => fs::create_dir_all(end),
            false => fs::File::create(end).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_has_all_directories_and_links_on_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("a path");
        fs::create_dir_all(base.join("a/b")).expect("made");
        fs::write(base.join("a/b/file"), "").expect("written");
        symlink("a/b", base.join("relative")).expect("made");
        symlink(base.join("a"), base.join("absolute")).expect("made");
        symlink("loop", base.join("loop")).expect("made");
        let end = base.join("a/b/file");
        let link = |name: &str, to: PathBuf| vec![(base.join(name), to)];
        for (path, links) in [
            ("a/b/file", Vec::new()),
            ("./a/../a//b/./file", Vec::new()),
            ("relative/file", link("relative", "a/b".into())),
            ("absolute/b/file", link("absolute", base.join("a"))),
            ("relative/../b/file", link("relative", "a/b".into())),
        ] {
            let route = Route::of(Path::new(path), &base).expect(path);
            assert_eq!(route.end, end, "{path}");
            assert_eq!(route.links, links, "{path}");
            assert!(route.directories.contains(&base.join("a")), "{path}");
            assert!(!route.to_directory, "{path}");
        }
        let route = Route::of(&base.join("a"), Path::new("/")).expect("it exists");
        assert!(route.to_directory && route.end == base.join("a"));
        let failed = |path: &str| {
            let failed = Route::of(Path::new(path), &base).expect_err(path);
            Errno::from_io_error(&failed)
        };
        assert_eq!(failed("none/file"), Some(Errno::NOENT));
        assert_eq!(failed("loop"), Some(Errno::LOOP));
    }

    #[test]
    fn a_path_below_another_one_is_covered_by_it_if_it_is_as_writable() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("a path");
        fs::create_dir_all(base.join("a/b")).expect("made");
        let covered = |upper: bool, lower: bool| {
            let path = |name: &str, writable| VisiblePath {
                path: base.join(name),
                writable,
            };
            let paths = [path("a/b", lower), path("none", true), path("a", upper)];
            let routes = routes(&paths, Path::new("/")).expect("followed");
            let routes: Vec<_> = routes.into_iter().map(|(_, route)| route).collect();
            assert_eq!(routes[0].end, base.join("a"));
            assert_eq!(routes.len(), 2);
            (routes[0].covered, routes[1].covered)
        };
        assert_eq!(covered(true, true), (false, true));
        assert_eq!(covered(true, false), (false, true));
        assert_eq!(covered(false, false), (false, true));
        assert_eq!(covered(false, true), (false, false));
    }
}
