//! The kernel's read-ahead for a mount.

use std::path::Path;

use rustix::fs::{major, minor};

/// The size of a FUSE request. The kernel's default is an eighth of it, and a mount can only reduce
/// that. A larger window would double the data of random reads of a whole request.
const READ_AHEAD_KIB: u32 = 1 << 10;

/// Sets the kernel's read-ahead to the size of a request, if this process is permitted to.
pub(super) fn set(dir: &Path) {
    let set = || {
        let device = rustix::fs::stat(dir)?.st_dev;
        let name = format!("{}:{}", major(device), minor(device));
        std::fs::write(
            format!("/sys/class/bdi/{name}/read_ahead_kb"),
            READ_AHEAD_KIB.to_string(),
        )
    };
    if let Err(error) = set() {
        tracing::debug!(
            "{}: cannot change the kernel's readahead: {error}",
            dir.display()
        );
    }
}
