//! A remote image read through its segments on disk.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::fs::{FallocateFlags, fallocate};
use vfs::{Errno, Patience};

use super::cache_dir::{CacheDir, CacheFiles, DiskCacheOptions};
use super::map::{self, HEAD, ImageIdentity, MISSING};
use crate::cache::{Cache, Claim, Load};
use crate::range::{FileGuard, Piece, RangeSource};
use crate::storage::SEGMENT;

/// Segments evicted together: as many as a word has bits, 1 MiB.
const CHUNK: u64 = 64;

/// An image's entry in the disk cache, locked as long as this exists.
pub struct DiskCacheEntry {
    cache_dir: CacheDir,
    files: CacheFiles,
    identity: Option<ImageIdentity>,
}

/// A remote image read through the disk cache. Methods may be called concurrently from any number
/// of threads.
pub struct CachedSource {
    remote: Arc<dyn RangeSource>,
    /// Loads in progress, without cached entries: its limit is 0.
    loads: Arc<Cache<u64>>,
    identity: ImageIdentity,
    files: CacheFiles,
    eviction_lock: RwLock<()>,
    state: Mutex<State>,
    cache_dir: Mutex<CacheDir>,
}

struct State {
    chunks: HashMap<u64, Chunk>,
    /// In the order they were inserted or last passed over.
    order: VecDeque<u64>,
    /// Bytes on disk.
    bytes: u64,
    /// Whether a write has failed, which disables further writes.
    failed: bool,
}

/// The segments of a chunk, one bit each.
#[derive(Default)]
struct Chunk {
    /// The map has a tag for the segment.
    present: u64,
    /// The segment matches its tag.
    verified: u64,
    /// Whether the chunk was used since it was inserted or last passed over.
    referenced: bool,
}

impl DiskCacheEntry {
    /// Opens the cache entry of the image `name`; returns `ResourceBusy` if another holder has it.
    pub fn open(options: &DiskCacheOptions, name: &str) -> io::Result<DiskCacheEntry> {
        let (cache_dir, pair) = CacheDir::open(options, name)?;
        let mut head = [0; HEAD as usize];
        let known = match pair.map.read_exact_at(&mut head, 0) {
            Ok(()) => ImageIdentity::parse(&head),
            Err(_) => None,
        };
        // A data file of another length is not ours.
        let known =
            known.filter(|known| pair.data.metadata().is_ok_and(|m| m.len() == known.len()));
        Ok(DiskCacheEntry {
            cache_dir,
            files: pair,
            identity: known,
        })
    }

    /// Returns the image that has segments on disk.
    pub fn identity(&self) -> Option<&ImageIdentity> {
        self.identity.as_ref()
    }

    /// Removes the files, for a name that turns out not to be an image.
    pub fn discard(self) {
        self.cache_dir.discard();
    }

    /// Puts the disk cache in front of `far`, which `identity` tells from others of the same name.
    /// Cached segments of another identity are removed.
    pub fn over(self, far: Arc<dyn RangeSource>, identity: &[u8]) -> io::Result<CachedSource> {
        let DiskCacheEntry {
            cache_dir,
            files: pair,
            identity: known,
        } = self;
        let wanted = ImageIdentity::new(identity, far.len()).ok_or(io::ErrorKind::InvalidInput)?;
        if known.as_ref() != Some(&wanted) {
            pair.map.set_len(0)?;
            pair.data.set_len(0)?;
            pair.data.set_len(wanted.len())?;
            pair.map.write_all_at(&wanted.encode(), 0)?;
        }
        let mut state = State {
            chunks: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            failed: false,
        };
        map::for_each_present(&pair.map, wanted.len().div_ceil(SEGMENT), &mut |number| {
            state.add(number);
        })?;
        Ok(CachedSource {
            remote: far,
            loads: Cache::new(0),
            identity: wanted,
            files: pair,
            eviction_lock: RwLock::new(()),
            state: Mutex::new(state),
            cache_dir: Mutex::new(cache_dir),
        })
    }
}

impl RangeSource for CachedSource {
    fn len(&self) -> u64 {
        self.identity.len()
    }

    fn patience(&self, at: u64, len: usize) -> Patience {
        match self.lock().are_verified(segments(at, len)) {
            true => Patience::Brief,
            false => self.remote.patience(at, len),
        }
    }

