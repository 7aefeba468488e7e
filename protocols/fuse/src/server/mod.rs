//! The server half: a [`Session`] per mount answers requests from an exported tree.
//!
//! A session's state is the result of INIT, the nodes that the client has looked up, and its open
//! files. DESTROY resets all of it, and so does another INIT: a new incarnation of the mount
//! begins. A request belongs to the incarnation in which it began, and changes no later one.
//! A request that returns [`ServeOutcome::WouldBlock`] or [`ServeOutcome::Parked`] has left no
//! trace.
//!
//! Notifications of changes by others are made here and sent by the driver (`notify`).
//!
//! Deliberately absent: DAX mappings, ioctl(2), poll(2), and the order of replies
//! and cancellation (left to the driver, see [`Role`]).
//!
//! Lock order: `mount_locks`, held while an incarnation ends, then a shard of a table. A shard is
//! otherwise held for a look-up only and never together with another lock, as is the list of
//! restored nodes. The mutex of a node with locks (`lock.rs`) is held across the lock table's own
//! lock. The locks of records (`takeover`) are the innermost.

mod dir;
mod handles;
mod init;
mod io;
mod io_modes;
mod label;
mod lock;
mod lookup;
mod make;
mod meta;
mod migration;
mod nodes;
mod notify;
mod open;
mod options;
mod privileges;
mod reply;
mod table;
mod takeover;
mod target;
mod xattr;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use vfs::{
    Call, Caller, Capabilities, Cx, Errno, Export, Groups, LocalLocksClient, Patience, Result,
};
use wire::{
    ClientInfo, ClientThreads, Incoming, Malformed, Outgoing, RequestTarget, Role, ServeOutcome,
    Vocabulary,
};

use self::handles::{Handles, Open};
use self::init::Negotiated;
use self::io_modes::IoModes;
use self::lock::MountLocks;
use self::migration::ReleasedLocks;
use self::nodes::{NodeRef, Nodes};
use self::notify::Coherence;
use self::privileges::Restored;
use self::table::Incarnation;
use self::takeover::{Attempt, BegunRequest, JournalEntry, JournaledReply, OptionalRecords};
use crate::layout::{InterruptIn, OutHeader};
use crate::message::{
    self, Extensions, HEADER, Header, Opcode, REPLY_HEADER, Request, SecurityContext, WRITE_HEAD,
};
use crate::numbers::{InitFlags, UNIQUE_RESEND};
use crate::{DecodeError, WireFormat};

pub use self::io_modes::BackingRegistry;
pub use self::migration::{Migration, MigrationMode, MigrationOnError};
pub use self::notify::{Coverage, Notification, Repeat};
pub use self::options::{Cache, Options};
pub use self::takeover::{FileKeeper, Records, Resender, TakenOver, Words, resend_message};

/// Serves an exported tree over FUSE.
#[derive(Clone)]
pub struct Server {
    export: Arc<Export>,
    options: Options,
}

impl Server {
    /// Returns a server for `export`.
    pub fn new(export: Arc<Export>, options: Options) -> Server {
        Server {
            export,
            options: options.clamped(),
        }
    }

    /// Returns the largest size of a request, in bytes.
    pub fn max_request(&self) -> usize {
        self.options.max_message()
    }

    /// Returns a session for a new mount.
    pub fn session(&self) -> Session {
        let (export, options) = (self.export.clone(), self.options.clone());
        let lockers = MountLocks::new(&export, None);
        Session {
            handles: Handles::new(options.max_handles),
            nodes: Nodes::new(export.fs.clone(), options.max_nodes),
            restored: Restored::default(),
            released: Mutex::default(),
            client: lockers.client,
            mount_locks: Mutex::new(lockers),
            local_locks: Mutex::default(),
            capabilities: export.fs.capabilities(),
            incarnation: AtomicU64::new(0),
            negotiated: AtomicU64::new(0),
            coherence: None,
            records: None,
            resender: Resender::Client,
            threads: None,
            has_lost: AtomicBool::new(false),
            io_modes: options
                .writers_bypass_cache
                .then(|| Arc::new(IoModes::new(None))),
            export,
            options,
        }
    }
}

