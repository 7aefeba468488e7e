//! A bounded map that evicts entries not used recently (second chance, or on request), in shards to
//! reduce lock contention.

use std::collections::HashMap;
use std::hash::Hash;

use concurrency::Shards;
use parking_lot::MutexGuard;

/// A bounded map with second-chance eviction.
pub(crate) struct Cache<K, V> {
    shards: Shards<Shard<K, V>, SHARDS>,
}

struct Shard<K, V> {
    index: HashMap<K, usize>,
    slots: Vec<Slot<K, V>>,
    max: usize,
    /// The slot that the next eviction looks at first.
    hand: usize,
}

struct Slot<K, V> {
    key: K,
    value: V,
    /// Used since the hand last passed, or since the last `forget_unused`.
    used: bool,
    /// Inserted since the last `forget_unused`.
    fresh: bool,
}

const SHARDS: usize = 16;

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// Creates a cache of about `most` values.
    pub(crate) fn new(most: usize) -> Cache<K, V> {
        Cache {
            shards: Shards::new(|| Shard {
                index: HashMap::new(),
                slots: Vec::new(),
                max: most.div_ceil(SHARDS),
                hand: 0,
            }),
        }
    }

    /// Returns the value of `key`.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut shard = self.shard(key);
        let at = *shard.index.get(key)?;
        let slot = &mut shard.slots[at];
        slot.used = true;
        Some(slot.value.clone())
    }

    /// Inserts `value` at `key`.
    pub(crate) fn put(&self, key: K, value: V) {
        // The evicted value is dropped without the lock: it may be the last reference to a file.
        let _gone = self.shard(&key).put(key, value);
    }

    /// Removes `key`.
    pub(crate) fn remove(&self, key: &K) {
        let _gone = self.shard(key).remove(key);
    }

    /// Removes all entries that `keep` returns `false` for.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&K, &V) -> bool) {
        self.retain_slots(|slot| keep(&slot.key, &slot.value));
    }

    /// Removes all entries that have been neither inserted nor used since the previous call.
    pub(crate) fn forget_unused(&self) {
        self.retain_slots(|slot| {
            let used = std::mem::take(&mut slot.used);
            std::mem::take(&mut slot.fresh) || used
        });
    }

    fn retain_slots(&self, mut keep: impl FnMut(&mut Slot<K, V>) -> bool) {
        for shard in self.shards.all() {
            let mut shard = shard.lock();
            let goes: Vec<K> = shard
                .slots
                .iter_mut()
                .filter_map(|slot| (!keep(slot)).then(|| slot.key.clone()))
                .collect();
            let _gone: Vec<_> = goes.iter().map(|key| shard.remove(key)).collect();
            drop(shard);
        }
    }

    fn shard(&self, key: &K) -> MutexGuard<'_, Shard<K, V>> {
        self.shards.lock(key)
    }
}

impl<K: Hash + Eq + Clone, V> Shard<K, V> {
    fn put(&mut self, key: K, value: V) -> Option<Slot<K, V>> {
        let mut slot = Slot {
            key: key.clone(),
            value,
            used: false,
            fresh: true,
        };
        if let Some(&at) = self.index.get(&key) {
            slot.used = self.slots[at].used;
            return Some(std::mem::replace(&mut self.slots[at], slot));
        }
        if self.slots.len() < self.max {
            self.index.insert(key, self.slots.len());
            self.slots.push(slot);
            return None;
        }
        while std::mem::take(&mut self.slots[self.hand].used) {
            self.hand = (self.hand + 1) % self.slots.len();
        }
        self.index.insert(key, self.hand);
        let evicted = std::mem::replace(&mut self.slots[self.hand], slot);
        self.index.remove(&evicted.key);
        self.hand = (self.hand + 1) % self.slots.len();
        Some(evicted)
    }

    fn remove(&mut self, key: &K) -> Option<Slot<K, V>> {
        let at = self.index.remove(key)?;
        let removed = self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.index.insert(moved.key.clone(), at);
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_bound_holds() {
        let cache = Cache::new(SHARDS * 4);
        cache.put(0u32, 0u32);
        for key in 1..10_000 {
            cache.put(key, key);
            assert_eq!(cache.get(&0), Some(0), "asked for all the time");
        }
        let count = (0..10_000).filter(|key| cache.get(key).is_some()).count();
        assert_eq!(count, SHARDS * 4);
        cache.remove(&0);
        assert_eq!(cache.get(&0), None);
        cache.put(1, 2);
        assert_eq!(cache.get(&1), Some(2));
        cache.retain(|_, _| false);
        assert_eq!(cache.get(&1), None);
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let cache = Cache::new(SHARDS * 4);
        cache.put(1u32, ());
        cache.put(2, ());
        cache.forget_unused();
        assert_eq!(cache.get(&1), Some(()), "put in just before");
        cache.forget_unused();
        assert_eq!((cache.get(&2), cache.get(&1)), (None, Some(())));
        cache.forget_unused();
        assert_eq!(cache.get(&1), Some(()), "asked for in between");
        cache.put(1, ());
        cache.forget_unused();
        cache.forget_unused();
        assert_eq!(cache.get(&1), None);
    }

    proptest::proptest! {
        #[test]
        fn it_is_a_map_as_long_as_there_is_room(
            steps in proptest::collection::vec((0u8..20, proptest::option::of(0u8..9)), 0..200)
        ) {
            let cache = Cache::new(SHARDS * 32);
            let mut model = std::collections::HashMap::new();
            for (key, value) in steps {
                match value {
                    Some(value) => {
                        cache.put(key, value);
                        model.insert(key, value);
                    }
                    None => {
                        cache.remove(&key);
                        model.remove(&key);
                    }
                }
                for key in 0..20 {
                    proptest::prop_assert_eq!(cache.get(&key), model.get(&key).copied());
                }
            }
        }
    }
}
