//! Maps for lookups by many threads.

use core::hash::{BuildHasher, Hash};
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// A map in shards, each with its own lock. Every method holds the lock of one shard at a time and
/// calls nothing meanwhile.
pub(super) struct Table<K, V> {
    hash: RandomState,
    parts: [RwLock<HashMap<K, V>>; PARTS],
}

/// More than the number of threads that look things up at once.
const PARTS: usize = 32;

impl<K: Hash + Eq, V: Clone> Table<K, V> {
    pub(super) fn new() -> Table<K, V> {
        Table {
            hash: RandomState::new(),
            parts: std::array::from_fn(|_| RwLock::default()),
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        let part = self.part(key).read();
        part.unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned()
    }

    pub(super) fn insert(&self, key: K, value: V) {
        let part = self.part(&key).write();
        part.unwrap_or_else(PoisonError::into_inner)
            .insert(key, value);
    }

    pub(super) fn remove(&self, key: &K) -> Option<V> {
        let part = self.part(key).write();
        part.unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    /// Returns all values, shard by shard.
    pub(super) fn all(&self) -> Vec<V> {
        let mut all = Vec::new();
        for part in &self.parts {
            let part = part.read().unwrap_or_else(PoisonError::into_inner);
            all.extend(part.values().cloned());
        }
        all
    }

    fn part(&self, key: &K) -> &RwLock<HashMap<K, V>> {
        &self.parts[self.hash.hash_one(key) as usize % PARTS]
    }
}

/// Locks a mutex whose data no panic leaves inconsistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
