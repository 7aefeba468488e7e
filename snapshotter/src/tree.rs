//! Trees on disk that containers have written: disk usage and removal. Neither follows symbolic
//! links, and both work for trees of any depth.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

use crate::api::UsageResponse;

/// Largest depth that [`usage`] counts: each level takes a file descriptor.
const MAX_DEPTH: usize = 512;

/// Bytes of a block in `st_blocks` (stat(3type)).
const BLOCK_SIZE: i64 = 512;

/// Returns the blocks and inodes of the tree at `root`. Directories below a depth of 512 are not
/// counted, nor is what another process removes meanwhile.
pub(crate) fn usage(root: &Path) -> io::Result<UsageResponse> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let stat = statat(CWD, root, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut usage = UsageResponse {
        size: stat.st_blocks * BLOCK_SIZE,
        inodes: 1,
    };
    // Only files with several links can be seen twice.
    let mut linked = HashSet::new();
    let mut open = vec![Dir::new(openat(CWD, root, flags, Mode::empty())?)?];
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
            match openat(dir, name, flags, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                opened => open.push(Dir::new(opened?)?),
            }
        }
    }
}

/// Removes the directory `top` with all that is in it, if it exists. Directories of directories
/// move to `top` first, so that paths stay short however deep the tree is. After a crash, another
/// call continues.
pub(crate) fn remove(top: &Path) -> io::Result<()> {
    let mut number = 0_u64;
    loop {
        let entries = match fs::read_dir(top) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        let mut is_empty = true;
        for entry in entries {
            let entry = entry?;
            is_empty = false;
            match entry.file_type()?.is_dir() {
                true => remove_dir(&entry.path(), top, &mut number)?,
                false => fs::remove_file(entry.path())?,
            }
        }
        if is_empty {
            return fs::remove_dir(top);
        }
    }
}

/// Removes `dir`, and moves the directories in it to `top`.
fn remove_dir(dir: &Path, top: &Path, number: &mut u64) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => move_to(&entry.path(), top, number)?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir(dir)
}

/// Moves a directory to `top`, under a number that is free there.
fn move_to(dir: &Path, top: &Path, number: &mut u64) -> io::Result<()> {
    loop {
        *number += 1;
        let target: PathBuf = top.join(number.to_string());
        match fs::rename(dir, target) {
            // A file or directory of an earlier call.
            Err(error)
                if [Errno::NOTEMPTY, Errno::EXIST, Errno::NOTDIR]
                    .map(|errno| Some(errno.raw_os_error()))
                    .contains(&error.raw_os_error()) => {}
            moved => return moved,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{mkdirat, renameat};

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
}
