//! A thread that sends what no caller waits for, so that it leaves although the program makes no
//! further request.
//!
//! Clunks and forgets travel along with requests, or some at a time. When a mount falls idle, the
//! last of them would stay here, and the server would hold what they give up: the space of a file
//! that has no name any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

/// Something with messages that nobody waits for.
pub(crate) trait Tended: Send + Sync + 'static {
    fn tender(&self) -> &Tender;

    /// Sends what has been left, and says whether there was any: then there may be more.
    fn tend(&self) -> bool;
}

/// The thread, which is started at the first need and sleeps while there is none.
#[derive(Default)]
pub(crate) struct Tender {
    armed: AtomicBool,
    thread: OnceLock<Option<Thread>>,
}

impl Tender {
    /// How long messages may stay: long enough that a busy mount sends them along with requests.
    const REST: Duration = Duration::from_millis(50);

    /// Sends what was left in `tended`, soon. To be called after it was left.
    #[inline]
    pub(crate) fn arm<T: Tended>(&self, tended: &Weak<T>) {
        if !self.armed.load(Ordering::SeqCst) && !self.armed.swap(true, Ordering::SeqCst) {
            self.wake(tended);
        }
    }

    #[cold]
    fn wake<T: Tended>(&self, tended: &Weak<T>) {
        let start = || {
            let tended = tended.clone();
            let thread = thread::Builder::new().name("barge-tender".into());
            match thread.spawn(move || run(&tended)) {
                Ok(handle) => Some(handle.thread().clone()),
                Err(error) => {
                    tracing::warn!("the server hears late of files that are given up: {error}");
                    None
                }
            }
        };
        if let Some(thread) = self.thread.get_or_init(start) {
            thread.unpark();
        }
    }
}

impl Drop for Tender {
    fn drop(&mut self) {
        if let Some(Some(thread)) = self.thread.get() {
            thread.unpark();
        }
    }
}

fn run<T: Tended>(tended: &Weak<T>) {
    loop {
        let Some(there) = tended.upgrade() else {
            return;
        };
        let armed = &there.tender().armed;
        let mut more = there.tend();
        if !more {
            armed.store(false, Ordering::SeqCst);
            // Something may have been left before that was stored.
            more = there.tend();
            if more {
                armed.store(true, Ordering::SeqCst);
            }
        }
        drop(there);
        match more {
            true => thread::park_timeout(Tender::REST),
            false => thread::park(),
        }
    }
}
