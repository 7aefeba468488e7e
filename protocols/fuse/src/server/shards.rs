//! A sharded table keyed by number: no lock is shared by all requests.
//!
//! A mount has one incarnation after the other, each begun by INIT. Every shard records the current
//! one, and is not accessible to requests of an earlier one.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) type Shard<V> = HashMap<u64, V, NumberHash>;

/// The number of a mount's incarnation; a later one is greater.
pub(super) type Life = u64;

pub(super) struct Shards<V>([Mutex<Part<V>>; COUNT]);

pub(super) struct Part<V> {
    life: Life,
    pub(super) table: Shard<V>,
}

/// More than the threads that work for one mount.
const COUNT: usize = 64;

impl<V> Shards<V> {
    pub(super) fn new() -> Shards<V> {
        Shards(std::array::from_fn(|_| {
            Mutex::new(Part {
                life: 0,
                table: Shard::default(),
            })
        }))
    }

    /// Returns the locked shard of a number, if `life` is its incarnation.
    #[inline]
    pub(super) fn of(&self, life: Life, number: u64) -> Option<MutexGuard<'_, Part<V>>> {
        Some(lock(&self.0[number as usize % COUNT])).filter(|part| part.life == life)
    }

    /// Begins an incarnation, and returns the previous one's entries.
    pub(super) fn begin(&self, life: Life) -> Vec<Shard<V>> {
        let begin = |part: &Mutex<Part<V>>| {
            let mut part = lock(part);
            part.life = life;
            std::mem::take(&mut part.table)
        };
        self.0.iter().map(begin).collect()
    }
}

/// Locks data that a panic cannot leave inconsistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hashes numbers chosen by the source or by this server: a client cannot choose them.
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
