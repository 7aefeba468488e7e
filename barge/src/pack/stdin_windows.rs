//! Standard input as a file.

use std::fs::File;
use std::io;
use std::os::windows::io::AsHandle;

/// Returns standard input.
pub(super) fn file() -> io::Result<File> {
    Ok(io::stdin().as_handle().try_clone_to_owned()?.into())
}
