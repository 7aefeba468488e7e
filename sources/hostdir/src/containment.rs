//! The check that an object opened by handle is below the export's root: a second barrier after the
//! seal of the handle, and the verification of parent directories.
//!
//! A directory is checked through its ancestors. A file has none to follow, so it is searched for
//! from above instead, with the first of these checks that is conclusive:
//!
//! 1. the kernel's path of it (proc_pid_fd(5)), which exists as long as the dentry cache has a name
//!    of it. The path is not trusted: it is walked down from the root, without symbolic links, and
//!    has to lead to the same object;
//! 2. the directory in the handle, which has to be below the root and to list it;
//! 3. a search from the top of its file system. It is only needed for a file that was moved between
//!    directories, or has several names, none of which is in the dentry cache any more.
//!
//! A file without a name is not below any directory. A node that passed the check is in the table
//! and is not checked again while it stays there.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Statx};
use sys::dir::Entry;
use sys::handle::FileHandle;
use vfs::{Cx, Errno, Result};

use crate::descriptors::Fd;
use crate::host::Host;
use crate::stat::{is_directory, is_same, stat};

/// The most ancestors to check if a directory's path is too long for the kernel to return: with
/// names of one letter it is so at twice this depth (`PATH_MAX`).
const MAX_ANCESTORS: usize = 1024;

/// The time limit of one search.
const SEARCH_TIME: Duration = Duration::from_secs(2);

/// The pause after a search, as a multiple of its duration: all searches together take less than a
/// tenth of one processor.
const PAUSE_FACTOR: u32 = 10;

/// The most directories waiting to be searched: some MiB of paths.
const MAX_QUEUED: usize = 1 << 16;

/// The bytes of a directory to read at once.
const BUFFER: usize = 32 << 10;

/// The earliest time of the next search. Locked while one runs.
#[derive(Default)]
pub(crate) struct SearchLimiter(Mutex<Option<Instant>>);

/// The check for one export.
pub(crate) struct Containment<'a> {
    pub(crate) host: &'a Host,
    /// The root's descriptor, as long as the export lives.
    pub(crate) root: Option<Arc<Fd>>,
    pub(crate) search_limiter: &'a SearchLimiter,
}

/// The result of walking the kernel's path of an object.
#[derive(PartialEq, Eq)]
enum PathCheck {
    /// It leads to the object, beneath the root.
    Beneath,
    /// It leads to the object, outside the root.
    Outside,
    /// The kernel has no path that leads to the object.
    Unknown,
}

