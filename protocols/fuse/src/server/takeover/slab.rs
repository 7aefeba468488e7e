//! Records of one kind in shared memory: a fixed number of places, each of a few words.
//!
//! The first word of a record is not 0; it is written last and cleared first, so that a record is
//! complete whenever its writer is killed. Memory beyond the highest place that was ever used is
//! untouched and takes no space.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The position of the records in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Region {
    /// The word of the header with the number of places that were ever used.
    pub(super) used: usize,
    /// The first word.
    pub(super) first: usize,
    /// The words of a record.
    pub(super) width: usize,
    /// The maximum number of records.
    pub(super) capacity: usize,
}

impl Region {
    /// Returns the first word after the records.
    pub(super) const fn end(&self) -> usize {
        self.first + self.width * self.capacity
    }
}

/// The place of a record.
pub(crate) type Place = u32;

/// The records, and the places that are free.
pub(super) struct Slab {
    region: Region,
    /// Free places among those that were used.
    free: Mutex<Vec<Place>>,
}

impl Slab {
    /// Returns the records in `memory`, which another process may have left there.
    pub(super) fn new(region: Region, memory: &[AtomicU64]) -> Slab {
        let slab = Slab {
            region,
            free: Mutex::default(),
        };
        let free = (0..slab.used(memory)).rev();
        let free = free.filter(|&place| slab.words(memory, place)[0].load(Ordering::Acquire) == 0);
        *slab.free.lock() = free.collect();
        slab
    }

    /// Returns the number of places that were ever used, whatever the memory says at most the
    /// capacity.
    fn used(&self, memory: &[AtomicU64]) -> Place {
        let used = memory[self.region.used].load(Ordering::Acquire);
        used.min(self.region.capacity as u64) as Place
    }

    /// Returns the words of a record.
    pub(super) fn words<'m>(&self, memory: &'m [AtomicU64], place: Place) -> &'m [AtomicU64] {
        let at = self.region.first + place as usize * self.region.width;
        &memory[at..at + self.region.width]
    }

    /// Adds a record, whose first word is not 0. Returns `None` if there is no place.
    pub(super) fn add(&self, memory: &[AtomicU64], record: &[u64]) -> Option<Place> {
        debug_assert_eq!(record.len(), self.region.width);
        debug_assert_ne!(record[0], 0);
        let mut free = self.free.lock();
        let place = match free.pop() {
            Some(place) => place,
            None => {
                let place = self.used(memory);
                if place as usize == self.region.capacity {
                    return None;
                }
                memory[self.region.used].store(u64::from(place) + 1, Ordering::Release);
                place
            }
        };
        drop(free);
        let words = self.words(memory, place);
        for (word, value) in words.iter().zip(record).skip(1) {
            word.store(*value, Ordering::Relaxed);
        }
        words[0].store(record[0], Ordering::Release);
        Some(place)
    }

    /// Removes a record.
    pub(super) fn remove(&self, memory: &[AtomicU64], place: Place) {
        self.words(memory, place)[0].store(0, Ordering::Release);
        self.free.lock().push(place);
    }

    /// Removes all records, while no other thread adds one.
    pub(super) fn clear(&self, memory: &[AtomicU64]) {
        let mut free = self.free.lock();
        free.clear();
        for place in 0..self.used(memory) {
            self.words(memory, place)[0].store(0, Ordering::Release);
        }
        memory[self.region.used].store(0, Ordering::Release);
    }

    /// Returns all records of `N` words with their places.
    pub(super) fn all<const N: usize>(&self, memory: &[AtomicU64]) -> Vec<(Place, [u64; N])> {
        debug_assert_eq!(N, self.region.width);
        let read = |place| {
            let words = self.words(memory, place);
            let mut record = [0; N];
            for (value, word) in record.iter_mut().zip(words) {
                *value = word.load(Ordering::Acquire);
            }
            (record[0] != 0).then_some((place, record))
        };
        (0..self.used(memory)).filter_map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region {
        used: 0,
        first: 1,
        width: 2,
        capacity: 3,
    };

    fn memory() -> Vec<AtomicU64> {
        (0..REGION.end()).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn records_are_found_again_and_their_places_are_reused() {
        let memory = memory();
        let slab = Slab::new(REGION, &memory);
        let places = [5, 6, 7].map(|id| slab.add(&memory, &[id, id * 10]));
        assert_eq!(places, [Some(0), Some(1), Some(2)]);
        assert_eq!(slab.add(&memory, &[8, 80]), None);
        slab.remove(&memory, 1);
        let slab = Slab::new(REGION, &memory);
        assert_eq!(
            slab.all::<2>(&memory),
            [(0, [5, 50]), (2, [7, 70])],
            "a successor sees them"
        );
        assert_eq!(slab.add(&memory, &[8, 80]), Some(1));
        slab.clear(&memory);
        assert_eq!(slab.all::<2>(&memory), []);
        assert_eq!(slab.add(&memory, &[9, 90]), Some(0));
    }

    #[test]
    fn a_wrong_number_of_places_is_clamped() {
        let memory = memory();
        memory[0].store(u64::MAX, Ordering::Relaxed);
        let slab = Slab::new(REGION, &memory);
        assert_eq!(slab.all::<2>(&memory), []);
        assert_eq!(slab.add(&memory, &[1, 1]), Some(0));
    }
}
