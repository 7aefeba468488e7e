//! Trees on disk that containers have written: disk usage and removal. Neither follows symbolic
//! links, and both work for trees of any depth.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

use crate::api::UsageResponse;

/// Largest depth that [`usage`] counts: each level takes a file descriptor.
const MAX_DEPTH: usize = 512;

/// Flags of an open directory, which is not reached through a symbolic link.
const OPEN_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Bytes of a block in `st_blocks` (stat(3type)).
const BLOCK_SIZE: i64 = 512;

/// Returns the blocks and inodes of the tree at `root`. Directories below a depth of 512 are not
/// counted, nor is what another process removes meanwhile.
pub(crate) fn usage(root: &Path) -> io::Result<UsageResponse> {
    let stat = statat(CWD, root, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut usage = UsageResponse {
        size: stat.st_blocks * BLOCK_SIZE,
        inodes: 1,
    };
    // Only files with several links can be seen twice.
    let mut linked = HashSet::new();
    let mut open = vec![Dir::new(openat(CWD, root, OPEN_DIR, Mode::empty())?)?];
    loop {
        let depth = open.len();
        let Some(dir) = open.last_mut() else {
            return Ok(usage);
        };
        let Some(entry) = dir.read() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let dir = dir.fd()?;
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_dir || stat.st_nlink == 1 || linked.insert((stat.st_dev, stat.st_ino)) {
            usage.size += stat.st_blocks * BLOCK_SIZE;
            usage.inodes += 1;
        }
        if is_dir && depth < MAX_DEPTH {
            match openat(dir, name, OPEN_DIR, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                opened => open.push(Dir::new(opened?)?),
            }
        }
    }
}

/// Removes the directory `top` with all that is in it, if it exists. Directories of directories
/// move to `top` first, so that few descriptors are open however deep the tree is. After a crash or
/// an error, another call continues.
///
/// A process that still has the tree may change it meanwhile. Entries are therefore named relative
/// to open directories, none of which is reached through a symbolic link.
pub(crate) fn remove(top: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (top.parent(), top.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = match openat(CWD, parent, OPEN_DIR, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        parent => parent?,
    };
    let top = match openat(&parent, name, OPEN_DIR, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        top => top?,
    };
    let mut number = 0_u64;
    loop {
        let mut is_empty = true;
        for_each_name(&top, |name| {
            is_empty = false;
            match open_dir(top.as_fd(), name)? {
                Some(dir) => remove_dir(top.as_fd(), name, &dir, &mut number),
                None => unlinkat(&top, name, AtFlags::empty()),
            }
        })?;
        if is_empty {
            return Ok(unlinkat(&parent, name, AtFlags::REMOVEDIR)?);
        }
    }
}

/// Removes the directory `dir`, which is `name` in `top`, and moves the directories in it to `top`.
fn remove_dir(
    top: BorrowedFd<'_>,
    name: &CStr,
    dir: &OwnedFd,
    number: &mut u64,
) -> rustix::io::Result<()> {
    for_each_name(dir, |entry| match open_dir(dir.as_fd(), entry)? {
        Some(_) => move_to(dir, entry, top, number),
        None => unlinkat(dir, entry, AtFlags::empty()),
    })?;
    unlinkat(top, name, AtFlags::REMOVEDIR)
}

/// Moves the entry `name` of `dir` to `top`, under a number that is free there.
fn move_to(
    dir: &OwnedFd,
    name: &CStr,
    top: BorrowedFd<'_>,
    number: &mut u64,
) -> rustix::io::Result<()> {
    loop {
        *number += 1;
        match renameat(dir, name, top, number.to_string()) {
            // A file or directory of an earlier call.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => {}
            moved => return moved,
        }
    }
}

/// Opens the entry `name` of `dir` if it is a directory. Returns `None` for other files, among them
/// symbolic links.
fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Option<OwnedFd>> {
    match openat(dir, name, OPEN_DIR, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Calls `operation` with the name of each entry of a directory.
fn for_each_name(
    dir: &OwnedFd,
    mut operation: impl FnMut(&CStr) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let mut entries = Dir::read_from(dir)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            operation(entry.file_name())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use rustix::fs::{RenameFlags, mkdirat, renameat_with};
    use vfs_testkit::{SetOnDrop, wait_until};

    use super::*;

    #[test]
    fn hard_links_count_once_and_symbolic_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/file"), [1; 10000]).unwrap();
        fs::hard_link(root.join("a/file"), root.join("a/b/link")).unwrap();
        symlink("/", root.join("slash")).unwrap();
        let usage = usage(&root).unwrap();
        assert_eq!(usage.inodes, 5);
        assert!((10000..100_000).contains(&usage.size), "{usage:?}");
    }

    #[test]
    fn trees_deeper_than_a_path_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "stays").unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        // Built from the bottom: each step moves the tree into a new directory.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let at = openat(CWD, &root, flags, Mode::empty()).unwrap();
        let name = "n".repeat(200);
        mkdirat(&at, "1", Mode::RWXU).unwrap();
        symlink(&outside, root.join("1/link")).unwrap();
        for _ in 0..2000 {
            mkdirat(&at, "new", Mode::RWXU).unwrap();
            renameat(&at, "1", &at, format!("new/{name}")).unwrap();
            renameat(&at, "new", &at, "1").unwrap();
        }
        assert!(usage(&root).unwrap().inodes > 500);
        remove(&root).unwrap();
        assert!(!root.exists());
        assert_eq!(fs::read_to_string(&outside).unwrap(), "stays");
        remove(&root).unwrap();
    }

    /// Exchanges directories and symbolic links in the tree while it is removed.
    #[test]
    fn a_directory_that_becomes_a_symbolic_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        let root = dir.path().join("root");
        fs::create_dir(&outside).unwrap();
        for number in 0..10 {
            fs::write(outside.join(number.to_string()), "stays").unwrap();
            fs::create_dir(outside.join(format!("dir{number}"))).unwrap();
        }
        let pairs = ["", "a"].map(|dir| {
            let dir = root.join(dir);
            let pair = |at| (dir.join(format!("link{at}")), dir.join(format!("tree{at}")));
            (0..8).map(pair).collect::<Vec<_>>()
        });
        let pairs = pairs.concat();
        let count = || fs::read_dir(&outside).unwrap().count();
        let (ended, exchanged) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    for (link, tree) in &pairs {
                        let done = renameat_with(CWD, link, CWD, tree, RenameFlags::EXCHANGE);
                        exchanged.fetch_add(usize::from(done.is_ok()), Ordering::Relaxed);
                    }
                }
            });
            let _ended = SetOnDrop(&ended);
            for _ in 0..40 {
                for (link, tree) in &pairs {
                    fs::create_dir_all(tree.join("b/c")).unwrap();
                    symlink(&outside, link).unwrap();
                }
                // The other thread can make a call fail. Another one continues.
                wait_until("the tree is removed", || remove(&root).is_ok());
                if count() < 20 {
                    break;
                }
            }
        });
        assert_eq!(count(), 20);
        assert!(exchanged.load(Ordering::Relaxed) > 0);
    }
}
