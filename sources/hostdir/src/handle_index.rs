//! The last known locations of nodes with handles, for file systems without kernel handles.
//!
//! An entry holds a node's number, its parent's, its name there, and the incarnation of the inode
//! number. It is only a hint: users open the name and compare the incarnation. With a [`Log`] the
//! index outlives the program.
//!
//! Lock order: the locations' mutex last, and held while the log is written.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use vfs::NodeId;

mod log;

use self::log::Log;

/// The most nodes that can be found by name after they were dropped: some 30 MiB.
const MAX_LOCATIONS: usize = 1 << 18;

/// Time between attempts to write a log that could not be written.
const RETRY: Duration = Duration::from_secs(2);

/// The locations of nodes. When it is full the oldest locations are dropped, and their handles
/// become stale unless the node is live.
#[derive(Default)]
pub(crate) struct HandleIndex(Mutex<Locations>);

#[derive(Default)]
struct Locations {
    by_id: HashMap<NodeId, Location>,
    order: VecDeque<NodeId>,
    log: Option<Log>,
    /// The time of the last error, if the log lacks locations.
    failed: Option<Instant>,
}

/// The location of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) parent: NodeId,
    pub(crate) name: Box<[u8]>,
    pub(crate) incarnation: u64,
}

impl HandleIndex {
    /// Loads the locations logged at `path`, and logs there from now on.
    pub(crate) fn persist_at(&self, path: &Path) -> io::Result<()> {
        let (log, recorded) = Log::open(path)?;
        let mut locations = self.locations();
        for (id, location) in recorded {
            locations.insert(id, location);
        }
        locations.log = Some(log);
        // Compacts repeated records.
        locations.compact();
        Ok(())
    }

    /// Returns whether it outlives the program.
    pub(crate) fn is_persistent(&self) -> bool {
        self.locations().log.is_some()
    }

    /// Records the locations of a node and its ancestors, upwards to the first that is recorded
    /// already.
    pub(crate) fn record_ancestors(&self, ancestors: impl Iterator<Item = (NodeId, Location)>) {
        let mut new = Vec::new();
        for (id, location) in ancestors {
            if !self.locations().insert(id, location.clone()) {
                break;
            }
            new.push((id, location));
        }
        self.locations().append(&new);
    }

    /// Records the location of one node.
    pub(crate) fn set(&self, id: NodeId, location: Location) {
        let mut locations = self.locations();
        if locations.insert(id, location.clone()) {
            locations.append(&[(id, location)]);
        }
    }

    /// Returns the location of a node, if it is recorded.
    pub(crate) fn location(&self, id: NodeId) -> Option<Location> {
        self.locations().by_id.get(&id).cloned()
    }

    fn locations(&self) -> MutexGuard<'_, Locations> {
        self.0.lock()
    }
}

impl Locations {
    /// Returns whether the location is new or has changed.
    fn insert(&mut self, id: NodeId, location: Location) -> bool {
        if let Some(known) = self.by_id.get_mut(&id) {
            let changed = *known != location;
            *known = location;
            return changed;
        }
        if self.order.len() >= MAX_LOCATIONS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.order.push_back(id);
        self.by_id.insert(id, location);
        true
    }

    /// Appends new locations to the log. After an error, as of a full disk, a later change writes
    /// all locations again.
    fn append(&mut self, new: &[(NodeId, Location)]) {
        let Some(log) = &mut self.log else {
            return;
        };
        if new.is_empty() {
            return;
        }
        match self.failed {
            Some(at) if at.elapsed() < RETRY => return,
            Some(_) => return self.rewrite(),
            None => {}
        }
        let appended = log.append(new.iter().map(|(id, location)| (*id, location)));
        match appended {
            Ok(()) => self.compact(),
            Err(_) => self.failed = Some(Instant::now()),
        }
    }

    /// Rewrites the log when most of its records are superseded, or are of dropped locations.
    fn compact(&mut self) {
        let live = self.order.len();
        let is_long = |log: &Log| log.records() > 2 * live.max(MAX_LOCATIONS / 64);
        if self.log.as_ref().is_some_and(is_long) {
            self.rewrite();
        }
    }