    fn readahead_len(&self) -> u64 {
        self.remote.readahead_len()
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let mut wanted = BTreeSet::new();
        {
            let mut state = self.lock();
            for Piece {
                offset: at,
                buffer: into,
            } in &*pieces
            {
                let numbers = segments(*at, into.len());
                wanted.extend(numbers.filter(|number| !state.are_verified(*number..*number + 1)));
            }
        }
        let fetched = self.segments(wanted)?;
        for Piece {
            offset: at,
            buffer: into,
        } in pieces
        {
            let end = *at + into.len() as u64;
            for number in segments(*at, into.len()) {
                let start = number * SEGMENT;
                let (from, to) = (start.max(*at), (start + SEGMENT).min(end));
                let part = &mut into[(from - *at) as usize..(to - *at) as usize];
                match fetched.get(&number) {
                    Some(segment) => {
                        let segment = &segment[(from - start) as usize..(to - start) as usize];
                        part.copy_from_slice(segment);
                    }
                    None => self.read_verified(from, part)?,
                }
            }
        }
        Ok(())
    }

    fn file(&self, at: u64, len: usize) -> Option<FileGuard<'_>> {
        let gate = self.eviction_lock.try_read()?;
        self.lock()
            .are_verified(segments(at, len))
            .then(|| FileGuard {
                file: self.files.data.as_fd(),
                _eviction_guard: Some(gate),
            })
    }
}

impl CachedSource {
    /// Returns the number of bytes of segments on disk.
    pub fn stored(&self) -> u64 {
        self.lock().bytes
    }

    /// Returns segments that were not verified yet, from disk or `far`; concurrent requests share
    /// one load.
    fn segments(&self, numbers: BTreeSet<u64>) -> io::Result<BTreeMap<u64, Arc<[u8]>>> {
        let mut fetched = BTreeMap::new();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for number in numbers {
            match self.loads.claim(number) {
                Claim::Ready(segment) => drop(fetched.insert(number, segment)),
                Claim::Wait(load) => theirs.push((number, load)),
                Claim::Load(load) => match self.read_cached(number) {
                    Some(segment) => {
                        let segment: Arc<[u8]> = segment.into();
                        load.settle(Ok(segment.clone()));
                        fetched.insert(number, segment);
                    }
                    None => ours.push(load),
                },
            }
        }
        self.fetch(ours, &mut fetched)?;
        // Waits only after its own loads are settled: their owners may be waiting for one of ours.
        for (number, load) in theirs {
            fetched.insert(number, load.wait()?);
        }
        Ok(fetched)
    }

    /// Fetches missing segments and stores them on disk.
    fn fetch(
        &self,
        loads: Vec<Load<u64>>,
        fetched: &mut BTreeMap<u64, Arc<[u8]>>,
    ) -> io::Result<()> {
        let mut segments: Vec<_> = loads
            .iter()
            .map(|load| vec![0; self.len_of(load.key())])
            .collect();
        let mut pieces: Vec<_> = loads
            .iter()
            .zip(&mut segments)
            .map(|(load, into)| Piece {
                offset: load.key() * SEGMENT,
                buffer: into,
            })
            .collect();
        if let Err(error) = self.remote.read(&mut pieces) {
            let errno = Errno::from(error);
            loads.into_iter().for_each(|load| load.settle(Err(errno)));
            return Err(errno.into());
        }
        for (load, segment) in loads.into_iter().zip(segments) {
            let segment: Arc<[u8]> = segment.into();
            self.store(load.key(), &segment);
            fetched.insert(load.key(), segment.clone());
            load.settle(Ok(segment));
        }
        Ok(())
    }

    /// Returns a segment that is on disk, if it matches its tag.
    fn read_cached(&self, number: u64) -> Option<Vec<u8>> {
        let _gate = self.eviction_lock.try_read()?;
        if !self.lock().is_present(number) {
            return None;
        }
        let mut segment = vec![0; self.len_of(number)];
        let read = self
            .files
            .data
            .read_exact_at(&mut segment, number * SEGMENT);
        let tag = read.and_then(|()| map::read(&self.files.map, number));
        let sound = tag.is_ok_and(|tag| tag == self.identity.tag(number, &segment));
        self.lock().record_verification(number, sound);
        sound.then_some(segment)
    }

    /// Reads verified segments from disk, or from `far` if they were evicted meanwhile.
    fn read_verified(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let held = self.file(at, into.len());
        match held.is_some_and(|_held| self.files.data.read_exact_at(into, at).is_ok()) {
            true => Ok(()),
            false => self.remote.read(&mut [Piece {
                offset: at,
                buffer: into,
            }]),
        }
    }

