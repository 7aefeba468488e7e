//! The memory that all files share: its limit, the order of eviction, and the number of dirty
//! blocks.
//!
//! Lock order: its own mutex, after that of a file. Eviction takes files' locks, one at a time and
//! not under its own.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use sys::pages::PageBuffer;
use vfs::{Cx, Result};

use super::cached::Cached;
use super::units::{BLOCK, CacheUnit, PAGE};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Memory {
    /// The maximum in bytes, excluding blocks that are being filled or written.
    capacity: u64,
    /// The number of dirty blocks.
    dirty: AtomicUsize,
    /// The bytes that are being read ahead, for all files.
    reading_ahead: AtomicU64,
    /// The bytes that were evicted.
    evicted: AtomicU64,
    inner: Mutex<Inner>,
    /// Notified when a block is no longer dirty.
    less_dirty: Condvar,
}

#[derive(Default)]
struct Inner {
    used: u64,
    /// Bytes ever taken: the clock for ages.
    taken: u64,
    /// Buffers of freed blocks. All are in pages of their own: between small blocks of the
    /// allocator, which outlive them, freed ones would stay in memory.
    spare: Vec<PageBuffer>,
    /// Entries in the order of eviction; some are gone already.
    queue: VecDeque<Entry>,
    /// Pages that were handed out, evicted before all others.
    consumed: VecDeque<Entry>,
    /// The number of waiters for [`Memory::less_dirty`].
    waiting: usize,
}

/// A candidate for eviction.
struct Entry {
    owner: Weak<Cached>,
    unit: CacheUnit,
    /// The value of [`Inner::taken`] when it was added.
    since: u64,
}

impl Memory {
    /// The age, in multiples of the capacity, up to which data is kept in preference to pages that
    /// were handed out. Older data is useless: a random read of a file four times as large as the
    /// memory is complete by then.
    const MAX_AGE: u64 = 4;

    /// The maximum number of buffers of freed blocks to keep for reuse: 1 MiB.
    const MAX_SPARE: usize = 16;

    pub(super) fn new(bytes: usize) -> Arc<Memory> {
        Arc::new(Memory {
            capacity: (bytes as u64 / BLOCK).max(Memory::MIN_BLOCKS) * BLOCK,
            dirty: AtomicUsize::new(0),
            reading_ahead: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            inner: Mutex::default(),
            less_dirty: Condvar::new(),
        })
    }

