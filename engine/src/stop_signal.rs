//! The signal that an engine stops.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A flag that is set once, with a descriptor to wait for it.
pub(crate) struct StopSignal {
    raised: AtomicBool,
    event: OwnedFd,
}

impl StopSignal {
    pub(crate) fn new() -> io::Result<StopSignal> {
        Ok(StopSignal {
            raised: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        // Fails only if the eventfd's counter would overflow.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Returns a descriptor that is readable once the signal is raised.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
