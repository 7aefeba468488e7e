//! A thread that sends deferred messages, so that they leave although the program makes no further
//! request.
//!
//! Clunks and forgets are sent with requests or in batches. Without this thread, the last of them
//! would stay queued when a mount falls idle, and the server would keep what they release: the
//! space of an unlinked file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

/// A sender of messages that no caller waits for.
pub(crate) trait FlushDeferred: Send + Sync + 'static {
    fn deferred_sender(&self) -> &DeferredSender;

    /// Sends the deferred messages, and returns whether there were any: then there may be more.
    fn flush_deferred(&self) -> bool;
}

/// The thread, which is started at first use and sleeps while there are no messages.
#[derive(Default)]
pub(crate) struct DeferredSender {
    armed: AtomicBool,
    thread: OnceLock<Option<Thread>>,
}

impl DeferredSender {
    /// How long messages may be deferred: long enough that a busy mount sends them with requests.
    const MAX_DELAY: Duration = Duration::from_millis(50);

    /// Schedules the sending of the messages deferred in `tended`. Call it after deferring them.
    #[inline]
    pub(crate) fn arm<T: FlushDeferred>(&self, tended: &Weak<T>) {
        if !self.armed.load(Ordering::SeqCst) && !self.armed.swap(true, Ordering::SeqCst) {
            self.wake(tended);
        }
    }

    #[cold]
    fn wake<T: FlushDeferred>(&self, tended: &Weak<T>) {
        let start = || {
            let tended = tended.clone();
            let thread = thread::Builder::new().name("barge-deferred".into());
            match thread.spawn(move || run(&tended)) {
                Ok(handle) => Some(handle.thread().clone()),
                Err(error) => {
                    tracing::warn!("files will be closed late on the server: {error}");
                    None
                }
            }
        };
        if let Some(thread) = self.thread.get_or_init(start) {
            thread.unpark();
        }
    }
}

impl Drop for DeferredSender {
    fn drop(&mut self) {
        if let Some(Some(thread)) = self.thread.get() {
            thread.unpark();
        }
    }
}

fn run<T: FlushDeferred>(tended: &Weak<T>) {
    loop {
        let Some(there) = tended.upgrade() else {
            return;
        };
        let armed = &there.deferred_sender().armed;
        let mut more = there.flush_deferred();
        if !more {
            armed.store(false, Ordering::SeqCst);
            // Messages may have been deferred before the store above.
            more = there.flush_deferred();
            if more {
                armed.store(true, Ordering::SeqCst);
            }
        }
        drop(there);
        match more {
            true => thread::park_timeout(DeferredSender::MAX_DELAY),
            false => thread::park(),
        }
    }
}