/// A client's mount. Dropping it closes its files, releases its locks and forgets its nodes.
pub struct Session {
    export: Arc<Export>,
    options: Options,
    capabilities: Capabilities,
    /// The client's number, for logs.
    client: u64,
    incarnation: AtomicU64,
    /// The result of INIT, packed: see [`Negotiated`]. Before INIT, the number of the next
    /// incarnation.
    negotiated: AtomicU64,
    handles: Handles,
    nodes: Nodes,
    restored: Restored,
    /// The locks that were released for a migration.
    released: Mutex<ReleasedLocks>,
    /// The I/O modes of open files, if any file may bypass the client's page cache.
    io_modes: Option<Arc<IoModes>>,
    /// The validity of caches while changes by others are reported.
    coherence: Option<Coherence>,
    /// The locks of this incarnation.
    mount_locks: Mutex<Arc<MountLocks>>,
    /// The client's note at the export, if it handles locks itself.
    local_locks: Mutex<Option<LocalLocksClient>>,
    /// The records for another process that continues the mount.
    records: OptionalRecords,
    /// The side that sends unanswered requests to that process.
    resender: Resender,
    /// The client's threads, if it is the kernel of this host.
    threads: Option<Arc<dyn ClientThreads>>,
    /// Whether open files of an earlier process could not be taken over.
    has_lost: AtomicBool,
}

/// The resources that a client holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Nodes that the client has looked up, the root included.
    pub nodes: usize,
    /// Files and directories that the client has open.
    pub handles: usize,
}

impl Session {
    /// Enables passthrough: the client reads and writes files that have a [`vfs::File::backing`]
    /// directly, registered with `backings`. Excludes [`Options::writeback`], and requires a client
    /// on this host.
    pub fn with_passthrough(mut self, backings: Arc<dyn BackingRegistry>) -> Session {
        self.io_modes = Some(Arc::new(IoModes::new(Some(backings))));
        self
    }

    /// Makes FUSE_INTERRUPT end a wait for a lock only, and other requests if `threads` tells that
    /// the waiting thread will end. Otherwise the client decides which requests it interrupts.
    pub fn with_client_threads(mut self, threads: Arc<dyn ClientThreads>) -> Session {
        self.threads = Some(threads);
        self
    }

    fn negotiated(&self) -> Option<Negotiated> {
        Negotiated::unpack(self.negotiated.load(Ordering::Acquire))
    }

    /// Returns whether the tree cannot change: it is read-only here, and nobody else changes it.
    fn is_immutable(&self) -> bool {
        self.options.cache == Cache::Always && self.capabilities.read_only
    }

    /// Returns the client's resources now.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            nodes: self.nodes.count(),
            handles: self.handles.count(),
        }
    }

    /// Notes the client at the export, after INIT. One that cannot change the tree hardly locks.
    fn note_client(&self, agreed: Negotiated) {
        let locks = InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS;
        if agreed.flags.intersects(locks) {
            self.export.note_client();
        } else if !self.capabilities.read_only {
            *self.local_locks.lock() = Some(self.export.note_local_locks());
        }
    }

    fn mount_locks(&self) -> Arc<MountLocks> {
        self.mount_locks.lock().clone()
    }

    /// Returns the session to its initial state, and returns the number of the next incarnation.
    fn reset(&self) -> Incarnation {
        let mut lockers = self.mount_locks.lock();
        let incarnation = self.incarnation.load(Ordering::Relaxed) + 1;
        self.negotiated.store(incarnation, Ordering::Release);
        self.incarnation.store(incarnation, Ordering::Release);
        *lockers = MountLocks::new(&self.export, self.records.clone());
        self.released.lock().clear();
        *self.local_locks.lock() = None;
        if let Some(records) = &self.records {
            records.clear();
        }
        if let Some(ways) = &self.io_modes {
            ways.begin(incarnation);
        }
        let past = (
            self.handles.begin(incarnation),
            self.nodes.begin(incarnation),
        );
        // Dropping them may take time.
        drop(lockers);
        drop(past);
        incarnation
    }
}

