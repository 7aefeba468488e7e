//! Attributes of nodes and of whole file systems.

use bitflags::bitflags;

use crate::Time;

/// The type of a node: the format bits of `st_mode` (stat(2)).
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
    /// Returns the kind in the `S_IFMT` bits of a mode; `None` for bits that no kind has.
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

    /// Returns the `S_IFMT` bits.
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

    /// Returns the `d_type` of readdir(3): the format bits shifted (`IFTODT`).
    pub const fn d_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }

    /// Returns the kind that a `d_type` names; `None` for `DT_UNKNOWN`.
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

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

/// Attributes of a node, as in statx(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The node's number, unique and stable within its file system ([`crate::NodeId`]).
    pub id: u64,
    /// The generation, which tells apart nodes that reuse a number; 0 if the source has none.
    pub generation: u64,
    /// Its type.
    pub kind: Kind,
    /// Permission bits, set-id bits and sticky bit: `0o7777`.
    pub mode: u32,
    /// The number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device that a device node stands for.
    pub rdev: Device,
    /// Size in bytes.
    pub size: u64,
    /// The preferred I/O size in bytes.
    pub blksize: u32,
    /// Space used, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last modification of the contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
    /// Creation, if the source knows the time.
    pub btime: Option<Time>,
    /// The change counter: grows, or at least differs, with each change of contents or attributes,
    /// at the best resolution that the source has. The source of qid.version, the NFS change
    /// attribute and cache validation.
    pub change: u64,
    /// The device number of the file system that contains the node: differs on a submount.
    pub device: u64,
}

impl Attr {
    /// Returns the space used in bytes. A block of `st_blocks` has 512 bytes, whatever the file
    /// system's own block size (stat(2)).
    pub const fn allocated(&self) -> u64 {
        self.blocks.saturating_mul(512)
    }

    /// Returns kind and permissions as `st_mode`.
    pub const fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | self.mode
    }
}

bitflags! {
    /// The attributes that a caller uses; the others may be stale or zero. A source that reads all
    /// of them at once ignores it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// Kind, permissions, owner, links, device numbers and identity: all that a lookup needs.
        const BASIC = 1;
        /// Size and blocks, which a network file system may have to fetch.
        const SIZE = 2;
        /// Times and the change counter.
        const TIMES = 4;
        /// Birth time.
        const BTIME = 8;
        /// Generation.
        const GENERATION = 16;
        /// The attributes of stat(2), and the change counter.
        const STAT = Self::BASIC.bits() | Self::SIZE.bits() | Self::TIMES.bits();
    }
}

/// A change of attributes; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits, `0o7777`.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size: truncates, or extends with a hole.
    pub size: Option<u64>,
    /// New time of last access.
    pub atime: Option<SetTime>,
    /// New time of last modification.
    pub mtime: Option<SetTime>,
    /// Updates ctime (9P's `P9_ATTR_CTIME`), even if no other attribute changes.
    pub ctime: bool,
    /// Clears set-id bits and file capabilities together with the change, as a local chown or
    /// truncation does (FUSE's killpriv v2).
    pub kill_priv: bool,
}

impl SetAttr {
    /// Returns whether the change affects permissions: mode, owner or group are set.
    pub fn changes_access(&self) -> bool {
        [self.mode, self.uid, self.gid].iter().any(Option::is_some)
    }
}

/// A new time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time of the source's clock. Requires write permission only.
    Now,
    /// An explicit time. Requires ownership.
    At(Time),
}

/// Statistics of a whole file system, as in statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// The magic number of its type (`include/uapi/linux/magic.h`).
    pub magic: u32,
    /// The block size in bytes, in which the counts below are.
    pub bsize: u32,
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// Total inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// The file system id.
    pub fsid: u64,
    /// The maximum length of a name in bytes.
    pub namelen: u32,
    /// The counts that a quota limits.
    pub quota: Limited,
}

/// The counts of [`StatFs`] that are those of a quota rather than of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// Blocks.
    pub blocks: bool,
    /// Inodes.
    pub files: bool,
}

impl StatFs {
    /// Returns the maximum number of links to a file, by the type of the file system, as no system
    /// call reports it. 32,000, which every file system supports, for an unknown type.
    pub const fn link_max(&self) -> u32 {
        match self.magic {
            // ext4 (`EXT4_LINK_MAX`).
            0xef53 => 65_000,
            // btrfs (`BTRFS_LINK_MAX`).
            0x9123_683e => 65_535,
            // XFS (`XFS_MAXLINK`).
            0x5846_5342 => i32::MAX as u32,
            // tmpfs, limited by the width of its counter only.
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
