//! A server, and the state of a client's connection: its fids and the result of Tversion.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

use vfs::Quota;
use vfs::lock::Owner;

use super::exports::Exports;
use super::fid::Fids;
use super::step::Attach;
use super::users::Users;
use super::write_state::WriteStates;
use super::xattr_value::XattrSpace;
use crate::Dialect;

/// Serves exported trees over 9P.
#[derive(Clone)]
pub struct Server {
    pub(super) exports: Arc<dyn Exports>,
    pub(super) users: Arc<dyn Users>,
    pub(super) options: Options,
    /// The memory quota of all connections' fids, in bytes.
    pub(super) memory: Arc<Quota>,
    pub(super) fd_passing: bool,
}

/// Limits for clients, and the handling of unknown users and blocking locks.
#[derive(Clone, Debug)]
pub struct Options {
    /// The largest message in bytes, header included. At least [`Options::MIN_MSIZE`].
    pub max_msize: u32,
    /// The most fids of a connection.
    pub max_fids: usize,
    /// The memory in bytes for the fids, paths and open files of all connections. All connections
    /// of one client together may use as much as they leave to others, and within that no more than
    /// the memory budget allows ([`vfs::memory`]). Above it, a new fid fails with `EMFILE` or
    /// `ENFILE`.
    pub max_fid_memory: usize,
    /// The memory in bytes for extended attributes held by a connection's fids.
    pub max_xattr_bytes: usize,
    /// The user id for a client that names no user or one that [`Users`] does not know; with `None`
    /// its Tattach fails with `EPERM`.
    pub unknown_user: Option<u32>,
    /// Whether a blocking lock request is answered when the lock is granted. Otherwise the reply to
    /// a conflict is immediate, and Linux retries after its `locktimeout`: 30 seconds, but any
    /// signal ends that wait, while only a fatal one ends the other.
    pub blocking_locks: bool,
}

impl Options {
    /// The smallest msize of a session: an Rwalk of 16 names has 217 bytes.
    pub const MIN_MSIZE: u32 = 256;

    /// The largest message before the first Tversion, which has some 20 bytes.
    pub(super) const MAX_FIRST_MESSAGE: u32 = 8192;
}

impl Default for Options {
    fn default() -> Options {
        Options {
            // As QEMU. Linux requests 1 MiB + 24 at most on streams, so this limits other
            // transports.
            max_msize: 4 << 20,
            // 124 bytes each with the name, as measured, without the node: a full table of small
            // nodes stays below 200 MiB. Linux holds one fid per cached name and one per open file.
            max_fids: 1 << 20,
            // 2.5 million fids that are only walked.
            max_fid_memory: 512 << 20,
            // 64 values of the largest size.
            max_xattr_bytes: 4 << 20,
            // "nobody". Linux's first attach names that user without a number.
            unknown_user: Some(65534),
            blocking_locks: true,
        }
    }
}

impl Server {
    /// Returns a server for `exports`, with the user database `users`.
    pub fn new(exports: Arc<dyn Exports>, users: Arc<dyn Users>, options: Options) -> Server {
        Server {
            exports,
            users,
            memory: Quota::shared(options.max_fid_memory, 1),
            options,
            fd_passing: false,
        }
    }

    /// Enables, with `hands_over`, passing open files to clients that request them, for connections
    /// that can carry descriptors and exports that permit it ([`vfs::Export::fd_passing`]).
    pub fn with_fd_passing(self, hands_over: bool) -> Server {
        Server {
            fd_passing: hands_over,
            ..self
        }
    }

    /// Returns a session for a new connection.
    pub fn session(&self) -> Connection {
        Connection {
            fids: Fids::new(self.options.max_fids),
            xattr_space: Arc::new(XattrSpace::new(self.options.max_xattr_bytes)),
            negotiated: AtomicU64::new(0),
            user: OnceLock::new(),
            write_states: Arc::default(),
            appends_only: AtomicBool::new(false),
            unnamed: Once::new(),
            client: Owner::new_client(),
            server: self.clone(),
        }
    }
}

/// A client's connection. Dropping it clunks all its fids.
pub struct Connection {
    pub(super) server: Server,
    /// The connection's number in the lock table.
    pub(super) client: u64,
    /// The result of Tversion, packed: see [`Negotiated`]. 0 before.
    pub(super) negotiated: AtomicU64,
    /// The user and tree of the first Tattach.
    pub(super) user: OnceLock<String>,
    /// Whether an attach without a known user was logged.
    pub(super) unnamed: Once,
    pub(super) fids: Fids,
    pub(super) xattr_space: Arc<XattrSpace>,
    /// The files that are open for writing.
    pub(super) write_states: Arc<WriteStates>,
    /// Whether the client has shown that it never writes back through a fid that is open to append.
    pub(super) appends_only: AtomicBool,
}

/// The result of Tversion.
#[derive(Clone, Copy)]
pub(super) struct Negotiated {
    pub(super) dialect: Dialect,
    pub(super) msize: u32,
    /// Whether Thand is available.
    pub(super) fd_passing: bool,
}

impl Negotiated {
    pub(super) fn pack(self) -> u64 {
        let dialect = match self.dialect {
            Dialect::Plan9 => 1,
            Dialect::Unix => 2,
            Dialect::Linux => 3,
        };
        u64::from(self.fd_passing) << 34 | dialect << 32 | u64::from(self.msize)
    }

    fn unpack(packed: u64) -> Option<Negotiated> {
        let dialect = match packed >> 32 & 3 {
            1 => Dialect::Plan9,
            2 => Dialect::Unix,
            3 => Dialect::Linux,
            _ => return None,
        };
        let msize = packed as u32;
        let hands = packed >> 34 != 0;
        Some(Negotiated {
            dialect,
            msize,
            fd_passing: hands,
        })
    }
}

impl Connection {
    #[inline]
    pub(super) fn negotiated(&self) -> Option<Negotiated> {
        Negotiated::unpack(self.negotiated.load(Ordering::Acquire))
    }

    /// Sets the user and tree for monitoring, if `attach` is the first.
    pub(super) fn set_user(&self, attach: &Attach) {
        let (uid, export) = (attach.caller.uid, &attach.export.name);
        self.user.get_or_init(|| format!("uid {uid} at /{export}"));
    }
}
