//! A map of numbers whose memory is close to that of its entries.
//!
//! The entries are in one vector, and a hash table of five bytes per bucket finds their places. A
//! `HashMap` has a whole entry in each bucket, of which half are empty after it has grown. Both
//! parts shrink when most entries have been removed.
//!
//! Deliberately absent: an order of the entries, and more than [`u32::MAX`] of them.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::FastRandomState;

/// A map from numbers to values.
#[derive(Debug)]
pub struct NumberMap<V> {
    /// The places of the entries.
    places: HashTable<u32>,
    entries: Vec<(u64, V)>,
    hasher: FastRandomState,
}

impl<V> Default for NumberMap<V> {
    fn default() -> NumberMap<V> {
        NumberMap {
            places: HashTable::new(),
            entries: Vec::new(),
            hasher: FastRandomState::default(),
        }
    }
}

impl<V> NumberMap<V> {
    /// A map with fewer entries does not shrink.
    const MIN_SHRINK: usize = 64;

    /// Returns the value of `number`.
    #[inline]
    pub fn get(&self, number: u64) -> Option<&V> {
        let place = self.place(number)?;
        self.entries.get(place).map(|(_, value)| value)
    }

    /// Returns the value of `number`, to be changed.
    #[inline]
    pub fn get_mut(&mut self, number: u64) -> Option<&mut V> {
        let place = self.place(number)?;
        self.entries.get_mut(place).map(|(_, value)| value)
    }

    /// Returns whether `number` has a value.
    pub fn contains(&self, number: u64) -> bool {
        self.place(number).is_some()
    }

    /// Sets the value of `number`, and returns the value that it replaces.
    ///
    /// # Panics
    ///
    /// Panics if the map has [`u32::MAX`] entries.
    pub fn insert(&mut self, number: u64, value: V) -> Option<V> {
        if let Some(old) = self.get_mut(number) {
            return Some(std::mem::replace(old, value));
        }
        let place = u32::try_from(self.entries.len()).expect("fewer entries than u32::MAX");
        let (entries, hasher) = (&self.entries, &self.hasher);
        let rehash = |&place: &u32| hasher.hash_one(entries[place as usize].0);
        self.places
            .insert_unique(hasher.hash_one(number), place, rehash);
        self.entries.push((number, value));
        None
    }

    /// Removes the value of `number`, and returns it.
    pub fn remove(&mut self, number: u64) -> Option<V> {
        let place = match self.find(number) {
            Entry::Occupied(entry) => entry.remove().0 as usize,
            Entry::Vacant(_) => return None,
        };
        // The last entry moves to the free place.
        let last = self.entries.len() - 1;
        if place != last
            && let Entry::Occupied(mut entry) = self.find(self.entries[last].0)
        {
            *entry.get_mut() = place as u32;
        }
        let (_, value) = self.entries.swap_remove(place);
        self.shrink();
        Some(value)
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entries, in any order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.entries.iter().map(|(number, value)| (*number, value))
    }

    fn place(&self, number: u64) -> Option<usize> {
        let is = |&place: &u32| self.entries[place as usize].0 == number;
        let hash = self.hasher.hash_one(number);
        self.places.find(hash, is).map(|&place| place as usize)
    }

    fn find(&mut self, number: u64) -> Entry<'_, u32> {
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.places.entry(
            hasher.hash_one(number),
            |&place| entries[place as usize].0 == number,
            |&place| hasher.hash_one(entries[place as usize].0),
        )
    }

    /// Returns memory once three quarters of it are unused.
    fn shrink(&mut self) {
        let len = self.entries.len();
        if self.entries.capacity() < Self::MIN_SHRINK || len > self.entries.capacity() / 4 {
            return;
        }
        self.entries.shrink_to(len * 2);
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.places
            .shrink_to(len * 2, |&place| hasher.hash_one(entries[place as usize].0));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_has_the_entries_of_a_hash_map_after_any_changes() {
        let mut map = NumberMap::default();
        let mut model = HashMap::new();
        let mut random = 1_u64;
        for step in 0..100_000_u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            // Grows at first, and shrinks later.
            let number = (random >> 33) % 3000;
            if (random >> 20) % 100_000 > step {
                assert_eq!(map.insert(number, step), model.insert(number, step));
            } else {
                assert_eq!(map.remove(number), model.remove(&number));
            }
            assert_eq!(map.get(number), model.get(&number));
        }
        assert_eq!(map.len(), model.len());
        assert!(map.iter().all(|(number, value)| model[&number] == *value));
    }

    #[test]
    fn the_memory_of_removed_entries_is_returned() {
        let mut map = NumberMap::default();
        for number in 0..100_000_u64 {
            map.insert(number, [0_u8; 40]);
        }
        for number in 0..99_990 {
            map.remove(number);
        }
        assert!(map.entries.capacity() <= 64, "{}", map.entries.capacity());
        assert!(map.places.capacity() <= 128, "{}", map.places.capacity());
        assert!((99_990..100_000).all(|number| map.contains(number)));
    }
}
