//! Directories of state: other users must not change their files.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Checks that only this user and root can create, remove and replace files in `dir`. Returns the
/// message of an error.
pub fn check(dir: &Path, metadata: &Metadata) -> Result<(), String> {
    check_as(dir, metadata, 0o022)
}

/// Checks that other users cannot remove or replace files of this user in `dir`, as in a directory
/// with the sticky bit.
pub fn check_or_sticky(dir: &Path, metadata: &Metadata) -> Result<(), String> {
    let is_sticky = metadata.mode() & 0o1000 != 0;
    check_as(dir, metadata, if is_sticky { 0 } else { 0o022 })
}

fn check_as(dir: &Path, metadata: &Metadata, forbidden: u32) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if [0, own].contains(&metadata.uid()) && metadata.mode() & forbidden == 0 {
        return Ok(());
    }
    Err(format!(
        "{}: expected a directory that only its owner, user {own}, can write to, got one of user {} with mode {:04o}",
        dir.display(),
        metadata.uid(),
        metadata.mode() & 0o7777
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directories_that_others_can_write_to_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        for (mode, private, sticky) in [
            (0o700, true, true),
            (0o755, true, true),
            (0o775, false, false),
            (0o777, false, false),
            (0o1777, false, true),
        ] {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).expect("changed");
            let metadata = fs::metadata(dir.path()).expect("there");
            let found = (
                check(dir.path(), &metadata).is_ok(),
                check_or_sticky(dir.path(), &metadata).is_ok(),
            );
            assert_eq!(found, (private, sticky), "{mode:o}");
        }
    }
}
