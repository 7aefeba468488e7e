//! Converts `vfs` requests to FUSE's arguments.

use vfs::{AllocateMode, NewNode, OpenFlags, SetAttr, SetTime, Time};

use crate::convert;
use crate::layout::{MknodIn, SetattrIn};
use crate::numbers::{Fattr, Flags};

/// Returns the open(2) flags.
pub fn open(flags: OpenFlags) -> Flags {
    let mut encoded = match flags.contains(OpenFlags::WRITE) {
        true if flags.contains(OpenFlags::READ) => Flags::RDWR,
        true => Flags::WRONLY,
        false => Flags::empty(),
    };
    for (bits, flag) in convert::OPEN_FLAGS {
        encoded.set(bits, flags.contains(flag));
    }
    // `SYNC` is both bits of `O_SYNC`.
    for (bits, flag) in [
        (Flags::DSYNC, OpenFlags::SYNC),
        (Flags::DIRECT, OpenFlags::DIRECT),
        (Flags::EXEC, OpenFlags::EXEC),
        (Flags::EXCL, OpenFlags::EXCL),
    ] {
        if flags.contains(flag) {
            encoded |= bits;
        }
    }
    encoded
}

/// Returns the arguments of SETATTR, with the open file `fh` if there is one.
pub fn setattr(set: &SetAttr, fh: Option<u64>) -> SetattrIn {
    let mut valid = Fattr::empty();
    let mut has = |there, bit| valid.set(bit, there);
    has(set.mode.is_some(), Fattr::MODE);
    has(set.uid.is_some(), Fattr::UID);
    has(set.gid.is_some(), Fattr::GID);
    has(set.size.is_some(), Fattr::SIZE);
    has(fh.is_some(), Fattr::FH);
    // A change of owner sends CTIME as well, as Linux does where the client maintains times: only
    // overlayfs sends none, and a server may then leave set-id bits.
    let owned = set.uid.is_some() || set.gid.is_some();
    has(set.ctime || owned, Fattr::CTIME);
    has(set.kill_priv, Fattr::KILL_SUIDGID);
    has(set.atime.is_some(), Fattr::ATIME);
    has(set.mtime.is_some(), Fattr::MTIME);
    has(set.atime == Some(SetTime::Now), Fattr::ATIME_NOW);
    has(set.mtime == Some(SetTime::Now), Fattr::MTIME_NOW);
    let time = |time| match time {
        Some(SetTime::At(time)) => time,
        Some(SetTime::Now) | None => Time::default(),
    };
    let (atime, mtime) = (time(set.atime), time(set.mtime));
    SetattrIn {
        valid: valid.bits(),
        fh: fh.unwrap_or(0),
        size: set.size.unwrap_or(0),
        atime: atime.sec as u64,
        mtime: mtime.sec as u64,
        atimensec: atime.nsec,
        mtimensec: mtime.nsec,
        mode: set.mode.unwrap_or(0),
        uid: set.uid.unwrap_or(0),
        gid: set.gid.unwrap_or(0),
        ..SetattrIn::default()
    }
}

/// Returns the arguments of MKNOD, or `None` for directories and symbolic links, which have
/// requests of their own.
pub fn mknod(what: NewNode<'_>, mode: u32, umask: u32) -> Option<MknodIn> {
    let (kind, rdev) = match what {
        NewNode::File => (vfs::Kind::File, None),
        NewNode::Fifo => (vfs::Kind::Fifo, None),
        NewNode::Socket => (vfs::Kind::Socket, None),
        NewNode::CharDevice(device) => (vfs::Kind::CharDevice, Some(device)),
        NewNode::BlockDevice(device) => (vfs::Kind::BlockDevice, Some(device)),
        NewNode::Directory | NewNode::Symlink(_) => return None,
    };
    Some(MknodIn {
        mode: kind.mode_bits() | mode,
        rdev: rdev.map_or(0, convert::encode_device),
        umask,
    })
}

/// Returns the mode of fallocate(2).
pub fn allocate(how: AllocateMode) -> u32 {
    convert::mode_from_allocate(how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_names_what_it_changes() {
        let set = SetAttr {
            size: Some(5),
            mtime: Some(SetTime::At(Time { sec: -1, nsec: 7 })),
            atime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let encoded = setattr(&set, Some(3));
        let valid = Fattr::SIZE | Fattr::FH | Fattr::MTIME | Fattr::ATIME | Fattr::ATIME_NOW;
        assert_eq!(encoded.valid, valid.bits());
        assert_eq!((encoded.size, encoded.fh), (5, 3));
        assert_eq!((encoded.mtime, encoded.mtimensec), (u64::MAX, 7));
        assert_eq!(setattr(&SetAttr::default(), None), SetattrIn::default());
    }

    #[test]
    fn flags_are_open_2s() {
        for (flags, bits) in [
            (OpenFlags::READ, 0),
            (OpenFlags::WRITE, 0o1),
            (
                OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND,
                0o2002,
            ),
            (OpenFlags::WRITE | OpenFlags::SYNC, 0o4010001),
            (OpenFlags::WRITE | OpenFlags::DSYNC, 0o10001),
            (OpenFlags::EXEC, 0o40),
        ] {
            assert_eq!(open(flags).bits(), bits, "{flags:?}");
        }
    }
}
