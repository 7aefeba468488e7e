//! Numbers inside FUSE's messages, by `include/uapi/linux/fuse.h`.

use bitflags::bitflags;

/// The protocol's only major version.
pub const MAJOR: u32 = 7;

/// The newest minor version that is spoken: Linux 6.18.
pub const MINOR: u32 = 45;

/// The oldest minor version that is spoken: Linux 4.18. Structures have kept their sizes since.
pub const OLDEST_MINOR: u32 = 27;

/// The oldest minor version whose requests say how long their extensions are.
pub const EXTENSIONS_MINOR: u32 = 38;

/// The root's node id.
pub const ROOT_ID: u64 = 1;

/// The largest errno that the kernel takes; it drops a reply with another.
pub const MAX_ERRNO: u16 = 511;

/// The bytes of a page, by which `max_pages` counts.
pub const PAGE: u32 = 4096;

bitflags! {
    /// `flags` of FUSE_INIT, and `flags2` from bit 32 on: what one side offers and the other takes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Several reads of one file at once.
        const ASYNC_READ = 1;
        /// fcntl(2) locks are the server's.
        const POSIX_LOCKS = 1 << 1;
        /// Opening truncates.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// `.` and `..` can be looked up.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        const BIG_WRITES = 1 << 5;
        /// The umask comes along instead of being applied.
        const DONT_MASK = 1 << 6;
        /// flock(2) locks are the server's.
        const FLOCK_LOCKS = 1 << 10;
        /// Cached pages go when the file turns out to have changed.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS is there.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Several direct I/Os of one file at once.
        const ASYNC_DIO = 1 << 15;
        /// The kernel writes behind.
        const WRITEBACK_CACHE = 1 << 16;
        /// Files need not be opened: `ENOSYS` says so.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Several look-ups in one directory at once.
        const PARALLEL_DIROPS = 1 << 18;
        /// ACLs are enforced.
        const POSIX_ACL = 1 << 20;
        /// `max_pages` counts.
        const MAX_PAGES = 1 << 22;
        /// The targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// Directories need not be opened: `ENOSYS` says so.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Directories of another device become mounts of their own.
        const SUBMOUNTS = 1 << 27;
        /// The server takes set-id bits away where it is told to.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has the longer structure.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` counts.
        const INIT_EXT = 1 << 30;
        /// What creates comes with a security context.
        const SECURITY_CTX = 1 << 32;
        /// What creates comes with the group that decides.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Files of direct I/O can be mapped all the same.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// The client may read and write by itself what backs a file.
        const PASSTHROUGH = 1 << 37;

        const _ = !0;
    }

    /// `open_flags` of the reply to OPEN, OPENDIR and CREATE (`FOPEN_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fopen: u32 {
        /// Past the page cache.
        const DIRECT_IO = 1;
        /// What is cached stays valid.
        const KEEP_CACHE = 1 << 1;
        /// The listing may be cached.
        const CACHE_DIR = 1 << 3;
        /// Direct writes of one file may run at once.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// The client reads and writes what backs the file by itself. Goes with no flag for caches.
        const PASSTHROUGH = 1 << 7;

        /// Past the page cache, many at once.
        const PAST = Fopen::DIRECT_IO.bits() | Fopen::PARALLEL_DIRECT_WRITES.bits();
    }

    /// `flags` of OPEN and CREATE: Linux's open(2) flags, as the architecture of both sides has them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// The access mode's two bits: 0 to read, 1 to write, 2 both.
        const ACCESS = 0o3;
        /// For writing only.
        const WRONLY = 0o1;
        /// For reading and writing.
        const RDWR = 0o2;
        /// To execute it (`__FMODE_EXEC`).
        const EXEC = 0o40;
        /// There must be none.
        const EXCL = 0o200;
        /// Cut to nothing.
        const TRUNC = 0o1000;
        /// Write at the end.
        const APPEND = 0o2000;
        /// Each write is durable with its size.
        const DSYNC = 0o10000;
        /// Past the cache.
        const DIRECT = DIRECT;
        /// Reading leaves atime.
        const NOATIME = 0o1000000;
        /// Each write is durable with all metadata (with [`Flags::DSYNC`]).
        const SYNC = 0o4000000;

        const _ = !0;
    }

    /// `valid` of SETATTR (`FATTR_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fattr: u32 {
        /// Permission bits.
        const MODE = 1;
        /// Owner.
        const UID = 1 << 1;
        /// Group.
        const GID = 1 << 2;
        /// Size.
        const SIZE = 1 << 3;
        /// Time of last read.
        const ATIME = 1 << 4;
        /// Time of last change of contents.
        const MTIME = 1 << 5;
        /// `fh` counts.
        const FH = 1 << 6;
        /// The server's clock, instead of `atime`.
        const ATIME_NOW = 1 << 7;
        /// The server's clock, instead of `mtime`.
        const MTIME_NOW = 1 << 8;
        /// `lock_owner` counts.
        const LOCKOWNER = 1 << 9;
        /// Time of last change of anything.
        const CTIME = 1 << 10;
        /// Take set-id bits away.
        const KILL_SUIDGID = 1 << 11;

        const _ = !0;
    }
}

/// `O_DIRECT`: one of the few flags that differ by architecture.
const DIRECT: u32 = if cfg!(any(target_arch = "aarch64", target_arch = "arm")) {
    0o200000
} else if cfg!(any(target_arch = "powerpc", target_arch = "powerpc64")) {
    0o400000
} else {
    0o40000
};

/// `getattr_flags`: `fh` counts.
pub const GETATTR_FH: u32 = 1;

/// `open_flags` of OPEN and CREATE: take set-id bits away.
pub const OPEN_KILL_SUIDGID: u32 = 1;

/// `write_flags`: a page that was written behind, through any file of the node.
pub const WRITE_CACHE: u32 = 1;

/// `write_flags`: take set-id bits away.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// `release_flags`: the open file's flock(2) lock goes.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;

/// `fsync_flags`: data alone.
pub const FSYNC_FDATASYNC: u32 = 1;

/// `lk_flags`: a flock(2) lock.
pub const LK_FLOCK: u32 = 1;

/// `setxattr_flags`: the set-gid bit goes along with the new ACL.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;

/// `flags` of attributes: the root of a mount of its own.
pub const ATTR_SUBMOUNT: u32 = 1;

/// The type of an extension that has supplementary groups.
pub const EXT_GROUPS: u32 = 32;

/// The highest type of an extension that has security contexts: it says how many.
pub const MAX_SECURITY_CONTEXTS: u32 = 31;

/// fcntl(2)'s kinds of locks.
#[allow(missing_docs)]
pub mod lock_kind {
    pub const RDLCK: u32 = 0;
    pub const WRLCK: u32 = 1;
    pub const UNLCK: u32 = 2;
}

/// lseek(2)'s origins that a server is asked about.
#[allow(missing_docs)]
pub mod whence {
    pub const DATA: u32 = 3;
    pub const HOLE: u32 = 4;
}

/// statx(2)'s masks.
#[allow(missing_docs)]
pub mod statx {
    pub const BASIC_STATS: u32 = 0x7ff;
    pub const BTIME: u32 = 0x800;
}
