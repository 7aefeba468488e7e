//! `cache_dir=` of a mount of another server: a disk cache of files that were read
//! ([`layers::disk_cache`]).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hostdir::{HostDir, Identity};
use layers::disk_cache::{self, DiskCache};
use vfs::{Caller, FileSystem, Support};

use crate::{Failure, private_file};

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
        // Its files are read without permission checks by the server.
        let dir = private_file::open_dir(&self.dir, "files").map_err(|why| failed(&why))?;
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
