//! Descriptors that a server passed: only servers on Linux do.

use vfs::BackingRestrictions;
use vfs::fd::OwnedFd;

/// Returns nothing: the descriptor must not be used.
pub(super) fn of(_: &OwnedFd) -> std::io::Result<Option<BackingRestrictions>> {
    Ok(None)
}
