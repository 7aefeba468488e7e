//! Calls in flight: a thread pool makes them, and a ticket receives the result.
//!
//! A remote source sends the requests of its threads together, so the pool's calls are messages in
//! flight.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use concurrency::ThreadPool;
use parking_lot::{Condvar, Mutex};

/// A call in flight, whose result a thread waits for, or an async task of any runtime. Dropping it
/// discards the result; the call continues.
#[must_use = "what comes of a call is told by its ticket"]
pub struct Ticket<T> {
    outcome: Arc<Outcome<T>>,
}

struct Outcome<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

struct State<T> {
    result: Option<io::Result<T>>,
    /// The task that waits.
    waker: Option<Waker>,
}

impl<T> Ticket<T> {
    /// Waits for the result.
    pub fn wait(self) -> io::Result<T> {
        let mut state = self.outcome.state.lock();
        loop {
            match state.result.take() {
                Some(result) => return result,
                None => self.outcome.ready.wait(&mut state),
            }
        }
    }

    /// Returns whether the call has ended, so that [`Ticket::wait`] does not block.
    pub fn is_done(&self) -> bool {
        self.outcome.state.lock().result.is_some()
    }
}

impl<T> Future for Ticket<T> {
    type Output = io::Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let mut state = self.outcome.state.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
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
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Ticket<T> {
        let outcome = Arc::new(Outcome {
            state: Mutex::new(State {
                result: None,
                waker: None,
            }),
            ready: Condvar::new(),
        });
        let shared = outcome.clone();
        self.0.run(move || {
            let result = call();
            let mut state = shared.state.lock();
            state.result = Some(result);
            let waker = state.waker.take();
            drop(state);
            shared.ready.notify_all();
            if let Some(waker) = waker {
                waker.wake();
            }
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
