//! Converts requests of the `vfs` traits to 9P's fields.

use vfs::{Errno, Kind, NewNode, OpenFlags, Result, SetAttr, SetTime};

use crate::numbers::{Dm, Lopen, Omode, Setattr};
use crate::stat::UnixStat;
use crate::{Dialect, Fid, Stat, Tmessage};

/// Returns the `flags` of Tlopen and Tlcreate. EXEC becomes read: 9P2000.L has no way to have the
/// server check execute permission.
pub fn lopen(flags: OpenFlags) -> u32 {
    let reads = flags.intersects(OpenFlags::READ | OpenFlags::EXEC);
    let mut encoded = match (reads, flags.contains(OpenFlags::WRITE)) {
        (_, false) => Lopen::empty(),
        (false, true) => Lopen::WRONLY,
        (true, true) => Lopen::RDWR,
    };
    for (flag, bit) in [
        (OpenFlags::APPEND, Lopen::APPEND),
        (OpenFlags::TRUNC, Lopen::TRUNC),
        (OpenFlags::EXCL, Lopen::EXCL),
        (OpenFlags::DIRECT, Lopen::DIRECT),
        (OpenFlags::DSYNC, Lopen::DSYNC),
        (OpenFlags::SYNC, Lopen::SYNC),
        (OpenFlags::NOATIME, Lopen::NOATIME),
    ] {
        encoded.set(bit, flags.contains(flag));
    }
    encoded.bits()
}

/// Returns the `mode` of Topen and Tcreate. 9P2000 cannot open to append; flags without a bit in 9P
/// are left to the server.
pub fn omode(flags: OpenFlags, dialect: Dialect) -> u8 {
    let reads = flags.intersects(OpenFlags::READ);
    let mut encoded = match (reads, flags.contains(OpenFlags::WRITE)) {
        (_, false) if flags.contains(OpenFlags::EXEC) => Omode::ACCESS,
        (_, false) => Omode::empty(),
        (false, true) => Omode::from_bits_retain(1),
        (true, true) => Omode::from_bits_retain(2),
    };
    encoded.set(Omode::TRUNC, flags.contains(OpenFlags::TRUNC));
    let append = dialect == Dialect::Unix && flags.contains(OpenFlags::APPEND);
    encoded.set(Omode::APPEND, append);
    encoded.bits()
}

/// Returns a Tsetattr.
pub fn setattr(fid: Fid, set: &SetAttr) -> Tmessage<'static> {
    let mut valid = Setattr::empty();
    valid.set(Setattr::MODE, set.mode.is_some());
    valid.set(Setattr::UID, set.uid.is_some());
    valid.set(Setattr::GID, set.gid.is_some());
    valid.set(Setattr::SIZE, set.size.is_some());
    valid.set(Setattr::CTIME, set.ctime);
    let mut time = |time, bit, exact| match time {
        None => (0, 0),
        Some(SetTime::Now) => {
            valid |= bit;
            (0, 0)
        }
        Some(SetTime::At(at)) => {
            valid |= bit | exact;
            (at.sec as u64, at.nsec.into())
        }
    };
    let (atime_sec, atime_nsec) = time(set.atime, Setattr::ATIME, Setattr::ATIME_SET);
    let (mtime_sec, mtime_nsec) = time(set.mtime, Setattr::MTIME, Setattr::MTIME_SET);
    Tmessage::Setattr {
        fid,
        valid: valid.bits(),
        mode: set.mode.unwrap_or(0),
        uid: set.uid.unwrap_or(0),
        gid: set.gid.unwrap_or(0),
        size: set.size.unwrap_or(0),
        atime_sec,
        atime_nsec,
        mtime_sec,
        mtime_nsec,
    }
}

