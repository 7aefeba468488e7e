//! The signal that an engine stops.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::retry_on_intr;

/// A flag that is set once, with a descriptor to wait for it.
pub struct StopSignal {
    raised: AtomicBool,
    event: OwnedFd,
}

impl StopSignal {
    /// Creates a signal that is not raised. Returns an error if there are no more descriptors.
    pub fn new() -> io::Result<StopSignal> {
        Ok(StopSignal {
            raised: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// Raises the signal for good.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::SeqCst);
        // Fails only if the eventfd's counter would overflow.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Returns whether the signal is raised.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Waits until the signal is raised.
    pub fn wait(&self) -> io::Result<()> {
        while !self.is_raised() {
            let mut fds = [PollFd::new(&self.event, PollFlags::IN)];
            retry_on_intr(|| poll(&mut fds, None))?;
        }
        Ok(())
    }

    /// Returns a descriptor that is readable once the signal is raised.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_wait_ends_with_the_signal() {
        let signal = Arc::new(StopSignal::new().expect("an eventfd"));
        let waiting = signal.clone();
        let waiting = std::thread::spawn(move || waiting.wait().is_ok());
        assert!(!signal.is_raised());
        signal.raise();
        assert!(waiting.join().expect("no panic"));
        assert!(signal.wait().is_ok());
    }
}