impl Containment<'_> {
    /// Returns whether `fd`, opened by handle on `mount`, is the root or below it. `parent` is the
    /// directory in the handle. Acts as the server. Returns `EAGAIN` if only a search would tell
    /// and it is too early for another; `WOULD_BLOCK` if directories have to be read and `cx` must
    /// not wait.
    pub(crate) fn is_beneath(
        &self,
        cx: &Cx<'_>,
        mount: BorrowedFd<'_>,
        fd: &Fd,
        parent: Option<&FileHandle>,
    ) -> Result<bool> {
        let stx = stat(fd.as_fd())?;
        if is_directory(&stx) {
            return self.is_directory_beneath(fd);
        }
        if self.host.is_root(&stx) {
            return Ok(true);
        }
        if stx.stx_nlink == 0 {
            return Ok(false);
        }
        let path = self.check_path(fd.as_fd(), &stx)?;
        if path == PathCheck::Beneath {
            return Ok(true);
        }
        cx.check_may_block()?;
        let mut a_name_is_outside = path == PathCheck::Outside;
        if let Some(parent) = parent
            && let Some(dir) = self.open_directory_of(mount, parent)?
            && self.contains(&dir, &stx)?
        {
            if self.is_directory_beneath(&dir)? {
                return Ok(true);
            }
            a_name_is_outside = true;
        }
        if a_name_is_outside && stx.stx_nlink == 1 {
            return Ok(false);
        }
        self.search(mount, &stx)
    }

    /// Returns whether the directory `dir` is the root or below it.
    pub(crate) fn is_directory_beneath(&self, dir: &Fd) -> Result<bool> {
        let mut stx = stat(dir.as_fd())?;
        if self.host.is_root(&stx) || self.check_path(dir.as_fd(), &stx)? == PathCheck::Beneath {
            return Ok(true);
        }
        let mut at: Option<Fd> = None;
        for _ in 0..MAX_ANCESTORS {
            let up = self
                .host
                .open(|| open_parent(at.as_ref().unwrap_or(dir).as_fd()))?;
            let next = stat(up.as_fd())?;
            if self.host.is_root(&next) {
                return Ok(true);
            }
            // The host's root is its own parent.
            if is_same(&next, &stx) {
                return Ok(false);
            }
            (stx, at) = (next, Some(up));
        }
        Ok(false)
    }

    fn check_path(&self, fd: BorrowedFd<'_>, stx: &Statx) -> Result<PathCheck> {
        let Some(root) = &self.root else {
            return Ok(PathCheck::Unknown);
        };
        let (Some(top), Some(path)) = (
            self.host.proc_fds.path_of(root.as_fd()),
            self.host.proc_fds.path_of(fd),
        ) else {
            return Ok(PathCheck::Unknown);
        };
        match path.strip_prefix(&top) {
            Ok(below) if self.leads_to(root.as_fd(), below, ResolveFlags::BENEATH, stx)? => {
                Ok(PathCheck::Beneath)
            }
            Err(_) if self.leads_to(CWD, &path, ResolveFlags::empty(), stx)? => {
                Ok(PathCheck::Outside)
            }
            _ => Ok(PathCheck::Unknown),
        }
    }

    /// Returns whether `path` in `dir` is the object with the attributes `stx`, without following
    /// symbolic links.
    fn leads_to(
        &self,
        dir: BorrowedFd<'_>,
        path: &Path,
        how: ResolveFlags,
        stx: &Statx,
    ) -> Result<bool> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = how | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let path = path.as_os_str().as_bytes();
        match self
            .host
            .open(|| rustix::fs::openat2(dir, path, flags, Mode::empty(), how))
        {
            Ok(found) => Ok(is_same(&stat(found.as_fd())?, stx)),
            Err(Errno::ENFILE) => Err(Errno::ENFILE),
            Err(_) => Ok(false),
        }
    }

    /// Opens the directory with this handle on `mount`; returns `None` if that fails.
    pub(crate) fn open_directory_of(
        &self,
        mount: BorrowedFd<'_>,
        handle: &FileHandle,
    ) -> Result<Option<Fd>> {
        match self
            .host
            .open(|| handle.open(mount, OFlags::PATH | OFlags::DIRECTORY))
        {
            Ok(dir) => Ok(Some(dir)),
            Err(error @ (Errno::ENFILE | Errno::ENOMEM)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Returns whether the directory `dir` has a name of the object with the attributes `stx`.
    fn contains(&self, dir: &Fd, stx: &Statx) -> Result<bool> {
        let Some(open) = self.open_directory(dir.as_fd(), Path::new("."))? else {
            return Ok(false);
        };
        let mut buffer = vec![0; BUFFER];
        let mut found = false;
        each_entry(&open, &mut buffer, |entry| {
            found = entry.ino == stx.stx_ino && self.is_named(open.as_fd(), entry.name, stx);
            !found
        });
        Ok(found)
    }

    /// Searches for a name of the object with the attributes `stx` in `top` and all directories
    /// below it on the same file system, for at most [`SEARCH_TIME`].
    fn search(&self, top: BorrowedFd<'_>, stx: &Statx) -> Result<bool> {
        let limiter = &self.search_limiter;
        let mut next = limiter.0.try_lock().ok_or(Errno::EAGAIN)?;
        let start = Instant::now();
        if next.is_some_and(|next| next > start) {
            return Err(Errno::EAGAIN);
        }
        let mut queue = vec![PathBuf::from(".")];
        let mut buffer = vec![0; BUFFER];
        let mut found = false;
        while let Some(path) = queue.pop()
            && !found
            && start.elapsed() < SEARCH_TIME
        {
            let Some(dir) = self.open_directory(top, &path)? else {
                continue;
            };
            each_entry(&dir, &mut buffer, |entry| {
                if entry.ino == stx.stx_ino {
                    found = self.is_named(dir.as_fd(), entry.name, stx);
                }
                // 0 means that the file system does not return the type.
                if matches!(entry.d_type, 0 | DT_DIR) && queue.len() < MAX_QUEUED {
                    queue.push(path.join(OsStr::from_bytes(entry.name)));
                }
                !found
            });
        }
        *next = Some(Instant::now() + start.elapsed() * PAUSE_FACTOR);
        Ok(found)
    }

    /// Opens the directory `path` below `dir`, on the same mount, for reading; returns `None` if
    /// that fails.
    fn open_directory(&self, dir: BorrowedFd<'_>, path: &Path) -> Result<Option<Fd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let path = path.as_os_str().as_bytes();
        match self
            .host
            .open(|| rustix::fs::openat2(dir, path, flags, Mode::empty(), how))
        {
            Ok(dir) => Ok(Some(dir)),
            Err(Errno::ENFILE) => Err(Errno::ENFILE),
            Err(_) => Ok(None),
        }
    }

    fn is_named(&self, dir: BorrowedFd<'_>, name: &[u8], stx: &Statx) -> bool {
        let how = ResolveFlags::BENEATH;
        self.leads_to(dir, Path::new(OsStr::from_bytes(name)), how, stx)
            .unwrap_or(false)
    }
}

/// Opens the parent of the directory `dir`.
pub(crate) fn open_parent(dir: BorrowedFd<'_>) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, c"..", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// The type of directories in getdents64(2).
const DT_DIR: u8 = 4;

/// Passes the entries of `dir`, without dots, to `each`, until it returns `false` or reading fails.
fn each_entry(dir: &Fd, buffer: &mut [u8], mut each: impl FnMut(&Entry<'_>) -> bool) {
    while let Ok(filled @ 1..) = sys::dir::read(dir.as_fd(), buffer) {
        let mut rest = &buffer[..filled];
        while let Some(entry) = Entry::first(rest) {
            if !matches!(entry.name, b"." | b"..") && !each(&entry) {
                return;
            }
            rest = &rest[entry.len..];
        }
    }
}
