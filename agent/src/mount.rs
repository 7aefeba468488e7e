//! Operations on a mounted share.
//!
//! Directories are opened in a private clone of the mount (open_tree(2)): it stays the share
//! whatever is mounted over it or below it, it can be written to if only the mount is read-only,
//! and it does not keep the mount busy.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags, StatxFlags, Timespec,
    Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, OpenTreeFlags};

use crate::protocol::{Action, ObjectKind};

/// A mounted share.
#[derive(Debug)]
pub struct ShareMount {
    root: OwnedFd,
    device: u64,
}

impl ShareMount {
    /// Opens the share that is mounted at `path`. Returns an error if `path` is no directory. With
    /// `remount`, a read-only file system becomes writable; its mounts stay read-only.
    pub fn open(path: &Path, remount: bool) -> io::Result<ShareMount> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let root = match rustix::mount::open_tree(CWD, path, flags) {
            Ok(clone) => {
                make_writable(&clone, path, remount)?;
                clone
            }
            // An old kernel, or one that forbids it: the mount itself.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::open(path, flags, Mode::empty())?
            }
            Err(error) => return Err(error.into()),
        };
        let stat = rustix::fs::fstat(&root)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        Ok(ShareMount {
            root,
            device: stat.st_dev,
        })
    }

    /// Returns whether the same file system is still mounted at `path`.
    pub fn is_mounted_at(&self, path: &Path) -> bool {
        rustix::fs::stat(path).is_ok_and(|stat| stat.st_dev == self.device)
    }

    /// Looks up `name` in the root of the share. Returns whether there is no such name.
    pub fn is_absent(&self, name: &str) -> io::Result<bool> {
        match rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(true),
            Ok(_) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Carries out a poke, as the calling thread's user.
    pub fn perform(&self, action: &Action) -> io::Result<()> {
        match action {
            Action::Create { path, kind, target } => {
                let (dir, name) = self.parent(path.as_bytes())?;
                let mode = Mode::from_raw_mode(0o644);
                let node = |kind| rustix::fs::mknodat(&dir, name, kind, mode, 0);
                match (kind, target) {
                    (ObjectKind::File, _) => node(FileType::RegularFile)?,
                    (ObjectKind::Fifo, _) => node(FileType::Fifo)?,
                    (ObjectKind::Socket, _) => node(FileType::Socket)?,
                    (ObjectKind::Directory, _) => rustix::fs::mkdirat(&dir, name, mode)?,
                    (ObjectKind::Symlink, Some(target)) => {
                        let target = OsStr::from_bytes(target.as_bytes());
                        rustix::fs::symlinkat(target, &dir, name)?;
                    }
                    (ObjectKind::Symlink, None) => return Err(Errno::INVAL.into()),
                }
            }
            Action::Modify { path } => self.set_times(path.as_bytes(), false)?,
            Action::Attributes { path } => self.set_times(path.as_bytes(), true)?,
            Action::Rename { path, to } => {
                let (dir, name) = self.parent(path.as_bytes())?;
                let (to_dir, to_name) = self.parent(to.as_bytes())?;
                self.check_links(&dir, name, path.as_bytes())?;
                self.check_links(&to_dir, to_name, to.as_bytes())?;
                rustix::fs::renameat(&dir, name, &to_dir, to_name)?;
            }
            Action::Delete { path, is_dir } => {
                let (dir, name) = self.parent(path.as_bytes())?;
                self.check_links(&dir, name, path.as_bytes())?;
                let flags = match is_dir {
                    true => AtFlags::REMOVEDIR,
                    false => AtFlags::empty(),
                };
                rustix::fs::unlinkat(&dir, name, flags)?;
            }
            // The watched root at least reports that something has changed.
            Action::Overflow => self.set_times(b"", true)?,
            Action::None => {}
        }
        Ok(())
    }

    /// Ensures that the kernel knows a link of the object at `path`, which is `name` in `dir`, if
    /// it knows the object: the number that it has cached may be newer than the name, and over 9P
    /// it complains of a removal then. A change lets it ask again. Returns `ESTALE` if the number
    /// stays 0.
    fn check_links(&self, dir: &OwnedFd, name: &OsStr, path: &[u8]) -> io::Result<()> {
        let is_unlinked = || {
            let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| stat.st_nlink == 0)
        };
        if !is_unlinked() {
            return Ok(());
        }
        self.set_times(path, true)?;
        match is_unlinked() {
            true => Err(Errno::STALE.into()),
            false => Ok(()),
        }
    }

    /// Sets the time of last modification, with `both` the time of last access as well, to the
    /// present ones. Asks the server for them, so that cached contents that are older are dropped.
    fn set_times(&self, path: &[u8], both: bool) -> io::Result<()> {
        let (dir, name, flags) = match path {
            b"" => (self.directory(b"")?, OsStr::new(""), AtFlags::EMPTY_PATH),
            path => {
                let (dir, name) = self.parent(path)?;
                (dir, name, AtFlags::SYMLINK_NOFOLLOW)
            }
        };
        let wanted = StatxFlags::BASIC_STATS;
        let now = rustix::fs::statx(&dir, name, flags | AtFlags::STATX_FORCE_SYNC, wanted)?;
        let time = |time: rustix::fs::StatxTimestamp| Timespec {
            tv_sec: time.tv_sec,
            tv_nsec: time.tv_nsec.into(),
        };
        let times = Timestamps {
            last_access: match both {
                true => time(now.stx_atime),
                false => Timespec {
                    tv_sec: 0,
                    tv_nsec: UTIME_OMIT,
                },
            },
            last_modification: time(now.stx_mtime),
        };
        Ok(rustix::fs::utimensat(&dir, name, &times, flags)?)
    }

    /// Opens the directory of `path`. Returns it with the last component of the path.
    fn parent<'a>(&self, path: &'a [u8]) -> io::Result<(OwnedFd, &'a OsStr)> {
        let (dir, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        match name {
            b"" | b"." | b".." => Err(Errno::INVAL.into()),
            name => Ok((self.directory(dir)?, OsStr::from_bytes(name))),
        }
    }

    /// Opens a directory of the share, and nothing outside of it or mounted in it.
    fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let path = match path {
            b"" => OsStr::new("."),
            path => OsStr::from_bytes(path),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let opened = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve);
        Ok(opened?)
    }
}

