//! Bounds of extended attributes, which Linux checks before it asks a server.

use vfs::{Errno, Result};

/// The largest value, and the longest list of names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
pub(crate) const MOST: usize = 64 << 10;

/// Errs for what is no name.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    /// `XATTR_NAME_MAX`
    const MOST: usize = 255;
    match name {
        _ if name.is_empty() || name.len() > MOST => Err(Errno::ERANGE),
        _ if name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
