//! Files and directories of this program that other users must not read, such as logs of calls.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Permissions for this user alone.
pub(crate) const MODE: u32 = 0o600;

/// Creates the file at `path` for this user alone, or truncates an existing file of this user and
/// keeps its mode. In a directory that others can write to, they may have put something there
/// before: an error is returned for a symbolic link, a file of another user, or one that has
/// another name as well. A character device, such as /dev/null, is used as it is: only the
/// administrator makes one.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .write(true)
        .mode(MODE)
        .custom_flags(SAFE.bits() as i32);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return created,
    }
    let file = options.open(path).map_err(|error| {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::LOOP) => io::Error::other("expected a file, got a symbolic link"),
            _ => error,
        }
    })?;
    let stat = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => return Ok(file),
        FileType::RegularFile => {}
        _ => return Err(io::Error::other("expected a regular file")),
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        let uid = stat.st_uid;
        let why = format!("expected a file of this user, got one of user {uid}");
        return Err(io::Error::other(why));
    }
    if stat.st_nlink > 1 {
        return Err(io::Error::other("expected a file with no other hard link"));
    }
    file.set_len(0)?;
    Ok(file)
}

/// Flags of a file that others may have replaced: a symbolic link is not followed, and a FIFO does
/// not wait for a reader.
const SAFE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

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
    fn a_file_that_others_have_put_there_is_not_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("victim"), "kept").expect("written");
        symlink(at("victim"), at("link")).expect("made");
        symlink(at("new"), at("dangling")).expect("made");
        std::fs::hard_link(at("victim"), at("hard")).expect("made");
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), Mode::RWXU).expect("made");
        for name in ["link", "dangling", "hard", "fifo"] {
            assert!(create(&at(name)).is_err(), "{name}");
        }
        assert!(!at("new").exists());
        let text = std::fs::read_to_string(at("victim")).expect("read");
        assert_eq!(text, "kept");
        if rustix::process::geteuid().is_root() {
            std::fs::write(at("strange"), "").expect("written");
            std::os::unix::fs::chown(at("strange"), Some(65534), None).expect("set");
            assert!(create(&at("strange")).is_err());
        }
        // An own file is replaced, a new one is private, and a device is used.
        std::fs::write(at("own"), "before").expect("written");
        create(&at("own")).expect("created");
        assert_eq!(metadata(at("own")).expect("there").len(), 0);
        create(&at("made")).expect("created");
        let mode = metadata(at("made")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        create("/dev/null".as_ref()).expect("opened");
    }

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
