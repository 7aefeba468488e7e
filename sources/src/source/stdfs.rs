//! Directories of this host, through the standard library.

use std::io;
use std::path::Path;
use std::sync::Arc;

use stdfs::StdFs;
use vfs::FileSystem;

/// Options of a directory: there are none.
#[derive(Clone, Debug, Default)]
pub struct Options {}

/// Opens a directory.
pub(super) fn open(path: &Path, _: Options) -> io::Result<Arc<dyn FileSystem>> {
    Ok(StdFs::open(path)?)
}

/// Options for programs that use this library.
pub fn options() -> Options {
    Options::default()
}

/// Returns the user and the group that run this program.
pub(super) fn owner() -> (u32, u32) {
    (sys::process::user(), sys::process::group())
}
