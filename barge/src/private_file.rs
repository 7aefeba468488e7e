//! Files and directories of this program that other users must not read, such as logs of calls.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

/// Permissions for this user alone.
pub(crate) const MODE: u32 = 0o600;

/// Creates the file at `path` for this user alone, or truncates an existing file and keeps its
/// mode.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE);
    options.open(path)
}

/// Opens the directory `name` in `parent`, as a path (`O_PATH`), and creates it if needed. Returns
/// the message of an error unless it is accessible to this user alone.
pub(crate) fn open_dir(parent: &Path, name: &str) -> Result<OwnedFd, String> {
    let path = parent.join(name);
    let mut dirs = DirBuilder::new();
    let made = dirs.recursive(true).mode(0o700).create(&path);
    made.map_err(|error| error.to_string())?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&path, flags, Mode::empty()).and_then(|fd| {
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, stat))
    });
    let (fd, stat) = opened.map_err(|errno| format!("{name}: {errno}"))?;
    let others = stat.st_mode & 0o077;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw();
    match FileType::from_raw_mode(stat.st_mode) == FileType::Directory && ours && others == 0 {
        true => Ok(fd),
        false => Err(format!(
            "expected its directory '{name}' to belong to this user and have mode 0700, got user {} and mode {:04o}",
            stat.st_uid,
            stat.st_mode & 0o7777
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_directory_is_made_for_its_user_alone_and_no_other_is_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("a/b");
        open_dir(&at, "files").expect("made");
        open_dir(&at, "files").expect("there");
        let files = at.join("files");
        let mode = metadata(&files).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        set_permissions(&files, Permissions::from_mode(0o750)).expect("set");
        let why = open_dir(&at, "files").expect_err("others may read it");
        assert!(why.contains("0750"), "{why}");
        let linked = dir.path().join("linked");
        std::fs::create_dir(&linked).expect("made");
        symlink(dir.path(), linked.join("files")).expect("made");
        assert!(
            open_dir(&linked, "files").is_err(),
            "a link is not followed"
        );
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        assert!(open_dir(&file, "files").is_err());
    }
}
