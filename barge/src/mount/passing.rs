//! Files of a directory that the kernel reads and writes by itself.

use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;

use fuse::server::Backings;
use transports::fusedev::Files;

/// Has the kernel do so as this process, not as the caller that the thread has served: there is one for all who open a file.
pub(super) struct Passing(pub(super) Files);

impl Backings for Passing {
    fn open(&self, file: BorrowedFd<'_>) -> Option<NonZeroU32> {
        hostdir::identity::release_thread().ok()?;
        self.0.open(file)
    }

    fn close(&self, number: NonZeroU32) {
        self.0.close(number);
    }
}
