//! Calls in flight: a thread pool makes them, and a ticket receives the result.
//!
//! A remote source sends the requests of its threads together, so the pool's calls are messages in
//! flight.

use std::io;
use std::sync::Arc;

use concurrency::ThreadPool;
use parking_lot::{Condvar, Mutex};

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
        let mut slot = self.outcome.slot.lock();
        loop {
            match slot.take() {
                Some(result) => return Ok(result?),
                None => self.outcome.come.wait(&mut slot),
            }
        }
    }

    /// Returns whether the call has ended, so that [`Ticket::wait`] does not block.
    pub fn is_done(&self) -> bool {
        self.outcome.slot.lock().is_some()
    }
}

/// The thread pool of a [`crate::Client`].
pub(crate) struct Calls(ThreadPool);

impl Calls {
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
        self.0.run(move || {
            let result = call();
            *told.slot.lock() = Some(result);
            told.come.notify_all();
        });
        Ticket { outcome }
    }
}

impl Default for Calls {
    fn default() -> Calls {
        Calls(ThreadPool::new(
            "barge-client",
            Calls::THREADS,
            Calls::WAITING,
        ))
    }
}
