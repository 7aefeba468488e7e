use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// The files that the kernel reads and writes without the server (FUSE passthrough, Linux 6.9).
pub struct PassthroughFiles {
    device: OwnedFd,
    /// Whether this process lacks the permission, so that it does not try again.
    refused: AtomicBool,
}

impl PassthroughFiles {
    /// Returns those of a mount with this descriptor, which [`Mount::open_device`] has returned.
    ///
    /// [`Mount::open_device`]: super::Mount::open_device
    pub fn new(device: OwnedFd) -> PassthroughFiles {
        PassthroughFiles {
            device,
            refused: AtomicBool::new(false),
        }
    }

    /// Registers `file` for passthrough and returns its backing id; `None` if the kernel refuses.
    /// The kernel accesses it with the calling thread's credentials, but without CAP_FSETID, so
    /// that each write clears set-id bits: these credentials apply to writes of all users.
    pub fn open(&self, file: BorrowedFd<'_>) -> Option<NonZeroU32> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let opened = sys::caps::run_without(CapabilitySet::FSETID, || {
            sys::fuse::open_backing(self.device.as_fd(), file)
        });
        if let Err(error) = opened {
            self.refused
                .fetch_or(error == Errno::PERM, Ordering::Relaxed);
            tracing::debug!("no passthrough for a file: {error}");
        }
        opened.ok()
    }

    /// Ends the registration of the backing id `number` for new opens; existing ones keep the file.
    pub fn close(&self, number: NonZeroU32) {
        if let Err(error) = sys::fuse::close_backing(self.device.as_fd(), number) {
            tracing::debug!("cannot end passthrough of a file: {error}");
        }
    }
}
