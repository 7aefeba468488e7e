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
mod connection;
mod dir;
mod exports;
mod fid;
mod handover;
mod io;
mod legacy;
mod lock;
mod lock_owners;
mod make;
mod meta;
mod open;
mod qid;
mod queue;
mod request;
mod step;
mod target;
mod users;
mod walk;
mod write_state;
mod xattr;
mod xattr_value;

use std::sync::LazyLock;

use vfs::{Call, Errno, Patience};
use wire::{
    Buffered, ClientInfo, Incoming, Malformed, Outgoing, RequestTarget, Role, SavedState,
    ServeOutcome, Session, Vocabulary,
};

use self::request::{RequestContext, error_reply};
use crate::message::{HEADER, Header};
use crate::{DecodeError, Dialect, Kind, Rmessage, Tag, Tmessage};

pub use self::connection::{Connection, Options, Server};
pub use self::exports::{ExportList, Exports};
pub use self::handover::HandoverError;
pub use self::qid::version_of;
pub use self::queue::QueueConnection;
pub use self::users::{NumericUsers, Users};

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
        let mut context = RequestContext {
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
            Ok((_, request)) => context.dispatch(agreed.is_some(), request),
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
        context.out.truncate(0);
        Ok(match errno {
            Errno::WOULD_BLOCK => ServeOutcome::WouldBlock,
            Errno::PARKED => ServeOutcome::Parked,
            errno => {
                call.note_error(errno.raw());
                context.refuse(errno);
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

    fn target(&self, call: &Call, message: &[u8]) -> RequestTarget {
        self.request_target(call.export_number(), message)
    }

    fn client_info(&self) -> ClientInfo {
        ClientInfo {
            version: self
                .negotiated()
                .map_or(String::new(), |agreed| agreed.dialect.to_string()),
            user: self.user.get().cloned().unwrap_or_default(),
        }
    }

    fn was_interrupted(&self, call: &Call) -> bool {
        call.noted_error() == Errno::EINTR.raw()
    }

    fn save_state(&self, call: &Call) -> Option<SavedState> {
        self.state(call)
            .inspect_err(|why| {
                tracing::warn!(
                    client = self.client,
                    "the session cannot continue in another process: {why}"
                );
            })
            .ok()
    }
}

/// A message is named by half its number: requests have even ones.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let word = |number| match Kind::of(number * 2) {
        Some(kind) => format!("T{}", kind.name().to_ascii_lowercase()),
        None => String::new(),
    };
    Vocabulary {
        protocol: "9p",
        operations: (0..=u8::MAX / 2).map(word).collect(),
        error: Vocabulary::errno,
    }
});

impl RequestContext<'_> {
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
}
