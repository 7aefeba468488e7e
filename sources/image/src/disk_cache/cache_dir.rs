//! The cache directory and its size limit.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
use sys::lock::{self, Kind};

/// The age of unfinished files that no process writes any more: no download takes as long.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// The name of the index of chunks ([`SharedChunks`](super::shared_chunks::SharedChunks)).
pub(super) const CHUNK_INDEX: &str = "chunks.index";

/// The directory and size limit of a disk cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCacheOptions {
    dir: PathBuf,
    size: u64,
}

impl DiskCacheOptions {
    /// The default size in bytes: a few images of usual size.
    pub const SIZE: u64 = 10 << 30;

    /// Sets the directory, which is created if missing, and the maximum size in bytes.
    pub fn new(dir: PathBuf, size: Option<u64>) -> DiskCacheOptions {
        DiskCacheOptions {
            dir,
            size: size.unwrap_or(DiskCacheOptions::SIZE),
        }
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the maximum size in bytes.
    pub fn limit(&self) -> u64 {
        self.size
    }

    /// Parses a number of bytes with an optional unit of KiB, MiB, GiB or TiB (`k`, `m`, `g`, `t`).
    /// The error says what was expected.
    pub fn size(text: &str) -> Result<u64, String> {
        let units = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];
        let lower = text.to_ascii_lowercase();
        let unit = units.iter().find(|(unit, _)| lower.ends_with(*unit));
        let digits = unit.map_or(text, |_| &text[..text.len() - 1]);
        let number = digits.parse::<u64>().ok();
        let bytes =
            number.and_then(|number| number.checked_mul(1 << unit.map_or(0, |unit| unit.1)));
        bytes.ok_or_else(|| format!("a size such as 500M or 10G, got '{}'", text.escape_debug()))
    }
}

/// The directory, as seen from one of its images.
#[derive(Debug)]
pub(super) struct CacheDir {
    options: DiskCacheOptions,
    name: String,
    /// Bytes of the other images at the last scan.
    others: u64,
    /// Bytes written since that scan.
    written_since_scan: u64,
}

/// The two files of an image.
///
/// Locks on bytes of the map coordinate the processes that use the image: each user has a shared
/// lock on [`USERS`], and an exclusive one while it changes what others rely on. A process that
/// fetches segments has an exclusive lock on a byte for each.
pub(super) struct CacheFiles {
    pub(super) map: File,
    pub(super) data: File,
    /// Another descriptor of the map that has the lock as a user, if it is not `map`.
    user: Option<ImageUser>,
}

/// The byte of the map that users lock.
const USERS: u64 = 0;

/// The byte of the map that is locked to fetch the first segment.
const FETCHES: u64 = 1 << 40;

impl CacheFiles {
    pub(super) fn new(map: File, data: File) -> CacheFiles {
        CacheFiles {
            map,
            data,
            user: None,
        }
    }

    /// Opens the files of an image that exists.
    pub(super) fn open(dir: &Path, name: &str) -> io::Result<CacheFiles> {
        let file = |end: &str| {
            let path = dir.join(format!("{name}.{end}"));
            OpenOptions::new().read(true).write(true).open(path)
        };
        Ok(CacheFiles::new(file("map")?, file("data")?))
    }

    /// Returns whether another process uses the image with this map.
    pub(super) fn is_in_use(map: &File) -> bool {
        let holder = lock::holder(map.as_fd(), USERS, USERS, Kind::Exclusive);
        holder.is_ok_and(|holder| holder.is_some())
    }

    /// Becomes the only user. Returns `WouldBlock` if another process uses the image.
    pub(super) fn lock_alone(&self) -> io::Result<()> {
        self.lock_users(Kind::Exclusive)
    }

    /// Becomes one of several users.
    pub(super) fn share(&self) -> io::Result<()> {
        self.lock_users(Kind::Shared)
    }

    fn lock_users(&self, kind: Kind) -> io::Result<()> {
        match &self.user {
            Some(user) => user.lock(kind),
            None => Ok(lock::set(self.map.as_fd(), USERS, USERS, kind)?),
        }
    }

    /// Continues as the user that `user` is: other processes that have its descriptor keep the
    /// image in use after this one.
    pub(super) fn continue_as(&mut self, user: ImageUser) {
        self.user = Some(user);
        // Fails only for want of memory; this process is then another user.
        let _ = lock::set(self.map.as_fd(), USERS, USERS, Kind::Unlocked);
    }

