//! The descriptors that an export may have open.
//!
//! A [`Budget`] counts, it does not decide who has to go: that is [`crate::table`]'s.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many descriptors may be open, and how many are.
pub(crate) struct Budget {
    limit: usize,
    open: AtomicUsize,
}

/// The right to one more descriptor.
pub(crate) struct Permit(Arc<Budget>);

/// A descriptor that the budget knows of.
pub(crate) struct Fd {
    fd: OwnedFd,
    _permit: Permit,
}

impl vfs::Backing for Fd {}

impl Budget {
    pub(crate) fn new(limit: usize) -> Arc<Budget> {
        Arc::new(Budget {
            limit,
            open: AtomicUsize::new(0),
        })
    }

    /// One more, whether or not there is room: [`Budget::over`] tells.
    pub(crate) fn take(self: &Arc<Budget>) -> Permit {
        self.open.fetch_add(1, Ordering::Relaxed);
        Permit(self.clone())
    }

    /// Whether more are open than may be.
    pub(crate) fn over(&self) -> bool {
        self.open() > self.limit
    }

    /// How many may be open.
    pub(crate) fn most(&self) -> usize {
        self.limit
    }

    /// How many are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl Permit {
    /// Spends it on `fd`.
    pub(crate) fn spend(self, fd: OwnedFd) -> Fd {
        Fd { fd, _permit: self }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
