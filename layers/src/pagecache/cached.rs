//! The state of a cache. Of one file, shared by all opens: its contents, its size, dirty data and
//! its writer, and write-back errors. Of all files: memory, workers, buffers and counters.
//!
//! Lock order: a file's mutex, never held across a call below; then those of memory and workers.

mod attr;
mod fetch;
mod writeback;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use vfs::{Attr, AttrMask, Caller, Cx, Errno, File, NodeId, Result};

use super::memory::Memory;
use super::pages::Pages;
use super::units::{BLOCK, CacheUnit};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// A file that is open, or has data in the cache.
pub(super) struct Cached {
    this: Weak<Cached>,
    pub(super) id: NodeId,
    pub(super) core: Arc<Core>,
    state: Mutex<State>,
    changed: Condvar,
}

pub(super) struct State {
    pub(super) pages: Pages,
    /// The size that all opens see; `None` if it must be requested.
    pub(super) size: Option<u64>,
    /// The change counter of the contents; `None` once they were written here, when the counter no
    /// longer shows other clients' changes.
    change: Option<u64>,
    generation: u64,
    /// Incremented when contents are dropped or changed past the cache: data in flight from below
    /// is outdated then.
    pub(super) epoch: u64,
    /// The value of [`Core::write_epoch`] when a write was last sent or came back.
    pub(super) last_write_epoch: u64,
    /// The open file and caller of the last write, used for write-back.
    writer: Option<Arc<Writer>>,
    pub(super) errors: Errors,
    /// Whether the file is being changed below: writes wait.
    pub(super) exclusive: bool,
    /// Whether all dirty data is to be written, not only whole messages.
    urgent: bool,
    /// The end of the last message written: the next one continues there, as an elevator.
    write_position: u64,
    /// Offsets of whole messages that are dirty.
    full_messages: Vec<u64>,
    /// The number of write jobs queued or running.
    writers: usize,
    pub(super) opens: usize,
    /// Whether it is on the workers' list of dirty files, and whether it was dirty at the last
    /// tick.
    on_dirty_list: bool,
    dirty_at_last_tick: bool,
}

/// The state that all files of a cache share.
pub(super) struct Core {
    pub(super) memory: Arc<Memory>,
    /// The maximum size of a write-back message in bytes. Data that fills an aligned one is written
    /// at once.
    pub(super) message: u64,
    pub(super) workers: Arc<Workers>,
    /// The maximum number of concurrent messages for a file.
    pub(super) depth: usize,
    /// Incremented when a write is sent, and when its reply arrives.
    write_epoch: AtomicU64,
    /// Reads served from the cache alone, and those that were not.
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    /// Buffers for write-back messages, which must not depend on an allocation: they may be what
    /// frees memory.
    buffers: Mutex<Vec<Vec<u8>>>,
}

/// A task for a thread.
pub(super) enum Job {
    /// Writes a file's dirty data.
    Write(Arc<Cached>),
    /// Reads a range of a file on behalf of the caller.
    Read(Arc<Cached>, Arc<dyn File>, Caller, ReadReservation),
}

/// The threads for read-ahead and write-back, with the queue of their jobs.
pub(super) struct Workers {
    pub(super) queue: Mutex<Queue>,
    pub(super) work: Condvar,
    pub(super) max_threads: usize,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) jobs: VecDeque<Job>,
    pub(super) threads: usize,
    pub(super) idle: usize,
    pub(super) closed: bool,
    /// Files with dirty data.
    pub(super) dirty: Vec<Weak<Cached>>,
    /// Whether a thread selects the files that are due.
    pub(super) selecting: bool,
}

/// The reason to keep a file in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileUse {
    /// It is open or has data in the cache.
    InUse,
    /// It has an unreported write-back error, from an open that was dropped without a flush.
    Unreported,
    /// None.
    Idle,
}

/// The result of [`Cached::fetch`].
pub(super) enum Fetched {
    /// All data up to this offset was read or was here already.
    UpTo(u64),
    /// Another caller was reading it, and has made progress.
    ByOthers,
}

/// A range that is being read, with the values of [`State`] at the start.
pub(super) struct ReadReservation {
    range: Range<u64>,
    /// The part that a program requested, if it reads at random.
    requested: Option<Range<u64>>,
    epoch: u64,
    last_write_epoch: u64,
}

struct Writer {
    file: Arc<dyn File>,
    caller: Caller,
}

/// Write-back errors, counted as in Linux (`lib/errseq.c`): each open reports each error once;
/// the next open reports an error that no open has reported.
pub(super) struct Errors {
    count: u64,
    last: Errno,
    reported: bool,
}