    /// Locks segments, to fetch them, unless another process fetches one of them.
    pub(super) fn try_lock_fetch(&self, segments: &Range<u64>) -> bool {
        let (first, last) = fetch_lock(segments);
        lock::set(self.map.as_fd(), first, last, Kind::Exclusive).is_ok()
    }

    /// Locks segments, to fetch them, after other processes have fetched theirs.
    pub(super) fn lock_fetch(&self, segments: &Range<u64>) -> io::Result<()> {
        let (first, last) = fetch_lock(segments);
        Ok(lock::wait(self.map.as_fd(), first, last, Kind::Exclusive)?)
    }

    /// Unlocks segments that are fetched.
    pub(super) fn unlock_fetch(&self, segments: &Range<u64>) {
        let (first, last) = fetch_lock(segments);
        // Fails only for want of memory; the segments stay locked until this process ends then.
        let _ = lock::set(self.map.as_fd(), first, last, Kind::Unlocked);
    }
}

/// A user of an image in the disk cache: the image is neither evicted nor replaced as long as a
/// copy of the descriptor is open in a process.
#[derive(Debug)]
pub struct ImageUser(OwnedFd);

impl ImageUser {
    /// Becomes a user of the image with the data file `data` in `dir`. Waits for a process that has
    /// the image alone.
    pub fn open(dir: &Path, data: &str) -> io::Result<ImageUser> {
        let path = dir.join(data).with_extension("map");
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let map = ImageUser(rustix::fs::open(path, flags, Mode::empty())?);
        lock::wait(map.as_fd(), USERS, USERS, Kind::Shared)?;
        Ok(map)
    }

    /// Becomes one of several users again, after a process that had the image alone by this
    /// descriptor has ended.
    pub fn share(&self) -> io::Result<()> {
        self.lock(Kind::Shared)
    }

    fn lock(&self, kind: Kind) -> io::Result<()> {
        Ok(lock::set(self.as_fd(), USERS, USERS, kind)?)
    }
}

impl From<OwnedFd> for ImageUser {
    fn from(map: OwnedFd) -> ImageUser {
        ImageUser(map)
    }
}

impl AsFd for ImageUser {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until the image with this map may be used by several processes.
pub(super) fn wait_shared(map: &File) -> io::Result<()> {
    Ok(lock::wait(map.as_fd(), USERS, USERS, Kind::Shared)?)
}

/// Waits until no other process uses the image with this map.
pub(super) fn wait_alone(map: &File) -> io::Result<()> {
    Ok(lock::wait(map.as_fd(), USERS, USERS, Kind::Exclusive)?)
}

/// Returns the first and the last byte of the map that are locked to fetch segments.
fn fetch_lock(segments: &Range<u64>) -> (u64, u64) {
    (FETCHES + segments.start, FETCHES + segments.end - 1)
}

impl CacheDir {
    /// Opens the files of the image `name`, as the only user if possible and otherwise as one of
    /// several. Returns `ResourceBusy` if another process has them alone.
    pub(super) fn open(
        options: &DiskCacheOptions,
        name: &str,
    ) -> io::Result<(CacheDir, CacheFiles)> {
        let cache_dir = CacheDir::named(options, name)?;
        let map = cache_dir.lock_map(|map| {
            match try_lock_map(map, || sleep(Duration::from_millis(10))) {
                true => Ok(()),
                false => Err(io::ErrorKind::ResourceBusy.into()),
            }
        })?;
        let data = open_file(&cache_dir.data_path())?;
        Ok((cache_dir, CacheFiles::new(map, data)))
    }

    /// Creates the directory if it is missing. Opens no file.
    pub(super) fn named(options: &DiskCacheOptions, name: &str) -> io::Result<CacheDir> {
        let mut dirs = fs::DirBuilder::new();
        dirs.recursive(true).mode(0o700).create(&options.dir)?;
        let options = DiskCacheOptions {
            // Stays valid if the process changes its working directory.
            dir: fs::canonicalize(&options.dir)?,
            size: options.size,
        };
        Ok(CacheDir {
            name: blake3::hash(name.as_bytes()).to_hex()[..32].to_owned(),
            others: 0,
            // The first search for space scans the directory.
            written_since_scan: options.size,
            options,
        })
    }

