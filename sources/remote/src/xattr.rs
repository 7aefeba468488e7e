//! Limits of extended attributes, which Linux checks before it sends a request.

use vfs::{Errno, Result};

/// The largest value, and the longest list of names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`), in bytes.
pub(crate) const MAX_SIZE: usize = 64 << 10;

/// Returns an error if the name is invalid.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    /// `XATTR_NAME_MAX`
    const MOST: usize = 255;
    match name {
        _ if name.is_empty() || name.len() > MOST => Err(Errno::ERANGE),
        _ if name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
