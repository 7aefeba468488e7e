//! The mount table of this process: proc_pid_mountinfo(5).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The directory of the file system that is mounted: `/` unless it is a bind mount.
    pub root: PathBuf,
    /// The directory it is mounted on.
    pub target: PathBuf,
    /// The options of the mount, separated by commas.
    pub options: String,
    /// The type of the file system, with a subtype after a dot.
    pub kind: String,
    /// The source, such as a device; FUSE takes any text (`fsname=`).
    pub source: String,
    /// The options of the file system, separated by commas.
    pub super_options: String,
}

impl MountEntry {
    /// Returns whether the mount, or its file system, is read-only.
    pub fn is_read_only(&self) -> bool {
        let lists = [&self.options, &self.super_options];
        lists
            .iter()
            .any(|list| list.split(',').any(|one| one == "ro"))
    }
}

/// Reads the table, the last mount last.
pub fn read() -> io::Result<Vec<MountEntry>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(parse(&table))
}

/// Returns the mount on `target` that hides all others.
pub fn at(target: &Path) -> io::Result<Option<MountEntry>> {
    let found = read()?.into_iter().rfind(|entry| entry.target == target);
    Ok(found)
}

/// Makes the mount of `root`, such as a clone by open_tree(2), writable: mount_setattr(2), Linux
/// 5.12. The file system may be read-only nevertheless.
pub fn set_writable(root: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: 0,
        attr_clr: libc::MOUNT_ATTR_RDONLY,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the empty path ends with a NUL, and the structure of that length outlives the call,
    // which only reads it.
    #[allow(unsafe_code)]
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            root.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(crate::last_error()),
    }
}

/// Parses a table. Skips lines that are incomplete; replaces bytes that are no UTF-8 in fields
/// other than paths.
pub fn parse(table: &[u8]) -> Vec<MountEntry> {
    let lines = table.split(|&byte| byte == b'\n');
    lines.filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let root = path(fields.nth(3)?);
    let target = path(fields.next()?);
    let options = text(fields.next()?);
    // Optional fields end with a hyphen.
    fields.find(|field| field == b"-")?;
    Some(MountEntry {
        root,
        target,
        options,
        kind: text(fields.next()?),
        source: text(fields.next()?),
        super_options: text(fields.next()?),
    })
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

fn text(field: &[u8]) -> String {
    OsStr::from_bytes(&unescape(field))
        .to_string_lossy()
        .into_owned()
}

/// Decodes octal escapes, such as `\040` for a space.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte, after) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_table_are_parsed() {
        let table = b"36 35 98:0 / /mnt/a\\040b rw,noatime master:1 - fuse.barge barge-csi:1:2 rw,user_id=0\n\
            37 35 98:0 /r /mnt/c ro shared:5 propagate_from:2 - fuse.barge x\\134y rw\n\
            38 35 98:0 / /mnt/d\xff rw - ext4 /dev/sda ro\n\
            garbage\n39 35\n36 35 98:0 / /mnt/e rw - ext4\n36 35 98:0 / /mnt/f rw\n";
        let entry = |root: &str, target: &[u8], rest: [&str; 4]| MountEntry {
            root: root.into(),
            target: OsStr::from_bytes(target).into(),
            options: rest[0].into(),
            kind: rest[1].into(),
            source: rest[2].into(),
            super_options: rest[3].into(),
        };
        let found = parse(table);
        let expected = [
            entry(
                "/",
                b"/mnt/a b",
                ["rw,noatime", "fuse.barge", "barge-csi:1:2", "rw,user_id=0"],
            ),
            entry("/r", b"/mnt/c", ["ro", "fuse.barge", r"x\y", "rw"]),
            entry("/", b"/mnt/d\xff", ["rw", "ext4", "/dev/sda", "ro"]),
        ];
        assert_eq!(found, expected);
        let read_only: Vec<_> = found.iter().map(MountEntry::is_read_only).collect();
        assert_eq!(read_only, [false, true, true]);
    }

    #[test]
    fn only_whole_octal_escapes_are_decoded() {
        for (field, plain) in [
            (&br"/mnt\0402\134x"[..], &br"/mnt 2\x"[..]),
            (br"/a\9", br"/a\9"),
            (br"/a\04", br"/a\04"),
            (br"/a\777\+12\", br"/a\777\+12\"),
            (br"\\134\377", b"\\\\\xff"),
            (b"", b""),
        ] {
            assert_eq!(unescape(field), plain);
        }
    }

    #[test]
    fn this_process_has_a_root() {
        assert!(at(Path::new("/")).expect("read").is_some());
    }
}
