//! Threads for read-ahead and write-back.
//!
//! Lock order: their own mutex, after all others; none is held while a job runs.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use vfs::{Call, Cx};

use super::cached::{Cached, Job, Queue, Workers};
use crate::sync::thread::Builder;
use crate::sync::{Condvar, Mutex, MutexGuard};

impl Workers {
    /// The write-back interval: written data is sent after twice this at the latest. That is sooner
    /// than in a local file system, which takes up to 30 s, since this program can be killed.
    const TICK: Duration = Duration::from_secs(2);

    /// Creates up to `most` threads, one of them at once.
    pub(super) fn new(most: usize) -> io::Result<Arc<Workers>> {
        let workers = Arc::new(Workers {
            queue: Mutex::default(),
            work: Condvar::new(),
            max_threads: most,
        });
        workers.spawn_worker(&mut workers.queue())?;
        Ok(workers)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Queues `job`.
    pub(super) fn run(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            self.work.notify_one();
        } else if queue.threads < self.max_threads
            && let Err(error) = self.spawn_worker(&mut queue)
        {
            tracing::debug!("cannot start more threads for readahead and write-back: {error}");
        }
    }

    /// Adds `file`, which has dirty data, to those that are written after a while.
    pub(super) fn track_dirty(&self, file: Weak<Cached>) {
        let mut queue = self.queue();
        queue.dirty.push(file);
        if queue.dirty.len() == 1 {
            // A thread that waits without a timeout must start one.
            self.work.notify_one();
        }
    }

    /// Returns all files with dirty data, and perhaps some more.
    pub(super) fn dirty(&self) -> Vec<Arc<Cached>> {
        let queue = self.queue();
        queue.dirty.iter().filter_map(Weak::upgrade).collect()
    }

    fn spawn_worker(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let workers = self.clone();
        let name = Builder::new().name("barge-pages".into());
        name.spawn(move || workers.work())?;
        queue.threads += 1;
        Ok(())
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            let run = AssertUnwindSafe(|| match job {
                Job::Write(file) => file.write_back(),
                Job::Read(file, from, caller, reserved) => {
                    let call = Call::detached();
                    file.fill_ahead(&*from, &Cx::new(&caller, &call), reserved);
                }
            });
            if catch_unwind(run).is_err() {
                // The panic hook has written the message to standard error.
                tracing::error!("read-ahead or write-back panicked");
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            let rest = match queue.dirty.is_empty() {
                true => Duration::MAX,
                false => Workers::TICK,
            };
            queue.idle += 1;
            let slept = self.work.wait_for(&mut queue, rest);
            queue.idle -= 1;
            if slept.timed_out() && !queue.selecting {
                queue.selecting = true;
                let dirty = queue.dirty.clone();
                drop(queue);
                let checked = dirty.len();
                let (due, rest) = select_due(dirty);
                queue = self.queue();
                queue.jobs.extend(due);
                queue.dirty.splice(..checked, rest);
                queue.selecting = false;
            }
        }
    }
}

/// Returns jobs for the files that are due, and the files to check again.
fn select_due(dirty: Vec<Weak<Cached>>) -> (Vec<Job>, Vec<Weak<Cached>>) {
    let (mut due, mut rest) = (Vec::new(), Vec::new());
    for file in dirty {
        let Some(there) = file.upgrade() else {
            continue;
        };
        match there.check_age() {
            None => continue,
            Some(true) => due.push(Job::Write(there)),
            Some(false) => {}
        }
        rest.push(file);
    }
    (due, rest)
}
