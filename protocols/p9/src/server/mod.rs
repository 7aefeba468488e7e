//! The server half: a [`Session`] per connection answers requests from exported trees.
//!
//! A connection's state is its fids and the result of Tversion. A fid's state is replaced as a
//! whole, never modified, so that concurrent requests on one fid need no lock; state with more
//! dependencies (offsets in 9P2000's directories, values of extended attributes, owners of locks)
//! has a mutex of its own. A request that returns [`ServeOutcome::WouldBlock`] or
//! [`ServeOutcome::Parked`] has left no trace.
//!
//! Deliberately absent: authentication (left to the transport: the reply to Tauth says that none is
//! needed), the order of replies and cancellation (left to the driver, see [`Role`]).
//!
//! Lock order: a shard of the fid table is held for a look-up only, and together with no other lock
//! than that of the connection's quota ([`vfs::quota`]). A fid's own mutexes are held across calls
//! of the source, one at a time, as is the order of a file's writes (`write_state`).

mod append;
mod attach;
mod dir;
mod fid;
mod io;
mod legacy;
mod lock;
mod lock_owners;
mod make;
mod meta;
mod open;
mod qid;
mod queue;
mod step;
mod users;
mod walk;
mod write_state;
mod xattr;
mod xattr_value;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Once, OnceLock};

use vfs::lock::Owner;
use vfs::{Call, Cx, Errno, Patience, Quota};
use wire::{
    Buffered, ClientInfo, Incoming, Malformed, Outgoing, Role, ServeOutcome, Session, Vocabulary,
};

use self::fid::{FidState, Fids};
use self::write_state::WriteStates;
use self::xattr_value::XattrSpace;
use crate::message::{HEADER, Header};
use crate::{DecodeError, Dialect, DotuErrno, Fid, Kind, Rmessage, Tag, Tmessage};

pub use self::attach::{ExportList, Exports};
pub use self::qid::version_of;
pub use self::queue::QueueConnection;
pub use self::users::{NumericUsers, Users};

/// Serves exported trees over 9P.
#[derive(Clone)]
pub struct Server {
    exports: Arc<dyn Exports>,
    users: Arc<dyn Users>,
    options: Options,
    /// The memory quota of all connections' fids, in bytes.
    memory: Arc<Quota>,
    fd_passing: bool,
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
    const MAX_FIRST_MESSAGE: u32 = 8192;
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
    server: Server,
    /// The connection's number in the lock table.
    client: u64,
    /// The result of Tversion, packed: see [`Negotiated`]. 0 before.
    negotiated: AtomicU64,
    /// The user and tree of the first Tattach.
    user: OnceLock<String>,
    /// Whether an attach without a known user was logged.
    unnamed: Once,
    fids: Fids,
    xattr_space: Arc<XattrSpace>,
    /// The files that are open for writing.
    write_states: Arc<WriteStates>,
    /// Whether the client has shown that it never writes back through a fid that is open to append.
    appends_only: AtomicBool,
}

/// The result of Tversion.
#[derive(Clone, Copy)]
struct Negotiated {
    dialect: Dialect,
    msize: u32,
    /// Whether Thand is available.
    fd_passing: bool,
}

