//! Files that this program keeps for itself, and records that it writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Readable and writable by this user alone.
pub(crate) const MODE: u32 = 0o600;

/// Creates the file at `path` for this user alone, or cuts the one that is there to nothing and
/// leaves its mode as it is.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(MODE);
    options.open(path)
}
