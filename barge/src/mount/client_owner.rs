//! The name of a mount as a client of its server ([`ClientOwner`]), which the first process of the
//! mount chooses and passes to those that serve.
//!
//! An NFSv4 server keeps opens and locks of a client that has ended without a word until its lease
//! expires, and gives them up at once if the client returns. So the name of an NFS mount is stored
//! for the next mount in the same place: below /run or, of an ordinary user, `$XDG_RUNTIME_DIR`, in
//! a file for each server, user and mount point. A lock on the file lets one mount at a time have
//! it. Any other mount, and one without such a directory, has a name of its own.
//!
//! The rest of the file is a [`HiddenLog`](remote::nfs::HiddenLog): what this mount would leave on
//! the server if it ended without a word.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use remote::{ClientOwner, Url};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, openat, unlinkat};
use sha2::{Digest, Sha256};

use crate::private_file;

/// The name of the directory of the files.
const DIR: &str = "barge-clients";

/// Maximum number of files, of 4 KiB of memory each.
const MAX_FILES: usize = 1024;

/// Age from which a file is removed for a new one when there are too many: leases are shorter.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The name of a mount, which no other mount has while this value exists.
#[derive(Debug)]
pub(super) struct MountedClient {
    pub(super) owner: ClientOwner,
    /// The file with the name, which is locked.
    pub(super) file: Option<File>,
}

/// Returns the name of the mount of `url` on `dir`.
pub(super) fn claim(url: &Url, dir: &Path) -> MountedClient {
    let fresh = || MountedClient {
        owner: ClientOwner::random(),
        file: None,
    };
    // Other protocols release the locks of a client when its connection ends.
    let (Url::Nfs(server), Some(parent)) = (url, runtime_dir()) else {
        return fresh();
    };
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let place = Place {
        server: &server.addr.to_string(),
        user: server.options.act_as,
        dir: &dir,
    };
    match claim_in(&parent, &place) {
        Ok(claimed) => claimed.unwrap_or_else(fresh),
        Err(why) => {
            tracing::debug!("{}/{DIR}: {why}", parent.display());
            fresh()
        }
    }
}

/// Returns the directory for files that end with the host, or with the user's last session.
fn runtime_dir() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/run".into());
    }
    let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    dir.is_absolute().then_some(dir)
}

/// The properties of a mount by which a later one is known as the same client.
struct Place<'a> {
    server: &'a str,
    /// The user and group that all callers act as: a server refuses a client that returns as
    /// another user.
    user: Option<(u32, u32)>,
    dir: &'a Path,
}

impl Place<'_> {
    fn file_name(&self) -> String {
        let user = format!("{:?}", self.user);
        let mut hash = Sha256::new();
        for part in [
            self.server.as_bytes(),
            user.as_bytes(),
            self.dir.as_os_str().as_bytes(),
        ] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hash = hash.finalize();
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the name that is stored for `place` below `parent`, and stores a new one if there is
/// none. Returns `None` if another mount has it, or if there are too many files.
fn claim_in(parent: &Path, place: &Place<'_>) -> Result<Option<MountedClient>, String> {
    let dir = private_file::open_dir(parent, DIR)?;
    let failed = |error: io::Error| error.to_string();
    let name = place.file_name();
    let is_new = rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).is_err();
    if is_new && !make_room(&dir).map_err(failed)? {
        return Ok(None);
    }
    let Some(mut file) = open_locked(&dir, &name).map_err(failed)? else {
        return Ok(None);
    };
    let mut text = Vec::new();
    let read = (&mut file)
        .take(ClientOwner::MAX_LEN as u64 + 1)
        .read_to_end(&mut text);
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let stored = str::from_utf8(line).ok().and_then(|line| line.parse().ok());
    let stored = stored.filter(|_| read.is_ok());
    let kept = if stored.is_some() {
        Ok(())
    } else {
        file.set_len(0)
    };
    let owner = stored.unwrap_or_else(ClientOwner::random);
    // Also sets the file's time.
    kept.and_then(|()| file.seek(SeekFrom::Start(0)))
        .and_then(|_| writeln!(file, "{owner}"))
        .map_err(failed)?;
    Ok(Some(MountedClient {
        owner,
        file: Some(file),
    }))
}

/// Opens the file `name`, which is created if needed, and locks it. Returns `None` if another
/// process has locked it.
fn open_locked(dir: &OwnedFd, name: &str) -> io::Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mode = Mode::from_raw_mode(private_file::MODE);
    let file = File::from(openat(dir, name, flags | OFlags::CLOEXEC, mode)?);
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    // It may have been removed before it was locked, and be no longer the one with the name.
    let found = file.metadata()?;
    Ok((found.is_file() && found.nlink() == 1).then_some(file))
}