impl Negotiated {
    fn pack(self) -> u64 {
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

impl Session for Connection {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some(size) = head.first_chunk() else {
            return Ok(None);
        };
        let size = u32::from_le_bytes(*size);
        let most = self
            .negotiated()
            .map_or(Options::MAX_FIRST_MESSAGE, |a| a.msize);
        if size < HEADER as u32 || size > most {
            return Err(Malformed::new(format!(
                "expected a message of {HEADER} to {most} bytes, got one of {size}"
            )));
        }
        Ok(Some(size as usize))
    }

    /// Returns the count of a Tread or Treaddir.
    fn reply_bound(&self, message: &[u8], _: usize) -> usize {
        /// The offset of `count`, after header, fid and offset.
        const COUNT: usize = HEADER + 12;
        let kind = Header::decode(message)
            .ok()
            .and_then(|header| Kind::of(header.number));
        let count = message.get(COUNT..).and_then(|count| count.first_chunk());
        match (kind, count) {
            (Some(Kind::Read | Kind::Readdir), Some(count)) => {
                let most = self
                    .negotiated()
                    .map_or(Options::MAX_FIRST_MESSAGE, |a| a.msize);
                u32::from_le_bytes(*count).min(most) as usize
            }
            _ => 0,
        }
    }

    fn role(&self, message: &[u8]) -> Result<Role, Malformed> {
        let header = Header::decode(message)?;
        let id = header.tag.0.into();
        Ok(match Kind::of(header.number) {
            Some(Kind::Version) if header.number == Kind::Version.request() => Role::Reset { id },
            Some(Kind::Flush) => match Tmessage::decode(Dialect::Linux, message) {
                // A Tflush of itself waits for no other request.
                Ok((tag, Tmessage::Flush { oldtag })) if oldtag != tag => Role::Cancel {
                    id,
                    target: oldtag.0.into(),
                },
                _ => Role::Request { id },
            },
            _ => Role::Request { id },
        })
    }

    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, Malformed> {
        let bytes = message.bytes();
        let header = Header::decode(bytes)?;
        let agreed = self.negotiated();
        let dialect = agreed.map_or(Dialect::Plan9, |agreed| agreed.dialect);
        let msize = agreed.map_or(Options::MAX_FIRST_MESSAGE, |agreed| agreed.msize);
        let size = header.size as usize;
        let mut turn = RequestContext {
            connection: self,
            size,
            call,
            patience,
            tag: header.tag,
            dialect,
            limit: (msize as usize).min(out.room()),
            message,
            out,
        };
        let unknown =
            header.number == Kind::Hand.request() && !agreed.is_some_and(|a| a.fd_passing);
        let decoded = match bytes.len() < size && size <= message.size() {
            _ if unknown => Err(DecodeError::Number(header.number)),
            true => Tmessage::decode_write(bytes, size),
            false => Tmessage::decode(dialect, bytes),
        };
        let done = match decoded {
            Ok((_, request)) => turn.dispatch(agreed.is_some(), request),
            Err(DecodeError::Frame(what)) => return Err(what),
            Err(undecodable) => {
                tracing::debug!(client = self.client, %undecodable, "refused");
                Err(match undecodable {
                    DecodeError::Number(_) => Errno::EOPNOTSUPP,
                    _ => Errno::EPROTO,
                })
            }
        };
        call.note_operation(u16::from(header.number / 2));
        let Err(errno) = done else {
            return Ok(ServeOutcome::Done);
        };
        turn.out.truncate(0);
        Ok(match errno {
            Errno::WOULD_BLOCK => ServeOutcome::WouldBlock,
            Errno::PARKED => ServeOutcome::Parked,
            errno => {
                call.note_error(errno.raw());
                turn.refuse(errno);
                ServeOutcome::Done
            }
        })
    }

    fn answer_failure(&self, message: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        let Ok(header) = Header::decode(message.bytes()) else {
            return false;
        };
        let dialect = self
            .negotiated()
            .map_or(Dialect::Plan9, |agreed| agreed.dialect);
        error_reply(dialect, Errno::EIO, |reply| {
            reply.encode(dialect, header.tag, &mut Buffered::new(out));
        });
        true
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        &VOCABULARY
    }

    fn client_info(&self) -> ClientInfo {
        ClientInfo {
            version: self
                .negotiated()
                .map_or(String::new(), |agreed| agreed.dialect.to_string()),
            user: self.user.get().cloned().unwrap_or_default(),
        }
    }
}

/// A message is named by half its number: requests have even ones.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let word = |half| match Kind::of(half * 2) {
        Some(kind) => format!("T{}", kind.name().to_ascii_lowercase()),
        None => String::new(),
    };
    Vocabulary {
        protocol: "9p",
        operations: (0..=u8::MAX / 2).map(word).collect(),
        error: Vocabulary::errno,
    }
});

impl Connection {
    #[inline]
    fn negotiated(&self) -> Option<Negotiated> {
        Negotiated::unpack(self.negotiated.load(Ordering::Acquire))
    }
}

/// Calls `write` with the error reply for `errno`.
fn error_reply(dialect: Dialect, errno: Errno, write: impl FnOnce(&Rmessage<'_>)) {
    match dialect {
        Dialect::Linux => write(&Rmessage::Lerror {
            errno: errno.raw().into(),
        }),
        Dialect::Plan9 | Dialect::Unix => write(&Rmessage::Error {
            text: errno.to_string().as_bytes(),
            errno: DotuErrno(errno.raw().into()),
        }),
    }
}

/// A request in progress.
struct RequestContext<'a> {
    connection: &'a Connection,
    /// The size of the request in bytes.
    size: usize,
    call: &'a Call,
    patience: Patience,
    tag: Tag,
    dialect: Dialect,
    /// The largest size of the reply in bytes.
    limit: usize,
    message: &'a dyn Incoming,
    out: &'a mut dyn Outgoing,
}

