//! A request being served, and its reply.

use std::sync::Arc;

use vfs::{Call, Cx, Errno, Patience};
use wire::{Buffered, Incoming, Outgoing};

use super::connection::Connection;
use super::fid::FidState;
use crate::{Dialect, DotuErrno, Fid, Rmessage, Tag};

/// A request in progress.
pub(super) struct RequestContext<'a> {
    pub(super) connection: &'a Connection,
    /// The size of the request in bytes.
    pub(super) size: usize,
    pub(super) call: &'a Call,
    pub(super) patience: Patience,
    pub(super) tag: Tag,
    pub(super) dialect: Dialect,
    /// The largest size of the reply in bytes.
    pub(super) limit: usize,
    pub(super) message: &'a dyn Incoming,
    pub(super) out: &'a mut dyn Outgoing,
}

impl<'a> RequestContext<'a> {
    /// Writes a whole reply. Returns `EMSGSIZE` if it is longer than msize.
    pub(super) fn reply(&mut self, message: &Rmessage<'_>) -> vfs::Result<()> {
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

    pub(super) fn refuse(&mut self, errno: Errno) {
        error_reply(self.dialect, errno, |reply| self.write_reply(reply));
    }

    /// Returns the context of a call on behalf of `caller`.
    pub(super) fn cx<'b>(&self, caller: &'b vfs::Caller) -> Cx<'b>
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
    pub(super) fn fid(&self, fid: Fid) -> vfs::Result<FidState> {
        let state = self.connection.fids.get(fid)?;
        self.call
            .note_export(Arc::as_ptr(&state.attach().export) as u64);
        Ok(state)
    }
}

/// Calls `write` with the error reply for `errno`.
pub(super) fn error_reply(dialect: Dialect, errno: Errno, write: impl FnOnce(&Rmessage<'_>)) {
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