impl wire::Session for Session {
    fn frame(&self, head: &[u8]) -> std::result::Result<Option<usize>, Malformed> {
        if head.len() < HEADER {
            return Ok(None);
        }
        let header = Header::decode(head)?;
        let most = self.options.max_message();
        let len = header.len as usize;
        if !(HEADER..=most).contains(&len) {
            return Err(Malformed::new(format!(
                "expected a message of {HEADER} to {most} bytes, got one of {len}"
            )));
        }
        Ok(match Opcode::of(header.opcode) {
            // A WRITE that is too short for its arguments is answered with an error.
            Some(Opcode::Write) => {
                Some(len.min(WRITE_HEAD)).filter(|&head_len| head.len() >= head_len)
            }
            _ => Some(len),
        })
    }

    fn role(&self, message: &[u8]) -> std::result::Result<Role, Malformed> {
        let header = Header::decode(message)?;
        let id = header.unique;
        Ok(match Opcode::of(header.opcode) {
            Some(Opcode::Destroy | Opcode::Init) => Role::Reset { id },
            Some(Opcode::Interrupt) => match InterruptIn::decode(&message[HEADER..]) {
                Ok(InterruptIn { unique: target }) if target == id => Role::Request { id },
                Ok(InterruptIn { unique: target }) if self.threads.is_some() => {
                    Role::Interrupt { id, target }
                }
                Ok(InterruptIn { unique: target }) => Role::Cancel { id, target },
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
    ) -> std::result::Result<ServeOutcome, Malformed> {
        let bytes = message.bytes();
        let header = Header::decode(bytes)?;
        let silent = Opcode::of(header.opcode).is_some_and(Opcode::is_silent);
        // A client that leaves no room for a reply gets none.
        if !silent && out.room() < REPLY_HEADER {
            return Ok(ServeOutcome::Done);
        }
        // Loaded before `negotiated`, which may be a later incarnation's: then the request changes
        // nothing.
        let incarnation = self.incarnation.load(Ordering::Acquire);
        let agreed = self.negotiated();
        let form = agreed.map_or(WireFormat::default(), Negotiated::wire_format);
        let decoded = Request::decode(form, bytes)
            .and_then(|(_, request)| Ok((extensions(&header, bytes)?, request)));
        let mut caller = Caller::new(header.uid, header.gid);
        let mut labels = Vec::new();
        let request = match decoded {
            Ok((extensions, request)) => {
                if let Some(groups) = extensions.groups {
                    caller.groups = Groups::Known(groups.into());
                }
                if agreed.is_some_and(|agreed| agreed.has(InitFlags::SECURITY_CTX)) {
                    labels = extensions.contexts;
                }
                Ok(request)
            }
            Err(undecodable) => {
                tracing::debug!(client = self.client, %undecodable, "refused");
                let errno = match undecodable {
                    DecodeError::Opcode(_) => Errno::ENOSYS,
                    DecodeError::Arguments(..) | DecodeError::Frame(_) => Errno::EINVAL,
                };
                Err(errno)
            }
        };
        let mut context = RequestContext {
            session: self,
            incarnation,
            changes: (self.coherence.as_ref()).map_or(0, Coherence::changes),
            negotiated: agreed.unwrap_or_default(),
            header,
            cx: Cx {
                caller: &caller,
                patience,
                call,
            },
            labels,
            limit: out.room(),
            message,
            out,
            journaled: None,
            attempt: None,
        };
        let done = request.and_then(|request| match agreed {
            Some(_) => match context.begin_journaled(bytes)? {
                Some(reply) => context.reply(&[&reply?]),
                None => context.dispatch(&request),
            },
            None => context.serve_before_init(&request),
        });
        call.note_operation(u16::try_from(header.opcode).unwrap_or(0));
        let Err(errno) = done else {
            return Ok(ServeOutcome::Done);
        };
        context.out.truncate(0);
        if let Some((records, entry)) = context.journaled
            && errno.is_signal()
        {
            context.cancel_journaled(records, entry);
        }
        Ok(match errno {
            Errno::WOULD_BLOCK => ServeOutcome::WouldBlock,
            Errno::PARKED => ServeOutcome::Parked,
            _ if silent => ServeOutcome::Done,
            errno => {
                call.note_error(errno.raw());
                context.refuse(errno);
                ServeOutcome::Done
            }
        })
    }

    fn was_interrupted(&self, call: &Call) -> bool {
        call.noted_error() == Errno::EINTR.raw()
    }

    fn client_threads(&self) -> Option<Arc<dyn ClientThreads>> {
        self.threads.clone()
    }

    fn waiting_thread(&self, message: &[u8]) -> u32 {
        Header::decode(message).map_or(0, |header| header.pid)
    }

    fn may_be_interrupted(&self, message: &[u8]) -> bool {
        Header::decode(message).is_ok_and(|header| may_be_interrupted(&header))
    }

    fn answer_interrupted(&self, message: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        match Header::decode(message.bytes()) {
            Ok(header) if may_be_interrupted(&header) && !message.is_repeated() => {
                answer_error(&header, Errno::EINTR, out);
                true
            }
            _ => false,
        }
    }

    fn answer_failure(&self, message: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        match Header::decode(message.bytes()) {
            Ok(header) => {
                answer_error(&header, Errno::EIO, out);
                true
            }
            Err(_) => false,
        }
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        &VOCABULARY
    }

    fn target(&self, call: &Call, message: &[u8]) -> RequestTarget {
        self.request_target(call.export_number(), message)
    }

    fn client_info(&self) -> ClientInfo {
        ClientInfo {
            version: self.negotiated().map_or(String::new(), Negotiated::version),
            user: String::new(),
        }
    }
}

/// Returns whether a request need not be carried out once its client has cancelled it. The end of
/// an open file or a node is carried out in any case, and so is a request that an earlier process
/// may have begun.
fn may_be_interrupted(header: &Header) -> bool {
    use Opcode as O;
    let Some(opcode) = Opcode::of(header.opcode) else {
        return false;
    };
    let ends = matches!(
        opcode,
        O::Flush | O::Release | O::Releasedir | O::Init | O::Destroy
    );
    !ends && !opcode.is_silent() && header.unique & UNIQUE_RESEND == 0
}

/// Answers a request with an error, if it has a reply.
fn answer_error(header: &Header, errno: Errno, out: &mut dyn Outgoing) {
    let silent = Opcode::of(header.opcode).is_some_and(Opcode::is_silent);
    if !silent && out.room() >= REPLY_HEADER {
        let reply = OutHeader {
            len: REPLY_HEADER as u32,
            error: -i32::from(errno.raw()),
            unique: header.unique,
        };
        out.bytes(&reply.encode());
    }
}

/// Requests are named by their opcodes.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let most = Opcode::ALL.iter().map(|&opcode| opcode as u32).max();
    let word = |number| match Opcode::of(number) {
        Some(opcode) => format!("FUSE_{}", constant_of(opcode.name())),
        None => String::new(),
    };
    Vocabulary {
        protocol: "fuse",
        operations: (0..=most.unwrap_or(0)).map(word).collect(),
        error: Vocabulary::errno,
    }
});

/// Converts `CopyFileRange` to the kernel's `COPY_FILE_RANGE`.
fn constant_of(name: &str) -> String {
    let mut constant = String::new();
    for (at, letter) in name.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            constant.push('_');
        }
        constant.push(letter.to_ascii_uppercase());
    }
    constant
}

