//! Whether an object that was opened by handle is below the export's root: a second barrier behind
//! the seal of the handle, and the place where a directory above is proven.
//!
//! A directory is asked for the directories above it. A file has no such thing, so that it is found
//! from above instead, by the first of these that tells:
//!
//! 1. the path that the kernel has for it (proc_pid_fd(5)), which the kernel has as long as it
//!    remembers a name of it. The path is not believed: it is walked down from the root, without
//!    symbolic links, and has to lead to the very object;
//! 2. the directory that the handle names, which has to be below the root and to list it;
//! 3. a search from the top of its file system. Only a file takes that which was moved from one
//!    directory to another, or has several names, and of which the kernel has since forgotten all.
//!
//! A file without any name is below nothing. The node that this has proven is in the table and is
//! not proven again while it lives there.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawMode, ResolveFlags, Statx};
use sys::dir::Entry;
use sys::handle::FileHandle;
use vfs::{Cx, Errno, Patience, Result};

use crate::device;
use crate::fds::Fd;
use crate::tree::{self, Tree};

/// How many directories above one are looked at where its path is too long for the kernel to tell:
/// with names of one letter that is reached at twice this depth (`PATH_MAX`).
const HIGHEST: usize = 1024;

/// The longest that one search takes.
const SEARCH: Duration = Duration::from_secs(2);

/// After a search none begins for so many times the time it took: together they take less than a
/// tenth of one processor.
const REST: u32 = 10;

/// How many directories wait at most to be searched: some MiB of paths.
const WAITING: usize = 1 << 16;

/// How much of a directory is read at once.
const BUFFER: usize = 32 << 10;

/// When the next search may begin. Locked while one runs.
#[derive(Default)]
pub(crate) struct Searches(Mutex<Option<Instant>>);

/// Where the kernel's path of an object leads.
#[derive(PartialEq, Eq)]
enum Leads {
    Below,
    Elsewhere,
    Nowhere,
}

/// Whether `fd`, opened by handle on `mount`, is the root or below it. `parent` is the directory
/// that the handle names. Acts as the server. `EAGAIN` if only a search would tell and it is too
/// early for another; `WOULD_BLOCK` if directories have to be read and `cx` is not to wait.
pub(crate) fn check(
    tree: &Tree,
    cx: &Cx<'_>,
    mount: BorrowedFd<'_>,
    fd: &Fd,
    parent: Option<&FileHandle>,
) -> Result<bool> {
    let stx = tree::stat(fd.as_fd())?;
    if is_directory(&stx) {
        return directory(tree, fd);
    }
    if tree.is_root(&stx) {
        return Ok(true);
    }
    if stx.stx_nlink == 0 {
        return Ok(false);
    }
    let path = by_path(tree, fd.as_fd(), &stx)?;
    if path == Leads::Below {
        return Ok(true);
    }
    cx.may_wait()?;
    let mut only_name_is_elsewhere = path == Leads::Elsewhere;
    if let Some(parent) = parent
        && let Some(dir) = open_parent(tree, mount, parent)?
        && lists(tree, &dir, &stx)?
    {
        if directory(tree, &dir)? {
            return Ok(true);
        }
        only_name_is_elsewhere = true;
    }
    if only_name_is_elsewhere && stx.stx_nlink == 1 {
        return Ok(false);
    }
    search(tree, mount, &stx)
}

/// Whether the directory `dir` is the root or below it.
pub(crate) fn directory(tree: &Tree, dir: &Fd) -> Result<bool> {
    let mut stx = tree::stat(dir.as_fd())?;
    if tree.is_root(&stx) || by_path(tree, dir.as_fd(), &stx)? == Leads::Below {
        return Ok(true);
    }
    let mut at: Option<Fd> = None;
    for _ in 0..HIGHEST {
        let up = tree.open(|| above(at.as_ref().unwrap_or(dir).as_fd()))?;
        let next = tree::stat(up.as_fd())?;
        if tree.is_root(&next) {
            return Ok(true);
        }
        // Above the host's root is the host's root.
        if is_same(&next, &stx) {
            return Ok(false);
        }
        (stx, at) = (next, Some(up));
    }
    Ok(false)
}

/// The directory above the directory `dir`, whatever that is.
pub(crate) fn above(dir: BorrowedFd<'_>) -> rustix::io::Result<rustix::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, c"..", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn by_path(tree: &Tree, fd: BorrowedFd<'_>, stx: &Statx) -> Result<Leads> {
    let Some(root) = tree.table_root() else {
        return Ok(Leads::Nowhere);
    };
    let root = root.fd(Patience::Full)?;
    let (Some(top), Some(path)) = (tree.path_of(root.as_fd()), tree.path_of(fd)) else {
        return Ok(Leads::Nowhere);
    };
    match path.strip_prefix(&top) {
        Ok(below) if leads_to(tree, root.as_fd(), below, ResolveFlags::BENEATH, stx)? => {
            Ok(Leads::Below)
        }
        Err(_) if leads_to(tree, CWD, &path, ResolveFlags::empty(), stx)? => Ok(Leads::Elsewhere),
        _ => Ok(Leads::Nowhere),
    }
}

