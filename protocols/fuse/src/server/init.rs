//! INIT: the negotiation of features.

use std::sync::atomic::Ordering;

use vfs::{AttrMask, Caller, Errno, Kind, Result, Support};

use super::{Cache, RequestContext, Resender, Session};
use crate::WireFormat;
use crate::layout::InitOut;
use crate::message::InitIn;
use crate::numbers::{EXTENSIONS_MINOR, InitFlags, MAJOR, MINOR, OLDEST_MINOR, PAGE};

/// Backing files are on file systems that are not stacked: Linux stacks two in all
/// (`FILESYSTEM_MAX_STACK_DEPTH`), and the second is left to an overlayfs on top of the mount.
const STACK_DEPTH: u32 = 1;

/// The result of INIT.
#[derive(Clone, Copy)]
pub(super) struct Negotiated {
    minor: u32,
    pub(super) flags: InitFlags,
}

/// No features, as before INIT.
impl Default for Negotiated {
    fn default() -> Negotiated {
        Negotiated {
            minor: 0,
            flags: InitFlags::empty(),
        }
    }
}

impl Negotiated {
    /// No granted flag is this high.
    const MINOR_AT: u32 = 56;

    pub(super) fn pack(self) -> u64 {
        u64::from(self.minor) << Negotiated::MINOR_AT | self.flags.bits()
    }

    /// Returns the minor version.
    pub(super) fn minor(self) -> u32 {
        self.minor
    }

    /// Returns the version for logs and statistics.
    pub(super) fn version(self) -> String {
        format!("FUSE 7.{}", self.minor)
    }

    pub(super) fn unpack(packed: u64) -> Option<Negotiated> {
        let minor = (packed >> Negotiated::MINOR_AT) as u32;
        let flags = packed & ((1 << Negotiated::MINOR_AT) - 1);
        (minor != 0).then(|| Negotiated {
            minor,
            flags: InitFlags::from_bits_retain(flags),
        })
    }

    pub(super) fn wire_format(self) -> WireFormat {
        WireFormat {
            setxattr_ext: self.has(InitFlags::SETXATTR_EXT),
        }
    }

    pub(super) fn has(self, flag: InitFlags) -> bool {
        self.flags.contains(flag)
    }
}

