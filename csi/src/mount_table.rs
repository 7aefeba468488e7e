//! The mount table of this process, which is the plugin's only record of mounted volumes.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The directory it is mounted on.
    pub target: PathBuf,
    /// The source, for a volume its [`crate::mount::Label`].
    pub source: String,
    /// Whether the mount, or its file system, is read-only.
    pub read_only: bool,
}

/// Reads the table, the last mount last.
pub fn read() -> io::Result<Vec<MountEntry>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(parse(&table))
}

/// Returns the mount on `target` that hides all others.
pub fn at(target: &Path) -> io::Result<Option<MountEntry>> {
    let found = read()?.into_iter().rfind(|entry| entry.target == target);
    Ok(found)
}

/// Parses the table: proc_pid_mountinfo(5). Lines that are not understood are skipped.
fn parse(table: &[u8]) -> Vec<MountEntry> {
    table
        .split(|&byte| byte == b'\n')
        .filter_map(line)
        .collect()
}

fn line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let target = fields.nth(4)?;
    let options = fields.next()?;
    // Optional fields end with a hyphen; the type precedes the source.
    fields.find(|field| field == b"-")?;
    let source = fields.nth(1)?;
    let super_options = fields.next()?;
    let read_only = |options: &[u8]| options.split(|&byte| byte == b',').any(|one| one == b"ro");
    Some(MountEntry {
        target: OsStr::from_bytes(&unescape(target)).into(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        read_only: read_only(options) || read_only(super_options),
    })
}

/// Decodes `\040` and the like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        text.push(code.unwrap_or(byte));
        rest = &after[if code.is_some() { 3 } else { 0 }..];
    }
    std::ffi::OsString::from_vec(text).into_encoded_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table_are_parsed() {
        let table = b"36 35 98:0 / /mnt/a\\040b rw,noatime master:1 - fuse.barge barge-csi:1:2 rw,user_id=0\n\
            37 35 98:0 / /mnt/c ro shared:5 propagate_from:2 - fuse.barge x\\134y rw\n\
            38 35 98:0 / /mnt/d rw - ext4 /dev/sda ro\n\
            garbage\n39 35\n";
        let found = parse(table);
        let found: Vec<_> = found
            .iter()
            .map(|entry| (entry.target.to_str(), &*entry.source, entry.read_only))
            .collect();
        assert_eq!(
            found,
            [
                (Some("/mnt/a b"), "barge-csi:1:2", false),
                (Some("/mnt/c"), "x\\y", true),
                (Some("/mnt/d"), "/dev/sda", true),
            ]
        );
    }

    #[test]
    fn this_process_has_a_root() {
        assert!(at(Path::new("/")).expect("read").is_some());
    }
}
