//! Chunks that another image of the disk cache has as well.
//!
//! The directory has one index for all images with hashes, `chunks.index`: a table on disk from the
//! hash of a chunk to an image and the chunk's number in it. An entry is only a hint: each chunk is
//! verified against its hash after it was read, so the index needs neither locks nor syncs, entries
//! may be overwritten, torn, or refer to images that were evicted.
//!
//! If the other image is mounted lazily, a read of its file waits for the process that fills it,
//! and that one may be waiting for this process in the same way. So such reads have a thread of
//! their own, and are given up after [`TIMEOUT`]: the chunk is fetched from its source then. A
//! thread that was given up changes no file of an image: blocks are shared by way of a temporary
//! file.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::Builder;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sidecar::{Hash, hash};

use super::cache_dir::{CHUNK_INDEX, CacheDir, CacheFiles, open_file};
use super::map::{self, MISSING};
use crate::storage::SEGMENT;

/// The maximum time that the reads for one call take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum number of threads that read other images.
const MAX_READERS: usize = 4;

/// The number of bytes of a hash in the index.
const PREFIX: usize = 12;

/// The size in bytes of an entry: a prefix of the hash, the image's name, and a number.
const ENTRY: usize = PREFIX + size_of::<u128>() + size_of::<u32>();

/// Entries where a hash may be.
const ENTRIES_PER_BUCKET: usize = 8;
const BUCKET: usize = ENTRY * ENTRIES_PER_BUCKET;

/// The minimum size of the index in entries: it is sparse.
const MIN_ENTRIES: u64 = 1 << 12;

/// The chunks of the images of a cache directory, as seen from one image. Methods may be called
/// concurrently from any number of threads.
pub(super) struct SharedChunks {
    dir: Arc<PathBuf>,
    /// The name of this image.
    name: u128,
    index: File,
    buckets: u64,
    readers: Arc<AtomicUsize>,
    /// Whether files can share blocks, as far as is known.
    can_clone: Arc<AtomicBool>,
}

/// A chunk of another image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Location {
    image: u128,
    number: u64,
}

/// A wanted chunk, and where it may be.
struct Hint {
    number: u64,
    hash: Hash,
    location: Location,
}

/// Chunks that were found, by their numbers in this image.
#[derive(Default)]
pub(super) struct FoundChunks {
    pub(super) chunks: BTreeMap<u64, FoundChunk>,
    /// The file with the chunks that share blocks with another image.
    temporary: Option<File>,
}

/// A chunk that was found.
pub(super) struct FoundChunk {
    pub(super) bytes: Arc<[u8]>,
    /// The offset in the temporary file.
    offset: Option<u64>,
}

impl SharedChunks {
    /// Opens the index of the directory, and creates it for a cache of the maximum size if it is
    /// missing.
    pub(super) fn open(cache_dir: &CacheDir) -> io::Result<SharedChunks> {
        let options = cache_dir.options();
        let index = open_file(&options.dir().join(CHUNK_INDEX))?;
        if index.metadata()?.len() < BUCKET as u64 {
            let entries = (options.limit() / SEGMENT).max(MIN_ENTRIES);
            // Another process may do the same.
            index.set_len(entries.next_power_of_two() * ENTRY as u64)?;
        }
        let name = u128::from_str_radix(cache_dir.name(), 16);
        Ok(SharedChunks {
            dir: Arc::new(options.dir().to_owned()),
            name: name.map_err(|_| io::ErrorKind::InvalidInput)?,
            buckets: index.metadata()?.len() / BUCKET as u64,
            index,
            readers: Arc::default(),
            can_clone: Arc::new(AtomicBool::new(true)),
        })
    }

    /// Records that this image has chunk `number`, with this hash.
    pub(super) fn record(&self, number: u64, hash: &Hash) {
        let Ok(number) = u32::try_from(number) else {
            return;
        };
        let mut entry = [0; ENTRY];
        entry[..PREFIX].copy_from_slice(&hash[..PREFIX]);
        entry[PREFIX..ENTRY - 4].copy_from_slice(&self.name.to_le_bytes());
        entry[ENTRY - 4..].copy_from_slice(&number.to_le_bytes());
        let Some(bucket) = self.bucket(hash) else {
            return;
        };
        let (entries, _) = bucket.as_chunks::<ENTRY>();
        let find = |wanted: &[u8]| entries.iter().position(|entry| entry.starts_with(wanted));
        let slot = find(&hash[..PREFIX]).or_else(|| find(&[0; ENTRY]));
        let slot = slot.unwrap_or(usize::from(hash[PREFIX]) % ENTRIES_PER_BUCKET);
        let at = self.bucket_offset(hash) + (slot * ENTRY) as u64;
        // A missing entry costs a request.
        let _ = self.index.write_all_at(&entry, at);
    }

