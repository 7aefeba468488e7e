//! A remote image read through its segments on disk.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use rustix::fs::{FallocateFlags, fallocate};
use sidecar::Hash;
use vfs::source_stats::CacheStats;
use vfs::{Errno, Outage, Patience, SourceStats};

use super::allowed_reads::AllowedReads;
use super::cache_dir::{CacheDir, CacheFiles, DiskCacheOptions, ImageUser};
use super::map::{self, HEAD, ImageIdentity, MISSING};
use super::shared_chunks::SharedChunks;
use crate::cache::{Cache, Claim, Load};
use crate::range::{FileGuard, Piece, RangeSource};
use crate::storage::SEGMENT;

/// Segments evicted together: as many as a word has bits, 1 MiB.
const EXTENT: u64 = 64;

/// An image's entry in the disk cache, in use as long as this exists.
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
    /// Held while several segments are claimed for loads.
    claiming: Mutex<()>,
    identity: ImageIdentity,
    files: CacheFiles,
    eviction_lock: RwLock<()>,
    state: Mutex<State>,
    cache_dir: Mutex<CacheDir>,
    /// The chunks of all images, opened when the first is missing, or `None` if that failed.
    shared_chunks: OnceLock<Option<SharedChunks>>,
    /// Reads of the data file by the kernel, if it reads the file. Their ranges are not evicted.
    kernel_reads: Option<Arc<AllowedReads>>,
    /// The maximum size of the cache, which can be read while an eviction holds its lock.
    limit: u64,
    counters: Counters,
}

/// Counts of segments that were read, and of bytes that were evicted.
#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
}

impl Counters {
    fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            ..CacheStats::default()
        }
    }
}

struct State {
    extents: HashMap<u64, Extent>,
    /// In the order they were inserted or last passed over.
    order: VecDeque<u64>,
    /// Bytes on disk.
    bytes: u64,
    /// Segments that match their tags.
    verified: u64,
    /// The time in which writes fail, such as on a full disk. If the kernel reads the file, all
    /// are attempted nevertheless.
    outage: Outage,
}

/// Adjacent segments to load.
struct Run {
    numbers: Range<u64>,
    loads: Vec<Load<u64>>,
}

/// The segments of an extent, one bit each.
#[derive(Default)]
struct Extent {
    /// The map has a tag for the segment.
    present: u64,
    /// The segment matches its tag.
    verified: u64,
    /// Whether the extent was used since it was inserted or last passed over.
    referenced: bool,
}

impl DiskCacheEntry {
    /// Opens the cache entry of the image `name`. Returns `ResourceBusy` if another process has
    /// just created it.
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
        if known.is_some() {
            pair.share()?;
        }
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

