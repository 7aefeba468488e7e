//! How far ahead the kernel reads in a mount.

use std::path::Path;

use rustix::fs::{major, minor};

/// As much as a request of FUSE's carries: the kernel's own window is an eighth of that, and a mount may only ask for less. With
/// more, a read of a whole request at random would read twice as much.
const KIB: u32 = 1 << 10;

/// Has the kernel ask for as much at once as a request carries, if this process may say so.
pub(super) fn widen(dir: &Path) {
    let set = || {
        let device = rustix::fs::stat(dir)?.st_dev;
        let name = format!("{}:{}", major(device), minor(device));
        std::fs::write(
            format!("/sys/class/bdi/{name}/read_ahead_kb"),
            KIB.to_string(),
        )
    };
    if let Err(error) = set() {
        tracing::debug!(
            "{}: the kernel's read-ahead stays as it is: {error}",
            dir.display()
        );
    }
}
