//! Constants of FUSE's messages, from `include/uapi/linux/fuse.h`.

use bitflags::bitflags;

/// The protocol's major version.
pub const MAJOR: u32 = 7;

/// The newest supported minor version: Linux 6.18.
pub const MINOR: u32 = 45;

/// The oldest supported minor version: Linux 4.18. Structures have kept their sizes since.
pub const OLDEST_MINOR: u32 = 27;

/// The oldest minor version with a length of extensions in its requests.
pub const EXTENSIONS_MINOR: u32 = 38;

/// The oldest minor version of a client that knows [`Notify::IncEpoch`]: Linux 6.16.
pub const EPOCH_MINOR: u32 = 44;

/// A notification of the server, whose code is in the place of a reply's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Notify {
    /// Drops cached attributes of a node, and contents if so requested.
    InvalInode = 2,
    /// Drops a cached name.
    InvalEntry = 3,
    /// Removes a name and its node, as after unlink(2) or rmdir(2).
    Delete = 6,
    /// Sends requests without a reply again.
    Resend = 7,
    /// Drops all cached names.
    IncEpoch = 8,
}

/// The flag of [`Notify::InvalEntry`] for which the name stays and is looked up when it is used
/// next: mounts on it stay too (`FUSE_EXPIRE_ONLY`).
pub const EXPIRE_ONLY: u32 = 1;

/// The bit of a request's number that says that the request is sent again.
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// The root's node id.
pub const ROOT_ID: u64 = 1;

/// The largest errno that the kernel accepts; it drops a reply with a larger one.
pub const MAX_ERRNO: u16 = 511;

/// The size of a page in bytes, the unit of `max_pages`.
pub const PAGE: u32 = 4096;

bitflags! {
    /// `flags` of FUSE_INIT, with `flags2` from bit 32 on: offered by the client, granted by the
    /// server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Several reads of one file may be in flight.
        const ASYNC_READ = 1;
        /// The server handles fcntl(2) locks.
        const POSIX_LOCKS = 1 << 1;
        /// OPEN handles `O_TRUNC`.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP accepts `.` and `..`.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than a page.
        const BIG_WRITES = 1 << 5;
        /// The client sends the umask instead of applying it.
        const DONT_MASK = 1 << 6;
        /// The server handles flock(2) locks.
        const FLOCK_LOCKS = 1 << 10;
        /// The client invalidates cached pages when a file's attributes show a change.
        const AUTO_INVAL_DATA = 1 << 12;
        /// The server supports READDIRPLUS.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Several direct I/O requests of one file may be in flight.
        const ASYNC_DIO = 1 << 15;
        /// The client has a write-back cache.
        const WRITEBACK_CACHE = 1 << 16;
        /// OPEN may fail with `ENOSYS`; the client then does without it.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Several look-ups in one directory may be in flight.
        const PARALLEL_DIROPS = 1 << 18;
        /// The client enforces POSIX ACLs.
        const POSIX_ACL = 1 << 20;
        /// `max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// The client caches the targets of symbolic links.
        const CACHE_SYMLINKS = 1 << 23;
        /// OPENDIR may fail with `ENOSYS`; the client then does without it.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// The client mounts directories of another device as submounts.
        const SUBMOUNTS = 1 << 27;
        /// The server removes set-id bits when a flag of the request says so.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR uses the longer structure.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Requests that make files carry a security context.
        const SECURITY_CTX = 1 << 32;
        /// Requests that make files carry the relevant supplementary group.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Files with direct I/O can be mapped as shared.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// The client may read and write a backing file directly.
        const PASSTHROUGH = 1 << 37;
        /// The client sends requests again on request ([`Notify::Resend`]).
        const HAS_RESEND = 1 << 39;

        const _ = !0;
    }

    /// `open_flags` of the reply to OPEN, OPENDIR and CREATE (`FOPEN_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fopen: u32 {
        /// Reads and writes bypass the page cache.
        const DIRECT_IO = 1;
        /// Opening keeps the cached pages.
        const KEEP_CACHE = 1 << 1;
        /// The client may cache the listing.
        const CACHE_DIR = 1 << 3;
        /// Direct writes of one file may run concurrently.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// The client reads and writes the backing file directly. Excludes the flags for caches.
        const PASSTHROUGH = 1 << 7;

        /// Reads and writes bypass the page cache, and may run concurrently.
        const PAST = Fopen::DIRECT_IO.bits() | Fopen::PARALLEL_DIRECT_WRITES.bits();
    }

    /// `flags` of OPEN and CREATE: Linux's open(2) flags, numbered as on the architecture of both
    /// sides.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// The two bits of the access mode: 0 to read, 1 to write, 2 for both.
        const ACCESS = 0o3;
        /// For writing only.
        const WRONLY = 0o1;
        /// For reading and writing.
        const RDWR = 0o2;
        /// To execute (`__FMODE_EXEC`).
        const EXEC = 0o40;
        /// The file must not exist.
        const EXCL = 0o200;
        /// Truncate.
        const TRUNC = 0o1000;
        /// Append.
        const APPEND = 0o2000;
        /// Each write is durable, with the file's size.
        const DSYNC = 0o10000;
        /// Direct I/O.
        const DIRECT = DIRECT;
        /// Reads do not change atime.
        const NOATIME = 0o1000000;
        /// Each write is durable, with all metadata (together with [`Flags::DSYNC`]).
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
        /// `fh` is valid.
        const FH = 1 << 6;
        /// Set atime to the server's clock.
        const ATIME_NOW = 1 << 7;
        /// Set mtime to the server's clock.
        const MTIME_NOW = 1 << 8;
        /// `lock_owner` is valid.
        const LOCKOWNER = 1 << 9;
        /// Time of last change of contents or attributes.
        const CTIME = 1 << 10;
        /// Remove set-id bits.
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

/// `getattr_flags`: `fh` is valid.
pub const GETATTR_FH: u32 = 1;

/// `open_flags` of OPEN and CREATE: remove set-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1;

/// `write_flags`: write-back of a cached page, through any open file of the node.
pub const WRITE_CACHE: u32 = 1;

/// `write_flags`: remove set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// `release_flags`: release the open file's flock(2) lock.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;

/// `fsync_flags`: data only.
pub const FSYNC_FDATASYNC: u32 = 1;

/// `lk_flags`: a flock(2) lock.
pub const LK_FLOCK: u32 = 1;

/// `setxattr_flags`: remove the set-gid bit together with setting the ACL.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;

/// `flags` of attributes: the root of a submount.
pub const ATTR_SUBMOUNT: u32 = 1;

/// The type of an extension with supplementary groups.
pub const EXT_GROUPS: u32 = 32;

/// The highest type of an extension with security contexts; the type is their number.
pub const MAX_SECURITY_CONTEXTS: u32 = 31;

/// The kinds of fcntl(2) locks.
#[allow(missing_docs)]
pub mod lock_kind {
    pub const RDLCK: u32 = 0;
    pub const WRLCK: u32 = 1;
    pub const UNLCK: u32 = 2;
}

/// The origins of lseek(2) that the client sends to the server.
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
