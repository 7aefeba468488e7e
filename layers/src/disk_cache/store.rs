//! The directory of copies, and its size limit.
//!
//! A copy is two files: `KEY.data`, the contents, and `KEY.sums`, their checksums. Both are created
//! as `KEY.NUMBER.part` and renamed when they are complete, contents first. The order in which they
//! reach the disk does not matter: sums that do not match the contents are detected. Large
//! contents, costly to fetch again, are synced before the rename.
//!
//! Other processes may use the directory at the same time: files that they put in place are
//! complete, and files that they remove remain readable where they are open. Files with other names
//! are ignored.
//!
//! Lock order: its own mutex, held while it makes room.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use vfs::attr::SetTime;
use vfs::listing::for_each_entry;
use vfs::source_stats::CacheStats;
use vfs::{
    AttrMask, Call, Caller, Cx, DirEntry, Errno, File, FileSystem, Kind, Mode, Name, Node,
    OpenFlags, Outage, ReaddirMode, RenameFlags, Result, SetAttr, Time,
};

use super::checksums::{Checksums, Key};
use super::version::Version;
use crate::full_io;

/// Readable for the owner only: reading a copy bypasses the server's permission checks.
const MODE: Mode = Mode::without_umask(0o600);

/// The age in seconds, compared with the newest file, at which an unfinished file counts as left
/// behind by a process that crashed: a fetch writes all the time.
const STALE_AGE: i64 = 3600;

pub(super) struct Store {
    dir: Arc<dyn Node>,
    /// Distinguishes the unfinished files of this process from those of others.
    process: u64,
    serial: AtomicU64,
    state: Mutex<State>,
    hits: AtomicU64,
    misses: AtomicU64,
    /// The bytes that this process has evicted.
    evicted: AtomicU64,
}

struct State {
    /// The maximum size in bytes, lower than `limit` while the disk is full.
    max_bytes: u64,
    /// The maximum size in bytes that was asked for.
    limit: u64,
    /// The time in which the disk is full, and the size in bytes at which it was.
    outage: Outage,
    full_at: u64,
    /// Bytes of all files, as far as is known; `None` before the first scan.
    used: Option<u64>,
    /// Bytes added by this process since the last scan.
    added_since_scan: u64,
}

/// An unfinished file.
pub(super) struct Part {
    pub(super) file: Arc<dyn File>,
    name: String,
}

/// A copy: its contents and their checksums.
pub(super) struct StoredCopy {
    pub(super) data: Arc<dyn File>,
    pub(super) checksums: Checksums,
}

