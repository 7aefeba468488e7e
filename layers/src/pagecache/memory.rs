//! The memory of all files together: how much there is, what goes first, how many blocks are to be written.
//!
//! Lock order: its own mutex, behind that of a file. Making room takes files' locks, one at a time and not under its own.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use vfs::{Cx, Result};

use super::cached::Cached;
use super::pages::{BLOCK, PAGE};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Memory {
    /// The most bytes, but for blocks that are being filled or written.
    capacity: u64,
    /// How many blocks have bytes to be written.
    dirty: AtomicUsize,
    inner: Mutex<Inner>,
    /// Rung when a block is to be written no more.
    less_dirty: Condvar,
}

#[derive(Default)]
struct Inner {
    used: u64,
    /// Bytes that were ever taken, which is what time is here.
    taken: u64,
    /// Memory of blocks that are gone.
    spare: Vec<Vec<u8>>,
    /// What there is in the order in which it may go; some is gone already.
    queue: VecDeque<Entry>,
    /// Pages that were handed out, which go before all else.
    spent: VecDeque<Entry>,
    /// Who waits for [`Memory::less_dirty`].
    waiting: usize,
}

/// Something that may make room.
struct Entry {
    owner: Weak<Cached>,
    held: Held,
    /// When it came, by [`Inner::taken`].
    since: u64,
}

/// What of a file is in memory, by its number.
#[derive(Clone, Copy)]
pub(super) enum Held {
    Block(u64),
    /// A page that nobody has got yet.
    Page(u64),
    /// A page that was handed out.
    Spent(u64),
}

impl Memory {
    /// What was not handed out is there until so many times the memory was taken, though there be pages that were: then it is of no
    /// use. A file of four times the memory is read at random to its end meanwhile.
    const LIVES: u64 = 4;

    /// Memory of blocks that are gone is kept for so many others.
    const SPARE: usize = 64;

    pub(super) fn new(bytes: usize) -> Arc<Memory> {
        Arc::new(Memory {
            capacity: (bytes as u64 / BLOCK).max(Memory::LEAST) * BLOCK,
            dirty: AtomicUsize::new(0),
            inner: Mutex::default(),
            less_dirty: Condvar::new(),
        })
    }

    /// With fewer blocks, what is read ahead would be gone before it is read.
    const LEAST: u64 = 16;

    /// Bytes that are in use.
    pub(super) fn used(&self) -> u64 {
        self.inner().used
    }

    /// Bytes in all.
    pub(super) fn bytes(&self) -> u64 {
        self.capacity
    }

    /// The most bytes that are to be written: half of all, so that there is something to make room of.
    pub(super) fn most_dirty(&self) -> u64 {
        self.bytes() / 2
    }

    /// Whether it is time to write, whatever is adjacent to what.
    pub(super) fn is_full_of_dirt(&self) -> bool {
        self.dirty.load(Ordering::Relaxed) as u64 * BLOCK > self.most_dirty() / 2
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic holds it")
    }

    /// Memory for the block `number` of `owner`, with anything in it.
    pub(super) fn take(&self, owner: &Weak<Cached>, number: u64) -> Vec<u8> {
        let mut inner = self.inner();
        inner.take(BLOCK, owner, Held::Block(number));
        let spare = inner.spare.pop();
        drop(inner);
        spare.unwrap_or_else(|| vec![0; BLOCK as usize])
    }

    pub(super) fn give(&self, data: Arc<Vec<u8>>) {
        let data = Arc::into_inner(data);
        let mut inner = self.inner();
        inner.used -= BLOCK;
        if let Some(data) = data.filter(|_| inner.spare.len() < Memory::SPARE) {
            inner.spare.push(data);
        }
    }

    /// The page `number` of `owner` takes memory.
    pub(super) fn take_page(&self, owner: &Weak<Cached>, number: u64) {
        self.inner().take(PAGE, owner, Held::Page(number));
    }

    /// The page `number` of `owner` was handed out: it may go.
    pub(super) fn spent(&self, owner: &Weak<Cached>, number: u64) {
        let mut inner = self.inner();
        let entry = inner.entry(owner, Held::Spent(number));
        inner.spent.push_back(entry);
    }

