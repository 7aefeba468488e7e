//! A pool of threads that run jobs in the order of submission.
//!
//! Lock order: the queue alone; jobs run and are dropped without it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

type Job = Box<dyn FnOnce() + Send>;

/// A thread pool. Threads start when there is work, and end after the pool has been dropped and the
/// queue is empty. They survive a job that panics.
pub struct ThreadPool {
    queue: Arc<Queue>,
}

struct Queue {
    name: &'static str,
    max_threads: usize,
    max_jobs: usize,
    state: Mutex<State>,
    /// Notified of a new job, and of the end.
    work: Condvar,
    /// Notified when the queue has room.
    room: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl ThreadPool {
    /// Creates a pool of up to `max_threads` threads called `name`, which a thread's name in the
    /// kernel truncates to 15 bytes. Up to `max_jobs` jobs wait for a thread.
    pub fn new(name: &'static str, max_threads: usize, max_jobs: usize) -> ThreadPool {
        ThreadPool {
            queue: Arc::new(Queue {
                name,
                max_threads,
                max_jobs,
                state: Mutex::default(),
                work: Condvar::new(),
                room: Condvar::new(),
            }),
        }
    }

    /// Queues `job`. Blocks while the queue is full. If no thread can be created and there is none,
    /// runs the job on the calling thread.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.queue.state.lock();
        while state.jobs.len() >= self.queue.max_jobs {
            self.queue.room.wait(&mut state);
        }
        self.queue.push(state, Box::new(job));
    }

    /// Queues `job` like [`ThreadPool::run`], or drops it if the queue is full.
    pub fn try_run(&self, job: impl FnOnce() + Send + 'static) {
        let state = self.queue.state.lock();
        if state.jobs.len() < self.queue.max_jobs {
            self.queue.push(state, Box::new(job));
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.work.notify_all();
    }
}

impl Queue {
    fn push(self: &Arc<Self>, mut state: MutexGuard<'_, State>, job: Job) {
        if state.idle <= state.jobs.len() && state.threads < self.max_threads {
            match self.spawn() {
                Ok(()) => state.threads += 1,
                Err(error) if state.threads > 0 => {
                    tracing::debug!("no more threads for {}: {error}", self.name);
                }
                Err(error) => {
                    tracing::warn!("no thread for {}: {error}", self.name);
                    drop(state);
                    return run(self.name, job);
                }
            }
        }
        state.jobs.push_back(job);
        self.work.notify_one();
    }

    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        let queue = self.clone();
        let thread = std::thread::Builder::new().name(self.name.into());
        thread.spawn(move || queue.work()).map(drop)
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.room.notify_one();
                run(self.name, job);
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

fn run(name: &str, job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        // The panic hook has written the message to standard error.
        tracing::error!("a job of {name} has panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use vfs_testkit::wait_until;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn jobs_run_after_jobs_that_panic() {
        let pool = ThreadPool::new("test", 2, 16);
        for _ in 0..8 {
            pool.run(|| panic!("as a test wants it"));
        }
        let (done, is_done) = channel();
        pool.run(move || done.send(()).expect("awaited"));
        assert_eq!(is_done.recv_timeout(SOON), Ok(()));
        assert!(pool.queue.state.lock().threads <= 2);
    }

    #[test]
    fn a_dropped_pool_finishes_its_jobs_and_frees_its_threads() {
        let pool = ThreadPool::new("test", 1, 16);
        let queue = Arc::downgrade(&pool.queue);
        let (done, is_done) = channel();
        for number in 0..10 {
            let done = done.clone();
            pool.run(move || done.send(number).expect("awaited"));
        }
        drop((pool, done));
        assert!(is_done.iter().eq(0..10));
        wait_until("the threads have ended", || queue.strong_count() == 0);
    }

    #[test]
    fn a_full_queue_drops_jobs_that_only_try() {
        let pool = ThreadPool::new("test", 1, 1);
        let (go_on, goes_on) = channel::<()>();
        let (started, has_started) = channel();
        let (done, is_done) = channel();
        pool.run(move || {
            started.send(()).expect("awaited");
            goes_on.recv().expect("sent");
        });
        has_started.recv_timeout(SOON).expect("the job runs");
        for number in 1..3 {
            let done = done.clone();
            pool.try_run(move || done.send(number).expect("awaited"));
        }
        go_on.send(()).expect("awaited");
        drop((pool, done));
        assert!(is_done.iter().eq([1]));
    }

    #[test]
    fn a_full_queue_blocks() {
        let pool = ThreadPool::new("test", 1, 1);
        let (go_on, goes_on) = channel::<()>();
        let (done, is_done) = channel();
        let first = done.clone();
        pool.run(move || {
            goes_on.recv().expect("sent");
            first.send(1).expect("awaited");
        });
        std::thread::scope(|threads| {
            let second = done.clone();
            threads.spawn(|| {
                pool.run(move || second.send(2).expect("awaited"));
                pool.run(move || done.send(3).expect("awaited"));
            });
            go_on.send(()).expect("awaited");
        });
        drop(pool);
        assert!(is_done.iter().eq(1..4));
    }
}
