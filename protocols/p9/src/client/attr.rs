//! Converts a server's attributes to `vfs` types.

use vfs::{Attr, Device, Errno, Kind, NodeId, Result, Time};

use crate::numbers::{Dm, Getattr};
use crate::{Dialect, Qid, QidType, Rmessage, Stat};

/// The mask of Tgetattr: the fields of stat(2), birth, generation and the change counter. A server
/// returns which of them are valid.
pub const REQUEST_MASK: u64 = Getattr::BASIC
    .union(Getattr::BTIME)
    .union(Getattr::GEN)
    .union(Getattr::DATA_VERSION)
    .bits();

/// Returns a qid's node number; 0 is not a valid one.
pub fn id_of(qid: &Qid) -> NodeId {
    qid.path.max(1)
}

/// Returns the attributes of an Rgetattr. Returns `EIO` if the mode has an unknown file type.
///
/// The change counter is the server's if valid, else ctime in nanoseconds, else the qid's version.
pub fn of_getattr(reply: &Rmessage<'_>) -> Result<Attr> {
    let &Rmessage::Getattr {
        valid,
        qid,
        mode,
        uid,
        gid,
        nlink,
        rdev,
        size,
        blksize,
        blocks,
        atime_sec,
        atime_nsec,
        mtime_sec,
        mtime_nsec,
        ctime_sec,
        ctime_nsec,
        btime_sec,
        btime_nsec,
        generation,
        data_version,
    } = reply
    else {
        return Err(Errno::EIO);
    };
    let valid = Getattr::from_bits_retain(valid);
    let ctime = time(ctime_sec, ctime_nsec);
    // diod marks the counter as valid and sends 0.
    let change = if valid.contains(Getattr::DATA_VERSION) && data_version != 0 {
        data_version
    } else if valid.contains(Getattr::CTIME) {
        nanoseconds(ctime)
    } else {
        qid.version.into()
    };
    Ok(Attr {
        id: id_of(&qid),
        generation: if valid.contains(Getattr::GEN) {
            generation
        } else {
            0
        },
        kind: Kind::from_mode(mode).ok_or(Errno::EIO)?,
        mode: mode & 0o7777,
        nlink: nlink.try_into().unwrap_or(u32::MAX),
        uid,
        gid,
        rdev: decode_device(rdev),
        size,
        blksize: bounded_blksize(blksize),
        blocks,
        atime: time(atime_sec, atime_nsec),
        mtime: time(mtime_sec, mtime_nsec),
        ctime,
        btime: valid
            .contains(Getattr::BTIME)
            .then(|| time(btime_sec, btime_nsec)),
        change,
        device: 0,
    })
}

/// Returns the attributes of a stat(5) record. 9P2000 names owners by strings, of which only
/// numbers and `root` are recognised. It has no link count, no block count and no ctime, so these
/// are made up as in Linux's client.
pub fn of_stat(stat: &Stat<'_>, dialect: Dialect) -> Attr {
    let owner = |number: u32, name: &[u8]| match (dialect, number) {
        (Dialect::Plan9, _) | (_, u32::MAX) => owner_by_name(name),
        (_, number) => number,
    };
    let mode = Dm::from_bits_retain(stat.mode);
    let (kind, rdev) = kind_of(stat, dialect);
    let mut bits = stat.mode & 0o777;
    if dialect == Dialect::Unix {
        for (dm, bit) in [
            (Dm::SETUID, 0o4000),
            (Dm::SETGID, 0o2000),
            (Dm::SETVTX, 0o1000),
        ] {
            if mode.contains(dm) {
                bits |= bit;
            }
        }
    }
    let at = |sec: u32| Time {
        sec: sec.into(),
        nsec: 0,
    };
    let size = match kind {
        Kind::Directory => 4096,
        Kind::Symlink => stat.unix.extension.len() as u64,
        _ => stat.length,
    };
    Attr {
        id: id_of(&stat.qid),
        generation: 0,
        kind,
        mode: bits,
        nlink: 1,
        uid: owner(stat.unix.n_uid, stat.uid),
        gid: owner(stat.unix.n_gid, stat.gid),
        rdev,
        size,
        blksize: 4096,
        blocks: size.div_ceil(512),
        atime: at(stat.atime),
        mtime: at(stat.mtime),
        ctime: at(stat.mtime),
        btime: None,
        change: stat.qid.version.into(),
        device: 0,
    }
}