impl Errors {
    /// Returns the count at which a new open starts, before an unreported error.
    pub(super) fn sample(&self) -> u64 {
        match self.reported {
            true => self.count,
            false => self.count - 1,
        }
    }

    /// Reports an error newer than `seen`, and updates `seen`.
    pub(super) fn check(&mut self, seen: &mut u64) -> Result<()> {
        if self.count == *seen {
            return Ok(());
        }
        *seen = self.count;
        self.reported = true;
        Err(self.last)
    }

    fn note(&mut self, errno: Errno) {
        self.count += 1;
        self.last = errno;
        self.reported = false;
    }
}

/// A guard: while it exists, nobody writes the file and there is no dirty data.
pub(super) struct Exclusive<'a>(&'a Cached);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.lock().exclusive = false;
        self.0.changed.notify_all();
    }
}

/// Waiters check whether they were cancelled.
impl Wake for Cached {
    fn wake(self: Arc<Self>) {
        let _state = self.lock();
        self.changed.notify_all();
    }
}

impl Cached {
    pub(super) fn new(core: Arc<Core>, id: NodeId) -> Arc<Cached> {
        Arc::new_cyclic(|this: &Weak<Cached>| Cached {
            this: this.clone(),
            id,
            state: Mutex::new(State {
                pages: Pages::new(core.memory.clone(), this.clone()),
                size: None,
                change: None,
                generation: 0,
                epoch: 0,
                last_write_epoch: 0,
                writer: None,
                errors: Errors {
                    count: 0,
                    last: Errno::EIO,
                    reported: true,
                },
                exclusive: false,
                urgent: false,
                write_position: 0,
                full_messages: Vec::new(),
                writers: 0,
                opens: 0,
                on_dirty_list: false,
                dirty_at_last_tick: false,
            }),
            changed: Condvar::new(),
            core,
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn changed(&self) {
        self.changed.notify_all();
    }

    /// Waits for a change of the state. Returns `EINTR` if the call is cancelled.
    pub(super) fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        cx: &Cx<'_>,
    ) -> Result<MutexGuard<'a, State>> {
        cx.check_may_block()?;
        cx.call.check()?;
        self.changed.wait(&mut state);
        cx.call.check()?;
        Ok(state)
    }

    /// Prepares for [`Cached::wait`]; must be called before the first wait of a call, without the
    /// lock.
    pub(super) fn may_wait(&self, cx: &Cx<'_>) -> Result<()> {
        cx.check_may_block()?;
        if let Some(this) = self.this.upgrade() {
            cx.call.wake_on_cancel(&Waker::from(this));
        }
        Ok(())
    }

    /// Calls [`Pages::evict`]; if `again` is `None`, only checks whether the entry is gone already.
    pub(super) fn evict(&self, held: CacheUnit, again: Option<bool>) -> bool {
        let pages = &mut self.lock().pages;
        match again {
            Some(again) => pages.evict(held, again),
            None => !pages.contains(held),
        }
    }

    /// Returns the reason to keep the file.
    pub(super) fn file_use(&self) -> FileUse {
        let state = self.lock();
        let empty = state.pages.is_empty() && state.pages.is_clean();
        match state.opens == 0 && empty {
            false => FileUse::InUse,
            true if state.errors.reported => FileUse::Idle,
            true => FileUse::Unreported,
        }
    }

    /// Returns the unreported error if the file is closed, and marks it as reported if `report`.
    pub(super) fn unreported_error(&self, report: bool) -> Result<()> {
        let mut state = self.lock();
        if state.opens > 0 || state.errors.reported {
            return Ok(());
        }
        state.errors.reported = report;
        Err(state.errors.last)
    }

    /// Records a lost write and the last close.
    #[cfg(test)]
    pub(super) fn lose(&self) {
        let mut state = self.lock();
        state.errors.note(Errno::EIO);
        state.opens -= 1;
    }

    /// Records an open with the attributes `attr`, requested when [`Core::write_epoch`] was
    /// `since`.
    pub(super) fn opened(&self, attr: &Attr, since: u64) {
        let mut state = self.lock();
        state.opens += 1;
        state.pages.opened();
        let sure = self.is_newer_than_writes(&state, since);
        let same = state.change == Some(attr.change);
        if state.generation != attr.generation || !same {
            state.drop_clean();
        }
        state.generation = attr.generation;
        if sure {
            state.change = Some(attr.change);
            state.resize(attr.size);
        }
    }

    /// Records an open after which all cached data is still valid.
    pub(super) fn opened_unchanged(&self) {
        self.lock().opens += 1;
    }

    /// Records a close. The data that was read stays for later opens if `keep`.
    pub(super) fn closed(&self, keep: bool) {
        let mut state = self.lock();
        state.opens -= 1;
        if state.opens == 0 && !keep {
            state.drop_clean();
            state.size = None;
        }
    }

    /// Returns whether attributes requested at `since` are newer than all writes made here.
    pub(super) fn is_newer_than_writes(&self, state: &State, since: u64) -> bool {
        state.pages.is_clean() && !state.exclusive && state.last_write_epoch <= since
    }

    /// Reconciles attributes requested when [`Core::write_epoch`] was `since`: they show other
    /// clients' changes, or, if they are older than writes made here, get the size of this cache.
    pub(super) fn revalidate(&self, attr: &mut Attr, since: u64) {
        let mut state = self.lock();
        if !self.is_newer_than_writes(&state, since) {
            attr.size = attr.size.max(state.size.unwrap_or(0));
            return;
        }
        if state.change.is_some_and(|change| change != attr.change) {
            state.drop_clean();
            state.change = Some(attr.change);
        }
        state.resize(attr.size);
    }

    /// Drops what was read and the size: other clients may have changed the file.
    pub(super) fn invalidate(&self) {
        let mut state = self.lock();
        state.drop_clean();
        if state.pages.is_clean() {
            state.size = None;
        }
    }

    /// Returns the size, requested through `file` if it is unknown.
    pub(super) fn size(&self, file: &dyn File, cx: &Cx<'_>) -> Result<u64> {
        if let Some(size) = self.lock().size {
            return Ok(size);
        }
        cx.check_may_block()?;
        let since = self.core.write_epoch();
        let mut attr = file.attr(cx, AttrMask::STAT)?;
        self.revalidate(&mut attr, since);
        let mut state = self.lock();
        Ok(*state.size.get_or_insert(attr.size))
    }

    /// Records a truncation or extension to `size` below, during which nobody wrote.
    pub(super) fn truncated(&self, size: u64) {
        let mut state = self.lock();
        state.pages.truncate(size);
        state.epoch += 1;
        state.last_write_epoch = self.core.advance_write_epoch();
        state.change = None;
        state.size = Some(size);
    }

    /// Records a change below past the cache: drops `range`, and sets the size to the value that
    /// `size` returns.
    pub(super) fn overwritten(
        &self,
        range: Range<u64>,
        size: impl FnOnce(Option<u64>) -> Option<u64>,
    ) {
        let mut state = self.lock();
        state.pages.remove(range.clone());
        if state.pages.is_being_read(&range) {
            state.epoch += 1;
        }
        state.last_write_epoch = self.core.advance_write_epoch();
        state.change = None;
        state.size = size(state.size);
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// Drops what was read.
    pub(super) fn drop_clean(&mut self) {
        self.pages.drop_clean();
        self.epoch += 1;
    }

    fn resize(&mut self, size: u64) {
        if self.size.is_some_and(|old| size < old) {
            self.pages.truncate(size);
        }
        self.size = Some(size);
    }

    /// Handles a read up to `to` that ended at `end`: the data after it was written here and has
    /// not arrived, or another client has truncated the file.
    fn record_end(&mut self, end: u64, to: u64) {
        if self.pages.unwritten_from(end) {
            self.pages.fill(end..to, None);
        } else {
            self.resize(end);
        }
    }
}

impl Core {
    /// Creates the state, with `bytes` of memory and write-back messages of up to `message` bytes.
    pub(super) fn new(bytes: usize, message: usize, workers: Arc<Workers>) -> Arc<Core> {
        let message = (message as u64).max(BLOCK);
        let buffer = || vec![0; message as usize];
        let depth = workers.max_threads;
        // The buffers are a part of the memory, unless they would be much of it.
        let buffers = depth * message as usize;
        let others = if bytes < 4 * buffers { 0 } else { buffers };
        Arc::new(Core {
            memory: Memory::new(bytes - others),
            message,
            workers,
            depth,
            write_epoch: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            buffers: Mutex::new((0..depth).map(|_| buffer()).collect()),
        })
    }

    /// Returns the number of writes sent plus the number of replies.
    pub(super) fn write_epoch(&self) -> u64 {
        self.write_epoch.load(Ordering::SeqCst)
    }

    /// Counts a write that is sent, or its reply; returns the new number.
    pub(super) fn advance_write_epoch(&self) -> u64 {
        self.write_epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns a buffer for a message: a preallocated one for each worker, new ones for callers
    /// that write themselves.
    pub(super) fn buffer(&self) -> Vec<u8> {
        let buffer = self.buffers.lock().pop();
        buffer.unwrap_or_default()
    }

    pub(super) fn return_buffer(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < self.depth {
            buffers.push(buffer);
        }
    }
}

/// Ends the threads once the queue is empty.
impl Drop for Core {
    fn drop(&mut self) {
        self.workers.queue.lock().closed = true;
        self.workers.work.notify_all();
    }
}
