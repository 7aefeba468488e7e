//! Formatting of attributes and names; no I/O.

use command::text::printable;
use serde_json::{Value, json};
use vfs::{Attr, Kind, Time};

/// Formats type and permissions as ls(1) does: `drwxr-xr-x`.
pub(super) fn mode(attr: &Attr) -> String {
    let kind = match attr.kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::CharDevice => 'c',
        Kind::BlockDevice => 'b',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// Returns the type of a file in words.
pub(super) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
        Kind::Fifo => "pipe",
        Kind::Socket => "socket",
        Kind::CharDevice => "character device",
        Kind::BlockDevice => "block device",
    }
}

/// Formats the size in bytes, or the numbers of a device.
pub(super) fn size(attr: &Attr) -> String {
    match attr.kind {
        Kind::CharDevice | Kind::BlockDevice => {
            format!("{}, {}", attr.rdev.major, attr.rdev.minor)
        }
        _ => attr.size.to_string(),
    }
}

/// Formats a time in UTC: `2026-11-21 06:11:26.000000000`.
pub(super) fn time(time: Time) -> String {
    let (days, seconds) = (time.sec.div_euclid(86400), time.sec.rem_euclid(86400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let nsec = time.nsec;
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nsec:09}")
}

/// Returns year, month and day of the Gregorian calendar from the number of days since 1970. Years
/// are counted from March, so that the leap day is their last.
fn date(days: i64) -> (i64, i64, i64) {
    /// Days from 0000-03-01 to 1970-01-01.
    const EPOCH: i64 = 719_468;
    /// Days in 400 years.
    const ERA: i64 = 146_097;
    let days = days.saturating_add(EPOCH);
    let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Returns the name as it is, or with control characters replaced for a terminal.
pub(super) fn name(name: &[u8], terminal: bool) -> Vec<u8> {
    if !terminal {
        return name.to_vec();
    }
    printable(&String::from_utf8_lossy(name)).into_bytes()
}

/// Formats rows as lines, each column as wide as its widest cell. Columns in `right` are aligned to
/// the right.
pub(super) fn columns(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if right.contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            }
        });
        cells.collect::<Vec<_>>().join(" ")
    };
    rows.iter().map(line).collect()
}

/// Returns all attributes. A name that is not UTF-8 is added as bytes.
pub(super) fn json(name: &[u8], attr: &Attr, target: Option<&[u8]>) -> Value {
    let mut object = json!({
        "name": String::from_utf8_lossy(name),
        "kind": kind(attr.kind),
        "mode": format!("{:04o}", attr.mode),
        "links": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "blocks": attr.blocks,
        "block_size": attr.blksize,
        "id": attr.id,
        "generation": attr.generation,
        "change": attr.change,
        "accessed": time(attr.atime),
        "modified": time(attr.mtime),
        "changed": time(attr.ctime),
    });
    if std::str::from_utf8(name).is_err() {
        object["name_bytes"] = json!(name);
    }
    if let Some(born) = attr.btime {
        object["born"] = json!(time(born));
    }
    if let Some(target) = target {
        object["target"] = json!(String::from_utf8_lossy(target));
    }
    if matches!(attr.kind, Kind::CharDevice | Kind::BlockDevice) {
        object["device"] = json!([attr.rdev.major, attr.rdev.minor]);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Device;

    fn attr(kind: Kind, mode: u32) -> Attr {
        Attr {
            id: 1,
            generation: 0,
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: Device { major: 8, minor: 1 },
            size: 5,
            blksize: 4096,
            blocks: 8,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            btime: None,
            change: 0,
            device: 0,
        }
    }

    #[test]
    fn modes_are_those_of_ls() {
        for (kind, bits, text) in [
            (Kind::File, 0o644, "-rw-r--r--"),
            (Kind::Directory, 0o1777, "drwxrwxrwt"),
            (Kind::Directory, 0o1770, "drwxrwx--T"),
            (Kind::File, 0o6755, "-rwsr-sr-x"),
            (Kind::File, 0o6644, "-rwSr-Sr--"),
            (Kind::Symlink, 0o777, "lrwxrwxrwx"),
            (Kind::BlockDevice, 0, "b---------"),
        ] {
            assert_eq!(mode(&attr(kind, bits)), text);
        }
        assert_eq!(size(&attr(Kind::File, 0)), "5");
        assert_eq!(size(&attr(Kind::CharDevice, 0)), "8, 1");
    }

    #[test]
    fn times_are_dates() {
        for (sec, text) in [
            (0, "1970-01-01 00:00:00.000000007"),
            (-1, "1969-12-31 23:59:59.000000007"),
            (951_782_400, "2000-02-29 00:00:00.000000007"),
            (4_107_542_399, "2100-02-28 23:59:59.000000007"),
            (4_107_542_400, "2100-03-01 00:00:00.000000007"),
            (1_795_241_486, "2026-11-21 06:11:26.000000007"),
        ] {
            assert_eq!(time(Time { sec, nsec: 7 }), text);
        }
        for sec in [i64::MIN, i64::MAX] {
            assert!(!time(Time { sec, nsec: 0 }).is_empty());
        }
    }

    #[test]
    fn a_terminal_is_not_told_what_to_do() {
        assert_eq!(name(b"a\x1b[31m\n", true), b"a?[31m?");
        assert_eq!(name(b"a\x1b\xff", false), b"a\x1b\xff");
    }

    #[test]
    fn columns_are_as_wide_as_they_must() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["a", "1", "x"]), row(["bcd", "22", "y"])];
        assert_eq!(columns(&rows, &[1]), ["a    1 x", "bcd 22 y"]);
        assert!(columns(&[], &[]).is_empty());
    }

    #[test]
    fn json_has_the_bytes_of_odd_names() {
        let object = json(b"\xff", &attr(Kind::Symlink, 0o777), Some(b"t"));
        assert_eq!(object["name_bytes"], json!([255]));
        assert_eq!(object["target"], json!("t"));
        assert_eq!(object["kind"], json!("symbolic link"));
    }
}
