//! A value in shards, each with its own lock, so that requests do not share one.

use std::hash::{BuildHasher, Hash};

use parking_lot::{Mutex, MutexGuard};

use crate::FastRandomState;

/// `N` values of type `T`, such as maps, each under its own mutex. The hash of a key selects the
/// shard. `N` should exceed the number of threads that use it at once, and be a power of two.
///
/// A caller holds one shard at a time and locks nothing else meanwhile, unless its lock order says
/// otherwise. Values that it removes are dropped after the lock, as dropping may take time.
pub struct Shards<T, const N: usize> {
    hasher: FastRandomState,
    shards: [Mutex<T>; N],
}

impl<T, const N: usize> Shards<T, N> {
    /// Creates shards with the values from `make`.
    pub fn new(mut make: impl FnMut() -> T) -> Shards<T, N> {
        Shards {
            hasher: FastRandomState::default(),
            shards: std::array::from_fn(|_| Mutex::new(make())),
        }
    }

    /// Locks the shard of `key`.
    #[inline]
    pub fn lock(&self, key: &(impl Hash + ?Sized)) -> MutexGuard<'_, T> {
        self.shards[self.index(key)].lock()
    }

    /// Locks the shards of two keys, in an order that is the same for all callers. The second one
    /// is `None` if it is the first.
    pub fn lock_both(
        &self,
        key: &(impl Hash + ?Sized),
        other: &(impl Hash + ?Sized),
    ) -> (MutexGuard<'_, T>, Option<MutexGuard<'_, T>>) {
        let (first, second) = (self.index(key), self.index(other));
        if first < second {
            let locked = self.shards[first].lock();
            return (locked, Some(self.shards[second].lock()));
        }
        let other = (first != second).then(|| self.shards[second].lock());
        (self.shards[first].lock(), other)
    }

    #[inline]
    fn index(&self, key: &(impl Hash + ?Sized)) -> usize {
        // Bits that hash tables do not use: those use the low bits and the top seven.
        let hash = self.hasher.hash_one(key) >> 32;
        hash as usize % N
    }

    /// Returns the shards.
    pub fn all(&self) -> &[Mutex<T>; N] {
        &self.shards
    }
}

impl<T: Default, const N: usize> Default for Shards<T, N> {
    fn default() -> Shards<T, N> {
        Shards::new(T::default)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_key_is_always_in_the_same_shard_and_keys_spread() {
        let shards: Shards<HashMap<u64, u64>, 16> = Shards::default();
        for key in 0..1600 {
            shards.lock(&key).insert(key, key * 2);
        }
        for key in 0..1600 {
            assert_eq!(shards.lock(&key).get(&key), Some(&(key * 2)));
        }
        let sizes: Vec<_> = shards.all().iter().map(|one| one.lock().len()).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 1600);
        assert!(
            sizes.iter().all(|&size| (30..300).contains(&size)),
            "{sizes:?}"
        );
    }

    #[test]
    fn a_panic_under_the_lock_of_a_shard_leaves_it_usable() {
        let shards: Shards<u32, 1> = Shards::default();
        let panics = std::panic::AssertUnwindSafe(|| {
            *shards.lock(&0) += 1;
            let _held = shards.lock(&0);
            panic!("as a test wants it");
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(*shards.lock(&0), 1);
    }
}
