//! Paths of Unix.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Returns a path as bytes with slashes between names.
pub(crate) fn tree_path(path: &Path) -> Cow<'_, [u8]> {
    path.as_os_str().as_bytes().into()
}

/// Returns the first `len` bytes of a path.
pub(crate) fn prefix(path: &Path, len: usize) -> io::Result<&Path> {
    Ok(Path::new(OsStr::from_bytes(
        &path.as_os_str().as_bytes()[..len],
    )))
}

/// Returns whether a path leads into a file, be it only with a trailing slash.
pub(crate) fn leads_into_file(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotADirectory)
}

/// Returns whether a file is a block device.
pub(crate) fn is_block_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}
