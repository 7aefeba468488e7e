//! The changes that an agent has not repeated yet.
//!
//! Changes of contents and attributes of one name are merged while no other change of that name
//! follows. If the queue is full, one overflow replaces all changes.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use vfs::{Change, ChangeKinds, ChangedBy, ChangedName, Entry, NodeId};

/// Maximum number of changes: as many as the kernel queues for a stream by default.
const MAX_CHANGES: usize = 1 << 14;

/// Maximum size of the paths of all changes, bytes.
const MAX_PATHS: usize = 4 << 20;

/// A queue. One thread takes changes, others add them.
pub(super) struct Queue {
    state: Mutex<State>,
    /// Readable while there are changes.
    event: OwnedFd,
}

#[derive(Default)]
struct State {
    changes: VecDeque<QueuedChange>,
    /// The number of changes that were taken.
    taken: u64,
    /// The numbers of changes of contents and attributes alone, after which no other change of the
    /// name follows.
    mergeable: HashMap<(NodeId, Vec<u8>), u64>,
    /// The size of all paths.
    paths: usize,
    /// Whether no more changes are reported.
    ended: bool,
}

/// A change to be repeated.
#[derive(Clone)]
pub(super) struct QueuedChange {
    pub(super) kinds: ChangeKinds,
    pub(super) is_dir: bool,
    pub(super) by: ChangedBy,
    pub(super) name: ChangedPath,
    /// Of [`ChangeKinds::RENAMED`].
    pub(super) old_name: Option<ChangedPath>,
    /// The object, of [`ChangeKinds::DELETED`].
    pub(super) removed: Option<Entry>,
}

/// A name, as [`ChangedName`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangedPath {
    pub(super) dir: NodeId,
    pub(super) path: Vec<u8>,
    pub(super) name: Vec<u8>,
}

impl From<ChangedName<'_>> for ChangedPath {
    fn from(name: ChangedName<'_>) -> ChangedPath {
        ChangedPath {
            dir: name.dir,
            path: name.path.to_vec(),
            name: name.name.to_vec(),
        }
    }
}

impl ChangedPath {
    /// Returns the path below the root of the share.
    pub(super) fn full(&self) -> Vec<u8> {
        match (&*self.path, &*self.name) {
            (b"", name) => name.to_vec(),
            (path, b"") => path.to_vec(),
            (path, name) => [path, b"/", name].concat(),
        }
    }

    fn size(&self) -> usize {
        self.path.len() + self.name.len()
    }

    fn key(&self) -> (NodeId, Vec<u8>) {
        (self.dir, self.name.clone())
    }
}

impl QueuedChange {
    /// The change after which anything may have changed.
    pub(super) fn overflow() -> QueuedChange {
        QueuedChange {
            kinds: ChangeKinds::OVERFLOW,
            is_dir: false,
            by: ChangedBy::Others,
            name: ChangedPath::default(),
            old_name: None,
            removed: None,
        }
    }

    /// Returns `change` with these kinds, or `None` if it has no name in the tree.
    pub(super) fn of(
        change: &Change<'_>,
        kinds: ChangeKinds,
        removed: Option<Entry>,
    ) -> Option<QueuedChange> {
        if kinds.contains(ChangeKinds::OVERFLOW) {
            return Some(QueuedChange::overflow());
        }
        Some(QueuedChange {
            kinds,
            is_dir: change.is_dir,
            by: change.by,
            name: change.name?.into(),
            old_name: change.old_name.map(ChangedPath::from),
            removed,
        })
    }

    fn size(&self) -> usize {
        self.name.size() + self.old_name.as_ref().map_or(0, ChangedPath::size)
    }

    /// Returns whether names stay as they are.
    fn is_modification(&self) -> bool {
        let modifications = ChangeKinds::CONTENTS | ChangeKinds::ATTRIBUTES;
        !self.kinds.is_empty() && modifications.contains(self.kinds)
    }
}