/// Makes the private mount `clone` of `path` writable, and with `remount` its file system.
fn make_writable(clone: &OwnedFd, path: &Path, remount: bool) -> io::Result<()> {
    if !is_read_only(clone)? {
        return Ok(());
    }
    sys::mounts::set_writable(clone.as_fd())?;
    if !is_read_only(clone)? {
        return Ok(());
    }
    if !remount {
        tracing::warn!(
            "{}: the file system is read-only: no changes are repeated without --remount-rw",
            path.display()
        );
        return Ok(());
    }
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let file_system = rustix::mount::fspick(clone, "", flags)?;
    rustix::mount::fsconfig_set_flag(&file_system, "rw")?;
    Ok(rustix::mount::fsconfig_reconfigure(&file_system)?)
}

/// Returns whether the mount, or its file system, is read-only.
fn is_read_only(root: &OwnedFd) -> io::Result<bool> {
    let stat = rustix::fs::fstatvfs(root)?;
    Ok(stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted() -> (tempfile::TempDir, ShareMount) {
        let dir = tempfile::tempdir().expect("a directory");
        // Not with `open`: a clone takes privileges.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir.path(), flags, Mode::empty()).expect("opened");
        let device = rustix::fs::fstat(&root).expect("its attributes").st_dev;
        (dir, ShareMount { root, device })
    }

    #[test]
    fn pokes_stay_in_the_share() {
        let (outer, mount) = mounted();
        let elsewhere = tempfile::tempdir().expect("a directory");
        std::fs::write(elsewhere.path().join("file"), "kept").expect("written");
        std::os::unix::fs::symlink(elsewhere.path(), outer.path().join("link")).expect("linked");
        for path in [
            "link/file",
            "../file",
            "a/../../file",
            "",
            ".",
            "..",
            "/etc/hosts",
        ] {
            let delete = Action::Delete {
                path: path.as_bytes().to_vec().into(),
                is_dir: false,
            };
            assert!(mount.perform(&delete).is_err(), "{path}");
        }
        assert!(elsewhere.path().join("file").exists());
    }

    #[test]
    fn times_are_set_to_the_present_ones() {
        let (dir, mount) = mounted();
        let path = dir.path().join("file");
        std::fs::write(&path, "text").expect("written");
        let before = std::fs::metadata(&path).expect("a file");
        for action in [
            Action::Modify {
                path: b"file".to_vec().into(),
            },
            Action::Attributes {
                path: b"file".to_vec().into(),
            },
            Action::Overflow,
        ] {
            mount.perform(&action).expect("done");
        }
        let after = std::fs::metadata(&path).expect("a file");
        assert_eq!(before.modified().ok(), after.modified().ok());
        assert_eq!(before.accessed().ok(), after.accessed().ok());
    }
}
