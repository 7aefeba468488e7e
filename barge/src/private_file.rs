//! Files of this program that other users must not read, such as logs of calls.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Permissions for this user alone.
pub(crate) const MODE: u32 = 0o600;

/// Creates the file at `path` for this user alone, or truncates an existing file and keeps its
/// mode.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE);
    options.open(path)
}