/// Whether `path` in `dir` is the object with the attributes `stx`, no symbolic link followed.
fn leads_to(
    tree: &Tree,
    dir: BorrowedFd<'_>,
    path: &Path,
    how: ResolveFlags,
    stx: &Statx,
) -> Result<bool> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = how | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let path = path.as_os_str().as_bytes();
    match tree.open(|| rustix::fs::openat2(dir, path, flags, Mode::empty(), how)) {
        Ok(found) => Ok(is_same(&tree::stat(found.as_fd())?, stx)),
        Err(Errno::ENFILE) => Err(Errno::ENFILE),
        Err(_) => Ok(false),
    }
}

fn open_parent(tree: &Tree, mount: BorrowedFd<'_>, handle: &FileHandle) -> Result<Option<Fd>> {
    match tree.open(|| handle.open(mount, OFlags::PATH | OFlags::DIRECTORY)) {
        Ok(dir) => Ok(Some(dir)),
        Err(error @ (Errno::ENFILE | Errno::ENOMEM)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether the directory `dir` has a name of the object with the attributes `stx`.
fn lists(tree: &Tree, dir: &Fd, stx: &Statx) -> Result<bool> {
    let Some(open) = open_to_list(tree, dir.as_fd(), Path::new("."))? else {
        return Ok(false);
    };
    let mut buffer = vec![0; BUFFER];
    let mut found = false;
    each_entry(&open, &mut buffer, |entry| {
        found = entry.ino == stx.stx_ino && is_named(tree, open.as_fd(), entry.name, stx);
        !found
    });
    Ok(found)
}

/// Looks for a name of the object with the attributes `stx` in `top` and all directories below it
/// on the same file system, but for at most [`SEARCH`].
fn search(tree: &Tree, top: BorrowedFd<'_>, stx: &Statx) -> Result<bool> {
    let mut next = match tree.searches.0.try_lock() {
        Ok(next) => next,
        Err(TryLockError::WouldBlock) => return Err(Errno::EAGAIN),
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
    };
    let start = Instant::now();
    if next.is_some_and(|next| next > start) {
        return Err(Errno::EAGAIN);
    }
    let mut waiting = vec![PathBuf::from(".")];
    let mut buffer = vec![0; BUFFER];
    let mut found = false;
    while let Some(path) = waiting.pop()
        && !found
        && start.elapsed() < SEARCH
    {
        let Some(dir) = open_to_list(tree, top, &path)? else {
            continue;
        };
        each_entry(&dir, &mut buffer, |entry| {
            if entry.ino == stx.stx_ino {
                found = is_named(tree, dir.as_fd(), entry.name, stx);
            }
            // 0 is a kind that the file system does not tell.
            if matches!(entry.d_type, 0 | DIRECTORY) && waiting.len() < WAITING {
                waiting.push(path.join(OsStr::from_bytes(entry.name)));
            }
            !found
        });
    }
    *next = Some(Instant::now() + start.elapsed() * REST);
    Ok(found)
}

/// `DT_DIR`.
const DIRECTORY: u8 = 4;

/// Opens the directory `path` below `dir`, on the same mount, for reading; nothing if it cannot be.
fn open_to_list(tree: &Tree, dir: BorrowedFd<'_>, path: &Path) -> Result<Option<Fd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let path = path.as_os_str().as_bytes();
    match tree.open(|| rustix::fs::openat2(dir, path, flags, Mode::empty(), how)) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::ENFILE) => Err(Errno::ENFILE),
        Err(_) => Ok(None),
    }
}

/// Gives `each` what `dir` has, without dots, until it says stop (`false`) or reading fails.
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

fn is_named(tree: &Tree, dir: BorrowedFd<'_>, name: &[u8], stx: &Statx) -> bool {
    let how = ResolveFlags::BENEATH;
    leads_to(tree, dir, Path::new(OsStr::from_bytes(name)), how, stx).unwrap_or(false)
}

fn is_same(one: &Statx, other: &Statx) -> bool {
    (device::dev_of(one), one.stx_ino) == (device::dev_of(other), other.stx_ino)
}

fn is_directory(stx: &Statx) -> bool {
    FileType::from_raw_mode(RawMode::from(stx.stx_mode)) == FileType::Directory
}
