//! Attributes of nodes and of whole file systems.

use bitflags::bitflags;

/// What a node is: the format bits of `st_mode` (stat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl Kind {
    /// The `S_IFMT` bits of a mode, or nothing for bits that no kind has.
    pub const fn from_mode(mode: u32) -> Option<Kind> {
        Some(match mode & 0o170000 {
            0o100000 => Kind::File,
            0o040000 => Kind::Directory,
            0o120000 => Kind::Symlink,
            0o010000 => Kind::Fifo,
            0o140000 => Kind::Socket,
            0o020000 => Kind::CharDevice,
            0o060000 => Kind::BlockDevice,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Kind::File => 0o100000,
            Kind::Directory => 0o040000,
            Kind::Symlink => 0o120000,
            Kind::Fifo => 0o010000,
            Kind::Socket => 0o140000,
            Kind::CharDevice => 0o020000,
            Kind::BlockDevice => 0o060000,
        }
    }

    /// The `d_type` of readdir(3): the format bits shifted (`IFTODT`).
    pub const fn d_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }

    /// The kind that a `d_type` names; nothing for `DT_UNKNOWN`.
    pub const fn from_d_type(d_type: u8) -> Option<Kind> {
        Kind::from_mode((d_type as u32) << 12)
    }

    /// Returns `mode` as a write or a change of owner leaves it: what is no directory loses its
    /// set-user-id bit, and its set-group-id bit if its group may execute it; without that
    /// permission the bit means mandatory locks, and stays (Linux: `setattr_should_drop_suidgid`).
    pub const fn mode_without_set_id(self, mode: u32) -> u32 {
        match self {
            Kind::Directory => mode,
            _ if mode & 0o010 != 0 => mode & !0o6000,
            _ => mode & !0o4000,
        }
    }
}

/// A moment, or how long after the Unix epoch it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// Attributes of a node, as statx(2) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The node's number, unique and stable within its file system ([`crate::NodeId`]).
    pub id: u64,
    /// Tells one life of a number from the next; 0 where the source cannot.
    pub generation: u64,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, set-id bits and sticky bit: `0o7777`.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Which device a device node stands for.
    pub rdev: Device,
    /// Bytes.
    pub size: u64,
    /// The preferred size of an I/O, bytes.
    pub blksize: u32,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Birth, where the source knows it.
    pub btime: Option<Time>,
    /// Grows, or at least differs, with each change of contents or attributes: the best resolution
    /// the source has. qid.version, the NFS change attribute and every cache's validity.
    pub change: u64,
    /// Which of the file systems below one root the node is on: differs on a submount.
    pub device: u64,
}

impl Attr {
    /// Kind and permissions as `st_mode`.
    pub const fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | self.mode
    }
}

bitflags! {
    /// The attributes a caller will look at; the others may be stale or zero. A source that gets
    /// them all at once ignores it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Want: u32 {
        /// Kind, permissions, owner, links, device numbers, identity: the same answer a lookup needs.
        const BASIC = 1;
        /// Size and blocks: a network file system may have to ask for them.
        const SIZE = 2;
        /// Times and the change counter.
        const TIMES = 4;
        /// Birth time.
        const BTIME = 8;
        /// Generation.
        const GENERATION = 16;
        /// What stat(2) shows, and the change counter.
        const STAT = Self::BASIC.bits() | Self::SIZE.bits() | Self::TIMES.bits();
    }
}

/// A change of attributes: nothing means leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits, `0o7777`.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size: cuts, or extends by a hole.
    pub size: Option<u64>,
    /// New time of last read.
    pub atime: Option<SetTime>,
    /// New time of last change of contents.
    pub mtime: Option<SetTime>,
    /// Mark as changed now (9P's `P9_ATTR_CTIME`), even if nothing else changes.
    pub ctime: bool,
    /// Take set-id bits and file capabilities away along with the change, as a local chown or
    /// truncation would (FUSE's killpriv v2).
    pub kill_priv: bool,
}

impl SetAttr {
    /// Whether others may do something else afterwards: mode, owner or group are set.
    pub fn changes_access(&self) -> bool {
        [self.mode, self.uid, self.gid].iter().any(Option::is_some)
    }
}

/// A new time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The source's own clock. Needs write permission only.
    Now,
    /// This moment. Needs ownership.
    At(Time),
}

/// Figures of a whole file system, as statfs(2) has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// The magic number of its type (`include/uapi/linux/magic.h`).
    pub kind: u32,
    /// Bytes a block has in the counts below.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub bfree: u64,
    /// Blocks free to the unprivileged.
    pub bavail: u64,
    /// Nodes in all.
    pub files: u64,
    /// Nodes free.
    pub ffree: u64,
    /// Its id.
    pub fsid: u64,
    /// The longest name, bytes.
    pub namelen: u32,
}

impl StatFs {
    /// The most links that a file has, by the type of its file system: there is no call that tells. 32,000, which any has, for
    /// a type that is not known here.
    pub const fn link_max(&self) -> u32 {
        match self.kind {
            // ext4 (`EXT4_LINK_MAX`).
            0xef53 => 65_000,
            // btrfs (`BTRFS_LINK_MAX`).
            0x9123_683e => 65_535,
            // XFS (`XFS_MAXLINK`).
            0x5846_5342 => i32::MAX as u32,
            // tmpfs, which counts as far as its counter goes.
            0x0102_1994 => u32::MAX,
            _ => 32_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_through_mode_and_d_type() {
        for kind in [
            Kind::File,
            Kind::Directory,
            Kind::Symlink,
            Kind::Fifo,
            Kind::Socket,
            Kind::CharDevice,
            Kind::BlockDevice,
        ] {
            assert_eq!(Kind::from_mode(kind.mode_bits() | 0o7777), Some(kind));
            assert_eq!(Kind::from_d_type(kind.d_type()), Some(kind));
        }
        assert_eq!(Kind::from_mode(0), None);
        assert_eq!(Kind::from_d_type(0), None);
    }
}