/// Runs an operation on the directory as root, with full patience.
pub(super) fn as_root<T>(act: impl FnOnce(&Cx<'_>) -> Result<T>) -> Result<T> {
    let call = Call::detached();
    act(&Cx::new(&Caller::ROOT, &call))
}

impl Store {
    /// Opens the root of `fs` as a directory of at most `most` bytes. `process` distinguishes
    /// unfinished files from those of other processes.
    pub(super) fn new(fs: &dyn FileSystem, most: u64, process: u64) -> Result<Store> {
        Ok(Store {
            dir: as_root(|cx| fs.root(cx))?,
            process,
            serial: AtomicU64::new(0),
            state: Mutex::new(State {
                max_bytes: most,
                limit: most,
                outage: Outage::default(),
                full_at: 0,
                used: None,
                added_since_scan: 0,
            }),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Counts an open of a file whose copy was found, or was not.
    pub(super) fn count_open(&self, found: bool) {
        let counter = if found { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the statistics so far. The size is that of the last scan and of files added here
    /// since.
    pub(super) fn stats(&self) -> CacheStats {
        let state = self.state();
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            bytes: state.used.unwrap_or(0),
            limit: state.max_bytes,
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Returns the size of the largest file to cache: one file must not evict all others.
    pub(super) fn max_file_size(&self) -> u64 {
        self.state().max_bytes / 2
    }

    /// Returns the copy of `key` if it is of `version`.
    pub(super) fn find(&self, key: Key, version: Version) -> Option<StoredCopy> {
        let found = as_root(|cx| {
            let (node, file) = self.open(cx, &checksums_name(key))?;
            let len = Checksums::len(version.size);
            if file.attr(cx, AttrMask::SIZE)?.size != len {
                return Ok(None);
            }
            let bytes = full_io::read_full(cx, &*file, 0, len as usize)?;
            let Some(sums) = Checksums::parse(&bytes, key, version) else {
                return Ok(None);
            };
            let (_, data) = self.open(cx, &data_name(key))?;
            if data.attr(cx, AttrMask::SIZE)?.size != version.size {
                return Ok(None);
            }
            let used = SetAttr {
                mtime: Some(SetTime::Now),
                ..SetAttr::default()
            };
            // On failure the copy is evicted earlier.
            let _ = node.setattr(cx, &used);
            Ok(Some(StoredCopy {
                data,
                checksums: sums,
            }))
        });
        found.unwrap_or_default()
    }

    fn open(&self, cx: &Cx<'_>, name: &str) -> Result<(Arc<dyn Node>, Arc<dyn File>)> {
        let node = self.dir.lookup(cx, Name::new(name.as_bytes())?)?.node;
        match node.kind() {
            Kind::File => node.open(cx, OpenFlags::READ).map(|file| (node, file)),
            _ => Err(Errno::EIO),
        }
    }

    /// Creates a file for `size` bytes of contents of `key`, all holes at first. Returns `EDQUOT`
    /// if the size limit has no room for it.
    pub(super) fn begin(&self, key: Key, size: u64) -> Result<Part> {
        self.take(size + Checksums::len(size))?;
        let part = self.make(key, |part, cx| {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            part.setattr(cx, &set).map(drop)
        });
        self.release_on_error(size, part)
    }

    /// Returns `done`. On failure, releases the share of the size limit of a file of `size` bytes.
    fn release_on_error<T>(&self, size: u64, done: Result<T>) -> Result<T> {
        if let Err(errno) = &done {
            let mut state = self.state();
            let back = size + Checksums::len(size);
            state.used = state.used.map(|used| used.saturating_sub(back));
            if *errno == Errno::ENOSPC {
                state.lower_limit(Instant::now());
            }
        }
        done
    }

    fn make(&self, key: Key, fill: impl FnOnce(&dyn File, &Cx<'_>) -> Result<()>) -> Result<Part> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{}.{:016x}{serial:x}.part",
            hex::encode(key.0),
            self.process
        );
        as_root(|cx| {
            let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCL;
            let (_, file) = self
                .dir
                .create(cx, Name::new(name.as_bytes())?, flags, MODE)?;
            let part = Part { file, name };
            let filled = fill(&*part.file, cx);
            if filled.is_err() {
                self.unlink(&part.name);
            }
            filled.map(|()| part)
        })
    }

    /// Puts complete contents and their sums in place.
    pub(super) fn put(&self, key: Key, part: &Part, sums: &Checksums) -> Result<()> {
        let bytes = sums.encode();
        let put = self
            .make(key, |file, cx| full_io::write_full(cx, file, 0, &bytes))
            .and_then(|beside| {
                let put = self.rename(part, &data_name(key));
                let put = put.and_then(|()| self.rename(&beside, &checksums_name(key)));
                if put.is_err() {
                    self.unlink(&beside.name);
                }
                put
            });
        if put.is_err() {
            self.unlink(&part.name);
        }
        if put.is_ok() {
            self.state().note_stored();
        }
        self.release_on_error(sums.version.size, put)
    }

    fn rename(&self, part: &Part, to: &str) -> Result<()> {
        let (from, to) = (Name::new(part.name.as_bytes())?, Name::new(to.as_bytes())?);
        as_root(|cx| {
            self.dir
                .rename(cx, from, &*self.dir, to, RenameFlags::empty())
        })
    }

    /// Deletes `part`, meant for `size` bytes of contents, after an operation on it failed with
    /// `why`.
    pub(super) fn abandon(&self, part: &Part, size: u64, why: Errno) {
        self.unlink(&part.name);
        let _ = self.release_on_error::<()>(size, Err(why));
    }

    /// Removes the copy of `key`, if there is one.
    pub(super) fn remove(&self, key: Key) {
        self.unlink(&checksums_name(key));
        self.unlink(&data_name(key));
    }

    fn unlink(&self, name: &str) {
        // A file that remains does not match its sums or has none, or is evicted later.
        let _ = as_root(|cx| self.dir.unlink(cx, Name::new(name.as_bytes())?, false));
    }

    /// Reserves `bytes` of the size limit.
    fn take(&self, bytes: u64) -> Result<()> {
        let mut state = self.state();
        state.try_limit(Instant::now());
        let fits = |used: u64, most: u64| used.checked_add(bytes).is_some_and(|sum| sum <= most);
        // Other processes add files, too: a scan from time to time counts them.
        let used = match state.used {
            Some(used)
                if fits(used, state.max_bytes) && state.added_since_scan < state.max_bytes / 64 =>
            {
                used
            }
            _ => {
                state.added_since_scan = 0;
                self.make_room(state.max_bytes, bytes)?
            }
        };
        state.used = Some(used);
        if !fits(used, state.max_bytes) {
            return Err(Errno::EDQUOT);
        }
        state.used = Some(used + bytes);
        state.added_since_scan += bytes;
        Ok(())
    }

    /// Evicts the least recently used copies if `bytes` more would not fit, and returns the size of
    /// the rest in bytes. It frees a 16th more than necessary, or each new file would need a scan.
    fn make_room(&self, most: u64, bytes: u64) -> Result<u64> {
        let mut files = Vec::new();
        as_root(|cx| {
            let dir = self.dir.open(cx, OpenFlags::READ)?;
            for_each_entry(cx, &*dir, ReaddirMode::Entries, |entry| {
                files.extend(parse_entry(&entry));
            })
        })?;
        let newest = files.iter().map(|file| file.used).max();
        let mut copies = HashMap::<[u8; 32], CopyUsage>::new();
        let (mut used, mut parts) = (0, Vec::new());
        for file in files {
            used += file.bytes;
            match file.unfinished {
                true if newest.is_some_and(|newest| file.used.sec + STALE_AGE < newest.sec) => {
                    parts.push(file);
                }
                true => {}
                false => {
                    let copy = copies.entry(file.key).or_default();
                    copy.bytes += file.bytes;
                    copy.used = copy.used.max(file.used);
                }
            }
        }
        for part in parts {
            self.unlink(&part.name);
            used -= part.bytes;
        }
        if used.saturating_add(bytes) <= most {
            return Ok(used);
        }
        let mut copies: Vec<_> = copies.into_iter().collect();
        copies.sort_by_key(|(_, copy)| copy.used);
        for (key, copy) in copies {
            if used.saturating_add(bytes) <= most - most / 16 {
                break;
            }
            let key = String::from_utf8_lossy(&key);
            self.unlink(&format!("{key}.sums"));
            self.unlink(&format!("{key}.data"));
            used -= copy.bytes;
            self.evicted.fetch_add(copy.bytes, Ordering::Relaxed);
        }
        Ok(used)
    }
}

impl State {
    /// Lowers the limit when the disk is full: to a little less than the present size, to leave
    /// space for others.
    fn lower_limit(&mut self, now: Instant) {
        let used = self.used.unwrap_or(0);
        self.full_at = used;
        self.max_bytes = self.max_bytes.min(used - used / 16);
        let most = self.max_bytes;
        if self.outage.failed(now) {
            tracing::warn!("no space on the disk: the cache is limited to {most} bytes for now");
        }
    }

    /// Raises the limit again if it is time to find out whether the disk has space.
    fn try_limit(&mut self, now: Instant) {
        if self.outage.is_on() && self.outage.may_try(now) {
            self.max_bytes = self.limit;
        }
    }

    /// Notes that a copy was stored. The disk has space again if the cache is larger than it was.
    fn note_stored(&mut self) {
        let has_grown = self.used.is_some_and(|used| used > self.full_at);
        if has_grown && self.max_bytes == self.limit && self.outage.succeeded() {
            let most = self.limit;
            tracing::info!("there is space on the disk: the cache may have {most} bytes again");
        }
    }
}

fn data_name(key: Key) -> String {
    format!("{}.data", hex::encode(key.0))
}

fn checksums_name(key: Key) -> String {
    format!("{}.sums", hex::encode(key.0))
}

/// The size and last use of a copy's two files.
#[derive(Default)]
struct CopyUsage {
    bytes: u64,
    used: Time,
}

/// A file of a copy, finished or not.
struct CacheEntry {
    name: String,
    /// Hexadecimal digits.
    key: [u8; 32],
    unfinished: bool,
    bytes: u64,
    used: Time,
}

/// Returns the file of a copy that `entry` names, `None` for any other file.
fn parse_entry(entry: &DirEntry<'_>) -> Option<CacheEntry> {
    let attr = entry.entry.as_ref()?.attr;
    let (key, end) = entry.name.split_first_chunk::<32>()?;
    let digits = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let part = match end {
        b".data" | b".sums" => false,
        end => {
            let number = end.strip_prefix(b".")?.strip_suffix(b".part")?;
            number.iter().all(digits).then_some(true)?
        }
    };
    (attr.kind == Kind::File && key.iter().all(digits)).then(|| CacheEntry {
        name: String::from_utf8_lossy(entry.name).into_owned(),
        key: *key,
        unfinished: part,
        bytes: attr.allocated(),
        used: attr.mtime,
    })
}