/// Decodes a request's extensions.
fn extensions<'a>(
    header: &Header,
    message: &'a [u8],
) -> std::result::Result<Extensions<'a>, DecodeError> {
    // A WRITE has no extensions, and may be incomplete here.
    if header.opcode == Opcode::Write as u32 {
        return Ok(Extensions::default());
    }
    message::extensions(header, message).map_err(|what| DecodeError::Arguments("extensions", what))
}

/// A request in progress.
struct RequestContext<'a> {
    session: &'a Session,
    /// The incarnation that the request belongs to.
    incarnation: Incarnation,
    /// The number of changes by others when it began.
    changes: u64,
    negotiated: Negotiated,
    header: Header,
    /// The context of calls on behalf of the caller.
    cx: Cx<'a>,
    /// The security contexts of the file to be made.
    labels: Vec<SecurityContext<'a>>,
    /// The largest size of the reply, in bytes.
    limit: usize,
    message: &'a dyn Incoming,
    out: &'a mut dyn Outgoing,
    /// The request's entry in the journal, if it must not be carried out twice.
    journaled: Option<(&'a Records, JournalEntry)>,
    /// An earlier process's attempt to carry out the request, if it is in the journal.
    attempt: Option<Attempt>,
}

impl<'a> RequestContext<'a> {
    /// Enters the request into the journal, if it must not be carried out twice. Returns its reply
    /// if an earlier process has carried it out.
    fn begin_journaled(&mut self, message: &[u8]) -> Result<Option<JournaledReply>> {
        let session: &'a Session = self.session;
        let Some(records) = session.records.as_deref() else {
            return Ok(None);
        };
        match records.begin(&self.header, message, self.is_resent())? {
            None => Ok(None),
            Some(BegunRequest::Before(reply)) => Ok(Some(reply)),
            Some(BegunRequest::Now(entry, attempt)) => {
                (self.journaled, self.attempt) = (Some((records, entry)), attempt);
                Ok(None)
            }
        }
    }

