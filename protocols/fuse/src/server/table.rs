//! A table keyed by number, in shards: no lock is shared by all requests.
//!
//! A mount has one incarnation after the other, each begun by INIT. Every shard records the current
//! one, and is not accessible to requests of an earlier one.

use concurrency::{NumberMap, Shards};
use parking_lot::{Mutex, MutexGuard};

/// The entries of a shard.
pub(super) type Entries<V> = NumberMap<V>;

/// The number of a mount's incarnation; a later one is greater.
pub(super) type Incarnation = u64;

pub(super) struct Table<V>(Shards<Shard<V>, SHARDS>);

pub(super) struct Shard<V> {
    incarnation: Incarnation,
    pub(super) entries: Entries<V>,
}

/// More than the threads that work for one mount.
const SHARDS: usize = 64;

impl<V> Table<V> {
    pub(super) fn new() -> Table<V> {
        Table(Shards::new(|| Shard {
            incarnation: 0,
            entries: Entries::default(),
        }))
    }

    /// Locks the shard of a number, if `incarnation` is the current one.
    #[inline]
    pub(super) fn shard(
        &self,
        incarnation: Incarnation,
        number: u64,
    ) -> Option<MutexGuard<'_, Shard<V>>> {
        Some(self.0.lock(&number)).filter(|shard| shard.incarnation == incarnation)
    }

    /// Passes the numbers of all entries to `each`, if `incarnation` is the current one. No lock is
    /// held meanwhile: each shard's numbers are copied.
    pub(super) fn for_each_key(&self, incarnation: Incarnation, mut each: impl FnMut(u64)) {
        let mut keys = Vec::new();
        for shard in self.0.all() {
            let shard = shard.lock();
            if shard.incarnation == incarnation {
                keys.extend(shard.entries.iter().map(|(key, _)| key));
            }
            drop(shard);
            keys.drain(..).for_each(&mut each);
        }
    }

    /// Returns the results of `map` for all entries, if `incarnation` is the current one. `map` is
    /// called with a shard locked.
    pub(super) fn snapshot<T>(
        &self,
        incarnation: Incarnation,
        map: impl Fn(u64, &V) -> T,
    ) -> Vec<T> {
        let mut all = Vec::new();
        for shard in self.0.all() {
            let shard = shard.lock();
            if shard.incarnation == incarnation {
                all.extend(shard.entries.iter().map(|(key, value)| map(key, value)));
            }
        }
        all
    }

    /// Begins an incarnation, and returns the previous one's entries.
    pub(super) fn begin(&self, incarnation: Incarnation) -> Vec<Entries<V>> {
        let begin = |shard: &Mutex<Shard<V>>| {
            let mut shard = shard.lock();
            shard.incarnation = incarnation;
            std::mem::take(&mut shard.entries)
        };
        self.0.all().iter().map(begin).collect()
    }
}
