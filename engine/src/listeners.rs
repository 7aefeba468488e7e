//! The listeners of an engine: each can be closed alone, or all of them when the engine stops.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::stop_signal::StopSignal;

/// The listeners that run, by number.
#[derive(Default)]
pub(crate) struct Listeners {
    running: Mutex<Running>,
    changed: Condvar,
}

#[derive(Default)]
struct Running {
    next: u64,
    listeners: HashMap<u64, (Arc<str>, Arc<StopSignal>)>,
}

/// A listener that runs, until dropped.
pub(crate) struct ListenerEntry {
    listeners: Arc<Listeners>,
    id: u64,
    stop: Arc<StopSignal>,
}

impl Listeners {
    /// Adds a listener called `name`.
    pub(crate) fn add(self: &Arc<Self>, name: &str) -> io::Result<ListenerEntry> {
        let stop = Arc::new(StopSignal::new()?);
        let mut running = self.running.lock();
        running.next += 1;
        let id = running.next;
        running.listeners.insert(id, (name.into(), stop.clone()));
        Ok(ListenerEntry {
            listeners: self.clone(),
            id,
            stop,
        })
    }

    /// Stops those called `name`, or all of them without a name.
    pub(crate) fn stop(&self, name: Option<&str>) {
        let running = self.running.lock();
        let all = running.listeners.values();
        for (_, stop) in all.filter(|(own, _)| name.is_none_or(|name| **own == *name)) {
            stop.raise();
        }
    }

    /// Waits until none called `name` runs, for `timeout` at most, and returns whether that is so.
    pub(crate) fn wait(&self, name: &str, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut running = self.running.lock();
        while running.listeners.values().any(|(own, _)| **own == *name) {
            if self.changed.wait_until(&mut running, deadline).timed_out() {
                return false;
            }
        }
        true
    }
}

impl ListenerEntry {
    /// Returns a descriptor that is readable once the listener is to end.
    pub(crate) fn stop_fd(&self) -> BorrowedFd<'_> {
        self.stop.fd()
    }

    pub(crate) fn stop(&self) {
        self.stop.raise();
    }
}

impl Drop for ListenerEntry {
    fn drop(&mut self) {
        self.listeners.running.lock().listeners.remove(&self.id);
        self.listeners.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_stopped_by_its_name() {
        let listeners = Arc::new(Listeners::default());
        let one = listeners.add("one").expect("an eventfd");
        let other = listeners.add("other").expect("an eventfd");
        listeners.stop(Some("one"));
        assert!(one.stop.is_raised() && !other.stop.is_raised());
        assert!(!listeners.wait("one", Duration::ZERO));
        drop(one);
        assert!(listeners.wait("one", Duration::ZERO));
        listeners.stop(None);
        assert!(other.stop.is_raised());
    }
}