impl RequestContext<'_> {
    pub(super) fn init(&mut self, args: &InitIn) -> Result<()> {
        if args.major > MAJOR {
            // The client sends INIT again with a major version that both support.
            let known = InitOut {
                major: MAJOR,
                minor: MINOR,
                ..InitOut::default()
            };
            return self.reply(&[&known.encode()]);
        }
        if args.major < MAJOR || args.minor < OLDEST_MINOR {
            return Err(Errno::EPROTO);
        }
        self.check_room(InitOut::SIZE)?;
        let root = self.session.export.fs.root(&self.cx)?;
        // The client assumes that the root is a directory.
        if root.kind() != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let attr = root.attr(&self.cx, AttrMask::BASIC)?;
        let mut agreed = Negotiated {
            minor: args.minor.min(MINOR),
            flags: self.session.grants() & args.flags,
        };
        if agreed.minor < EXTENSIONS_MINOR {
            agreed.flags.remove(InitFlags::SECURITY_CTX);
        }
        let missing = self.session.options.required - agreed.flags;
        if !missing.is_empty() {
            let client = self.session.client;
            tracing::error!(
                client,
                ?missing,
                "refused: the client lacks required features"
            );
            return Err(Errno::EPROTO);
        }
        if let Some(records) = &self.session.records {
            records.set_root(&*root, &self.cx.on_behalf_of(&Caller::ROOT));
        }
        self.session
            .nodes
            .set_root(self.incarnation, root, attr.device)?;
        self.session
            .negotiated
            .compare_exchange(
                self.incarnation,
                agreed.pack(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .map_err(|_| Errno::EIO)?;
        self.session.note_client(agreed);
        if let Some(records) = &self.session.records {
            records.set_negotiated(agreed.pack());
        }
        let (minor, flags) = (agreed.minor, agreed.flags);
        tracing::debug!(client = self.session.client, minor, ?flags, "mounted");
        let max_write = self.session.options.max_write;
        let answer = InitOut {
            major: MAJOR,
            minor: agreed.minor,
            max_readahead: args.max_readahead,
            flags: agreed.flags.bits() as u32,
            flags2: (agreed.flags.bits() >> 32) as u32,
            // As virtiofsd: the transport limits the number of requests in flight.
            max_background: u16::MAX,
            congestion_threshold: u16::MAX / 4 * 3,
            max_write,
            // Times have nanosecond granularity.
            time_gran: 1,
            max_pages: match agreed.has(InitFlags::MAX_PAGES) {
                true => (max_write / PAGE) as u16,
                false => 0,
            },
            max_stack_depth: match agreed.has(InitFlags::PASSTHROUGH) {
                true => STACK_DEPTH,
                false => 0,
            },
            ..InitOut::default()
        };
        self.reply(&[&answer.encode()])
    }
}

impl Session {
    /// Returns the flags that a client may have agreed on with another process whose session this
    /// one continues. Locks are among them whatever the options say: the client has no others.
    pub(super) fn continues(&self) -> InitFlags {
        let mut flags = self.grants();
        if !self.options.without_open {
            flags |= InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS;
        }
        flags
    }

    /// Returns the flags to grant if the client offers them.
    pub(super) fn grants(&self) -> InitFlags {
        let options = &self.options;
        let mut flags = InitFlags::ASYNC_READ
            | InitFlags::ATOMIC_O_TRUNC
            | InitFlags::EXPORT_SUPPORT
            | InitFlags::BIG_WRITES
            | InitFlags::AUTO_INVAL_DATA
            | InitFlags::ASYNC_DIO
            | InitFlags::PARALLEL_DIROPS
            | InitFlags::MAX_PAGES
            | InitFlags::SETXATTR_EXT
            | InitFlags::INIT_EXT
            | InitFlags::CREATE_SUPP_GROUP;
        for (wanted, flag) in [
            (
                options.readdirplus,
                InitFlags::DO_READDIRPLUS | InitFlags::READDIRPLUS_AUTO,
            ),
            (options.cache != Cache::Never, InitFlags::CACHE_SYMLINKS),
            (
                self.is_immutable() && self.capabilities.stable_cookies,
                InitFlags::NO_OPENDIR_SUPPORT,
            ),
            (
                options.without_open && self.capabilities.read_only,
                InitFlags::NO_OPEN_SUPPORT,
            ),
            (options.writeback, InitFlags::WRITEBACK_CACHE),
            (
                self.io_modes
                    .as_ref()
                    .is_some_and(|ways| ways.has_passthrough())
                    && !options.writeback,
                InitFlags::PASSTHROUGH,
            ),
            (
                self.records.is_some() && self.resender == Resender::Client,
                InitFlags::HAS_RESEND,
            ),
            (options.announce_submounts, InitFlags::SUBMOUNTS),
            (
                options.posix_locks && !options.without_open,
                InitFlags::POSIX_LOCKS,
            ),
            (
                options.flock && !options.without_open,
                InitFlags::FLOCK_LOCKS,
            ),
            (
                options.killpriv_v2 && (options.xattr || options.writes_bypass_cache()),
                InitFlags::HANDLE_KILLPRIV_V2,
            ),
            (options.allow_mmap, InitFlags::DIRECT_IO_ALLOW_MMAP),
            (
                options.xattr && options.security_label,
                InitFlags::SECURITY_CTX,
            ),
            (
                options.xattr && options.posix_acl && self.capabilities.acl != Support::None,
                InitFlags::POSIX_ACL | InitFlags::DONT_MASK,
            ),
        ] {
            flags.set(flag, wanted);
        }
        flags
    }
}
