//! The memory of all files together: how many blocks there are, which go first, how many are to be written.
//!
//! Lock order: its own mutex, behind that of a file. Making room takes files' locks, one at a time and not under its own.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use vfs::{Cx, Result};

use super::cached::Cached;
use super::pages::BLOCK;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Memory {
    /// The most blocks, but for those that are being filled or written.
    capacity: usize,
    /// How many blocks have bytes to be written.
    dirty: AtomicUsize,
    inner: Mutex<Inner>,
    /// Rung when a block is to be written no more.
    less_dirty: Condvar,
}

#[derive(Default)]
struct Inner {
    used: usize,
    /// Memory of blocks that are gone.
    spare: Vec<Vec<u8>>,
    /// Blocks in the order in which they may go; some are gone already.
    queue: VecDeque<(Weak<Cached>, u64)>,
    /// Who waits for [`Memory::less_dirty`].
    waiting: usize,
}

impl Memory {
    /// Memory of blocks that are gone is kept for so many others.
    const SPARE: usize = 64;

    pub(super) fn new(bytes: usize) -> Arc<Memory> {
        Arc::new(Memory {
            capacity: (bytes / BLOCK as usize).max(Memory::LEAST),
            dirty: AtomicUsize::new(0),
            inner: Mutex::default(),
            less_dirty: Condvar::new(),
        })
    }

    /// With fewer blocks, what is read ahead would be gone before it is read.
    const LEAST: usize = 16;

    /// Bytes that are in use.
    pub(super) fn used(&self) -> u64 {
        self.inner().used as u64 * BLOCK
    }

    /// Bytes in all.
    pub(super) fn bytes(&self) -> u64 {
        self.capacity as u64 * BLOCK
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
        inner.used += 1;
        inner.queue.push_back((owner.clone(), number));
        let spare = inner.spare.pop();
        drop(inner);
        spare.unwrap_or_else(|| vec![0; BLOCK as usize])
    }

    pub(super) fn give(&self, data: Arc<Vec<u8>>) {
        let data = Arc::into_inner(data);
        let mut inner = self.inner();
        inner.used -= 1;
        if let Some(data) = data.filter(|_| inner.spare.len() < Memory::SPARE) {
            inner.spare.push(data);
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

    /// Makes room for `bytes` more, of blocks that nobody needs. Files that have lost one are handed to `emptied`. Must be called
    /// without a file's lock.
    pub(super) fn make_room(&self, bytes: u64, emptied: impl Fn(&Arc<Cached>)) {
        let blocks = (bytes / BLOCK + 2) as usize;
        let (mut tries, mut again) = (0, true);
        loop {
            let mut inner = self.inner();
            let crowded = inner.used + blocks > self.capacity;
            // Those that are gone already must not pile up.
            if !crowded && inner.queue.len() <= 2 * self.capacity {
                return;
            }
            if tries > inner.queue.len() {
                match again {
                    true => (tries, again) = (0, false),
                    // All that there is is needed: it becomes more for a while.
                    false => return,
                }
            }
            let Some((owner, number)) = inner.queue.pop_front() else {
                return;
            };
            drop(inner);
            tries += 1;
            let Some(file) = owner.upgrade() else {
                continue;
            };
            match file.evict(number, crowded.then_some(again)) {
                true => emptied(&file),
                false => self.inner().queue.push_back((owner, number)),
            }
        }
    }
}

/// Whoever waits looks whether it was cancelled.
impl Wake for Memory {
    fn wake(self: Arc<Self>) {
        let _inner = self.inner();
        self.less_dirty.notify_all();
    }
}
