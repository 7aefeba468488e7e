//! Maps for lookups by many threads.

use core::hash::Hash;
use std::collections::HashMap;

use concurrency::Shards;

/// A map in shards. Every method holds the lock of one shard at a time and calls nothing meanwhile.
pub(super) struct Table<K, V>(Shards<HashMap<K, V>, 32>);

impl<K: Hash + Eq, V: Clone> Table<K, V> {
    pub(super) fn new() -> Table<K, V> {
        Table(Shards::default())
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.0.lock(key).get(key).cloned()
    }

    pub(super) fn insert(&self, key: K, value: V) {
        self.0.lock(&key).insert(key, value);
    }

    pub(super) fn remove(&self, key: &K) -> Option<V> {
        self.0.lock(key).remove(key)
    }

    /// Returns all values, shard by shard.
    pub(super) fn all(&self) -> Vec<V> {
        let mut all = Vec::new();
        for shard in self.0.all() {
            all.extend(shard.lock().values().cloned());
        }
        all
    }
}