    /// Returns the map, locked with `lock`.
    pub(super) fn lock_map(&self, lock: impl Fn(&File) -> io::Result<()>) -> io::Result<File> {
        loop {
            let path = self.path(&self.name, "map");
            let map = open_file(&path)?;
            lock(&map)?;
            if is_at(&map, &path)? {
                map.set_modified(SystemTime::now())?;
                return Ok(map);
            }
        }
    }

    /// Evicts images that are not in use until the directory has at most the maximum size.
    pub(super) fn collect(options: &DiskCacheOptions) -> io::Result<()> {
        let dir = CacheDir {
            name: String::new(),
            others: 0,
            written_since_scan: 0,
            options: DiskCacheOptions {
                dir: fs::canonicalize(&options.dir)?,
                size: options.size,
            },
        };
        dir.make_room(0);
        if dir.others().is_empty() {
            // An index of no images; processes that have it open go on with theirs.
            let _ = fs::remove_file(dir.options.dir.join(CHUNK_INDEX));
        }
        Ok(())
    }

    /// Returns the path of this image's data.
    pub(super) fn data_path(&self) -> PathBuf {
        self.path(&self.name, "data")
    }

    /// Returns the name of this image's files, in hexadecimal.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the options, with the absolute path of the directory.
    pub(super) fn options(&self) -> &DiskCacheOptions {
        &self.options
    }

    /// Removes this image, which is locked.
    pub(super) fn discard(&self) {
        // Files left over are evicted later.
        let _ = fs::remove_file(self.path(&self.name, "data"));
        let _ = fs::remove_file(self.path(&self.name, "map"));
    }

    /// Returns how many of this image's `own` bytes have to be evicted before `more` fit.
    pub(super) fn excess(&mut self, own: u64, more: u64) -> u64 {
        let over = |others: u64| (others + own + more).saturating_sub(self.options.size);
        // Other processes write too, so the directory is rescanned from time to time.
        if over(self.others) > 0 || self.written_since_scan >= self.options.size / 64 {
            self.others = self.make_room(own + more);
            self.written_since_scan = 0;
        }
        self.written_since_scan += more;
        (self.others + own + more).saturating_sub(self.options.size)
    }

    /// Evicts images that are not open until `needed` bytes are free or none is left. Returns the
    /// size in bytes of the others afterwards.
    pub(super) fn make_room(&self, needed: u64) -> u64 {
        let mut others = self.others();
        others.sort_by_key(|other| other.used);
        let mut bytes = others.iter().map(|other| other.bytes).sum();
        for other in others {
            if bytes + needed <= self.options.size {
                break;
            }
            let lock = |map: &File| Ok(lock::set(map.as_fd(), USERS, USERS, Kind::Exclusive)?);
            if self.remove(&other.name, lock).is_ok() {
                bytes -= other.bytes;
            }
        }
        bytes
    }

    /// Returns whether `own` bytes of this image and all other images are more than the maximum
    /// size.
    pub(super) fn would_exceed(&self, own: u64) -> bool {
        let others: u64 = self.others().iter().map(|other| other.bytes).sum();
        others + own > self.options.size
    }

