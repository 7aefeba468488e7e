//! The time until which a server may act.
//!
//! Lock order: the watchers alone. They are called under their lock.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The time until which a server may act, of its own clock. It is moved by each renewal of the
/// lease, until it is closed for good. Threads read it without a lock.
#[derive(Default)]
pub struct Fence {
    until: AtomicU64,
    closed: AtomicBool,
    watchers: Mutex<Vec<Watcher>>,
}

/// A function that is called with each new end, and with zero when the fence is closed. It is
/// dropped once it returns `false`.
type Watcher = Box<dyn Fn(Duration) -> bool + Send>;

impl Fence {
    /// Returns whether the server may act at the time `now`.
    pub fn allows(&self, now: Duration) -> bool {
        now < self.until()
    }

    /// Returns the time until which the server may act: zero if it is closed.
    pub fn until(&self) -> Duration {
        match self.closed.load(Ordering::Acquire) {
            true => Duration::ZERO,
            false => Duration::from_nanos(self.until.load(Ordering::Acquire)),
        }
    }

    /// Moves the end to `until`, unless it is later already or the fence was closed.
    pub fn extend(&self, until: Duration) {
        let nanos = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until.fetch_max(nanos, Ordering::AcqRel);
        self.notify();
    }

    /// Closes the fence for good.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.notify();
    }

    /// Calls `watcher`, which must not block, now and at each change until it returns `false`.
    pub fn watch(&self, watcher: impl Fn(Duration) -> bool + Send + 'static) {
        let mut watchers = self.watchers.lock();
        if watcher(self.until()) {
            watchers.push(Box::new(watcher));
        }
    }

    fn notify(&self) {
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher(self.until()));
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({:?})", self.until())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_fence_moves_forward_until_it_is_closed() {
        let fence = Fence::default();
        assert!(!fence.allows(Duration::ZERO));
        let (seen, all) = channel();
        fence.watch(move |until| seen.send(until).is_ok());
        fence.extend(SECOND * 2);
        fence.extend(SECOND);
        assert!(fence.allows(SECOND) && !fence.allows(SECOND * 2));
        fence.close();
        fence.extend(SECOND * 9);
        assert!(!fence.allows(SECOND));
        let seen: Vec<_> = all.try_iter().map(|until| until.as_secs()).collect();
        assert_eq!(seen, [0, 2, 2, 0, 0]);
        drop(all);
        fence.extend(SECOND);
        assert!(fence.watchers.lock().is_empty());
    }
}