    /// Takes back the entry of a request that was not carried out now. That of an earlier attempt
    /// stays.
    fn cancel_journaled(&self, records: &Records, entry: JournalEntry) {
        if self.attempt.is_none() {
            records.cancel(entry);
        }
    }

    /// Returns whether an earlier process may have begun to serve the request.
    fn is_resent(&self) -> bool {
        match self.session.resender {
            Resender::Client => self.header.unique & UNIQUE_RESEND != 0,
            Resender::Transport => self.message.is_repeated(),
        }
    }

    /// Answers a request before INIT.
    fn serve_before_init(&mut self, request: &Request<'_>) -> Result<()> {
        match request {
            Request::Init { args } => self.init(args),
            Request::Destroy {} => self.destroy(),
            request if request.opcode().is_silent() => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    fn dispatch(&mut self, request: &Request<'_>) -> Result<()> {
        use Request as R;
        tracing::trace!(
            client = self.session.client,
            unique = self.header.unique,
            node = self.header.nodeid,
            opcode = request.opcode().name()
        );
        match *request {
            R::Read { args } => self.read(&args),
            R::Write { args } => self.write(&args),
            R::Lookup { name } => self.lookup(name.0),
            R::Getattr { args } => self.getattr(&args),
            R::Open { args } => self.open(&args),
            R::Release { args } => self.release(&args),
            R::Flush { args } => self.flush(&args),
            // It may have been carried out, and the client would lose a node that it uses. So such
            // a node may stay until the end of the mount.
            R::Forget { .. } | R::BatchForget { .. } if self.is_resent() => Ok(()),
            R::Forget { args } => self.forget(args.nlookup),
            R::BatchForget { args, forgets } => self.batch_forget(args.count, forgets.0),
            R::Readdir { args } => self.readdir(&args, false),
            R::Readdirplus { args } => self.readdir(&args, true),
            R::Opendir { .. } => self.opendir(),
            R::Releasedir { args } => self.release(&args),
            R::Create { args, name } => self.create(&args, name.0),
            R::Tmpfile { args, .. } => self.tmpfile(&args),
            R::Setattr { args } => self.setattr(&args),
            R::Statx { args } => self.statx(&args),
            R::Access { args } => self.access(args.mask),
            R::Statfs {} => self.statfs(),
            R::Readlink {} => self.readlink(),
            R::Symlink { name, target } => self.symlink(name.0, target.0),
            R::Mknod { args, name } => self.mknod(&args, name.0),
            R::Mkdir { args, name } => self.mkdir(&args, name.0),
            R::Link { args, name } => self.link(args.oldnodeid, name.0),
            R::Unlink { name } => self.unlink(name.0, false),
            R::Rmdir { name } => self.unlink(name.0, true),
            R::Rename {
                args,
                name,
                newname,
            } => self.rename(name.0, args.newdir, newname.0, 0),
            R::Rename2 {
                args,
                name,
                newname,
            } => self.rename(name.0, args.newdir, newname.0, args.flags),
            // No file was opened, and none can have changed.
            R::Fsyncdir { .. } if self.negotiated.has(InitFlags::NO_OPENDIR_SUPPORT) => {
                self.reply(&[])
            }
            R::Fsync { .. } if self.negotiated.has(InitFlags::NO_OPEN_SUPPORT) => self.reply(&[]),
            R::Fsync { args } | R::Fsyncdir { args } => self.fsync(&args),
            R::Fallocate { args } => self.fallocate(&args),
            R::Lseek { args } => self.lseek(&args),
            R::CopyFileRange { args } => self.copy(&args, false),
            R::CopyFileRange64 { args } => self.copy(&args, true),
            R::Getlk { args } => self.getlk(&args),
            R::Setlk { args } => self.setlk(&args, false),
            R::Setlkw { args } => self.setlk(&args, true),
            R::Getxattr { args, name } => self.getxattr(name.0, args.size),
            R::Listxattr { args } => self.listxattr(args.size),
            R::Setxattr { args, name, value } => self.setxattr(&args, name.0, value.0),
            R::Removexattr { name } => self.removexattr(name.0),
            R::Syncfs {} => self.syncfs(),
            R::Destroy {} => self.destroy(),
            // The driver has made sure that the other request was answered.
            R::Interrupt { .. } | R::NotifyReply { .. } => Ok(()),
            // The machine was reset without DESTROY.
            R::Init { args } => {
                self.incarnation = self.session.reset();
                self.init(&args)
            }
            R::Ioctl { .. } => Err(Errno::ENOTTY),
            R::Bmap { .. } | R::Poll { .. } | R::Setupmapping { .. } | R::Removemapping { .. } => {
                Err(Errno::ENOSYS)
            }
        }
    }

    fn destroy(&mut self) -> Result<()> {
        self.session.reset();
        self.reply(&[])
    }

    /// Returns the request's node, or `ESTALE` if the client has not looked it up.
    fn node(&self) -> Result<NodeRef> {
        self.session.nodes.get(self.incarnation, self.header.nodeid)
    }

    /// Returns the open file `fh`, or `EBADF` if it is not open. Returns `EIO` if it may be one
    /// that was lost with an earlier process.
    fn opened(&self, fh: u64) -> Result<Arc<Open>> {
        match self.session.handles.get(self.incarnation, fh) {
            Err(Errno::EBADF) if self.session.has_lost.load(Ordering::Relaxed) => Err(Errno::EIO),
            opened => opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::VOCABULARY;

    #[test]
    fn requests_have_the_kernels_names() {
        let word = |number: usize| VOCABULARY.operations[number].as_str();
        let words = [1, 26, 42, 44, 45].map(word);
        let expected = [
            "FUSE_LOOKUP",
            "FUSE_INIT",
            "FUSE_BATCH_FORGET",
            "FUSE_READDIRPLUS",
            "FUSE_RENAME2",
        ];
        assert_eq!(words, expected);
    }
}
