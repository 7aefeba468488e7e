//! An image that this host derived from something else, for example converted from another format.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use vfs::Patience;

use super::cache_dir::{CacheDir, DiskCacheOptions, wait_alone, wait_shared};
use super::map::{HEAD, ImageIdentity};
use crate::range::{FileGuard, FileRanges, Piece, RangeSource};

/// A whole image in the cache directory. It is not evicted while a process has it open, and any
/// number of processes may have. Its bytes are as trusted as those of any local file.
#[derive(Debug)]
pub struct DerivedImage {
    data: FileRanges,
    file_name: String,
    /// Holds the shared lock.
    _map: File,
}

impl DerivedImage {
    /// The prefix of temporary files in the directory: abandoned ones are removed after a day.
    pub const TEMPORARY: &str = ".barge-pack-";

    /// Opens the image `name` that was derived as `identity` says, or calls `derive` with the path
    /// to create it at, which must be synced. Waits for other processes that derive it. Returns an
    /// error if the image is larger than the cache may be.
    pub fn open(
        options: &DiskCacheOptions,
        name: &str,
        identity: &[u8],
        derive: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<DerivedImage> {
        let cache_dir = CacheDir::named(options, name)?;
        let map = cache_dir.lock_map(wait_shared)?;
        if let Some(data) = DerivedImage::existing(&cache_dir, &map, identity) {
            return Ok(DerivedImage::new(data, &cache_dir, map));
        }
        drop(map);
        let map = cache_dir.lock_map(wait_alone)?;
        if DerivedImage::existing(&cache_dir, &map, identity).is_none() {
            map.set_len(0)?;
            cache_dir.remove_abandoned(DerivedImage::TEMPORARY);
            let path = cache_dir.data_path();
            derive(&path)?;
            // Only its user may read what the image has, as with other files of the cache.
            let data = File::open(&path)?;
            data.set_permissions(fs::Permissions::from_mode(0o600))?;
            let len = data.metadata()?.len();
            let limit = cache_dir.options().limit();
            if len > limit {
                let _ = fs::remove_file(&path);
                let line = format!("an image of {len} bytes exceeds the disk cache of {limit}");
                return Err(io::Error::new(io::ErrorKind::StorageFull, line));
            }
            cache_dir.make_room(len);
            let known = ImageIdentity::new(identity, len).ok_or(io::ErrorKind::InvalidInput)?;
            map.write_all_at(&known.encode(name), 0)?;
            map.sync_all()?;
        }
        // The lock is never released, so that the image is not evicted before its first use.
        wait_shared(&map)?;
        match DerivedImage::existing(&cache_dir, &map, identity) {
            Some(data) => Ok(DerivedImage::new(data, &cache_dir, map)),
            None => Err(io::Error::other("the disk cache loses the image at once")),
        }
    }

    fn new(data: FileRanges, cache_dir: &CacheDir, map: File) -> DerivedImage {
        DerivedImage {
            data,
            file_name: cache_dir.data_name(),
            _map: map,
        }
    }

    /// Returns the name of the file in the cache's directory.
    pub(crate) fn file_name(&self) -> &str {
        &self.file_name
    }

    /// Returns the data, if they are complete.
    fn existing(cache_dir: &CacheDir, map: &File, identity: &[u8]) -> Option<FileRanges> {
        let mut head = [0; HEAD as usize];
        map.read_exact_at(&mut head, 0).ok()?;
        let known = ImageIdentity::parse(&head)?;
        let data = FileRanges::open(&cache_dir.data_path()).ok()?;
        (known.identity() == identity && data.len() == known.len()).then_some(data)
    }
}

impl RangeSource for DerivedImage {
    fn len(&self) -> u64 {
        self.data.len()
    }

    fn patience(&self, at: u64, len: usize) -> Patience {
        self.data.patience(at, len)
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        self.data.read(pieces)
    }

    fn readahead_len(&self) -> u64 {
        self.data.readahead_len()
    }

    fn file(&self, at: u64, len: usize) -> Option<FileGuard<'_>> {
        self.data.file(at, len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn an_image_is_derived_once_and_shared() {
        let dir = tempfile::tempdir().expect("a directory");
        let options_dir = dir.path().join("cache");
        let options = DiskCacheOptions::new(options_dir.clone(), Some(1 << 20));
        let open = |name: &str, identity: &[u8], derive: Option<&[u8]>| {
            DerivedImage::open(&options, name, identity, |path| {
                fs::write(path, derive.ok_or(io::ErrorKind::NotFound)?)
            })
        };
        let made = open("a", b"1", Some(b"bytes")).expect("derived");
        assert_eq!(made.len(), 5);
        let shared = open("a", b"1", None).expect("shared");
        drop((made, shared));
        let age = std::time::Duration::from_secs(25 * 3600);
        for (name, age) in [(".barge-pack-old", age), (".barge-pack-new", age / 2)] {
            let file = File::create(options_dir.join(name)).expect("created");
            let then = std::time::SystemTime::now() - age;
            file.set_modified(then).expect("set");
        }
        open("a", b"1", None).expect("kept");
        // Another identity is derived again; a failure leaves nothing that counts as an image.
        assert!(open("a", b"2", None).is_err());
        open("a", b"2", Some(b"other")).expect("derived");
        assert!(!options_dir.join(".barge-pack-old").exists());
        assert!(options_dir.join(".barge-pack-new").exists());
        // A truncated file is derived again.
        let data = CacheDir::named(&options, "a").expect("there").data_path();
        fs::write(&data, b"oth").expect("truncated");
        assert!(open("a", b"2", None).is_err());
        let error = open("large", b"", Some(&vec![0; (1 << 20) + 1])).expect_err("too large");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn an_open_image_stays_and_another_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = DiskCacheOptions::new(dir.path().into(), Some(1 << 20));
        let open = |name: &str| {
            DerivedImage::open(&options, name, b"", |path| {
                fs::write(path, vec![1; 400 << 10])
            })
        };
        let held = open("held").expect("derived");
        drop(open("idle").expect("derived"));
        open("new").expect("derived");
        let there = |name: &str| {
            let path = CacheDir::named(&options, name).expect("there").data_path();
            path.exists()
        };
        assert!(there("held") && there("new") && !there("idle"));
        assert_eq!(held.len(), 400 << 10);
    }

    #[test]
    fn an_image_is_not_evicted_before_its_first_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = DiskCacheOptions::new(dir.path().into(), None);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Another process evicts all images that are not in use.
            scope.spawn(|| {
                let all = DiskCacheOptions::new(dir.path().into(), Some(0));
                while !done.load(Ordering::Relaxed) {
                    all.collect().expect("evicted");
                }
            });
            let open = || DerivedImage::open(&options, "a", b"", |path| fs::write(path, b"x"));
            let failed = (0..1000).find_map(|_| open().err());
            done.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }

    #[test]
    fn processes_that_come_at_once_wait_for_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = DiskCacheOptions::new(dir.path().into(), None);
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    DerivedImage::open(&options, "a", b"", |path| {
                        count.fetch_add(1, Ordering::Relaxed);
                        fs::write(path, b"x")
                    })
                    .expect("derived")
                });
            }
        });
        assert_eq!(count.into_inner(), 1);
    }
}
