//! Directories of this host.

use std::io;
use std::path::Path;
use std::sync::Arc;

use hostdir::HostDir;
use rustix::process::{getgid, getuid};
use vfs::FileSystem;

pub use hostdir::Options;

/// Opens a directory.
pub(super) fn open(path: &Path, options: Options) -> io::Result<Arc<dyn FileSystem>> {
    let shown = options.shown_path.clone();
    let tree = HostDir::open(path, options)?;
    for limit in tree.limitations() {
        let path = shown.as_deref().unwrap_or(path);
        tracing::info!("{}: {limit}", path.display());
    }
    Ok(tree)
}

/// Options for programs that use this library: threads keep the process's umask.
pub fn options() -> Options {
    Options {
        keep_umask: true,
        ..Default::default()
    }
}

/// Returns the user and the group that run this program.
pub(super) fn owner() -> (u32, u32) {
    (getuid().as_raw(), getgid().as_raw())
}