    /// Puts the disk cache in front of `remote`, as [`DiskCacheEntry::over`] does. Returns `remote`
    /// alone, and logs that, if another process reads another version of the image.
    pub fn over_if_free(
        self,
        remote: Arc<dyn RangeSource>,
        identity: &[u8],
        label: &str,
    ) -> io::Result<Arc<dyn RangeSource>> {
        match self.over(remote.clone(), identity, label) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tracing::warn!(
                    "{label}: no disk cache, because another process reads another version"
                );
                Ok(remote)
            }
            opened => Ok(Arc::new(opened?)),
        }
    }

    /// Puts the disk cache in front of `remote`, which `identity` tells from others of the same
    /// name, and `label` names for people.
    /// Cached segments of another identity are removed; returns `WouldBlock` if another process
    /// uses them.
    pub fn over(
        self,
        remote: Arc<dyn RangeSource>,
        identity: &[u8],
        label: &str,
    ) -> io::Result<CachedSource> {
        let DiskCacheEntry {
            cache_dir,
            files: pair,
            identity: known,
        } = self;
        let wanted =
            ImageIdentity::new(identity, remote.len()).ok_or(io::ErrorKind::InvalidInput)?;
        if known.as_ref() != Some(&wanted) {
            pair.lock_alone()?;
            pair.map.set_len(0)?;
            pair.data.set_len(0)?;
            pair.data.set_len(wanted.len())?;
            pair.map.write_all_at(&wanted.encode(label), 0)?;
            pair.share()?;
        }
        let mut state = State {
            extents: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            verified: 0,
            outage: Outage::default(),
        };
        map::for_each_present(&pair.map, wanted.len().div_ceil(SEGMENT), &mut |number| {
            state.add(number);
        })?;
        let limit = cache_dir.options().limit();
        Ok(CachedSource {
            remote,
            loads: Cache::new(0),
            claiming: Mutex::default(),
            identity: wanted,
            files: pair,
            eviction_lock: RwLock::new(()),
            state: Mutex::new(state),
            cache_dir: Mutex::new(cache_dir),
            shared_chunks: OnceLock::new(),
            kernel_reads: None,
            limit,
            counters: Counters::default(),
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

    fn stats(&self) -> SourceStats {
        let cache = CacheStats {
            bytes: self.stored(),
            limit: self.limit,
            ..self.counters.stats()
        };
        let mut stats = self.remote.stats();
        stats.add(&SourceStats {
            disk_cache: Some(cache),
            ..SourceStats::default()
        });
        stats
    }

    fn evict(&self) -> u64 {
        // As long as it is locked, no other thread evicts.
        let _cache_dir = self.cache_dir.lock();
        self.evict_alone(u64::MAX)
    }

    fn ping(&self) -> io::Result<()> {
        self.remote.ping()
    }

    fn drop_copies(&self, range: Range<u64>) -> bool {
        let before = self.stored();
        let end = range.end.min(self.identity.len());
        let numbers = range.start.min(end) / SEGMENT..end.div_ceil(SEGMENT);
        // Other processes and later ones find a segment by its tag. A process that has verified the
        // segment before still reads the file, and sees what is stored next.
        let mut at = numbers.start;
        while at < numbers.end {
            let count = EXTENT.min(numbers.end - at);
            let tags = [MISSING; EXTENT as usize];
            if let Err(error) = map::write(&self.files.map, at, &tags[..count as usize]) {
                self.disable_writes(&error);
                break;
            }
            let mut state = self.lock();
            (at..at + count).for_each(|number| state.record_verification(number, false));
            at += count;
        }
        self.stored() < before
    }

    fn read(&self, pieces: &mut [Piece<'_>]) -> io::Result<()> {
        let mut wanted = BTreeSet::new();
        let mut all = 0;
        for piece in &*pieces {
            let numbers = segments(piece.offset, piece.buffer.len());
            all += numbers.end - numbers.start;
            wanted.extend(self.missing(numbers));
        }
        let verified = all.saturating_sub(wanted.len() as u64);
        self.counters.hits.fetch_add(verified, Ordering::Relaxed);
        let fetched = self.segments(wanted, BTreeSet::new())?;
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

    /// Returns the name of the data file in the cache's directory.
    pub(crate) fn file_name(&self) -> String {
        self.cache_dir.lock().data_name()
    }

    /// Makes `file`, which is another descriptor of the data file, the one that is read and
    /// written. The kernel reads the file as well, as `reads` says. Segments are evicted only if
    /// no other process uses the image now: reads that it has allowed are unknown. `user` keeps
    /// the image in use after this process.
    pub(crate) fn share_with_kernel(
        &mut self,
        file: File,
        user: Option<ImageUser>,
        reads: Arc<AllowedReads>,
    ) {
        self.files.data = file;
        if let Some(user) = user {
            self.files.continue_as(user);
        }
        if self.files.lock_alone().is_err() || self.files.share().is_err() {
            reads.give_up();
        }
        self.kernel_reads = Some(reads);
    }

    /// Makes sure that the file has the bytes of `range`. Unless it has them, fetches those of
    /// `around` as well that nobody else fetches. Returns an error if a byte cannot be fetched, or
    /// not be stored.
    pub(crate) fn fill(&self, range: Range<u64>, around: Range<u64>) -> io::Result<()> {
        let segments = |range: Range<u64>| {
            let end = range.end.min(self.identity.len());
            range.start.min(end) / SEGMENT..end.div_ceil(SEGMENT)
        };
        let needed = segments(range);
        let missing = self.missing(needed.clone());
        if missing.is_empty() {
            return Ok(());
        }
        let mut optional = self.missing(segments(around));
        optional.retain(|number| !needed.contains(number));
        self.segments(missing, optional)?;
        match self.missing(needed).is_empty() {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// Returns those of these segments that are not known to match their tags.
    fn missing(&self, numbers: Range<u64>) -> BTreeSet<u64> {
        let mut state = self.lock();
        let missing = numbers.filter(|number| !state.are_verified(*number..*number + 1));
        missing.collect()
    }

    /// Returns how many bytes directly before `at` the file has, up to `most`.
    pub(crate) fn filled_before(&self, at: u64, most: u64) -> u64 {
        let mut state = self.lock();
        let number = at / SEGMENT;
        let back = 1..=(most / SEGMENT).min(number);
        let back = back.take_while(|back| state.are_verified(number - back..number - back + 1));
        back.count() as u64 * SEGMENT
    }

    /// Returns whether the file has the whole image.
    fn is_complete(&self) -> bool {
        self.lock().verified == self.identity.len().div_ceil(SEGMENT)
    }

    /// Returns whether the file has the whole image, and keeps it as long as this exists. If the
    /// cache is too large, evicts extents instead, if that is possible.
    pub(crate) fn keep_complete(&self) -> bool {
        if !self.is_complete() {
            return false;
        }
        let mut cache_dir = self.cache_dir.lock();
        let own = self.lock().bytes;
        let excess = cache_dir.excess(own, 0);
        if excess > 0 && self.evict_for_room(excess) {
            return false;
        }
        let state = self.lock();
        let complete = state.verified == self.identity.len().div_ceil(SEGMENT);
        if let (true, Some(reads)) = (complete, &self.kernel_reads) {
            // Extents are evicted only while the state is locked.
            reads.give_up();
        }
        complete
    }

    /// Returns whether the whole image and the others would be more than the cache may have.
    pub(crate) fn may_exceed(&self) -> bool {
        self.cache_dir.lock().would_exceed(self.len())
    }

    /// Returns whether the cache has space for the whole image, without eviction of its extents.
    pub(crate) fn fits(&self) -> bool {
        self.cache_dir.lock().excess(self.len(), 0) == 0
    }

    /// Returns segments that were not verified yet, from disk or `remote`; concurrent requests
    /// share one load. `optional` ones are not waited for.
    fn segments(
        &self,
        numbers: BTreeSet<u64>,
        optional: BTreeSet<u64>,
    ) -> io::Result<BTreeMap<u64, Arc<[u8]>>> {
        let mut fetched = BTreeMap::new();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        {
            // Two threads that claim every other segment would both fetch those between.
            let _claiming = self.claiming.lock();
            for number in numbers.union(&optional).copied() {
                match self.loads.claim(number) {
                    Claim::Ready(segment) => drop(fetched.insert(number, segment)),
                    Claim::Wait(_) if optional.contains(&number) => {}
                    Claim::Wait(load) => theirs.push((number, load)),
                    Claim::Load(load) => ours.push(load),
                }
            }
        }
        let ours = self.settle_cached(ours, &mut fetched);
        self.fetch(ours, &mut fetched)?;
        // Waits only after its own loads are settled: their owners may be waiting for one of ours.
        for (number, load) in theirs {
            fetched.insert(number, load.wait()?);
        }
        Ok(fetched)
    }

    /// Settles the loads of segments that are on disk, and returns the others.
    fn settle_cached(
        &self,
        loads: Vec<Load<u64>>,
        fetched: &mut BTreeMap<u64, Arc<[u8]>>,
    ) -> Vec<Load<u64>> {
        let mut missing = Vec::new();
        let all = loads.len();
        for load in loads {
            match self.read_cached(load.key()) {
                Some(segment) => {
                    let segment: Arc<[u8]> = segment.into();
                    fetched.insert(load.key(), segment.clone());
                    load.settle(Ok(segment));
                }
                None => missing.push(load),
            }
        }
        let found = (all - missing.len()) as u64;
        self.counters.hits.fetch_add(found, Ordering::Relaxed);
        missing
    }

    /// Fetches missing segments and stores them on disk. Those that another process fetches are
    /// waited for, after its own are stored: the other process may be waiting for one of these.
    fn fetch(
        &self,
        loads: Vec<Load<u64>>,
        fetched: &mut BTreeMap<u64, Arc<[u8]>>,
    ) -> io::Result<()> {
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for run in runs(loads) {
            match self.files.try_lock_fetch(&run.numbers) {
                true => own.push(run),
                false => others.push(run),
            }
        }
        let done = self.fetch_locked(own, fetched);
        for run in others {
            let locked = self.files.lock_fetch(&run.numbers);
            locked.and_then(|()| self.fetch_locked(vec![run], fetched))?;
        }
        done
    }

    /// Fetches segments that this process has locked, and unlocks them.
    fn fetch_locked(
        &self,
        runs: Vec<Run>,
        fetched: &mut BTreeMap<u64, Arc<[u8]>>,
    ) -> io::Result<()> {
        let numbers: Vec<_> = runs.iter().map(|run| run.numbers.clone()).collect();
        let loads = runs.into_iter().flat_map(|run| run.loads).collect();
        // Another process may have stored some before they were locked here.
        let missing = self.settle_cached(loads, fetched);
        let done = self.fetch_missing(missing, fetched);
        numbers.iter().for_each(|run| self.files.unlock_fetch(run));
        done
    }

    /// Fetches segments that no process has stored.
    fn fetch_missing(
        &self,
        loads: Vec<Load<u64>>,
        fetched: &mut BTreeMap<u64, Arc<[u8]>>,
    ) -> io::Result<()> {
        let loads = self.settle_shared(loads, fetched);
        if loads.is_empty() {
            return Ok(());
        }
        let misses = loads.len() as u64;
        self.counters.misses.fetch_add(misses, Ordering::Relaxed);
        let mut segments: Vec<_> = loads
            .iter()
            .map(|(load, _)| vec![0; self.len_of(load.key())])
            .collect();
        let mut pieces: Vec<_> = loads
            .iter()
            .zip(&mut segments)
            .map(|((load, _), into)| Piece {
                offset: load.key() * SEGMENT,
                buffer: into,
            })
            .collect();
        if let Err(error) = self.remote.read(&mut pieces) {
            let errno = Errno::from(error);
            let loads = loads.into_iter();
            loads.for_each(|(load, _)| load.settle(Err(errno)));
            return Err(errno.into());
        }
        for ((load, hash), segment) in loads.into_iter().zip(segments) {
            let number = load.key();
            let write = |data: &File| data.write_all_at(&segment, number * SEGMENT);
            self.store(number, &segment, hash.as_ref(), &write);
            let segment: Arc<[u8]> = segment.into();
            fetched.insert(number, segment.clone());
            load.settle(Ok(segment));
        }
        Ok(())
    }

    /// Settles the loads of segments that another image of the cache has, and returns the others,
    /// each with the hash by which other images can find it.
    fn settle_shared(
        &self,
        loads: Vec<Load<u64>>,
        fetched: &mut BTreeMap<u64, Arc<[u8]>>,
    ) -> Vec<(Load<u64>, Option<Hash>)> {
        let with_hash = |load: Load<u64>| {
            let hash = self.shared_hash(load.key());
            (load, hash)
        };
        let loads: Vec<_> = loads.into_iter().map(with_hash).collect();
        let wanted = loads
            .iter()
            .filter_map(|(load, hash)| Some((load.key(), (*hash)?)));
        let wanted: Vec<(u64, Hash)> = wanted.collect();
        if wanted.is_empty() {
            return loads;
        }
        let Some(shared) = self.shared_chunks() else {
            return loads;
        };
        let found = shared.find(&wanted);
        let mut missing = Vec::new();
        for (load, hash) in loads {
            let number = load.key();
            let Some(chunk) = found.chunks.get(&number) else {
                missing.push((load, hash));
                continue;
            };
            let write = |data: &File| found.store(chunk, data, number * SEGMENT);
            self.store(number, &chunk.bytes, hash.as_ref(), &write);
            fetched.insert(number, chunk.bytes.clone());
            load.settle(Ok(chunk.bytes.clone()));
        }
        missing
    }

    /// Returns the hash of a segment by which other images can find it.
    fn shared_hash(&self, number: u64) -> Option<Hash> {
        let is_whole = self.len_of(number) as u64 == SEGMENT;
        is_whole.then(|| self.remote.chunk_hash(number)).flatten()
    }

    /// Returns the chunks of all images in the directory.
    fn shared_chunks(&self) -> Option<&SharedChunks> {
        let open = || {
            let opened = SharedChunks::open(&self.cache_dir.lock());
            let opened = opened.inspect_err(|error| {
                tracing::warn!("images do not share chunks: {error}");
            });
            opened.ok()
        };
        self.shared_chunks.get_or_init(open).as_ref()
    }

    /// Returns a segment that is on disk, if it matches its tag.
    fn read_cached(&self, number: u64) -> Option<Vec<u8>> {
        let _gate = self.use_data()?;
        // Another process may have stored it.
        let tag = map::read(&self.files.map, number).unwrap_or(MISSING);
        if tag == MISSING {
            return None;
        }
        let mut segment = vec![0; self.len_of(number)];
        let read = self
            .files
            .data
            .read_exact_at(&mut segment, number * SEGMENT);
        let sound = read.is_ok() && tag == self.identity.tag(number, &segment);
        let mut state = self.lock();
        state.add(number);
        state.record_verification(number, sound);
        sound.then_some(segment)
    }

    /// Reads verified segments from disk, or from `remote` if they were evicted meanwhile.
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

    /// Stores a segment on disk with `write`, if there is space. Other images find it by `hash`.
    fn store(
        &self,
        number: u64,
        segment: &[u8],
        hash: Option<&Hash>,
        write: &dyn Fn(&File) -> io::Result<()>,
    ) {
        if !self.make_room() {
            return;
        }
        let Some(gate) = self.use_data() else {
            return;
        };
        let tag = self.identity.tag(number, segment);
        let written = write(&self.files.data);
        if let Err(error) = written.and_then(|()| map::write(&self.files.map, number, &[tag])) {
            return self.disable_writes(&error);
        }
        let mut state = self.lock();
        state.add(number);
        state.record_verification(number, true);
        let has_resumed = state.outage.succeeded();
        drop(state);
        if has_resumed {
            tracing::info!("segments of an image are stored again");
        }
        drop(gate);
        if let (Some(hash), Some(shared)) = (hash, self.shared_chunks()) {
            shared.record(number, hash);
        }
    }

    /// Returns whether there is space for a segment, evicting extents if needed.
    fn make_room(&self) -> bool {
        let mut cache_dir = self.cache_dir.lock();
        let (own, may_try) = {
            let state = self.lock();
            (state.bytes, state.outage.may_try(Instant::now()))
        };
        let is_mounted = self.kernel_reads.is_some();
        if !may_try && !is_mounted {
            return false;
        }
        let excess = cache_dir.excess(own, SEGMENT);
        // The kernel needs its segments, whatever the limit.
        excess == 0 || self.evict_for_room(excess) || is_mounted
    }

    /// Prevents eviction while the data file is used. Returns nothing during an eviction, unless
    /// the kernel reads the file: then no user re-enters.
    fn use_data(&self) -> Option<RwLockReadGuard<'_, ()>> {
        match self.kernel_reads {
            Some(_) => Some(self.eviction_lock.read()),
            None => self.eviction_lock.try_read(),
        }
    }

    /// Evicts extents of `excess` bytes because the cache is too large. Returns whether there were
    /// as many.
    fn evict_for_room(&self, excess: u64) -> bool {
        let evicted = self.evict_alone(excess);
        self.counters.evicted.fetch_add(evicted, Ordering::Relaxed);
        evicted >= excess
    }

    /// Evicts extents of `excess` bytes, as the only user of the image, or all if there are not as
    /// many. Returns their size in bytes.
    fn evict_alone(&self, excess: u64) -> u64 {
        let observed = |reads: &Arc<AllowedReads>| reads.are_observed();
        if !self.kernel_reads.as_ref().is_none_or(observed) {
            return 0;
        }
        let gate = match self.kernel_reads {
            Some(_) => Some(self.eviction_lock.write()),
            None => self.eviction_lock.try_write(),
        };
        // Other processes rely on the segments that they have verified.
        if gate.is_none() || self.files.lock_alone().is_err() {
            return 0;
        }
        let evicted = self.evict_extents(excess);
        match self.files.share() {
            Ok(()) => evicted,
            Err(_) => 0,
        }
    }

    /// Evicts extents of `excess` bytes, or all that may be evicted, and returns their size.
    fn evict_extents(&self, excess: u64) -> u64 {
        let may_evict = |number: u64| {
            let bytes = number * EXTENT * SEGMENT..(number + 1) * EXTENT * SEGMENT;
            let reads = self.kernel_reads.as_ref();
            reads.is_none_or(|reads| reads.permit_eviction(&bytes))
        };
        let mut evicted = 0;
        while evicted < excess {
            // A read that begins after the check finds the segments missing.
            let Some((number, freed)) = self.lock().pop_victim(&may_evict) else {
                break;
            };
            if let Err(error) = self.evict_extent(number) {
                self.disable_writes(&error);
                break;
            }
            evicted += freed;
        }
        evicted
    }

    /// Evicts an extent; its tags are cleared first.
    fn evict_extent(&self, number: u64) -> io::Result<()> {
        map::write(
            &self.files.map,
            number * EXTENT,
            &[MISSING; EXTENT as usize],
        )?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (at, len) = (number * EXTENT * SEGMENT, EXTENT * SEGMENT);
        Ok(fallocate(&self.files.data, how, at, len)?)
    }

    fn disable_writes(&self, error: &io::Error) {
        if self.lock().outage.failed(Instant::now()) {
            match self.kernel_reads.is_some() {
                true => tracing::error!("cannot store segments of an image: {error}"),
                false => tracing::warn!("the disk cache stores no segments for now: {error}"),
            }
        }
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
        let extent = self.extents.entry(number / EXTENT).or_insert_with(|| {
            self.order.push_back(number / EXTENT);
            Extent::default()
        });
        if extent.present & bit(number) == 0 {
            extent.present |= bit(number);
            self.bytes += SEGMENT;
        }
    }

    /// Records whether a segment matches its tag.
    fn record_verification(&mut self, number: u64, sound: bool) {
        let Some(extent) = self.extents.get_mut(&(number / EXTENT)) else {
            return;
        };
        let bit = bit(number);
        if sound {
            self.verified += u64::from(extent.verified & bit == 0);
            extent.verified |= bit;
        } else if extent.present & bit != 0 {
            self.verified -= u64::from(extent.verified & bit != 0);
            extent.verified &= !bit;
            extent.present &= !bit;
            self.bytes -= SEGMENT;
        }
    }

    /// Returns whether all these segments were verified, and marks their extents as used.
    fn are_verified(&mut self, mut numbers: Range<u64>) -> bool {
        numbers.all(|number| match self.extents.get_mut(&(number / EXTENT)) {
            Some(extent) if extent.verified & bit(number) != 0 => {
                extent.referenced = true;
                true
            }
            _ => false,
        })
    }

    /// Removes the oldest extent without a second chance that `may_evict` accepts, and returns its
    /// number and size in bytes.
    fn pop_victim(&mut self, may_evict: &dyn Fn(u64) -> bool) -> Option<(u64, u64)> {
        // Each extent has a second chance once.
        for _ in 0..2 * self.order.len() {
            let number = self.order.pop_front()?;
            let Some(extent) = self.extents.get_mut(&number) else {
                continue;
            };
            if extent.referenced || !may_evict(number) {
                extent.referenced = false;
                self.order.push_back(number);
                continue;
            }
            let bytes = u64::from(extent.present.count_ones()) * SEGMENT;
            self.verified -= u64::from(extent.verified.count_ones());
            self.extents.remove(&number);
            self.bytes -= bytes;
            return Some((number, bytes));
        }
        None
    }
}

/// Returns the runs of adjacent segments among `loads`, which are sorted.
fn runs(loads: Vec<Load<u64>>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for load in loads {
        let number = load.key();
        match runs.last_mut().filter(|run| run.numbers.end == number) {
            Some(run) => {
                run.numbers.end += 1;
                run.loads.push(load);
            }
            None => runs.push(Run {
                numbers: number..number + 1,
                loads: vec![load],
            }),
        }
    }
    runs
}

fn bit(number: u64) -> u64 {
    1 << (number % EXTENT)
}

/// Returns the segments that contain the `len` bytes from `at`.
fn segments(at: u64, len: usize) -> Range<u64> {
    match len {
        0 => 0..0,
        len => at / SEGMENT..at.saturating_add(len as u64).div_ceil(SEGMENT),
    }
}
