//! Threads that fill copies: one writes data to the disk, in order of arrival; a few fetch data
//! that no reader has read.
//!
//! Lock order: their own mutex, after all others; not held while they work.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::partial_copy::PartialCopy;

/// A task of the thread that writes.
enum Job {
    /// Writes data.
    Write(Arc<PartialCopy>, u64, Vec<u8>),
    /// Ends the data from reads.
    Close(Arc<PartialCopy>),
    /// Ends the fetch.
    EndFetch(Arc<PartialCopy>),
}

#[derive(Default)]
pub(super) struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    disk: VecDeque<Job>,
    fetch: VecDeque<Arc<PartialCopy>>,
    /// Bytes queued for the disk.
    bytes: usize,
    /// The number of threads at work.
    busy: usize,
    closed: bool,
}

impl Workers {
    /// The maximum number of bytes queued for the disk: beyond it data is not cached, for readers
    /// do not wait for the disk. A disk writes as much in a moment.
    const MAX_QUEUED: usize = 32 << 20;

    /// Bytes that a queued piece counts for in addition to its data, which may be short.
    const OVERHEAD: usize = 1 << 10;

    /// The number of fetching threads, and of their concurrent calls to a server.
    const FETCHERS: usize = 2;

    /// Starts the threads. Returns the handle of the writing one, which ends after
    /// [`Workers::close`] once all queued data is written.
    pub(super) fn start() -> io::Result<(Arc<Workers>, JoinHandle<()>)> {
        let workers = Arc::new(Workers::default());
        let named = || Builder::new().name("barge-cache".into());
        for _ in 0..Workers::FETCHERS {
            let workers = workers.clone();
            named().spawn(move || workers.fetch())?;
        }
        let writing = workers.clone();
        let writer = named().spawn(move || writing.write())?;
        Ok((workers, writer))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Returns whether `bytes` more fit in the queue.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.queue().bytes + bytes + Workers::OVERHEAD <= Workers::MAX_QUEUED
    }

    /// Queues data that was read.
    pub(super) fn queue_write(&self, filling: &Arc<PartialCopy>, offset: u64, bytes: Vec<u8>) {
        filling.count_read(bytes.len());
        let mut queue = self.queue();
        queue.bytes += bytes.len() + Workers::OVERHEAD;
        let piece = Job::Write(filling.clone(), offset, bytes);
        queue.disk.push_back(piece);
        self.changed.notify_all();
    }

    /// Queues the end of the data from reads.
    pub(super) fn queue_close(&self, filling: Arc<PartialCopy>) {
        self.queue().disk.push_back(Job::Close(filling));
        self.changed.notify_all();
    }

    /// Queues a fetch of the rest.
    pub(super) fn queue_fetch(&self, filling: Arc<PartialCopy>) {
        let mut queue = self.queue();
        if !queue.closed {
            queue.fetch.push_back(filling);
            self.changed.notify_all();
        }
    }

    /// Stops fetching; data that is queued is still written.
    pub(super) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        let rest = std::mem::take(&mut queue.fetch);
        drop(queue);
        drop(rest);
        self.changed.notify_all();
    }

    /// Waits until the queues are empty and all threads idle.
    pub(super) fn wait(&self) {
        let mut queue = self.queue();
        while !(queue.disk.is_empty() && queue.fetch.is_empty() && queue.busy == 0) {
            self.changed.wait(&mut queue);
        }
    }

    /// Waits for the next job that `take` finds; `None` once the queue is closed and has none.
    fn next<T>(&self, take: impl Fn(&mut Queue) -> Option<T>) -> Option<T> {
        let mut queue = self.queue();
        loop {
            if let Some(job) = take(&mut queue) {
                queue.busy += 1;
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }

    fn end_job(&self) {
        self.queue().busy -= 1;
        self.changed.notify_all();
    }

    fn write(&self) {
        while let Some(job) = self.next(|queue| queue.disk.pop_front()) {
            match job {
                Job::Write(filling, offset, bytes) => {
                    filling.write(offset, &bytes);
                    self.queue().bytes -= bytes.len() + Workers::OVERHEAD;
                }
                Job::Close(filling) => {
                    if filling.close() {
                        self.queue_fetch(filling);
                    }
                }
                Job::EndFetch(filling) => filling.end_fetch(),
            }
            self.end_job();
        }
    }

    fn fetch(&self) {
        while let Some(filling) = self.next(|queue| queue.fetch.pop_front()) {
            filling.fetch(&mut |offset, bytes| self.queue_write_when_room(&filling, offset, bytes));
            self.queue().disk.push_back(Job::EndFetch(filling));
            self.end_job();
        }
    }

    /// Calls [`Workers::queue_write`] as soon as the queue has room. Returns `false` if the queue
    /// is closed.
    fn queue_write_when_room(
        &self,
        filling: &Arc<PartialCopy>,
        offset: u64,
        bytes: Vec<u8>,
    ) -> bool {
        let mut queue = self.queue();
        while queue.bytes + bytes.len() + Workers::OVERHEAD > Workers::MAX_QUEUED && !queue.closed {
            self.changed.wait(&mut queue);
        }
        let closed = queue.closed;
        drop(queue);
        if !closed {
            self.queue_write(filling, offset, bytes);
        }
        !closed
    }
}