impl<'a> RequestContext<'a> {
    fn dispatch(&mut self, in_session: bool, request: Tmessage<'_>) -> vfs::Result<()> {
        use Tmessage as T;
        tracing::trace!(
            client = self.connection.client,
            tag = self.tag.0,
            kind = request.kind().name()
        );
        if let T::Version { msize, version } = request {
            return self.version(msize, version);
        }
        if self.tag == Tag::NONE {
            return Err(Errno::EINVAL);
        }
        if !in_session {
            return Err(Errno::EPROTO);
        }
        match request {
            T::Read { fid, offset, count } => self.read(fid, offset, count),
            T::Write { fid, offset, .. } => self.write(fid, offset),
            T::Getattr { fid, mask } => self.getattr(fid, mask),
            T::Walk { fid, newfid, names } => self.walk(fid, newfid, names),
            T::Clunk { fid } => self.clunk(fid),
            T::Lopen { fid, flags } => self.lopen(fid, flags),
            T::Readdir { fid, offset, count } => self.readdir(fid, offset, count),
            T::Lcreate {
                fid,
                name,
                flags,
                mode,
                gid,
            } => self.lcreate(fid, name, flags, mode, gid),
            T::Statfs { fid } => self.statfs(fid),
            T::Symlink {
                fid,
                name,
                target,
                gid,
            } => self.symlink(fid, name, target, gid),
            T::Mknod {
                dfid,
                name,
                mode,
                major,
                minor,
                gid,
            } => self.mknod(dfid, name, mode, vfs::Device { major, minor }, gid),
            T::Mkdir {
                dfid,
                name,
                mode,
                gid,
            } => self.mkdir(dfid, name, mode, gid),
            T::Link { dfid, fid, name } => self.link(dfid, fid, name),
            T::Rename { fid, dfid, name } => self.rename(fid, dfid, name),
            T::Renameat {
                olddirfid,
                oldname,
                newdirfid,
                newname,
            } => self.renameat(olddirfid, oldname, newdirfid, newname),
            T::Unlinkat {
                dirfid,
                name,
                flags,
            } => self.unlinkat(dirfid, name, flags),
            T::Readlink { fid } => self.readlink(fid),
            T::Setattr { .. } => self.setattr(&request),
            T::Xattrwalk { fid, newfid, name } => self.xattrwalk(fid, newfid, name),
            T::Xattrcreate {
                fid,
                name,
                size,
                flags,
            } => self.xattrcreate(fid, name, size, flags),
            T::Fsync { fid, datasync } => self.fsync(fid, datasync.0 != 0),
            T::Hand { fid } => self.hand(fid),
            T::Lock { .. } => self.lock(&request),
            T::Getlock { .. } => self.getlock(&request),
            T::Auth { .. } => Err(Errno::ENOENT),
            T::Attach {
                fid,
                afid,
                uname,
                aname,
                n_uname,
            } => self.attach(fid, afid, uname, aname, n_uname),
            // The driver has made sure that the other request was answered.
            T::Flush { .. } => self.reply(&Rmessage::Flush {}),
            T::Remove { fid } => self.remove(fid),
            T::Open { fid, mode } => self.open(fid, mode),
            T::Create {
                fid,
                name,
                perm,
                mode,
                extension,
            } => self.create(fid, name, perm, mode, extension.0),
            T::Stat { fid } => self.stat(fid),
            T::Wstat { fid, stat } => self.wstat(fid, &stat),
            T::Version { .. } => Err(Errno::EPROTO),
        }
    }

    /// Writes a whole reply. Returns `EMSGSIZE` if it is longer than msize.
    fn reply(&mut self, message: &Rmessage<'_>) -> vfs::Result<()> {
        if message.size(self.dialect) > self.limit {
            return Err(Errno::EMSGSIZE);
        }
        self.write_reply(message);
        Ok(())
    }

    fn write_reply(&mut self, message: &Rmessage<'_>) {
        let mut buffered = Buffered::new(self.out);
        message.encode(self.dialect, self.tag, &mut buffered);
    }

    fn refuse(&mut self, errno: Errno) {
        error_reply(self.dialect, errno, |reply| self.write_reply(reply));
    }

    /// Returns the context of a call on behalf of `caller`.
    fn cx<'b>(&self, caller: &'b vfs::Caller) -> Cx<'b>
    where
        'a: 'b,
    {
        Cx {
            caller,
            patience: self.patience,
            call: self.call,
        }
    }

    /// Returns a fid's state, or `EBADF` if there is none.
    #[inline]
    fn fid(&self, fid: Fid) -> vfs::Result<FidState> {
        let state = self.connection.fids.get(fid)?;
        self.call
            .note_export(Arc::as_ptr(&state.attach().export) as u64);
        Ok(state)
    }
}