    /// Replaces the contents of the log with the present locations.
    fn rewrite(&mut self) {
        let Some(log) = &mut self.log else {
            return;
        };
        let by_id = &self.by_id;
        let locations = self
            .order
            .iter()
            .filter_map(|id| Some((*id, by_id.get(id)?)));
        let written = log.rewrite(locations);
        self.failed = written.is_err().then(Instant::now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(parent: NodeId, name: &str) -> Location {
        Location {
            parent,
            name: name.as_bytes().into(),
            incarnation: 7,
        }
    }

    fn put(index: &HandleIndex, id: NodeId, location: Location) {
        let mut locations = index.locations();
        locations.insert(id, location.clone());
        locations.append(&[(id, location)]);
    }

    fn open(path: &Path) -> HandleIndex {
        let index = HandleIndex::default();
        index.persist_at(path).expect("opens");
        index
    }

    #[test]
    fn what_was_recorded_is_there_again_and_the_last_word_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("names");
        let index = open(&path);
        put(&index, 1, location(9, "a"));
        put(&index, 2, location(1, "b"));
        put(&index, 1, location(9, "c"));
        // As after a kill: the log is not closed.
        std::fs::copy(&path, dir.path().join("left")).expect("copied");
        for name in ["left", "left"] {
            let again = open(&dir.path().join(name));
            assert_eq!(again.location(1), Some(location(9, "c")));
            assert_eq!(again.location(2), Some(location(1, "b")));
            assert_eq!(again.location(3), None);
        }
        assert!(
            HandleIndex::default().persist_at(&path).is_err(),
            "it is in use"
        );
    }

    #[test]
    fn a_log_of_old_words_is_written_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("names");
        let index = open(&path);
        for number in 0..MAX_LOCATIONS / 16 {
            put(
                &index,
                1 + number as u64 % 2,
                location(9, &format!("name {number}")),
            );
        }
        let size = std::fs::metadata(&path).expect("there").len();
        assert!(size < (MAX_LOCATIONS / 16 * 40) as u64, "{size}");
        let last = index.location(2);
        drop(index);
        let again = open(&path);
        assert_eq!(again.location(2), last);
        put(&again, 3, location(1, "new"));
        drop(again);
        assert_eq!(open(&path).location(3), Some(location(1, "new")));
    }

    #[test]
    fn a_log_that_could_not_be_written_is_written_whole_later() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("names");
        let index = open(&path);
        put(&index, 1, location(9, "a"));
        let log = |index: &HandleIndex, run: &dyn Fn(&mut Log)| {
            run(index.locations().log.as_mut().expect("a log"));
        };
        log(&index, &|log| log.fill_disk());
        put(&index, 2, location(1, "b"));
        assert!(index.locations().failed.is_some());
        let before = std::fs::read(&path).expect("read");
        // The next change within two seconds does not try again.
        put(&index, 3, location(1, "c"));
        assert_eq!(std::fs::read(&path).expect("read"), before);
        index.locations().failed = Instant::now().checked_sub(RETRY);
        put(&index, 4, location(1, "d"));
        assert!(index.locations().failed.is_none());
        put(&index, 5, location(1, "e"));
        drop(index);
        let again = open(&path);
        for (id, name) in [(2, "b"), (3, "c"), (4, "d"), (5, "e")] {
            assert_eq!(again.location(id), Some(location(1, name)));
        }
    }

    #[test]
    fn of_a_torn_log_what_is_whole_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("names");
        let index = open(&path);
        put(&index, 1, location(9, "a"));
        let whole = std::fs::metadata(&path).expect("there").len() as usize;
        put(&index, 2, location(1, "bcd"));
        drop(index);
        let bytes = std::fs::read(&path).expect("read");
        for len in 0..bytes.len() {
            std::fs::write(&path, &bytes[..len]).expect("written");
            let again = open(&path);
            assert_eq!(again.location(1).is_some(), len >= whole, "{len}");
            assert_eq!(again.location(2), None);
            put(&again, 3, location(1, "e"));
            drop(again);
            assert_eq!(open(&path).location(3), Some(location(1, "e")), "{len}");
        }
        let mut flipped = bytes.clone();
        flipped[whole + 9] ^= 1;
        std::fs::write(&path, &flipped).expect("written");
        assert_eq!(open(&path).location(2), None);
    }
}
