//! Passthrough: files that the kernel reads and writes itself.

use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;

use fuse::server::BackingRegistry;
use transports::fusedev::PassthroughFiles;

/// Registers backing files with the identity of this process instead of the caller's that the
/// thread has assumed: one registration serves all opens of a file.
pub(super) struct Passthrough(pub(super) PassthroughFiles);

impl BackingRegistry for Passthrough {
    fn open(&self, file: BorrowedFd<'_>) -> Option<NonZeroU32> {
        hostdir::identity::release_thread().ok()?;
        self.0.open(file)
    }

    fn close(&self, number: NonZeroU32) {
        self.0.close(number);
    }
}