    /// Returns those of the `wanted` chunks, sorted by number, that another image has.
    pub(super) fn find(&self, wanted: &[(u64, Hash)]) -> FoundChunks {
        let hint = |(number, hash): &(u64, Hash)| {
            let location = self.location(hash)?;
            let (number, hash) = (*number, *hash);
            (location.image != self.name).then_some(Hint {
                number,
                hash,
                location,
            })
        };
        let hints: Vec<Hint> = wanted.iter().filter_map(hint).collect();
        if hints.is_empty() {
            return FoundChunks::default();
        }
        if self.readers.fetch_add(1, Ordering::Relaxed) >= MAX_READERS {
            self.readers.fetch_sub(1, Ordering::Relaxed);
            return FoundChunks::default();
        }
        let (sender, found) = sync_channel(1);
        let (dir, can_clone) = (self.dir.clone(), self.can_clone.clone());
        let readers = self.readers.clone();
        let read = move || {
            let found = Reader::new(&dir, &can_clone).read(&hints);
            readers.fetch_sub(1, Ordering::Relaxed);
            // The caller may have given up.
            let _ = sender.send(found);
        };
        match Builder::new().name("barge-chunks".into()).spawn(read) {
            Ok(_) => found.recv_timeout(TIMEOUT).unwrap_or_default(),
            Err(_) => {
                self.readers.fetch_sub(1, Ordering::Relaxed);
                FoundChunks::default()
            }
        }
    }

    fn location(&self, hash: &Hash) -> Option<Location> {
        let bucket = self.bucket(hash)?;
        let (entries, _) = bucket.as_chunks::<ENTRY>();
        let entry = (entries.iter()).find(|entry| entry.starts_with(&hash[..PREFIX]))?;
        let (_, rest) = entry.split_at(PREFIX);
        Some(Location {
            image: u128::from_le_bytes(*rest.first_chunk()?),
            number: u32::from_le_bytes(*rest.last_chunk()?).into(),
        })
    }

    fn bucket(&self, hash: &Hash) -> Option<[u8; BUCKET]> {
        let mut bucket = [0; BUCKET];
        let read = (self.index).read_exact_at(&mut bucket, self.bucket_offset(hash));
        read.is_ok().then_some(bucket)
    }

    fn bucket_offset(&self, hash: &Hash) -> u64 {
        let (_, end) = hash.split_at(hash.len() - 8);
        let number = u64::from_le_bytes(end.try_into().expect("eight bytes"));
        number % self.buckets * BUCKET as u64
    }
}

impl FoundChunks {
    /// Makes a chunk part of `file` at `at`, with shared blocks if possible.
    pub(super) fn store(&self, chunk: &FoundChunk, file: &File, at: u64) -> io::Result<()> {
        if let (Some(temporary), Some(offset)) = (&self.temporary, chunk.offset)
            && sys::clone::clone_range(temporary.as_fd(), offset, SEGMENT, file.as_fd(), at).is_ok()
        {
            return Ok(());
        }
        file.write_all_at(&chunk.bytes, at)
    }
}

/// Reads other images.
struct Reader<'a> {
    dir: &'a PathBuf,
    can_clone: &'a AtomicBool,
    images: HashMap<u128, Option<CacheFiles>>,
    temporary: Option<File>,
    /// Bytes of `temporary` that are in use.
    len: u64,
}