/// Returns the stat of a Twstat. Times are whole seconds. `now` is the client's clock, in seconds
/// since the epoch, because 9P2000 cannot request the server's time.
pub fn wstat(set: &SetAttr, kind: Kind, dialect: Dialect, now: u32) -> Stat<'static> {
    let time = |time| match time {
        None => u32::MAX,
        Some(SetTime::Now) => now,
        // All ones would leave the time unchanged.
        Some(SetTime::At(at)) => at.sec.clamp(0, i64::from(u32::MAX - 1)) as u32,
    };
    let unix = UnixStat {
        n_uid: set.uid.unwrap_or(u32::MAX),
        n_gid: set.gid.unwrap_or(u32::MAX),
        ..UnixStat::NONE
    };
    Stat {
        mode: set
            .mode
            .map_or(u32::MAX, |mode| perm(kind, mode, dialect).bits()),
        atime: time(set.atime),
        mtime: time(set.mtime),
        length: set.size.unwrap_or(u64::MAX),
        unix,
        ..Stat::UNTOUCHED
    }
}

/// Converts a mode to that of stat(5) and Tcreate.
pub fn perm(kind: Kind, mode: u32, dialect: Dialect) -> Dm {
    let mut perm = Dm::from_bits_retain(mode & 0o777);
    perm.set(Dm::DIR, kind == Kind::Directory);
    if dialect == Dialect::Unix {
        perm |= match kind {
            Kind::Symlink => Dm::SYMLINK,
            Kind::Fifo => Dm::NAMEDPIPE,
            Kind::Socket => Dm::SOCKET,
            Kind::CharDevice | Kind::BlockDevice => Dm::DEVICE,
            Kind::File | Kind::Directory => Dm::empty(),
        };
        perm.set(Dm::SETUID, mode & 0o4000 != 0);
        perm.set(Dm::SETGID, mode & 0o2000 != 0);
        perm.set(Dm::SETVTX, mode & 0o1000 != 0);
    }
    perm
}

/// Returns the file type and 9P2000.u's `extension` for a Tcreate of `what`. Returns `EOPNOTSUPP`
/// if the dialect cannot make such a file.
pub fn create(what: NewNode<'_>, dialect: Dialect) -> Result<(Kind, Vec<u8>)> {
    let (kind, extension) = match what {
        NewNode::File => (Kind::File, Vec::new()),
        NewNode::Directory => (Kind::Directory, Vec::new()),
        _ if dialect != Dialect::Unix => return Err(Errno::EOPNOTSUPP),
        NewNode::Symlink(target) => (Kind::Symlink, target.to_vec()),
        NewNode::Fifo => (Kind::Fifo, Vec::new()),
        NewNode::Socket => (Kind::Socket, Vec::new()),
        NewNode::CharDevice(device) => {
            let text = format!("c {} {}", device.major, device.minor);
            (Kind::CharDevice, text.into_bytes())
        }
        NewNode::BlockDevice(device) => {
            let text = format!("b {} {}", device.major, device.minor);
            (Kind::BlockDevice, text.into_bytes())
        }
    };
    Ok((kind, extension))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Time;

    #[test]
    fn access_modes_are_those_of_open() {
        let rw = OpenFlags::READ | OpenFlags::WRITE;
        for (flags, linux, old) in [
            (OpenFlags::READ, 0, 0),
            (OpenFlags::WRITE, 1, 1),
            (rw, 2, 2),
            (OpenFlags::EXEC, 0, 3),
            (rw | OpenFlags::TRUNC, 0o1002, 0x12),
            (OpenFlags::WRITE | OpenFlags::APPEND, 0o2001, 0x81),
        ] {
            assert_eq!(lopen(flags), linux);
            assert_eq!(omode(flags, Dialect::Unix), old);
        }
    }

    #[test]
    fn only_what_changes_is_valid() {
        let set = SetAttr {
            size: Some(7),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Time { sec: -1, nsec: 5 })),
            ..SetAttr::default()
        };
        let Tmessage::Setattr {
            valid, mtime_sec, ..
        } = setattr(Fid(1), &set)
        else {
            panic!("a Tsetattr");
        };
        assert_eq!((valid, mtime_sec as i64), (0x8 | 0x10 | 0x20 | 0x100, -1));
        let stat = wstat(&set, Kind::File, Dialect::Unix, 9);
        assert_eq!((stat.length, stat.atime, stat.mtime), (7, 9, 0));
        assert_eq!(
            wstat(&SetAttr::default(), Kind::File, Dialect::Unix, 9),
            Stat::UNTOUCHED
        );
    }
}