    pub(super) fn give_page(&self) {
        self.inner().used -= PAGE;
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

    /// Whether `len` more bytes may be kept to be written.
    pub(super) fn takes(&self, len: usize) -> bool {
        let dirty = self.dirty.load(Ordering::Relaxed) as u64 * BLOCK;
        dirty == 0 || dirty + len as u64 <= self.most_dirty()
    }

    /// Waits until [`Memory::takes`] `len` more bytes.
    pub(super) fn wait_for_less_dirty(self: &Arc<Self>, cx: &Cx<'_>, len: usize) -> Result<()> {
        cx.call.wake_on_cancel(&Waker::from(self.clone()));
        let mut inner = self.inner();
        while !self.takes(len) {
            cx.call.check()?;
            inner.waiting += 1;
            inner = self.less_dirty.wait(inner).expect("no panic holds it");
            inner.waiting -= 1;
        }
        Ok(())
    }

    /// Makes room for `bytes` more, of what nobody needs. Files that have lost something are handed to `emptied`. Must be called
    /// without a file's lock.
    pub(super) fn make_room(&self, bytes: u64, emptied: impl Fn(&Arc<Cached>)) {
        let bytes = bytes + 2 * BLOCK;
        // Twice as many as there are pages may be needed: one of those that were handed out has two.
        let most = 3 * (self.capacity / PAGE) as usize;
        let (mut tries, mut again) = (0, true);
        loop {
            let mut inner = self.inner();
            let crowded = inner.used + bytes > self.capacity;
            // Those that are gone already must not pile up.
            if !crowded && inner.entries() <= most {
                return;
            }
            if tries > inner.entries() {
                match again {
                    true => (tries, again) = (0, false),
                    // All that there is is needed: it becomes more for a while.
                    false => return,
                }
            }
            let next = match crowded {
                true => inner.next(Memory::LIVES * self.capacity),
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
            match file.evict(entry.held, crowded.then_some(again)) {
                true => emptied(&file),
                false => self.inner().back(entry, crowded),
            }
        }
    }
}

impl Inner {
    fn entry(&self, owner: &Weak<Cached>, held: Held) -> Entry {
        Entry {
            owner: owner.clone(),
            held,
            since: self.taken,
        }
    }

    fn take(&mut self, bytes: u64, owner: &Weak<Cached>, held: Held) {
        self.used += bytes;
        self.taken += bytes;
        let entry = self.entry(owner, held);
        self.queue.push_back(entry);
    }

    fn entries(&self) -> usize {
        self.queue.len() + self.spent.len()
    }

    /// What is to go next: what was handed out, unless something is there longer than `most`.
    fn next(&mut self, most: u64) -> Option<Entry> {
        let oldest = self.queue.front();
        let old = oldest.is_some_and(|entry| self.taken - entry.since > most);
        let spent = if old { None } else { self.spent.pop_front() };
        spent.or_else(|| self.queue.pop_front())
    }

    /// Where more is that is gone already, if there is too much.
    fn longer(&mut self) -> &mut VecDeque<Entry> {
        match self.spent.len() > self.queue.len() {
            true => &mut self.spent,
            false => &mut self.queue,
        }
    }

    /// It is needed still, as if it had come now (`anew`).
    fn back(&mut self, mut entry: Entry, anew: bool) {
        if anew {
            entry.since = self.taken;
        }
        let queue = match entry.held {
            Held::Spent(_) => &mut self.spent,
            Held::Block(_) | Held::Page(_) => &mut self.queue,
        };
        queue.push_back(entry);
    }
}

/// Whoever waits looks whether it was cancelled.
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
            memory.take_page(&Weak::new(), number);
            memory.spent(&Weak::new(), number);
            memory.give_page();
            memory.make_room(PAGE, |_| {});
        }
        let entries = memory.inner().entries();
        assert!(entries <= 3 * 256 + 2, "{entries}");
        assert_eq!(memory.used(), 0);
    }
}
