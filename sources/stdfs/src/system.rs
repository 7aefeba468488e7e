//! Names, permissions and links of Unix.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use vfs::Result;

/// Returns the name of a file for the system: any bytes.
pub(crate) fn name(bytes: &[u8]) -> Result<OsString> {
    Ok(OsStr::from_bytes(bytes).to_owned())
}

/// Returns the permissions of a file, `0o7777`.
pub(crate) fn mode(metadata: &Metadata) -> u32 {
    metadata.permissions().mode() & 0o7777
}

/// Returns permissions of `mode`.
pub(crate) fn permissions(_: &Metadata, mode: u32) -> Permissions {
    Permissions::from_mode(mode)
}

/// Opens a file or directory in order to set its times.
pub(crate) fn open_to_set_times(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Returns the target of a link as bytes.
pub(crate) fn link_target(target: &Path) -> Vec<u8> {
    target.as_os_str().as_bytes().to_vec()
}

/// Creates a symbolic link.
pub(crate) fn symlink(target: &[u8], path: &Path) -> Result<()> {
    Ok(std::os::unix::fs::symlink(OsStr::from_bytes(target), path)?)
}