/// Returns the file type of a stat record, and the device's numbers if it is one (`b 8 1`).
fn kind_of(stat: &Stat<'_>, dialect: Dialect) -> (Kind, Device) {
    let mode = Dm::from_bits_retain(stat.mode);
    let none = Device::default();
    if mode.contains(Dm::DIR) || stat.qid.kind.contains(QidType::DIR) {
        return (Kind::Directory, none);
    }
    if dialect != Dialect::Unix {
        return (Kind::File, none);
    }
    if mode.contains(Dm::SYMLINK) {
        return (Kind::Symlink, none);
    }
    if mode.contains(Dm::NAMEDPIPE) {
        return (Kind::Fifo, none);
    }
    if mode.contains(Dm::SOCKET) {
        return (Kind::Socket, none);
    }
    if !mode.contains(Dm::DEVICE) {
        return (Kind::File, none);
    }
    let mut words = stat.unix.extension.split(u8::is_ascii_whitespace);
    let kind = match words.next() {
        Some(b"b") => Kind::BlockDevice,
        _ => Kind::CharDevice,
    };
    let mut number = || {
        let word = words.find(|word| !word.is_empty())?;
        std::str::from_utf8(word).ok()?.parse().ok()
    };
    let major = number().unwrap_or(0);
    let minor = number().unwrap_or(0);
    (kind, Device { major, minor })
}

fn owner_by_name(name: &[u8]) -> u32 {
    /// The user "nobody".
    const UNKNOWN: u32 = 65534;
    match name {
        b"root" => 0,
        _ => std::str::from_utf8(name)
            .ok()
            .and_then(|name| name.parse().ok())
            .unwrap_or(UNKNOWN),
    }
}

fn time(sec: u64, nsec: u64) -> Time {
    Time {
        sec: sec as i64,
        // A server may send a value out of range.
        nsec: nsec.min(999_999_999) as u32,
    }
}

fn nanoseconds(time: Time) -> u64 {
    (time.sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.nsec.into())
}

/// Limits the block size to 512 bytes up to 16 MiB, because programs allocate that much.
fn bounded_blksize(blksize: u64) -> u32 {
    blksize.clamp(512, 16 << 20) as u32
}

/// Decodes a device number as the C library does (`gnu_dev_major`, `gnu_dev_minor`).
fn decode_device(rdev: u64) -> Device {
    Device {
        major: ((rdev >> 8 & 0xfff) | (rdev >> 32 & !0xfff)) as u32,
        minor: ((rdev & 0xff) | (rdev >> 12 & !0xff)) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::UnixStat;

    #[test]
    fn device_numbers_are_the_c_librarys() {
        for (rdev, major, minor) in [
            (0x103, 1, 3),
            (0x10_0823, 8, 0x123),
            (0x0000_1567_89a2_34bc, 0x1234, 0x5678_9abc),
        ] {
            assert_eq!(decode_device(rdev), Device { major, minor });
        }
    }

    #[test]
    fn a_stat_tells_kind_owner_and_device() {
        let mut stat = Stat {
            mode: Dm::DEVICE.bits() | 0o640,
            uid: b"root",
            gid: b"glenda",
            unix: UnixStat {
                extension: b"b 8 1",
                n_uid: 7,
                ..UnixStat::NONE
            },
            length: 9,
            ..Stat::UNTOUCHED
        };
        stat.qid.kind = QidType::empty();
        let unix = of_stat(&stat, Dialect::Unix);
        assert_eq!((unix.kind, unix.mode), (Kind::BlockDevice, 0o640));
        assert_eq!((unix.rdev.major, unix.rdev.minor), (8, 1));
        assert_eq!((unix.uid, unix.gid), (7, 65534));
        let plain = of_stat(&stat, Dialect::Plan9);
        assert_eq!((plain.kind, plain.uid, plain.size), (Kind::File, 0, 9));
    }
}
