//! The modes of files that replace others when they are complete.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;

use tempfile::Builder;

/// Sets the usual mode of new files, before the umask.
pub(crate) fn of_new_files(builder: &mut Builder<'_, '_>) {
    builder.permissions(Permissions::from_mode(0o666));
}

/// Makes a file readable by every user.
pub(crate) fn publish(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(0o644))
}
