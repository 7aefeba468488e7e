//! Virtio devices, which need Linux.

use std::io;
use std::path::Path;

use transports::StreamLink;

/// Returns `Unsupported`.
pub(super) fn dial(_: &Path, _: u32) -> io::Result<StreamLink> {
    Err(io::ErrorKind::Unsupported.into())
}
