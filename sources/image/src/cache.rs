//! A bounded cache of bytes that were read or decoded.
//!
//! An entry is loaded once, however many callers request it: the others wait, or get `WOULD_BLOCK`.
//! When the entries exceed the cache's limit, the oldest entry not used since it was inserted or
//! last passed over is evicted (second chance, CLOCK), so a long scan does not evict entries in
//! repeated use. Entries unused for [`IDLE`] are evicted as well.

use std::collections::hash_map::Entry as Place;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use vfs::source_stats::CacheStats;
use vfs::{Errno, Result};

/// The idle time after which an entry is evicted: a build or a boot is over by then, and another
/// read is cheap.
pub(crate) const IDLE: Duration = Duration::from_secs(120);

/// The size in bytes below which a cache is not worth an eviction thread.
const MIN_EVICTOR_SIZE: u64 = 1 << 20;

/// The number of ageing rounds in [`IDLE`].
const ROUNDS: u32 = 4;

/// A cache of byte strings.
pub(crate) struct Cache<K> {
    cap: u64,
    state: Mutex<State<K>>,
    /// The number of calls of [`Cache::age`].
    round: AtomicU32,
    hits: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
}

struct State<K> {
    slots: HashMap<K, Slot>,
    /// Loaded keys, in the order they were inserted or last passed over.
    order: VecDeque<K>,
    bytes: u64,
    /// Whether a thread ages the cache.
    evictor_running: bool,
}

enum Slot {
    Ready {
        bytes: Arc<[u8]>,
        round: u32,
        referenced: bool,
    },
    Loading(Arc<Loading>),
}

/// A load in progress that other callers can wait for.
#[derive(Default)]
struct Loading {
    done: Mutex<Option<Result<Arc<[u8]>>>>,
    settled: Condvar,
}

/// The result of [`Cache::claim`].
pub(crate) enum Claim<K: Copy + Eq + Hash + Send + 'static> {
    /// The entry is loaded.
    Ready(Arc<[u8]>),
    /// The caller has to load the entry.
    Load(Load<K>),
    /// Another caller is loading the entry.
    Wait(PendingLoad),
}

/// A load owned by the caller. If it is dropped before it is settled, waiting callers get `EIO`.
pub(crate) struct Load<K: Copy + Eq + Hash + Send + 'static> {
    cache: Arc<Cache<K>>,
    key: K,
    settled: bool,
}

impl<K: Copy + Eq + Hash + Send + 'static> Load<K> {
    /// Returns the key to load.
    pub(crate) fn key(&self) -> K {
        self.key
    }

    /// Ends the load with the bytes or an error. All waiting callers get the result; an error is
    /// not cached.
    pub(crate) fn settle(mut self, result: Result<Arc<[u8]>>) {
        self.settled = true;
        self.cache.settle(self.key, result);
    }
}

impl<K: Copy + Eq + Hash + Send + 'static> Drop for Load<K> {
    fn drop(&mut self) {
        if !self.settled {
            self.cache.settle(self.key, Err(Errno::EIO));
        }
    }
}

/// A load owned by another caller.
pub(crate) struct PendingLoad(Arc<Loading>);

impl PendingLoad {
    /// Waits until the load is settled.
    pub(crate) fn wait(self) -> Result<Arc<[u8]>> {
        let mut done = self.0.done.lock();
        loop {
            if let Some(done) = &*done {
                return done.clone();
            }
            self.0.settled.wait(&mut done);
        }
    }
}

