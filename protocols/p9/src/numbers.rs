//! Constants of 9P2000.L's and 9P2000.u's messages, from `include/net/9p/9p.h`.

use bitflags::bitflags;

bitflags! {
    /// `flags` of Tlopen and Tlcreate (`P9_DOTL_*`): those of generic Linux, on every architecture.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Lopen: u32 {
        /// The two bits of the access mode: 0 to read, 1 to write, 2 for both, 3 for neither.
        const ACCESS = 0o3;
        /// For writing only.
        const WRONLY = 0o1;
        /// For reading and writing.
        const RDWR = 0o2;
        /// Create.
        const CREATE = 0o100;
        /// The file must not exist.
        const EXCL = 0o200;
        /// Truncate.
        const TRUNC = 0o1000;
        /// Append.
        const APPEND = 0o2000;
        /// Do not block.
        const NONBLOCK = 0o4000;
        /// Each write is durable, with the file's size.
        const DSYNC = 0o10000;
        /// Bypass the client's cache.
        const DIRECT = 0o40000;
        /// Allow offsets beyond 2 GiB.
        const LARGEFILE = 0o100000;
        /// The file must be a directory.
        const DIRECTORY = 0o200000;
        /// The file must not be a symbolic link.
        const NOFOLLOW = 0o400000;
        /// Reads do not change atime.
        const NOATIME = 0o1000000;
        /// Each write is durable, with all metadata.
        const SYNC = 0o4000000;

        const _ = !0;
    }

    /// Fields of Rgetattr (`P9_GETATTR_*`, `P9_STATS_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Getattr: u64 {
        /// Type and permissions.
        const MODE = 0x1;
        /// Link count.
        const NLINK = 0x2;
        /// Owner.
        const UID = 0x4;
        /// Group.
        const GID = 0x8;
        /// Device numbers.
        const RDEV = 0x10;
        /// Time of last read.
        const ATIME = 0x20;
        /// Time of last change of contents.
        const MTIME = 0x40;
        /// Time of last change of contents or attributes.
        const CTIME = 0x80;
        /// The qid's path.
        const INO = 0x100;
        /// Size in bytes.
        const SIZE = 0x200;
        /// Blocks of 512 bytes.
        const BLOCKS = 0x400;
        /// Time of birth.
        const BTIME = 0x800;
        /// Generation.
        const GEN = 0x1000;
        /// Change counter.
        const DATA_VERSION = 0x2000;
        /// The fields of stat(2).
        const BASIC = 0x7ff;

        const _ = !0;
    }

    /// Fields of Tsetattr (`P9_SETATTR_*`, `P9_ATTR_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Setattr: u32 {
        /// Permissions.
        const MODE = 0x1;
        /// Owner.
        const UID = 0x2;
        /// Group.
        const GID = 0x4;
        /// Size in bytes.
        const SIZE = 0x8;
        /// Time of last read: now, unless [`Setattr::ATIME_SET`].
        const ATIME = 0x10;
        /// Time of last change of contents: now, unless [`Setattr::MTIME_SET`].
        const MTIME = 0x20;
        /// Time of last change of contents or attributes: now.
        const CTIME = 0x40;
        /// The time of last read is in the message.
        const ATIME_SET = 0x80;
        /// The time of last change of contents is in the message.
        const MTIME_SET = 0x100;

        const _ = !0;
    }

    /// `flags` of Tlock (`P9_LOCK_FLAGS_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockFlags: u32 {
        /// The client waits for the lock.
        const BLOCK = 1;
        /// The client held the lock before the server restarted.
        const RECLAIM = 2;
    }

    /// The bits of `mode` in a [`crate::Stat`] and of `perm` in Tcreate, above the permissions:
    /// stat(5) and 9P2000.u.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Dm: u32 {
        /// A directory.
        const DIR = 0x8000_0000;
        /// Append only.
        const APPEND = 0x4000_0000;
        /// Exclusive use: open once at a time.
        const EXCL = 0x2000_0000;
        /// Not to be backed up.
        const TMP = 0x0400_0000;
        /// A symbolic link (9P2000.u).
        const SYMLINK = 0x0200_0000;
        /// A hard link (9P2000.u).
        const LINK = 0x0100_0000;
        /// A device (9P2000.u).
        const DEVICE = 0x0080_0000;
        /// A named pipe (9P2000.u).
        const NAMEDPIPE = 0x0020_0000;
        /// A socket (9P2000.u).
        const SOCKET = 0x0010_0000;
        /// Set-user-id (9P2000.u).
        const SETUID = 0x0008_0000;
        /// Set-group-id (9P2000.u).
        const SETGID = 0x0004_0000;
        /// The sticky bit (9P2000.u).
        const SETVTX = 0x0001_0000;

        const _ = !0;
    }

    /// `mode` of Topen and Tcreate: open(5).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Omode: u8 {
        /// The two bits of the access mode: 0 to read, 1 to write, 2 for both, 3 to execute.
        const ACCESS = 3;
        /// Truncate.
        const TRUNC = 0x10;
        /// Close on exec: handled by the client.
        const CEXEC = 0x20;
        /// Remove on clunk.
        const RCLOSE = 0x40;
        /// Append (Linux's 9P2000.u).
        const APPEND = 0x80;

        const _ = !0;
    }
}

/// `flags` of Tunlinkat: the name is of a directory (`P9_DOTL_AT_REMOVEDIR`).
pub const AT_REMOVEDIR: u32 = 0x200;

/// The file system type of Rstatfs (`V9FS_MAGIC`).
pub const V9FS_MAGIC: u32 = 0x0102_1997;

/// `kind` of Tlock, Tgetlock and Rgetlock (`P9_LOCK_TYPE_*`).
pub mod lock_kind {
    /// Shared.
    pub const RDLCK: u8 = 0;
    /// Exclusive.
    pub const WRLCK: u8 = 1;
    /// No lock.
    pub const UNLCK: u8 = 2;
}

/// `status` of Rlock (`P9_LOCK_*`).
pub mod lock_status {
    /// Success.
    pub const SUCCESS: u8 = 0;
    /// Another owner's lock conflicts.
    pub const BLOCKED: u8 = 1;
    /// Failure.
    pub const ERROR: u8 = 2;
    /// The server has just restarted and accepts reclaims only.
    pub const GRACE: u8 = 3;
}
