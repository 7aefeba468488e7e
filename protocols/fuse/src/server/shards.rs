//! A table by number, in parts: no lock that all requests share.
//!
//! A mount has one life after the other, each begun by INIT. Every part knows which it is in: what an earlier life
//! still wants of it, it does not get.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) type Shard<V> = HashMap<u64, V, NumberHash>;

/// Which life of a mount; a later one is greater.
pub(super) type Life = u64;

pub(super) struct Shards<V>([Mutex<Part<V>>; COUNT]);

pub(super) struct Part<V> {
    life: Life,
    pub(super) table: Shard<V>,
}

/// More than threads work for one mount.
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

    /// The part that a number is in, if this is its life.
    #[inline]
    pub(super) fn of(&self, life: Life, number: u64) -> Option<MutexGuard<'_, Part<V>>> {
        Some(lock(&self.0[number as usize % COUNT])).filter(|part| part.life == life)
    }

    /// A life begins: what there was of the one before is taken out.
    pub(super) fn begin(&self, life: Life) -> Vec<Shard<V>> {
        let begin = |part: &Mutex<Part<V>>| {
            let mut part = lock(part);
            part.life = life;
            std::mem::take(&mut part.table)
        };
        self.0.iter().map(begin).collect()
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