impl<K: Copy + Eq + Hash + Send + 'static> Cache<K> {
    /// Creates a cache of up to `cap` bytes, not counting loads in progress.
    pub(crate) fn new(cap: u64) -> Arc<Cache<K>> {
        Arc::new(Cache {
            cap,
            state: Mutex::new(State {
                slots: HashMap::new(),
                order: VecDeque::new(),
                bytes: 0,
                evictor_running: false,
            }),
            round: AtomicU32::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    /// Returns the maximum size in bytes.
    pub(crate) fn cap(&self) -> u64 {
        self.cap
    }

    /// Returns the entry of `key`, if it is loaded.
    pub(crate) fn get(&self, key: K) -> Option<Arc<[u8]>> {
        let ready = self.lock().ready(&key, self.round.load(Ordering::Relaxed));
        if ready.is_some() {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        ready
    }

    /// Returns whether `key` is loaded, without counting as a use.
    pub(crate) fn has(&self, key: K) -> bool {
        matches!(self.lock().slots.get(&key), Some(Slot::Ready { .. }))
    }

    /// Returns the entry of `key` or its load in progress, or starts a load that the caller has to
    /// settle.
    pub(crate) fn claim(self: &Arc<Self>, key: K) -> Claim<K> {
        let mut state = self.lock();
        if let Some(bytes) = state.ready(&key, self.round.load(Ordering::Relaxed)) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Claim::Ready(bytes);
        }
        match state.slots.entry(key) {
            Place::Vacant(entry) => {
                entry.insert(Slot::Loading(Arc::default()));
                self.misses.fetch_add(1, Ordering::Relaxed);
                Claim::Load(Load {
                    cache: self.clone(),
                    key,
                    settled: false,
                })
            }
            Place::Occupied(entry) => match entry.get() {
                Slot::Loading(loading) => Claim::Wait(PendingLoad(loading.clone())),
                Slot::Ready { bytes, .. } => Claim::Ready(bytes.clone()),
            },
        }
    }

    fn settle(self: &Arc<Self>, key: K, result: Result<Arc<[u8]>>) {
        let mut state = self.lock();
        let slot = match &result {
            Ok(bytes) => {
                state.bytes += bytes.len() as u64;
                state.order.push_back(key);
                let ready = Slot::Ready {
                    bytes: bytes.clone(),
                    round: self.round.load(Ordering::Relaxed),
                    referenced: false,
                };
                state.slots.insert(key, ready)
            }
            Err(_) => state.slots.remove(&key),
        };
        let before = state.bytes;
        state.shrink(self.cap);
        self.count_evicted(before - state.bytes);
        let watch = !state.evictor_running && state.bytes >= MIN_EVICTOR_SIZE;
        state.evictor_running |= watch;
        drop(state);
        if let Some(Slot::Loading(loading)) = slot {
            *loading.done.lock() = Some(result);
            loading.settled.notify_all();
        }
        if watch {
            spawn_evictor(Arc::downgrade(self));
        }
    }

    /// Evicts entries not used during the last [`ROUNDS`] calls; returns whether any are left.
    pub(crate) fn age(&self) -> bool {
        let now = self.round.fetch_add(1, Ordering::Relaxed) + 1;
        let mut state = self.lock();
        let state = &mut *state;
        let before = state.bytes;
        state.order.retain(|key| match state.slots.get(key) {
            Some(Slot::Ready { bytes, round, .. }) if now.wrapping_sub(*round) >= ROUNDS => {
                state.bytes -= bytes.len() as u64;
                state.slots.remove(key);
                false
            }
            _ => true,
        });
        self.count_evicted(before - state.bytes);
        state.evictor_running = state.bytes > 0;
        state.evictor_running
    }

    /// Returns the statistics so far.
    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            bytes: self.lock().bytes,
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            limit: self.cap,
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Releases all entries, except for loads in progress, and returns their size in bytes. Readers
    /// of an entry keep it.
    pub(crate) fn clear(&self) -> u64 {
        let mut state = self.lock();
        state
            .slots
            .retain(|_, slot| matches!(slot, Slot::Loading(_)));
        state.order.clear();
        std::mem::take(&mut state.bytes)
    }

    /// Releases the entries of `keys`, except for loads in progress.
    pub(crate) fn remove(&self, keys: impl Iterator<Item = K>) {
        let mut state = self.lock();
        let state = &mut *state;
        for key in keys {
            if let Some(Slot::Ready { bytes, .. }) = state.slots.get(&key) {
                state.bytes -= bytes.len() as u64;
                state.slots.remove(&key);
            }
        }
        let slots = &state.slots;
        state.order.retain(|key| slots.contains_key(key));
    }

    fn count_evicted(&self, bytes: u64) {
        self.evicted.fetch_add(bytes, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock()
    }
}

impl<K: Copy + Eq + Hash> State<K> {
    fn ready(&mut self, key: &K, now: u32) -> Option<Arc<[u8]>> {
        match self.slots.get_mut(key)? {
            Slot::Ready {
                bytes,
                round,
                referenced: again,
            } => {
                *round = now;
                *again = true;
                Some(bytes.clone())
            }
            Slot::Loading(_) => None,
        }
    }

    /// Evicts the oldest entries without a second chance until the rest fits.
    fn shrink(&mut self, cap: u64) {
        while self.bytes > cap {
            let Some(key) = self.order.pop_front() else {
                return;
            };
            match self.slots.get_mut(&key) {
                Some(Slot::Ready {
                    referenced: again, ..
                }) if *again => {
                    *again = false;
                    self.order.push_back(key);
                }
                _ => {
                    if let Some(Slot::Ready { bytes, .. }) = self.slots.remove(&key) {
                        self.bytes -= bytes.len() as u64;
                    }
                }
            }
        }
    }
}

/// Ages a cache until it is empty or dropped.
fn spawn_evictor<K: Copy + Eq + Hash + Send + 'static>(cache: Weak<Cache<K>>) {
    let watch = move || {
        loop {
            std::thread::sleep(IDLE / ROUNDS);
            match cache.upgrade() {
                Some(cache) if cache.age() => {}
                _ => return,
            }
        }
    };
    let thread = std::thread::Builder::new().name("image-cache".into());
    if let Err(error) = thread.spawn(watch) {
        tracing::warn!("cannot start the thread that frees idle image caches: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &Arc<Cache<u32>>, key: u32, len: usize) {
        ours(cache, key).settle(Ok(vec![key as u8; len].into()));
    }

    fn ours(cache: &Arc<Cache<u32>>, key: u32) -> Load<u32> {
        match cache.claim(key) {
            Claim::Load(load) => load,
            _ => panic!("nobody has loaded {key}"),
        }
    }

    fn is_there(cache: &Cache<u32>, key: u32) -> bool {
        cache.get(key).is_some()
    }

    #[test]
    fn no_more_than_the_cap_is_held() {
        let cache = Cache::new(100);
        for key in 0..50 {
            put(&cache, key, 30);
            assert!(cache.stats().bytes <= 100);
        }
        assert!(is_there(&cache, 49) && !is_there(&cache, 0));
        put(&cache, 50, 1000);
        assert!(cache.stats().bytes <= 100 && !is_there(&cache, 50));
    }

    #[test]
    fn what_is_used_again_outlasts_a_scan() {
        let cache = Cache::new(100);
        put(&cache, 1, 30);
        for key in 10..40 {
            assert!(is_there(&cache, 1), "{key}");
            put(&cache, key, 30);
        }
    }

    #[test]
    fn what_idles_is_freed() {
        let cache = Cache::new(100);
        put(&cache, 1, 30);
        put(&cache, 2, 30);
        for _ in 1..ROUNDS {
            assert!(cache.age());
            assert!(is_there(&cache, 2));
        }
        assert!(cache.age());
        assert!(!is_there(&cache, 1) && is_there(&cache, 2));
        for _ in 0..ROUNDS {
            cache.age();
        }
        assert_eq!(cache.stats().bytes, 0);
    }

    #[test]
    fn what_is_removed_is_gone_and_all_else_is_there() {
        let cache = Cache::new(100);
        for key in 1..4 {
            put(&cache, key, 30);
        }
        let load = ours(&cache, 7);
        for _ in 0..3 {
            cache.remove([2, 7, 8].into_iter());
            assert!(is_there(&cache, 1) && !is_there(&cache, 2) && is_there(&cache, 3));
            assert_eq!(cache.stats().bytes, 60);
            put(&cache, 2, 30);
            assert_eq!(cache.lock().order.len(), 3);
        }
        load.settle(Ok([].into()));
    }

    #[test]
    fn a_load_is_shared() {
        let cache = Cache::new(100);
        let load = ours(&cache, 7);
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let Claim::Wait(theirs) = cache.claim(7) else {
                    panic!("it is being loaded");
                };
                std::thread::spawn(|| theirs.wait())
            })
            .collect();
        load.settle(Ok(vec![7; 3].into()));
        for waiter in waiters {
            assert_eq!(waiter.join().expect("no panic").as_deref(), Ok(&[7; 3][..]));
        }
        assert_eq!(cache.stats().misses, 1);
    }

    #[test]
    fn a_failure_is_told_and_forgotten() {
        let cache: Arc<Cache<u32>> = Cache::new(100);
        for dropped in [false, true] {
            let load = ours(&cache, 7);
            let Claim::Wait(theirs) = cache.claim(7) else {
                panic!("it is being loaded");
            };
            match dropped {
                false => load.settle(Err(Errno::EIO)),
                true => drop(load),
            }
            assert_eq!(theirs.wait(), Err(Errno::EIO));
        }
        ours(&cache, 7);
    }
}
