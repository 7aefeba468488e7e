//! A table by number, in parts: no lock that all requests share.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) type Shard<V> = HashMap<u64, V, NumberHash>;

pub(super) struct Shards<V>([Mutex<Shard<V>>; COUNT]);

/// More than threads work for one mount.
const COUNT: usize = 64;

impl<V> Shards<V> {
    pub(super) fn new() -> Shards<V> {
        Shards(std::array::from_fn(|_| Mutex::default()))
    }

    /// The part that a number is in.
    #[inline]
    pub(super) fn of(&self, number: u64) -> MutexGuard<'_, Shard<V>> {
        lock(&self.0[number as usize % COUNT])
    }

    /// Takes all parts out, one by one.
    pub(super) fn take(&self) -> impl Iterator<Item = Shard<V>> {
        self.0.iter().map(|shard| std::mem::take(&mut *lock(shard)))
    }
}

/// Locks what no panic leaves half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hashes numbers that are the source's or our own: a client cannot choose them.
#[derive(Clone, Copy, Default)]
pub(super) struct NumberHash;

pub(super) struct NumberHasher(u64);

impl BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    #[inline]
    fn build_hasher(&self) -> NumberHasher {
        NumberHasher(0)
    }
}

impl Hasher for NumberHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // A folded multiplication: every bit of the product counts.
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
}
