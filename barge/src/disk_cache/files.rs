//! `cache_dir=` of a mount of another server: a disk cache of files that were read
//! ([`layers::disk_cache`]).

use std::fs::DirBuilder;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hostdir::{HostDir, Identity};
use layers::disk_cache::{self, DiskCache};
use rustix::fs::{FileType, Mode, OFlags};
use vfs::{Caller, FileSystem, Support};

use crate::Failure;

/// The location and size of a disk cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskCacheConfig {
    pub(crate) dir: PathBuf,
    /// Maximum size, bytes.
    pub(crate) size: u64,
}

impl DiskCacheConfig {
    /// Opens this disk cache for `fs`, the tree at `url`.
    pub(crate) fn open(
        &self,
        fs: &dyn FileSystem,
        url: &remote::Url,
    ) -> Result<Arc<DiskCache>, Failure> {
        if fs.capabilities().change == Support::None {
            return Err(Failure::new(format!(
                "cache_dir= requires a protocol with change times of files (9P2000.L, NFS or virtiofs), which {url} does not report"
            )));
        }
        let failed = |why: &dyn std::fmt::Display| {
            Failure::new(format!("cache_dir={}: {why}", self.dir.display()))
        };
        let dir = open_private_dir(&self.dir).map_err(|why| failed(&why))?;
        let options = hostdir::Options {
            identity: Identity::Fixed,
            // The cache creates files with the modes that it needs.
            keep_umask: true,
            ..Default::default()
        };
        // The directory that was checked, even if its name leads elsewhere by now.
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let dir = HostDir::open(path, options).map_err(|error| failed(&error))?;
        let caller = Caller::new(
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let source = disk_cache::identity(fs, &url.to_string(), &caller)
            .map_err(|errno| Failure::new(format!("{url}: {errno}")))?;
        let options = disk_cache::Options {
            dir,
            size: self.size,
            source,
            process: RandomState::new().build_hasher().finish(),
            now: Arc::new(|| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                now.unwrap_or_default()
            }),
        };
        let cache = DiskCache::new(options).map_err(|error| failed(&error))?;
        Ok(Arc::new(cache))
    }
}

/// Opens the directory `files` in `dir`, and creates it if needed. Returns an error unless it is
/// accessible to this user alone: its files are read without permission checks by the server.
fn open_private_dir(dir: &Path) -> Result<OwnedFd, String> {
    let files = dir.join("files");
    let mut dirs = DirBuilder::new();
    let made = dirs.recursive(true).mode(0o700).create(&files);
    made.map_err(|error| error.to_string())?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&files, flags, Mode::empty()).and_then(|fd| {
        let stat = rustix::fs::fstat(&fd)?;
        Ok((fd, stat))
    });
    let (fd, stat) = opened.map_err(|errno| format!("files: {errno}"))?;
    let others = stat.st_mode & 0o077;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw();
    match FileType::from_raw_mode(stat.st_mode) == FileType::Directory && ours && others == 0 {
        true => Ok(fd),
        false => Err(format!(
            "expected its directory 'files' to belong to this user and have mode 0700, got user {} and mode {:04o}",
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
        open_private_dir(&at).expect("made");
        open_private_dir(&at).expect("there");
        let files = at.join("files");
        let mode = metadata(&files).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        set_permissions(&files, Permissions::from_mode(0o750)).expect("set");
        let why = open_private_dir(&at).expect_err("others may read it");
        assert!(why.contains("0750"), "{why}");
        let linked = dir.path().join("linked");
        std::fs::create_dir(&linked).expect("made");
        symlink(dir.path(), linked.join("files")).expect("made");
        assert!(open_private_dir(&linked).is_err(), "a link is not followed");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("written");
        assert!(open_private_dir(&file).is_err());
    }
}
