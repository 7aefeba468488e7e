//! The files that a client has open for writing: their ends as the client knows them, and the order
//! of their writes. `append` describes their use.
//!
//! Lock order: the table is held for a look-up only; a file's own order is held across calls of the
//! source, without other locks of this crate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use vfs::{Cx, Errno, File, NodeId, OpenFlags, Patience, Result};

use super::step::Step;

/// The client's view of the size of a file that it has open for writing.
pub(super) struct WriteState {
    /// The end of the file as the client knows it.
    end: AtomicU64,
    /// The number of fids that are open for reading and appending.
    appenders: AtomicUsize,
    /// The offset up to which the client's offsets are the file's own: nobody else has appended
    /// before it.
    verified_end: AtomicU64,
    /// Serialises the writes of a file with such fids.
    write_lock: Mutex<()>,
}

impl WriteState {
    fn new(size: u64) -> WriteState {
        WriteState {
            end: AtomicU64::new(size),
            appenders: AtomicUsize::new(0),
            verified_end: AtomicU64::new(size),
            write_lock: Mutex::new(()),
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns the offset up to which the client's offsets are the file's own.
    pub(super) fn verified_end(&self) -> u64 {
        self.verified_end.load(Ordering::Acquire)
    }

    /// Continues with the values of another process: of [`WriteState::end`] and
    /// [`WriteState::verified_end`].
    pub(super) fn restore(&self, end: u64, verified_end: u64) {
        self.end.store(end, Ordering::Release);
        self.verified_end.store(verified_end, Ordering::Release);
    }

    /// Records that the client has written up to `end`.
    pub(super) fn extend(&self, end: u64) {
        // Most writes are within the file and need not contend for it.
        if end > self.end() {
            self.end.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Keeps other writes of the client out. Returns `WOULD_BLOCK` if one is in progress and the
    /// call may not wait for it.
    pub(super) fn lock_writes(&self, cx: &Cx<'_>) -> Result<MutexGuard<'_, ()>> {
        if cx.patience == Patience::Full {
            return Ok(self.write_lock.lock());
        }
        self.write_lock.try_lock().ok_or(Errno::WOULD_BLOCK)
    }

    /// Records that the client has set the file's size to `size`.
    pub(super) fn resize(&self, size: u64) {
        self.verified_end.store(size, Ordering::Release);
        self.end.store(size, Ordering::Release);
    }

    /// Returns whether a fid is open for reading and appending.
    pub(super) fn has_appenders(&self) -> bool {
        self.appenders.load(Ordering::Acquire) > 0
    }

    /// Returns how many of `len` bytes at `offset` are to be written in place, if the file's size
    /// is now `size`. Called under [`WriteState::lock_writes`].
    pub(super) fn in_place(&self, size: u64, offset: u64, len: usize) -> usize {
        let end = self.end();
        if size < end {
            // Others have truncated it.
            self.end.store(size, Ordering::Release);
            self.verified_end.fetch_min(size, Ordering::AcqRel);
        } else if size == end {
            // The client's end is the file's: no other client has appended.
            self.verified_end.store(end, Ordering::Release);
            if offset > end {
                // A page that is written back before its predecessors: an append begins at an end
                // that the client knows.
                return len;
            }
        }
        let before = self
            .verified_end
            .load(Ordering::Acquire)
            .saturating_sub(offset);
        usize::try_from(before).map_or(len, |before| before.min(len))
    }
}

/// The files that a connection has open for writing: never more than its fids.
#[derive(Default)]
pub(super) struct WriteStates(Mutex<HashMap<Key, Arc<WriteState>>>);

/// A node of an export. An open file keeps its export alive, so no other has its address.
type Key = (usize, NodeId);

fn key(step: &Step) -> Key {
    (Arc::as_ptr(&step.attach.export).addr(), step.node.id())
}

impl WriteStates {
    /// Returns the entry of a file, if it is open for writing.
    pub(super) fn find(&self, step: &Step) -> Option<Arc<WriteState>> {
        self.0.lock().get(&key(step)).cloned()
    }
}

/// The part of an open fid that serves its writes.
pub(super) struct Writer {
    states: Arc<WriteStates>,
    key: Key,
    pub(super) state: Arc<WriteState>,
    /// Whether the fid is open for reading and appending: a client may write back through it.
    pub(super) appender: bool,
    /// The same file opened without append, at the first write in place.
    pub(super) in_place: OnceLock<Arc<dyn File>>,
}

impl Writer {
    /// Returns the writer of a fid walked to `step`, a file of `size` bytes that was opened with
    /// `flags`.
    pub(super) fn new(
        reaches: &Arc<WriteStates>,
        step: &Step,
        flags: OpenFlags,
        size: u64,
    ) -> Writer {
        let key = key(step);
        let reach = {
            let mut table = reaches.0.lock();
            let reach = table.entry(key);
            reach
                .or_insert_with(|| Arc::new(WriteState::new(size)))
                .clone()
        };
        if flags.contains(OpenFlags::TRUNC) {
            reach.resize(0);
        }
        let appender = flags.contains(OpenFlags::READ | OpenFlags::APPEND);
        if appender {
            reach.appenders.fetch_add(1, Ordering::AcqRel);
        }
        Writer {
            states: reaches.clone(),
            key,
            state: reach,
            appender,
            in_place: OnceLock::new(),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.appender {
            self.state.appenders.fetch_sub(1, Ordering::AcqRel);
        }
        let mut table = self.states.0.lock();
        // The table's reference and this one: the count only increases under the table's lock.
        if Arc::strong_count(&self.state) == 2 {
            table.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_client_knows_is_written_in_place() {
        // End as the client knows it, settled, size, offset, length: in place, end after.
        for (end, settled, size, offset, len, expected, after) in [
            // A page is written back from its start.
            (5120, 5120, 5120, 4096, 6144, 1024, 5120),
            // Bytes within the file change.
            (5120, 0, 5120, 0, 4096, 4096, 5120),
            // Pages are written back out of order.
            (4096, 4096, 4096, 8192, 4096, 4096, 4096),
            // Others have appended; the client has learnt the new size, or has not.
            (10, 10, 15, 15, 5, 0, 10),
            (10, 10, 15, 12, 5, 0, 10),
            // Others have appended, and the client changes earlier bytes.
            (10, 8, 15, 4, 5, 4, 10),
            // Others have truncated it; the client appends from its old end, or from the new one.
            (10, 10, 4, 12, 5, 0, 4),
            (10, 10, 4, 4, 5, 0, 4),
        ] {
            let reach = WriteState::new(end);
            reach.verified_end.store(settled, Ordering::Relaxed);
            let case = (end, settled, size, offset, len);
            let found = reach.in_place(size, offset, len);
            assert_eq!((found, reach.end()), (expected, after), "{case:?}");
        }
    }
}
