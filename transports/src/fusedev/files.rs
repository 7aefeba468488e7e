use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// The files that the kernel reads and writes by itself, past whoever serves the mount (Linux 6.9).
pub struct Files {
    device: OwnedFd,
    /// This process may not: it is not asked again.
    refused: AtomicBool,
}

impl Files {
    pub(super) fn new(device: OwnedFd) -> Files {
        Files {
            device,
            refused: AtomicBool::new(false),
        }
    }

    /// Has the kernel read and write `file` by itself, by the number that is answered; nothing if it does not. It does so in the calling
    /// thread's name, but takes set-id bits away whoever writes: the kernel knows those who may leave them only by this name.
    pub fn open(&self, file: BorrowedFd<'_>) -> Option<NonZeroU32> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let opened = sys::caps::without(CapabilitySet::FSETID, || {
            sys::fuse::open_backing(self.device.as_fd(), file)
        });
        if let Err(error) = opened {
            self.refused
                .fetch_or(error == Errno::PERM, Ordering::Relaxed);
            tracing::debug!("the kernel does not read and write a file by itself: {error}");
        }
        opened.ok()
    }

    /// Nobody will open a file by `number` any more; who has, keeps it.
    pub fn close(&self, number: NonZeroU32) {
        if let Err(error) = sys::fuse::close_backing(self.device.as_fd(), number) {
            tracing::debug!("the kernel keeps a file: {error}");
        }
    }
}
