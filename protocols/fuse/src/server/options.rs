//! The options of a mount: features to grant, and limits.

use core::time::Duration;

use super::migration::Migration;
use crate::numbers::{Fopen, InitFlags, PAGE};

/// Validity of the client's caches, named as virtiofsd's `--cache` policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// No caching: other processes' changes are visible at once.
    Never,
    /// Caches names, attributes and listings for a day, but no contents.
    Metadata,
    /// Caches names and attributes for a second, and contents until a file is opened again.
    #[default]
    Auto,
    /// Caches everything for a day: for trees that nobody else changes.
    Always,
}

/// The features that a mount is granted if the client offers them, and its limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// The validity of the client's caches.
    pub cache: Cache,
    /// The validity of names and attributes, overriding [`Options::cache`].
    pub timeout: Option<Duration>,
    /// Opens no files of a tree that cannot change: the client reads by node id, and checks
    /// permissions and handles locks itself. For a single client that checks permissions, as Linux
    /// does for its own mounts.
    pub without_open: bool,
    /// Grants the write-back cache. For trees that nobody else changes.
    pub writeback: bool,
    /// A file that is first opened for writing only bypasses the client's page cache, as do further
    /// open files of it meanwhile: each byte is copied once less, and no page is allocated for it.
    /// Not used with a write-back cache.
    pub writers_bypass_cache: bool,
    /// Passes a program's `O_DIRECT` to the source; otherwise it applies to the client only.
    pub allow_direct_io: bool,
    /// Grants unnamed files (`O_TMPFILE`). From Linux 6.2 on overlayfs uses them too; it then looks
    /// the file up by the name that it never had and loses it, with `ESTALE` when the entry expires
    /// or a file is moved there.
    pub tmpfile: bool,
    /// Grants extended attributes.
    pub xattr: bool,
    /// Grants POSIX ACLs, if the source enforces them.
    pub posix_acl: bool,
    /// New files get the label that the client's LSM assigns.
    pub security_label: bool,
    /// The flags that the client has to accept: otherwise INIT returns `EPROTO`.
    pub required: InitFlags,
    /// Grants READDIRPLUS.
    pub readdirplus: bool,
    /// Announces directories on another device as submounts, so that device and inode numbers
    /// together are unique in the client.
    pub announce_submounts: bool,
    /// The server handles fcntl(2) locks, shared by all its clients; otherwise they are local to
    /// the client.
    pub posix_locks: bool,
    /// The same for flock(2) locks.
    pub flock: bool,
    /// The server removes set-id bits and file capabilities when a file is written or changes its
    /// owner (`FUSE_HANDLE_KILLPRIV_V2`). Otherwise the client does, and sends GETXATTR for
    /// capabilities before each write. Without [`Options::xattr`] it cannot, and the flag is
    /// granted only to clients that bypass their cache on writes, which remove no privileges
    /// themselves.
    pub killpriv_v2: bool,
    /// Files with direct I/O can be mapped as shared.
    pub allow_mmap: bool,
    /// Passes a program's `O_NOATIME` to the source, which refuses it for files that the caller
    /// does not own; if it refuses it to root, the flag is dropped. Without this option the flag is
    /// always dropped.
    pub noatime: bool,
    /// The largest write, in bytes.
    pub max_write: u32,
    /// The most nodes that the client has looked up at once.
    pub max_nodes: usize,
    /// The most files and directories that are open at once.
    pub max_handles: usize,
    /// The migration of a client to another server.
    pub migration: Migration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache: Cache::Auto,
            timeout: None,
            without_open: false,
            writeback: false,
            writers_bypass_cache: false,
            allow_direct_io: false,
            tmpfile: false,
            xattr: true,
            posix_acl: false,
            security_label: false,
            required: InitFlags::empty(),
            readdirplus: true,
            announce_submounts: true,
            posix_locks: true,
            flock: true,
            killpriv_v2: true,
            allow_mmap: true,
            noatime: true,
            // The largest that Linux sends by default (`fs.fuse.max_pages_limit`).
            max_write: 1 << 20,
            // Some 100 bytes each in addition to the node. Linux keeps one per cached inode, and
            // cannot be made to keep fewer.
            max_nodes: 16 << 20,
            // As many as a process's descriptors on common systems.
            max_handles: 1 << 20,
            migration: Migration::default(),
        }
    }
}

impl Options {
    /// The largest message in bytes without the payload of a write: headers, and a page of reserve.
    const MAX_HEADERS: usize = PAGE as usize;

    /// The smallest [`Options::max_write`], so that an extended attribute of the largest size fits.
    const MIN_WRITE: u32 = 64 << 10;

    /// The largest [`Options::max_write`]: `max_pages` has 16 bits.
    const MAX_WRITE: u32 = u16::MAX as u32 * PAGE;

    pub(super) fn clamped(mut self) -> Options {
        let write = self.max_write.clamp(Options::MIN_WRITE, Options::MAX_WRITE);
        self.max_write = write / PAGE * PAGE;
        self
    }

    /// Returns the largest size of a message in bytes.
    pub(super) fn max_message(&self) -> usize {
        self.max_write as usize + Options::MAX_HEADERS
    }

    /// Returns the validity of names and attributes.
    pub(super) fn validity(&self) -> Duration {
        const DAY: u64 = 86400;
        self.timeout
            .unwrap_or(Duration::from_secs(match self.cache {
                Cache::Never => 0,
                Cache::Metadata | Cache::Always => DAY,
                Cache::Auto => 1,
            }))
    }

    /// Returns whether the client's writes bypass its cache.
    pub(super) fn writes_bypass_cache(&self) -> bool {
        self.open_flags(false).contains(Fopen::DIRECT_IO)
    }

    /// Returns the flags for the reply to OPEN and OPENDIR.
    pub(super) fn open_flags(&self, directory: bool) -> Fopen {
        match (self.cache, directory) {
            (Cache::Never | Cache::Metadata, false) => Fopen::PAST,
            (Cache::Metadata | Cache::Always, true) => Fopen::CACHE_DIR | Fopen::KEEP_CACHE,
            (Cache::Always, false) => Fopen::KEEP_CACHE,
            (Cache::Never, true) | (Cache::Auto, _) => Fopen::empty(),
        }
    }
}
