//! Threads that make copies: one writes what has come to the disk, in its order; few fetch what readers did not bring.
//!
//! Lock order: their own mutex, behind all others; not held while they work.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

use super::filling::Filling;

/// What there is to do on the disk.
enum Job {
    /// Bytes have come.
    Piece(Arc<Filling>, u64, Vec<u8>),
    /// No more come from readers.
    Close(Arc<Filling>),
    /// No more are fetched.
    Fetched(Arc<Filling>),
}

#[derive(Default)]
pub(super) struct Workers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    disk: VecDeque<Job>,
    fetch: VecDeque<Arc<Filling>>,
    /// Bytes that wait for the disk.
    bytes: usize,
    /// Threads that are at work.
    busy: usize,
    closed: bool,
}

impl Workers {
    /// Bytes that may wait for the disk: more are left where they came from, for readers do not wait for it. So much is a moment of a disk.
    const MOST: usize = 32 << 20;

    /// Bytes that a piece counts for besides its own: files may have few.
    const OVERHEAD: usize = 1 << 10;

    /// Threads that fetch, which is how many calls of theirs a server has besides those of readers.
    const FETCHERS: usize = 2;

    /// The threads, and the one that writes, which ends behind [`Workers::close`] once all that has come is written.
    pub(super) fn start() -> io::Result<(Arc<Workers>, JoinHandle<()>)> {
        let workers = Arc::new(Workers::default());
        let named = || Builder::new().name("barge-kept".into());
        for _ in 0..Workers::FETCHERS {
            let workers = workers.clone();
            named().spawn(move || workers.fetch())?;
        }
        let writing = workers.clone();
        let writer = named().spawn(move || writing.write())?;
        Ok((workers, writer))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no panic holds it")
    }

    /// Whether `bytes` more can be taken.
    pub(super) fn takes(&self, bytes: usize) -> bool {
        self.queue().bytes + bytes + Workers::OVERHEAD <= Workers::MOST
    }

    /// `bytes` have come.
    pub(super) fn piece(&self, filling: &Arc<Filling>, offset: u64, bytes: Vec<u8>) {
        filling.brought(bytes.len());
        let mut queue = self.queue();
        queue.bytes += bytes.len() + Workers::OVERHEAD;
        let piece = Job::Piece(filling.clone(), offset, bytes);
        queue.disk.push_back(piece);
        self.changed.notify_all();
    }

    /// Readers bring no more.
    pub(super) fn end(&self, filling: Arc<Filling>) {
        self.queue().disk.push_back(Job::Close(filling));
        self.changed.notify_all();
    }

    /// Has the rest fetched.
    pub(super) fn rest(&self, filling: Arc<Filling>) {
        let mut queue = self.queue();
        if !queue.closed {
            queue.fetch.push_back(filling);
            self.changed.notify_all();
        }
    }

    /// What has come is written, nothing else is fetched any more.
    pub(super) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        let rest = std::mem::take(&mut queue.fetch);
        drop(queue);
        drop(rest);
        self.changed.notify_all();
    }

    /// Waits until there is nothing to be done.
    pub(super) fn wait(&self) {
        let mut queue = self.queue();
        while !(queue.disk.is_empty() && queue.fetch.is_empty() && queue.busy == 0) {
            queue = self.changed.wait(queue).expect("no panic holds it");
        }
    }

    /// The next thing that `take` takes; nothing once there is none and there will be none.
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
            queue = self.changed.wait(queue).expect("no panic holds it");
        }
    }

    fn done(&self) {
        self.queue().busy -= 1;
        self.changed.notify_all();
    }

    fn write(&self) {
        while let Some(job) = self.next(|queue| queue.disk.pop_front()) {
            match job {
                Job::Piece(filling, offset, bytes) => {
                    filling.write(offset, &bytes);
                    self.queue().bytes -= bytes.len() + Workers::OVERHEAD;
                }
                Job::Close(filling) => {
                    if filling.close() {
                        self.rest(filling);
                    }
                }
                Job::Fetched(filling) => filling.fetched(),
            }
            self.done();
        }
    }

    fn fetch(&self) {
        while let Some(filling) = self.next(|queue| queue.fetch.pop_front()) {
            filling.fetch(&mut |offset, bytes| self.piece_in_time(&filling, offset, bytes));
            self.queue().disk.push_back(Job::Fetched(filling));
            self.done();
        }
    }

    /// [`Workers::piece`] as soon as that can be taken; `false` if it is over.
    fn piece_in_time(&self, filling: &Arc<Filling>, offset: u64, bytes: Vec<u8>) -> bool {
        let mut queue = self.queue();
        while queue.bytes + bytes.len() + Workers::OVERHEAD > Workers::MOST && !queue.closed {
            queue = self.changed.wait(queue).expect("no panic holds it");
        }
        let closed = queue.closed;
        drop(queue);
        if !closed {
            self.piece(filling, offset, bytes);
        }
        !closed
    }
}
