//! What a mount is granted, and how much it may ask for.

use core::time::Duration;

use crate::numbers::{Fopen, InitFlags, PAGE};

/// How long a client may go by what it knows, by virtiofsd's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// It asks each time, and keeps no contents: what others do is seen at once.
    Never,
    /// It keeps names, attributes and listings for a day, but no contents.
    Metadata,
    /// It keeps names and attributes for a second, contents until a file is opened again.
    #[default]
    Auto,
    /// It keeps all for a day: nobody else changes the tree.
    Always,
}

/// What a mount is granted where the client offers it, and how much it may ask for.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the client may go by what it knows.
    pub cache: Cache,
    /// How long names and attributes are good for, instead of what [`Options::cache`] says.
    pub timeout: Option<Duration>,
    /// Of a tree that cannot be changed nothing is opened: the client reads by nodes, and decides itself who may do what and who has
    /// which lock. For one client that checks permissions, as Linux does where it mounts by itself.
    pub without_open: bool,
    /// The client writes behind. For trees that nobody else changes.
    pub writeback: bool,
    /// Who opens a file to write to it alone, and is the first, goes past what the client keeps of files, and so does who opens it
    /// meanwhile: each byte is copied once less, and no page is made for it. Not where the client writes behind.
    pub writers_go_past: bool,
    /// A program's `O_DIRECT` goes through to the source; otherwise it is the client's alone.
    pub allow_direct_io: bool,
    /// Files without a name (`O_TMPFILE`). Linux from 6.2 on asks for them for overlayfs too, which then
    /// looks the file up by the name that it never had, and loses it: `ESTALE` once the entry is old, or
    /// when something is moved there.
    pub tmpfile: bool,
    /// Extended attributes.
    pub xattr: bool,
    /// POSIX ACLs, where the source enforces them.
    pub posix_acl: bool,
    /// What is made gets the label that the client's security module wants for it.
    pub security_label: bool,
    /// What the client has to take of all this: INIT answers `EPROTO` otherwise.
    pub required: InitFlags,
    /// Listings come with attributes.
    pub readdirplus: bool,
    /// What is on another device below becomes a mount of its own in the client, so that device and
    /// node numbers together are unique.
    pub announce_submounts: bool,
    /// fcntl(2) locks are the server's, and seen by all its clients; otherwise the client's own.
    pub posix_locks: bool,
    /// The same of flock(2) locks.
    pub flock: bool,
    /// The server takes set-id bits and file capabilities away when a file is written or changes
    /// its owner (`FUSE_HANDLE_KILLPRIV_V2`). Otherwise the client does, and asks for capabilities
    /// before each write. Without [`Options::xattr`] there are none to ask for, and it is granted
    /// only to clients that write past their cache, which take nothing away themselves.
    pub killpriv_v2: bool,
    /// Files that the client keeps no contents of can be mapped as shared all the same.
    pub allow_mmap: bool,
    /// A program's `O_NOATIME` goes through to the source, which refuses it of files that are not
    /// the caller's; of the super-user's it is forgotten then, and otherwise always.
    pub noatime: bool,
    /// The most bytes of a write.
    pub max_write: u32,
    /// The most nodes that the client knows at once.
    pub max_nodes: usize,
    /// The most files and directories that are open at once.
    pub max_handles: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache: Cache::Auto,
            timeout: None,
            without_open: false,
            writeback: false,
            writers_go_past: false,
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
            // The most that Linux sends unless told otherwise (`fs.fuse.max_pages_limit`).
            max_write: 1 << 20,
            // Some 100 bytes each besides its node. Linux keeps one per cached inode, and cannot be told
            // to keep fewer.
            max_nodes: 16 << 20,
            // As many descriptors as a process may have on common systems.
            max_handles: 1 << 20,
        }
    }
}

impl Options {
    /// The most bytes of a message besides the payload of a write: headers, and a page to spare.
    const REST: usize = PAGE as usize;

    /// The least [`Options::max_write`]: then an extended attribute of the largest size fits.
    const MIN_WRITE: u32 = 64 << 10;

    /// The most: `max_pages` has 16 bits.
    const MAX_WRITE: u32 = u16::MAX as u32 * PAGE;

    pub(super) fn in_bounds(mut self) -> Options {
        let write = self.max_write.clamp(Options::MIN_WRITE, Options::MAX_WRITE);
        self.max_write = write / PAGE * PAGE;
        self
    }

    /// The most bytes of a message.
    pub(super) fn longest(&self) -> usize {
        self.max_write as usize + Options::REST
    }

    /// How long names and attributes are good for.
    pub(super) fn validity(&self) -> Duration {
        const DAY: u64 = 86400;
        self.timeout
            .unwrap_or(Duration::from_secs(match self.cache {
                Cache::Never => 0,
                Cache::Metadata | Cache::Always => DAY,
                Cache::Auto => 1,
            }))
    }

    /// Whether the client writes files past its cache.
    pub(super) fn past_cache(&self) -> bool {
        self.open_flags(false).contains(Fopen::DIRECT_IO)
    }

    /// What the client may do with what it opens.
    pub(super) fn open_flags(&self, directory: bool) -> Fopen {
        match (self.cache, directory) {
            (Cache::Never | Cache::Metadata, false) => Fopen::PAST,
            (Cache::Metadata | Cache::Always, true) => Fopen::CACHE_DIR | Fopen::KEEP_CACHE,
            (Cache::Always, false) => Fopen::KEEP_CACHE,
            (Cache::Never, true) | (Cache::Auto, _) => Fopen::empty(),
        }
    }
}
