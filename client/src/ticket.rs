//! Calls in flight: a thread pool makes them, and a ticket receives the result.
//!
//! A remote source sends the requests of its threads together, so the pool's calls are messages in
//! flight.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A call in flight. Dropping it discards the result; the call continues.
#[must_use = "what comes of a call is told by its ticket"]
pub struct Ticket<T> {
    outcome: Arc<Outcome<T>>,
}

struct Outcome<T> {
    slot: Mutex<Option<vfs::Result<T>>>,
    come: Condvar,
}

impl<T> Ticket<T> {
    /// Waits for the result.
    pub fn wait(self) -> io::Result<T> {
        let mut slot = lock(&self.outcome.slot);
        loop {
            match slot.take() {
                Some(result) => return Ok(result?),
                None => slot = self.outcome.come.wait(slot).expect(POISON),
            }
        }
    }

    /// Returns whether the call has ended, so that [`Ticket::wait`] does not block.
    pub fn is_done(&self) -> bool {
        lock(&self.outcome.slot).is_some()
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread pool. Threads start when there is work, and end after the pool has been dropped and the
/// queue is empty.
#[derive(Default)]
pub(crate) struct Crew {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    /// Notified of a new job, and of the end.
    call: Condvar,
    /// Notified when the queue has room.
    room: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    over: bool,
}

impl Crew {
    /// The most threads, and so calls in flight: enough to keep a connection busy.
    const THREADS: usize = 16;

    /// The most queued calls; submitting more blocks.
    const WAITING: usize = 1024;

    /// Queues a call.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> vfs::Result<T> + Send + 'static,
    ) -> Ticket<T> {
        let outcome = Arc::new(Outcome {
            slot: Mutex::new(None),
            come: Condvar::new(),
        });
        let told = outcome.clone();
        self.queue.push(Box::new(move || {
            let result = call();
            *lock(&told.slot) = Some(result);
            told.come.notify_all();
        }));
        Ticket { outcome }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        lock(&self.queue.state).over = true;
        self.queue.call.notify_all();
    }
}

impl Queue {
    fn push(self: &Arc<Self>, job: Job) {
        let mut state = lock(&self.state);
        while state.jobs.len() >= Crew::WAITING {
            state = self.room.wait(state).expect(POISON);
        }
        state.jobs.push_back(job);
        if state.idle < state.jobs.len() && state.threads < Crew::THREADS {
            state.threads += 1;
            let queue = self.clone();
            std::thread::spawn(move || queue.work());
        } else {
            self.call.notify_one();
        }
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                self.room.notify_one();
                job();
                state = lock(&self.state);
            } else if state.over {
                return;
            } else {
                state.idle += 1;
                state = self.call.wait(state).expect(POISON);
                state.idle -= 1;
            }
        }
    }
}

const POISON: &str = "no panic holds it";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(POISON)
}
