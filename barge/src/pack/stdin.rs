//! Standard input as a file.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Returns standard input.
pub(super) fn file() -> io::Result<File> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}
