//! Twrite to open files, and write-back through fids that are open to append.
//!
//! A write to a file that is open to append goes to the file's end, whatever offset the client
//! sends. Linux's v9fs relies on the opposite: with a page cache (`cache=mmap`, `loose` or
//! `fscache`, Linux 6.4 and later) it opens the fid with the program's `O_RDWR | O_APPEND` and then
//! writes pages back through it, from the start of the page, with bytes that the file has already.
//! A server that appends these corrupts the file (`docs/notes/v9fs-append.md`). So a fid that is
//! open for reading and appending appends bytes beyond the end of the file as the client knows it,
//! and writes bytes before that end in place.
//!
//! The end as the client knows it is the size when the connection opened the file, advanced by its
//! own writes through any fid, each taken at the offset that the client sent. A client that does
//! not cache never writes before that end, even if others have appended meanwhile: its writes go to
//! the end of the file. A client never writes back through fids that are open for writing only, so
//! these always append. Linux with a page cache opens no file for writing only if it may read it:
//! once a client has done so, all of its fids append.
//!
//! Deliberately absent: write-back of a file that others append to at the same time. Bytes of the
//! cached page may then be duplicated.
//!
//! Lock order: the table of reaches is held for a look-up only; a file's own order is held across
//! calls of the source, without other locks of this crate.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use vfs::{Access, AttrMask, Cx, Errno, File, NodeId, OpenFlags, Patience, Result};

use super::RequestContext;
use super::fid::{FidState, Open};
use crate::message::WRITE_HEAD;

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

    fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Records that the client has written up to `end`.
    fn extend(&self, end: u64) {
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

    /// Returns how many of `len` bytes at `offset` are to be written in place, if the file's size
    /// is now `size`. Called under [`WriteState::lock_writes`].
    fn in_place(&self, size: u64, offset: u64, len: usize) -> usize {
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

fn key(fid: &FidState) -> Key {
    (Arc::as_ptr(&fid.attach().export).addr(), fid.node().id())
}

impl WriteStates {
    /// Returns the entry of a file, if it is open for writing.
    pub(super) fn find(&self, fid: &FidState) -> Option<Arc<WriteState>> {
        self.0.lock().get(&key(fid)).cloned()
    }
}

/// The part of an open fid that serves its writes.
pub(super) struct Writer {
    states: Arc<WriteStates>,
    key: Key,
    state: Arc<WriteState>,
    /// Whether the fid is open for reading and appending: a client may write back through it.
    appender: bool,
    /// The same file opened without append, at the first write in place.
    in_place: OnceLock<Arc<dyn File>>,
}

impl Writer {
    /// Returns the writer of `fid`, a file of `size` bytes that was opened with `flags`.
    fn new(reaches: &Arc<WriteStates>, fid: &FidState, flags: OpenFlags, size: u64) -> Writer {
        let key = key(fid);
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

impl RequestContext<'_> {
    /// Returns the [`Writer`] of `fid` if `flags` open a file for writing. `size` is the file's
    /// size when it was opened.
    pub(super) fn writer(&self, fid: &FidState, flags: OpenFlags, size: u64) -> Option<Writer> {
        let writes = flags.contains(OpenFlags::WRITE) && !fid.is_directory();
        writes.then(|| Writer::new(&self.connection.write_states, fid, flags, size))
    }

    /// Records whether the client opens a file for writing only that it may read: no client that
    /// writes pages back does so.
    pub(super) fn note_open(&self, cx: &Cx<'_>, fid: &FidState, flags: OpenFlags) {
        let both = OpenFlags::READ | OpenFlags::WRITE;
        if fid.is_directory() || flags & both != OpenFlags::WRITE || self.appends_only() {
            return;
        }
        if matches!(fid.node().access(cx, Access::READ), Ok(may) if !may.is_empty()) {
            self.connection.appends_only.store(true, Ordering::Relaxed);
        }
    }

    fn appends_only(&self) -> bool {
        self.connection.appends_only.load(Ordering::Relaxed)
    }

    /// Writes the payload of a Twrite to an open file and returns the number of bytes. Returns
    /// `EBADF` if it is not open for writing.
    pub(super) fn write_file(&self, fid: &FidState, open: &Open, offset: u64) -> Result<usize> {
        let writer = open.writer.as_ref().ok_or(Errno::EBADF)?;
        let cx = self.cx(&fid.attach().caller);
        let reach = &writer.state;
        let range = WRITE_HEAD..self.size;
        if range.is_empty() {
            // An empty write does not show where the client believes the end to be.
            return Ok(0);
        }
        let count = if self.appends_only() || reach.appenders.load(Ordering::Acquire) == 0 {
            self.put(&cx, &*open.file, offset, range)?
        } else {
            let _order = reach.lock_writes(&cx)?;
            match writer.appender {
                true => self.write_back(&cx, (fid, open, writer), offset)?,
                false => self.put(&cx, &*open.file, offset, range)?,
            }
        };
        reach.extend(offset.saturating_add(count as u64));
        Ok(count)
    }

    /// Writes the part before the end of the file as the client knows it in place, and appends the
    /// rest.
    fn write_back(
        &self,
        cx: &Cx<'_>,
        (fid, open, writer): (&FidState, &Open, &Writer),
        offset: u64,
    ) -> Result<usize> {
        let len = self.size - WRITE_HEAD;
        let in_place = match offset == writer.state.end() {
            true => 0,
            false => {
                // Several steps: an operation that would block must not stop between them.
                cx.check_may_block()?;
                let size = open.file.attr(cx, AttrMask::SIZE)?.size;
                writer.state.in_place(size, offset, len)
            }
        };
        let split = WRITE_HEAD + in_place;
        if in_place > 0 {
            let file = match writer.in_place.get() {
                Some(file) => file,
                None => {
                    let durable = open.flags & (OpenFlags::DSYNC | OpenFlags::SYNC);
                    let flags = OpenFlags::WRITE | OpenFlags::OWNER | durable;
                    let file = fid.node().open(cx, flags)?;
                    writer.in_place.get_or_init(|| file)
                }
            };
            let count = self.put(cx, &**file, offset, WRITE_HEAD..split)?;
            if count < in_place {
                return Ok(count);
            }
        }
        let behind = offset.saturating_add(in_place as u64);
        Ok(in_place + self.put(cx, &*open.file, behind, split..self.size)?)
    }

    /// Writes a part of the message.
    fn put(&self, cx: &Cx<'_>, file: &dyn File, offset: u64, range: Range<usize>) -> Result<usize> {
        if range.is_empty() {
            return Ok(0);
        }
        let len = range.len();
        let mut write = |payload: &mut dyn vfs::Payload| file.write(cx, offset, payload);
        let count = self.message.payload(range, &mut write)?;
        debug_assert!(count <= len, "a source wrote more than it got");
        Ok(count.min(len))
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