    /// Stores a segment on disk, if there is space.
    fn store(&self, number: u64, segment: &[u8]) {
        if !self.make_room() {
            return;
        }
        let Some(_gate) = self.eviction_lock.try_read() else {
            return;
        };
        let tag = self.identity.tag(number, segment);
        let data = self.files.data.write_all_at(segment, number * SEGMENT);
        match data.and_then(|()| map::write(&self.files.map, number, &[tag])) {
            Ok(()) => {
                let mut state = self.lock();
                state.add(number);
                state.record_verification(number, true);
            }
            Err(error) => self.disable_writes(&error),
        }
    }

    /// Returns whether there is space for a segment, evicting chunks if needed.
    fn make_room(&self) -> bool {
        let mut cache_dir = self.cache_dir.lock();
        let (own, failed) = {
            let state = self.lock();
            (state.bytes, state.failed)
        };
        if failed {
            return false;
        }
        let mut excess = cache_dir.excess(own, SEGMENT);
        if excess == 0 {
            return true;
        }
        let Some(_gate) = self.eviction_lock.try_write() else {
            return false;
        };
        while excess > 0 {
            let Some((number, freed)) = self.lock().pop_victim() else {
                return false;
            };
            if let Err(error) = self.evict_chunk(number) {
                self.disable_writes(&error);
                return false;
            }
            excess = excess.saturating_sub(freed);
        }
        true
    }

    /// Evicts a chunk; its tags are cleared first.
    fn evict_chunk(&self, number: u64) -> io::Result<()> {
        map::write(&self.files.map, number * CHUNK, &[MISSING; CHUNK as usize])?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (at, len) = (number * CHUNK * SEGMENT, CHUNK * SEGMENT);
        Ok(fallocate(&self.files.data, how, at, len)?)
    }

    fn disable_writes(&self, error: &io::Error) {
        self.lock().failed = true;
        tracing::warn!("the disk cache stores no more segments of images: {error}");
    }

    fn len_of(&self, number: u64) -> usize {
        SEGMENT.min(self.identity.len() - number * SEGMENT) as usize
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Drop for CachedSource {
    fn drop(&mut self) {
        // Records the time of last use; if this fails, the image is evicted a little earlier.
        let _ = self.files.map.set_modified(SystemTime::now());
    }
}

impl State {
    fn add(&mut self, number: u64) {
        let chunk = self.chunks.entry(number / CHUNK).or_insert_with(|| {
            self.order.push_back(number / CHUNK);
            Chunk::default()
        });
        if chunk.present & bit(number) == 0 {
            chunk.present |= bit(number);
            self.bytes += SEGMENT;
        }
    }

    /// Records whether a segment matches its tag.
    fn record_verification(&mut self, number: u64, sound: bool) {
        let Some(chunk) = self.chunks.get_mut(&(number / CHUNK)) else {
            return;
        };
        if sound {
            chunk.verified |= bit(number);
        } else if chunk.present & bit(number) != 0 {
            chunk.present &= !bit(number);
            self.bytes -= SEGMENT;
        }
    }

    fn is_present(&self, number: u64) -> bool {
        let chunk = self.chunks.get(&(number / CHUNK));
        chunk.is_some_and(|chunk| chunk.present & bit(number) != 0)
    }

    /// Returns whether all these segments were verified, and marks their chunks as used.
    fn are_verified(&mut self, mut numbers: Range<u64>) -> bool {
        numbers.all(|number| match self.chunks.get_mut(&(number / CHUNK)) {
            Some(chunk) if chunk.verified & bit(number) != 0 => {
                chunk.referenced = true;
                true
            }
            _ => false,
        })
    }

    /// Removes the oldest chunk without a second chance, and returns its number and size in bytes.
    fn pop_victim(&mut self) -> Option<(u64, u64)> {
        loop {
            let number = self.order.pop_front()?;
            let Some(chunk) = self.chunks.get_mut(&number) else {
                continue;
            };
            if chunk.referenced {
                chunk.referenced = false;
                self.order.push_back(number);
                continue;
            }
            let bytes = u64::from(chunk.present.count_ones()) * SEGMENT;
            self.chunks.remove(&number);
            self.bytes -= bytes;
            return Some((number, bytes));
        }
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % CHUNK)
}

/// Returns the segments that contain the `len` bytes from `at`.
fn segments(at: u64, len: usize) -> Range<u64> {
    match len {
        0 => 0..0,
        len => at / SEGMENT..at.saturating_add(len as u64).div_ceil(SEGMENT),
    }
}
