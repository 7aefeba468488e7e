//! Names, permissions and links of Windows.
//!
//! A name that Windows cannot represent is an error, and never becomes another one: `EILSEQ` if it
//! is not UTF-8, `EINVAL` for the characters `< > : " / \ | ? *` and those below a space, for a
//! period or a space at its end, and for names of devices such as `CON` or `nul.txt`.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::Path;

use vfs::{Errno, Result};

/// `FILE_WRITE_ATTRIBUTES` (winnt.h).
const FILE_WRITE_ATTRIBUTES: u32 = 0x100;

/// `FILE_FLAG_BACKUP_SEMANTICS`, which opens directories (winbase.h).
const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;

/// Returns the name of a file for the system.
pub(crate) fn name(bytes: &[u8]) -> Result<OsString> {
    let name = std::str::from_utf8(bytes).map_err(|_| Errno::EILSEQ)?;
    let reserved = |c: char| c < ' ' || "<>:\"/\\|?*".contains(c);
    if name.contains(reserved) || name.ends_with(['.', ' ']) || is_device(name) {
        return Err(Errno::EINVAL);
    }
    Ok(name.into())
}

/// Returns whether a name is that of a device, with or without an extension ("Naming Files, Paths,
/// and Namespaces" of Microsoft).
fn is_device(name: &str) -> bool {
    const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];
    let stem = name.split('.').next().unwrap_or(name).trim_end();
    let stem = stem.to_uppercase();
    let port = stem.strip_prefix("COM").or(stem.strip_prefix("LPT"));
    let number = |rest: &str| {
        let mut rest = rest.chars();
        let digit = rest.next().is_some_and(|c| "0123456789¹²³".contains(c));
        digit && rest.next().is_none()
    };
    DEVICES.contains(&&*stem) || port.is_some_and(number)
}

/// Returns permissions of a file: those of its owner for all, as far as Windows has them.
pub(crate) fn mode(metadata: &Metadata) -> u32 {
    let execute = if metadata.is_dir() { 0o111 } else { 0 };
    match metadata.permissions().readonly() && !metadata.is_dir() {
        true => 0o444 | execute,
        false => 0o644 | execute,
    }
}

/// Returns the permissions of `metadata`, with the owner's permission to write of `mode`.
/// Directories stay writable: the attribute has another meaning for them.
pub(crate) fn permissions(metadata: &Metadata, mode: u32) -> Permissions {
    let mut permissions = metadata.permissions();
    if !metadata.is_dir() {
        permissions.set_readonly(mode & 0o200 == 0);
    }
    permissions
}

/// Opens a file or directory in order to set its times.
pub(crate) fn open_to_set_times(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .access_mode(FILE_WRITE_ATTRIBUTES)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS)
        .open(path)
}

/// Returns the target of a link as bytes, with slashes.
pub(crate) fn link_target(target: &Path) -> Vec<u8> {
    let mut target = target.as_os_str().as_encoded_bytes().to_vec();
    target
        .iter_mut()
        .filter(|byte| **byte == b'\\')
        .for_each(|byte| *byte = b'/');
    target
}

/// Returns `EOPNOTSUPP`: creating links takes a privilege, and the kind of their targets.
pub(crate) fn symlink(_: &[u8], _: &Path) -> Result<()> {
    Err(Errno::EOPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_rather_than_changed() {
        for bad in [
            "a:b", "a\\b", "x.", "x ", "CON", "nul.txt", "com1", "LPT²", "a\tb", "a?",
        ] {
            assert_eq!(name(bad.as_bytes()).err(), Some(Errno::EINVAL), "{bad}");
        }
        assert_eq!(name(b"\xff").err(), Some(Errno::EILSEQ));
        for good in ["console", "COM10", "a.b", ".x", "日本語", "com"] {
            assert_eq!(name(good.as_bytes()).ok(), Some(good.into()));
        }
    }
}
