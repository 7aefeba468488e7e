//! Wake-up events for [`crate::Link::wait`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An event that a thread waits for, and others set: an eventfd(2).
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Creates an event that is not set.
    pub fn new() -> io::Result<Event> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Event(eventfd(0, flags)?))
    }

    /// Sets the event: it is readable until it is cleared.
    pub fn set(&self) {
        // The write fails only when the counter is at its maximum, and then the eventfd is
        // readable.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the event.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // The counter may be zero already.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