impl Reader<'_> {
    fn new<'a>(dir: &'a PathBuf, can_clone: &'a AtomicBool) -> Reader<'a> {
        Reader {
            dir,
            can_clone,
            images: HashMap::new(),
            temporary: None,
            len: 0,
        }
    }

    fn read(mut self, hints: &[Hint]) -> FoundChunks {
        let mut chunks = BTreeMap::new();
        let there: Vec<&Hint> = hints
            .iter()
            .filter(|hint| self.has(hint.location))
            .collect();
        let follows = |one: &&Hint, next: &&Hint| {
            let (from, to) = (one.location, next.location);
            (one.number + 1, from.image, from.number + 1) == (next.number, to.image, to.number)
        };
        for run in there.chunk_by(follows) {
            let Some((bytes, offset)) = self.read_run(run[0].location, run.len()) else {
                continue;
            };
            let parts = (0u64..).zip(run).zip(bytes.chunks(SEGMENT as usize));
            for ((after, hint), bytes) in parts {
                if hash(bytes, false) == hint.hash {
                    let chunk = FoundChunk {
                        bytes: bytes.into(),
                        offset: offset.map(|offset| offset + after * SEGMENT),
                    };
                    chunks.insert(hint.number, chunk);
                }
            }
        }
        FoundChunks {
            chunks,
            temporary: self.temporary,
        }
    }

    fn image(&mut self, name: u128) -> Option<&CacheFiles> {
        let dir = self.dir;
        let open = || CacheFiles::open(dir, &format!("{name:032x}")).ok();
        self.images.entry(name).or_insert_with(open).as_ref()
    }

    /// Returns whether an image has the chunk: a read of a missing one could make another process
    /// fetch it.
    fn has(&mut self, location: Location) -> bool {
        let image = self.image(location.image);
        image.is_some_and(|files| {
            map::read(&files.map, location.number).is_ok_and(|tag| tag != MISSING)
        })
    }

    /// Reads `count` chunks from `first` on. Returns their offset in the temporary file as well, if
    /// that shares their blocks.
    fn read_run(&mut self, first: Location, count: usize) -> Option<(Vec<u8>, Option<u64>)> {
        let (at, len) = (first.number * SEGMENT, count as u64 * SEGMENT);
        let mut bytes = vec![0; len as usize];
        if self.can_clone.load(Ordering::Relaxed) {
            match self.clone_run(first.image, at, len) {
                Ok(offset) => {
                    let temporary = self.temporary.as_ref()?;
                    temporary.read_exact_at(&mut bytes, offset).ok()?;
                    return Some((bytes, Some(offset)));
                }
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => {
                    self.can_clone.store(false, Ordering::Relaxed);
                }
                Err(_) => return None,
            }
        }
        let data = &self.image(first.image)?.data;
        data.read_exact_at(&mut bytes, at).ok()?;
        Some((bytes, None))
    }

    /// Makes the end of the temporary file share `len` bytes of an image, and returns their offset
    /// there.
    fn clone_run(&mut self, image: u128, at: u64, len: u64) -> rustix::io::Result<u64> {
        if self.temporary.is_none() {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = rustix::fs::open(self.dir, flags, Mode::RUSR | Mode::WUSR)?;
            self.temporary = Some(file.into());
        }
        let offset = self.len;
        let data = self.image(image).ok_or(Errno::NOENT)?.data.try_clone();
        let data = data.map_err(|_| Errno::MFILE)?;
        let temporary = self.temporary.as_ref().ok_or(Errno::NOENT)?;
        sys::clone::clone_range(data.as_fd(), at, len, temporary.as_fd(), offset)?;
        self.len += len;
        Ok(offset)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use sys::fanotify::{Answer, Event, Group};
    use vfs::Patience;

    use super::super::{CachedSource, DiskCacheEntry, DiskCacheOptions};
    use super::*;
    use crate::range::{FileGuard, Piece, RangeSource};

    /// An image whose chunks are counted as they are read.
    #[derive(Default)]
    struct Remote {
        chunks: Vec<u8>,
        read: AtomicUsize,
    }

    impl Remote {
        /// Returns an image whose chunks are full of these bytes.
        fn new(chunks: &[u8]) -> Arc<Remote> {
            Arc::new(Remote {
                chunks: chunks.to_vec(),
                ..Remote::default()
            })
        }

        fn count(&self) -> usize {
            self.read.swap(0, Ordering::Relaxed)
        }
    }

    impl RangeSource for Remote {
        fn len(&self) -> u64 {
            self.chunks.len() as u64 * SEGMENT
        }

        fn patience(&self, _at: u64, _len: usize) -> Patience {
            Patience::Full
        }

        fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
            for Piece { offset, buffer } in pieces {
                self.read.fetch_add(1, Ordering::Relaxed);
                buffer.fill(self.chunks[(*offset / SEGMENT) as usize]);
            }
            Ok(())
        }

        fn readahead_len(&self) -> u64 {
            SEGMENT
        }

        fn chunk_hash(&self, number: u64) -> Option<Hash> {
            let bytes = vec![self.chunks[number as usize]; SEGMENT as usize];
            Some(hash(&bytes, false))
        }

        fn file(&self, _at: u64, _len: usize) -> Option<FileGuard<'_>> {
            None
        }
    }

    fn open(dir: &Path, name: &str, remote: &Arc<Remote>) -> CachedSource {
        let options = DiskCacheOptions::new(dir.into(), None);
        let entry = DiskCacheEntry::open(&options, name).expect("it is not busy");
        let opened = entry.over(remote.clone(), name.as_bytes(), name);
        opened.expect("opened")
    }

    /// Reads all, and compares it.
    fn read_all(image: &CachedSource, remote: &Remote) {
        let mut buffer = vec![0; remote.len() as usize];
        let piece = Piece {
            offset: 0,
            buffer: &mut buffer,
        };
        image.read(&mut [piece]).expect("read");
        for (chunk, byte) in buffer.chunks(SEGMENT as usize).zip(&remote.chunks) {
            assert!(chunk.iter().all(|got| got == byte), "{byte}");
        }
    }

    #[test]
    fn chunks_of_another_image_are_not_fetched() {
        let dir = tempfile::tempdir().expect("a directory");
        let (old, new) = (Remote::new(&[1, 2, 3, 4]), Remote::new(&[9, 3, 4, 8, 1]));
        let first = open(dir.path(), "old", &old);
        read_all(&first, &old);
        assert_eq!(old.count(), 4);
        let second = open(dir.path(), "new", &new);
        read_all(&second, &new);
        assert_eq!(new.count(), 2, "9 and 8");
        // Chunks that came from another image are found in this one, too.
        drop(first);
        fs::remove_file(dir.path().join(data_name("old"))).expect("removed");
        let third = Remote::new(&[1, 3]);
        read_all(&open(dir.path(), "third", &third), &third);
        assert_eq!(third.count(), 0);
    }

    #[test]
    fn a_missing_chunk_leaves_those_beside_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let old = Remote::new(&[1, 2, 3, 4, 5]);
        read_all(&open(dir.path(), "old", &old), &old);
        let options = DiskCacheOptions::new(dir.path().into(), None);
        let name = CacheDir::named(&options, "old").expect("named");
        let files = CacheFiles::open(dir.path(), name.name()).expect("opened");
        map::write(&files.map, 2, &[MISSING]).expect("written");
        let new = Remote::new(&[1, 2, 3, 4, 5]);
        read_all(&open(dir.path(), "new", &new), &new);
        assert_eq!(new.count(), 1, "3");
    }

    #[test]
    fn chunks_that_have_changed_or_are_gone_are_fetched() {
        let dir = tempfile::tempdir().expect("a directory");
        let old = Remote::new(&[1, 2, 3]);
        read_all(&open(dir.path(), "old", &old), &old);
        let data = File::options()
            .write(true)
            .open(dir.path().join(data_name("old")));
        let data = data.expect("opened");
        data.write_all_at(b"x", SEGMENT + 5).expect("written");
        let new = Remote::new(&[3, 2, 1]);
        read_all(&open(dir.path(), "new", &new), &new);
        assert_eq!(new.count(), 1, "2");
        // Any bytes may be in the index.
        let index = dir.path().join("chunks.index");
        let bytes: Vec<u8> = fs::read(&index).expect("read");
        let bytes: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        fs::write(&index, bytes).expect("written");
        let third = Remote::new(&[3, 2, 1]);
        read_all(&open(dir.path(), "third", &third), &third);
        assert_eq!(third.count(), 3);
    }

    #[test]
    fn a_file_that_does_not_answer_is_given_up() {
        let dir = std::env::current_dir().expect("a directory");
        let dir = tempfile::tempdir_in(dir).expect("a directory");
        let old = Remote::new(&[1, 2, 3]);
        read_all(&open(dir.path(), "old", &old), &old);
        // Without privileges, or before Linux 6.14, there is nothing to test.
        let Ok(group) = Group::new() else { return };
        let data = File::open(dir.path().join(data_name("old"))).expect("opened");
        if group.add(data.as_fd()).is_err() {
            return;
        }
        let new = Remote::new(&[1, 2, 7]);
        let start = Instant::now();
        read_all(&open(dir.path(), "new", &new), &new);
        assert!(start.elapsed() >= TIMEOUT);
        assert_eq!(new.count(), 3);
        // The reader goes on.
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000_000,
        };
        let ready = || {
            let mut polled = [PollFd::new(&group, PollFlags::IN)];
            poll(&mut polled, Some(&pause)).expect("polled") > 0
        };
        while ready() {
            let mut answer = |event: Event| {
                if let Event::Waits(read) = event {
                    let _ = group.answer(read.file.as_raw_fd(), Answer::Allow);
                }
            };
            group.read(&mut answer).expect("read");
        }
    }

    fn data_name(image: &str) -> String {
        let options = DiskCacheOptions::new("/".into(), None);
        CacheDir::named(&options, image).expect("named").data_name()
    }
}