    /// The minimum number of blocks: with fewer, read-ahead data would be evicted before it is
    /// read.
    const MIN_BLOCKS: u64 = 16;

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.inner().used
    }

    /// Counts bytes that were evicted to make room.
    pub(super) fn count_evicted(&self, bytes: u64) {
        self.evicted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that were evicted to make room.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns the capacity in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.capacity
    }

    /// Returns the maximum of dirty bytes: half of the capacity, so that there is something to
    /// evict.
    pub(super) fn max_dirty(&self) -> u64 {
        self.bytes() / 2
    }

    /// Returns the most bytes that another stream may read ahead: a quarter of the capacity, and
    /// all streams together half. More would be evicted before it is read, and it takes memory
    /// beyond the capacity while it arrives.
    pub(super) fn max_read_ahead(&self) -> u64 {
        let reading = self.reading_ahead.load(Ordering::Relaxed);
        (self.bytes() / 4).min((self.bytes() / 2).saturating_sub(reading))
    }

    /// Counts bytes whose read-ahead begins.
    pub(super) fn begin_read_ahead(&self, bytes: u64) {
        self.reading_ahead.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes whose read-ahead has ended.
    pub(super) fn end_read_ahead(&self, bytes: u64) {
        self.reading_ahead.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns whether it is time to write, even short runs.
    pub(super) fn needs_writeback(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) as u64 * BLOCK > self.max_dirty() / 2
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Takes memory for the block `number` of `owner`, with arbitrary contents.
    pub(super) fn allocate(&self, owner: &Weak<Cached>, number: u64) -> PageBuffer {
        let mut inner = self.inner();
        inner.charge(BLOCK, owner, CacheUnit::Block(number));
        let spare = inner.spare.pop();
        drop(inner);
        spare.unwrap_or_else(|| PageBuffer::zeroed(BLOCK as usize))
    }

    pub(super) fn free(&self, data: Arc<PageBuffer>) {
        let data = Arc::into_inner(data);
        let mut inner = self.inner();
        inner.used -= BLOCK;
        if let Some(data) = data.filter(|_| inner.spare.len() < Memory::MAX_SPARE) {
            inner.spare.push(data);
        }
    }

    /// Accounts memory for the page `number` of `owner`.
    pub(super) fn charge_page(&self, owner: &Weak<Cached>, number: u64) {
        self.inner().charge(PAGE, owner, CacheUnit::Page(number));
    }

    /// Marks the page `number` of `owner` as handed out: it may be evicted first.
    pub(super) fn mark_consumed(&self, owner: &Weak<Cached>, number: u64) {
        let mut inner = self.inner();
        let entry = inner.entry(owner, CacheUnit::ConsumedPage(number));
        inner.consumed.push_back(entry);
    }

    /// Frees the memory of `count` pages.
    pub(super) fn free_pages(&self, count: usize) {
        if count > 0 {
            self.inner().used -= count as u64 * PAGE;
        }
    }

    pub(super) fn dirtied(&self) {
        self.dirty.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn cleaned(&self) {
        self.dirty.fetch_sub(1, Ordering::Relaxed);
        let inner = self.inner();
        if inner.waiting > 0 {
            self.less_dirty.notify_all();
        }
    }

    /// Returns whether `len` more bytes may become dirty.
    pub(super) fn allows_dirty(&self, len: usize) -> bool {
        let dirty = self.dirty.load(Ordering::Relaxed) as u64 * BLOCK;
        dirty == 0 || dirty + len as u64 <= self.max_dirty()
    }

    /// Waits until [`Memory::allows_dirty`] accepts `len` more bytes.
    pub(super) fn wait_for_less_dirty(self: &Arc<Self>, cx: &Cx<'_>, len: usize) -> Result<()> {
        cx.call.wake_on_cancel(&Waker::from(self.clone()));
        let mut inner = self.inner();
        while !self.allows_dirty(len) {
            cx.call.check()?;
            inner.waiting += 1;
            self.less_dirty.wait(&mut inner);
            inner.waiting -= 1;
        }
        Ok(())
    }

    /// Evicts unneeded data to make room for `bytes` more. Calls `emptied` with each file that has
    /// lost something. Must be called without a file's lock.
    pub(super) fn make_room(&self, bytes: u64, emptied: impl Fn(&Arc<Cached>)) {
        let bytes = bytes + 2 * BLOCK;
        // Twice the number of pages may be needed: each page that was handed out has two entries.
        let most = 3 * (self.capacity / PAGE) as usize;
        let (mut tries, mut again) = (0, true);
        loop {
            let mut inner = self.inner();
            let crowded = inner.used + bytes > self.capacity;
            // Entries that are gone must not pile up.
            if !crowded && inner.entries() <= most {
                return;
            }
            if tries > inner.entries() {
                match again {
                    true => (tries, again) = (0, false),
                    // Everything is needed: the limit is exceeded for a while.
                    false => return,
                }
            }
            let next = match crowded {
                true => inner.next(Memory::MAX_AGE * self.capacity),
                false => inner.longer().pop_front(),
            };
            let Some(entry) = next else {
                return;
            };
            drop(inner);
            tries += 1;
            let Some(file) = entry.owner.upgrade() else {
                continue;
            };
            match file.evict(entry.unit, crowded.then_some(again)) {
                true => emptied(&file),
                false => self.inner().requeue(entry, crowded),
            }
        }
    }
}

impl Inner {
    fn entry(&self, owner: &Weak<Cached>, held: CacheUnit) -> Entry {
        Entry {
            owner: owner.clone(),
            unit: held,
            since: self.taken,
        }
    }

    fn charge(&mut self, bytes: u64, owner: &Weak<Cached>, held: CacheUnit) {
        self.used += bytes;
        self.taken += bytes;
        let entry = self.entry(owner, held);
        self.queue.push_back(entry);
    }

    fn entries(&self) -> usize {
        self.queue.len() + self.consumed.len()
    }

    /// Returns the next candidate: a page that was handed out, unless something is older than
    /// `most`.
    fn next(&mut self, most: u64) -> Option<Entry> {
        let oldest = self.queue.front();
        let old = oldest.is_some_and(|entry| self.taken - entry.since > most);
        let spent = if old { None } else { self.consumed.pop_front() };
        spent.or_else(|| self.queue.pop_front())
    }

    /// Returns the queue that probably has more stale entries.
    fn longer(&mut self) -> &mut VecDeque<Entry> {
        match self.consumed.len() > self.queue.len() {
            true => &mut self.consumed,
            false => &mut self.queue,
        }
    }

    /// Puts back an entry that is still needed, as if it were new if `anew`.
    fn requeue(&mut self, mut entry: Entry, anew: bool) {
        if anew {
            entry.since = self.taken;
        }
        let queue = match entry.unit {
            CacheUnit::ConsumedPage(_) => &mut self.consumed,
            CacheUnit::Block(_) | CacheUnit::Page(_) => &mut self.queue,
        };
        queue.push_back(entry);
    }
}

/// Waiters check whether they were cancelled.
impl Wake for Memory {
    fn wake(self: Arc<Self>) {
        let _inner = self.inner();
        self.less_dirty.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_already_does_not_pile_up() {
        let memory = Memory::new(1 << 20);
        for number in 0..10_000 {
            memory.charge_page(&Weak::new(), number);
            memory.mark_consumed(&Weak::new(), number);
            memory.free_pages(1);
            memory.make_room(PAGE, |_| {});
        }
        let entries = memory.inner().entries();
        assert!(entries <= 3 * 256 + 2, "{entries}");
        assert_eq!(memory.used(), 0);
    }
}