/// Returns whether there is room for another file. Removes old ones of mounts that have ended if
/// there are too many.
fn make_room(dir: &OwnedFd) -> io::Result<bool> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let names: Vec<_> = Dir::new(openat(dir, ".", flags, Mode::empty())?)?
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_owned())
        .filter(|name| !name.to_bytes().starts_with(b"."))
        .take(MAX_FILES)
        .collect();
    let mut left = names.len();
    if left < MAX_FILES {
        return Ok(true);
    }
    for name in names.iter().filter_map(|name| name.to_str().ok()) {
        let age = |file: &File| {
            file.metadata()?
                .modified()?
                .elapsed()
                .map_err(io::Error::other)
        };
        if let Ok(Some(file)) = open_locked(dir, name)
            && age(&file).is_ok_and(|age| age > MAX_AGE)
        {
            unlinkat(dir, name, AtFlags::empty())?;
            left -= 1;
        }
    }
    Ok(left < MAX_FILES)
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::time::SystemTime;

    use super::*;

    fn place<'a>(server: &'a str, dir: &'a str) -> Place<'a> {
        Place {
            server,
            user: None,
            dir: Path::new(dir),
        }
    }

    fn claim(parent: &Path, server: &str, dir: &str) -> Option<MountedClient> {
        claim_in(parent, &place(server, dir)).expect("claimed")
    }

    #[test]
    fn a_name_is_kept_for_the_next_mount_and_no_two_mounts_have_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = claim(dir.path(), "h:1", "/mnt").expect("a name");
        assert!(claim(dir.path(), "h:1", "/mnt").is_none(), "it is in use");
        let others = [("h:2", "/mnt"), ("h:1", "/mnt2")];
        for (server, at) in others {
            let other = claim(dir.path(), server, at).expect("a name");
            assert_ne!(other.owner, first.owner);
        }
        let owner = first.owner.clone();
        drop(first);
        let next = claim(dir.path(), "h:1", "/mnt").expect("a name");
        assert_eq!(next.owner, owner);
    }

    #[test]
    fn a_file_with_another_text_gets_a_new_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = claim(dir.path(), "h:1", "/mnt").expect("a name");
        let owner = first.owner.clone();
        drop(first);
        let file = dir.path().join(DIR).join(place("h:1", "/mnt").file_name());
        for text in [&b""[..], b"h/barge/1/0\n", b"\xff", &[b'x'; 4096]] {
            std::fs::write(&file, text).expect("written");
            let next = claim(dir.path(), "h:1", "/mnt").expect("a name");
            assert_ne!(next.owner, owner);
            let stored = std::fs::read_to_string(&file).expect("read");
            assert_eq!(stored, format!("{}\n", next.owner));
        }
    }

    #[test]
    fn the_rest_of_a_file_is_kept_with_the_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut first = claim(dir.path(), "h:1", "/mnt").expect("a name");
        let file = first.file.as_mut().expect("a file");
        file.write_all(b"rest").expect("written");
        let owner = first.owner.clone();
        drop(first);
        let next = claim(dir.path(), "h:1", "/mnt").expect("a name");
        assert_eq!(next.owner, owner);
        let path = dir.path().join(DIR).join(place("h:1", "/mnt").file_name());
        let stored = std::fs::read_to_string(path).expect("read");
        assert_eq!(stored, format!("{owner}\nrest"));
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let other = dir.path().join("other");
        std::fs::write(&other, "text").expect("written");
        drop(claim(dir.path(), "h:2", "/mnt"));
        let file = dir.path().join(DIR).join(place("h:1", "/mnt").file_name());
        std::os::unix::fs::symlink(&other, &file).expect("made");
        assert!(claim_in(dir.path(), &place("h:1", "/mnt")).is_err());
        std::fs::remove_file(&file).expect("removed");
        std::fs::hard_link(&other, &file).expect("made");
        assert!(claim(dir.path(), "h:1", "/mnt").is_none());
        assert_eq!(std::fs::read_to_string(&other).expect("read"), "text");
    }

    #[test]
    fn the_number_of_files_is_bounded_and_old_ones_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let live = claim(dir.path(), "h:1", "/live").expect("a name");
        let files = dir.path().join(DIR);
        for number in 1..MAX_FILES {
            std::fs::write(files.join(format!("{number}")), "").expect("written");
        }
        assert!(claim(dir.path(), "h:1", "/new").is_none(), "all are new");
        let old = FileTimes::new().set_modified(SystemTime::now() - 2 * MAX_AGE);
        for entry in std::fs::read_dir(&files).expect("listed") {
            let path = entry.expect("an entry").path();
            let file = File::options().write(true).open(path);
            file.expect("opened").set_times(old).expect("set");
        }
        assert!(claim(dir.path(), "h:1", "/new").is_some());
        let left = std::fs::read_dir(&files).expect("listed").count();
        assert_eq!(left, 2, "that of the live mount, and the new one");
        assert!(claim(dir.path(), "h:1", "/live").is_none());
        drop(live);
    }
}
