//! Caches by kernel handle, so that few events have to open an object.
//!
//! A mark of a file system reports what all of its programs do, most of which no client knows. Of
//! that little is remembered. Of the objects that clients know, all are, up to a limit: their
//! numbers cannot be learned any more once they are removed.

use std::collections::HashMap;

use vfs::NodeId;

/// A kernel handle in as many bytes as it has.
pub(super) type HandleKey = Box<[u8]>;

/// The most objects that clients know.
const MAX_KNOWN: usize = 1 << 15;

/// The number of known objects from which those that clients have forgotten are removed.
const MIN_PURGE: usize = 1 << 10;

/// Half of the most other objects. The memory of both halves is about half a mebibyte.
const MAX_RECENT: usize = 1 << 11;

/// Values by handle: of the objects that clients know, and of those that events were about lately.
pub(super) struct Remembered<V> {
    known: HashMap<HandleKey, (NodeId, V)>,
    /// The length of `known` at which it is purged.
    purge_at: usize,
    recent: Recent<V>,
}

/// A number of values by handle, which were inserted or used last.
pub(super) struct Recent<V> {
    newer: HashMap<HandleKey, V>,
    older: HashMap<HandleKey, V>,
}

impl<V> Default for Remembered<V> {
    fn default() -> Remembered<V> {
        Remembered {
            known: HashMap::new(),
            purge_at: MIN_PURGE,
            recent: Recent::default(),
        }
    }
}

impl<V: Clone> Remembered<V> {
    pub(super) fn get(&mut self, key: &HandleKey) -> Option<V> {
        match self.known.get(key) {
            Some((_, value)) => Some(value.clone()),
            None => self.recent.get(key),
        }
    }

    /// Remembers the value of an object with the number `id`, if that is known and of interest to
    /// a client. `is_known` returns whether clients know an object.
    pub(super) fn insert(
        &mut self,
        key: HandleKey,
        id: Option<NodeId>,
        value: V,
        is_known: impl Fn(NodeId) -> bool,
    ) {
        let Some(id) = id.filter(|&id| is_known(id)) else {
            self.known.remove(&key);
            self.recent.insert(key, value);
            return;
        };
        if self.known.len() >= self.purge_at {
            self.known.retain(|_, (id, _)| is_known(*id));
            self.purge_at = (self.known.len() * 2).clamp(MIN_PURGE, MAX_KNOWN);
            self.known.shrink_to(self.purge_at);
        }
        if self.known.len() < MAX_KNOWN {
            self.recent.remove(&key);
            self.known.insert(key, (id, value));
        } else {
            self.recent.insert(key, value);
        }
    }

    pub(super) fn remove(&mut self, key: &HandleKey) {
        self.known.remove(key);
        self.recent.remove(key);
    }

    pub(super) fn clear(&mut self) {
        *self = Remembered::default();
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.known.len() + self.recent.newer.len() + self.recent.older.len()
    }
}

impl<V> Default for Recent<V> {
    fn default() -> Recent<V> {
        Recent {
            newer: HashMap::new(),
            older: HashMap::new(),
        }
    }
}

impl<V: Clone> Recent<V> {
    pub(super) fn get(&mut self, key: &HandleKey) -> Option<V> {
        if let Some(value) = self.newer.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.older.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    pub(super) fn insert(&mut self, key: HandleKey, value: V) {
        if self.newer.len() >= MAX_RECENT {
            self.older = std::mem::take(&mut self.newer);
        }
        self.older.remove(&key);
        self.newer.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &HandleKey) {
        self.newer.remove(key);
        self.older.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> HandleKey {
        number.to_le_bytes().into()
    }

    #[test]
    fn objects_that_no_client_knows_take_constant_memory_and_go_one_after_the_other() {
        let mut objects = Remembered::default();
        for number in 0..200_000 {
            objects.insert(key(number), Some(number), number, |_| false);
            assert!(objects.len() <= 2 * MAX_RECENT);
            // One in use stays.
            assert_eq!(objects.get(&key(0)), Some(0));
        }
        assert_eq!(objects.get(&key(199_000)), Some(199_000));
    }

    #[test]
    fn objects_that_clients_know_stay_until_they_are_forgotten() {
        let mut objects = Remembered::default();
        for number in 0..20_000 {
            objects.insert(key(number), Some(number), number, |_| true);
        }
        for number in 100_000..150_000 {
            objects.insert(key(number), None, number, |_| true);
        }
        assert!((0..20_000).all(|number| objects.get(&key(number)) == Some(number)));
        // Clients have forgotten those by the next purge.
        for number in 200_000..240_000 {
            objects.insert(key(number), Some(number), number, |id| id >= 239_000);
        }
        assert!(objects.len() <= 2 * MAX_RECENT + MAX_KNOWN);
        for number in 300_000..300_000 + MAX_KNOWN as u64 {
            objects.insert(key(number), Some(number), number, |id| id >= 300_000);
        }
        assert!(objects.known.len() <= MAX_KNOWN);
        assert_eq!(objects.get(&key(0)), None);
    }
}
