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
    result: Mutex<Option<vfs::Result<T>>>,
    ready: Condvar,
}

impl<T> Ticket<T> {
    /// Waits for the result.
    pub fn wait(self) -> io::Result<T> {
        let mut slot = self.outcome.result.lock();
        loop {
            match slot.take() {
                Some(result) => return Ok(result?),
                None => self.outcome.ready.wait(&mut slot),
            }
        }
    }

    /// Returns whether the call has ended, so that [`Ticket::wait`] does not block.
    pub fn is_done(&self) -> bool {
        self.outcome.result.lock().is_some()
    }
}

/// The thread pool of a [`crate::Client`].
pub(crate) struct CallPool(ThreadPool);

impl CallPool {
    /// The most threads, and so calls in flight: enough to keep a connection busy.
    const MAX_THREADS: usize = 16;

    /// The most queued calls; submitting more blocks.
    const MAX_QUEUED: usize = 1024;

    /// Queues a call.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> vfs::Result<T> + Send + 'static,
    ) -> Ticket<T> {
        let outcome = Arc::new(Outcome {
            result: Mutex::new(None),
            ready: Condvar::new(),
        });
        let shared = outcome.clone();
        self.0.run(move || {
            let result = call();
            *shared.result.lock() = Some(result);
            shared.ready.notify_all();
        });
        Ticket { outcome }
    }
}

impl Default for CallPool {
    fn default() -> CallPool {
        CallPool(ThreadPool::new(
            "barge-client",
            CallPool::MAX_THREADS,
            CallPool::MAX_QUEUED,
        ))
    }
}