    /// Removes files with this prefix that have not been written for [`ABANDONED`]: those of a
    /// process that was killed.
    pub(super) fn remove_abandoned(&self, prefix: &str) {
        let entries = fs::read_dir(&self.options.dir).into_iter().flatten();
        for entry in entries.flatten() {
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            let name = entry.file_name();
            let unfinished = name.as_encoded_bytes().starts_with(prefix.as_bytes());
            if unfinished && age().is_some_and(|age| age > ABANDONED) {
                // One that cannot be removed only takes space.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Returns the other images.
    fn others(&self) -> Vec<OtherImage> {
        let entries = fs::read_dir(&self.options.dir)
            .into_iter()
            .flatten()
            .flatten();
        let paths = entries.map(|entry| entry.path());
        let maps = paths.filter(|path| path.extension().is_some_and(|end| end == "map"));
        let of = |map: PathBuf| {
            let name = map.file_stem()?.to_str()?.to_owned();
            let metadata = fs::metadata(&map).ok()?;
            let data = fs::metadata(self.path(&name, "data"));
            let blocks = metadata.blocks() + data.map_or(0, |data| data.blocks());
            Some(OtherImage {
                used: metadata.modified().ok()?,
                // Blocks are units of 512 bytes on every file system (stat(2)).
                bytes: blocks * 512,
                name,
            })
        };
        maps.filter_map(of)
            .filter(|other| other.name != self.name)
            .collect()
    }

    /// Removes an image whose map can be locked with `lock`. Returns `NotFound` if another process
    /// has removed it meanwhile.
    fn remove(&self, name: &str, lock: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
        let map = self.path(name, "map");
        let opened = OpenOptions::new().read(true).write(true).open(&map)?;
        lock(&opened)?;
        // The files that have the name now may be in use.
        if !is_at(&opened, &map)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        match fs::remove_file(self.path(name, "data")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::remove_file(map),
        }
    }

    /// Returns the name of this image's data file.
    pub(super) fn data_name(&self) -> String {
        format!("{}.data", self.name)
    }

    fn path(&self, name: &str, end: &str) -> PathBuf {
        Path::new(&self.options.dir).join(format!("{name}.{end}"))
    }
}

/// Another image in the directory.
struct OtherImage {
    name: String,
    bytes: u64,
    used: SystemTime,
}

/// Opens a file of the cache for reading and writing, and creates it if it is missing.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options.open(path)
}

/// Returns whether a file that was just locked is still the one at `path`: another process may have
/// removed it before.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (ours, there) = (file.metadata()?, fs::metadata(path));
    Ok(there.is_ok_and(|there| there.ino() == ours.ino()))
}

/// Locks a map, alone if possible, calling `pause` before each retry. Retries are needed because a
/// child process shares the lock for a moment, between fork and exec, and to wait for a process
/// that is about to share it.
fn try_lock_map(map: &File, mut pause: impl FnMut()) -> bool {
    const TRIES: usize = 20;
    let lock = |kind| lock::set(map.as_fd(), USERS, USERS, kind).is_ok();
    (0..TRIES).any(|tried| {
        if tried > 0 {
            pause();
        }
        lock(Kind::Exclusive) || lock(Kind::Shared)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_it_for_a_moment_is_waited_for_and_who_stays_is_not() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || file.reopen().expect("opened");
        let mut other = Some(open());
        let holder = other.as_ref().expect("there").as_fd();
        lock::set(holder, USERS, USERS, Kind::Exclusive).expect("free");
        let mut pauses = 0;
        assert!(!try_lock_map(&open(), || pauses += 1));
        let map = open();
        let goes = |other: &mut Option<File>| drop(other.take());
        assert!(try_lock_map(&map, || goes(&mut other)));
        assert!(0 < pauses && pauses < 100, "{pauses}");
        assert!(!try_lock_map(&open(), || {}), "it is locked");
    }

    #[test]
    fn an_image_that_replaces_a_removed_one_is_not_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = DiskCacheOptions::new(dir.path().into(), None);
        let image = CacheDir::named(&options, "image").expect("there");
        let other = CacheDir::named(&options, "other").expect("there");
        let create = || {
            let map = image.lock_map(|_| Ok(())).expect("created");
            fs::write(image.data_path(), b"data").expect("written");
            map
        };
        let _old = create();
        let removed = other.remove(&image.name, |_| {
            // Another process removes the image, and a third one makes it again.
            image.discard();
            drop(create());
            Ok(())
        });
        let removed = removed.expect_err("another image");
        assert_eq!(removed.kind(), io::ErrorKind::NotFound);
        assert!(image.data_path().exists());
        other.remove(&image.name, |_| Ok(())).expect("removed");
        assert!(!image.data_path().exists());
    }

    #[test]
    fn a_size_is_a_number_with_a_unit() {
        for (text, size) in [
            ("0", 0),
            ("512", 512),
            ("2k", 2048),
            ("3M", 3 << 20),
            ("1T", 1 << 40),
        ] {
            assert_eq!(DiskCacheOptions::size(text), Ok(size));
        }
        for text in ["", "G", "-1", "1.5G", "99999999999T", "1é"] {
            let bad = DiskCacheOptions::size(text).expect_err(text);
            assert!(bad.contains(text));
        }
    }
}