impl Queue {
    pub(super) fn new() -> rustix::io::Result<Queue> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Queue {
            state: Mutex::default(),
            event: eventfd(0, flags)?,
        })
    }

    /// Returns a descriptor that is readable while there may be changes.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Adds a change, or an overflow if there is no room.
    pub(super) fn push(&self, change: QueuedChange) {
        let dropped = self.state.lock().push(change);
        drop(dropped);
        // It fails only if the counter is at its end, and then it is readable.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Marks the end of the stream: no more changes are reported.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub(super) fn is_ended(&self) -> bool {
        self.state.lock().ended
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().changes.is_empty()
    }

    /// Takes the oldest change.
    pub(super) fn pop(&self) -> Option<QueuedChange> {
        let mut state = self.state.lock();
        let change = state.changes.pop_front();
        match &change {
            None => {
                let _ = rustix::io::read(&self.event, &mut [0; 8]);
            }
            Some(change) => {
                let number = state.taken;
                state.taken += 1;
                state.paths -= change.size();
                if change.is_modification() {
                    let key = change.name.key();
                    if state.mergeable.get(&key) == Some(&number) {
                        state.mergeable.remove(&key);
                    }
                }
            }
        }
        change
    }
}

impl State {
    /// Returns changes to be dropped without the lock.
    fn push(&mut self, change: QueuedChange) -> VecDeque<QueuedChange> {
        let last = self.changes.back();
        if last.is_some_and(|last| last.kinds == ChangeKinds::OVERFLOW)
            && change.kinds == ChangeKinds::OVERFLOW
        {
            return VecDeque::new();
        }
        let key = change.name.key();
        if change.is_modification() {
            let pending = self.mergeable.get(&key).map(|number| number - self.taken);
            let pending = pending.and_then(|at| self.changes.get_mut(at as usize));
            if let Some(pending) = pending {
                pending.kinds |= change.kinds;
                return VecDeque::new();
            }
        } else {
            self.mergeable.remove(&key);
            if let Some(old) = &change.old_name {
                self.mergeable.remove(&old.key());
            }
        }
        let full = self.changes.len() >= MAX_CHANGES || self.paths + change.size() > MAX_PATHS;
        if full || change.kinds == ChangeKinds::OVERFLOW {
            self.mergeable.clear();
            self.paths = 0;
            let lost = std::mem::take(&mut self.changes);
            self.taken += lost.len() as u64;
            self.changes.push_back(QueuedChange::overflow());
            return lost;
        }
        if change.is_modification() {
            let number = self.taken + self.changes.len() as u64;
            self.mergeable.insert(key, number);
        }
        self.paths += change.size();
        self.changes.push_back(change);
        VecDeque::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kinds: ChangeKinds, name: &str) -> QueuedChange {
        QueuedChange {
            kinds,
            name: ChangedPath {
                dir: 1,
                path: Vec::new(),
                name: name.into(),
            },
            ..QueuedChange::overflow()
        }
    }

    fn all(queue: &Queue) -> Vec<(ChangeKinds, String)> {
        std::iter::from_fn(|| queue.pop())
            .map(|it| (it.kinds, String::from_utf8(it.name.name).expect("UTF-8")))
            .collect()
    }

    #[test]
    fn modifications_are_merged_up_to_the_next_change_of_the_name() {
        let queue = Queue::new().expect("an eventfd");
        let (contents, attributes) = (ChangeKinds::CONTENTS, ChangeKinds::ATTRIBUTES);
        queue.push(change(contents, "a"));
        queue.push(change(contents, "b"));
        queue.push(change(attributes, "a"));
        queue.push(change(ChangeKinds::DELETED, "a"));
        queue.push(change(contents, "a"));
        queue.push(change(contents, "a"));
        queue.push(change(contents, "b"));
        let expected = [
            (contents | attributes, "a"),
            (contents, "b"),
            (ChangeKinds::DELETED, "a"),
            (contents, "a"),
        ];
        assert_eq!(
            all(&queue),
            expected.map(|(kinds, name)| (kinds, name.into()))
        );
        queue.push(change(contents, "a"));
        assert_eq!(all(&queue), [(contents, "a".into())]);
    }

    #[test]
    fn a_full_queue_is_one_overflow() {
        let queue = Queue::new().expect("an eventfd");
        for number in 0..=MAX_CHANGES {
            queue.push(change(ChangeKinds::CREATED, &number.to_string()));
        }
        queue.push(change(ChangeKinds::CREATED, "last"));
        let expected = [
            (ChangeKinds::OVERFLOW, String::new()),
            (ChangeKinds::CREATED, "last".into()),
        ];
        assert_eq!(all(&queue), expected);
        assert_eq!(queue.state.lock().paths, 0);
        // One more than there is room for.
        for _ in 0..=MAX_PATHS / 1024 {
            let mut deep = change(ChangeKinds::CREATED, "");
            deep.name.path = vec![b'x'; 1024];
            queue.push(deep);
        }
        assert_eq!(all(&queue), [(ChangeKinds::OVERFLOW, String::new())]);
    }
}
