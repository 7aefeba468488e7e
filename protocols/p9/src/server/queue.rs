//! A connection over a virtqueue: requests are in a guest's memory, each with a buffer for its
//! reply (virtio 1.3, 5.16; Linux `net/9p/trans_virtio.c`).
//!
//! A Twrite's payload stays in place. A request that cannot be decoded, or whose buffer is too
//! small for the shortest reply, is not answered. Unlike a stream the queue continues, because the
//! start of the next request does not depend on it.

use std::ops::Range;

use vfs::{Call, Patience, Payload};
use wire::{
    ClientInfo, Incoming, Malformed, Outgoing, Role, SavedState, ServeOutcome, Session, Vocabulary,
};

use super::HandoverError;
use super::connection::{Connection, Server};
use crate::Kind;
use crate::message::{DATA_HEAD, Header, WRITE_HEAD};

/// A client's connection over a virtqueue. Dropping it clunks all its fids.
pub struct QueueConnection(Connection);

impl Server {
    /// Returns a session for a new connection over a virtqueue.
    pub fn queue_session(&self) -> QueueConnection {
        QueueConnection(self.session())
    }

    /// Does the same as [`Server::resume`] for a connection over a virtqueue.
    pub fn resume_queue_session(
        &self,
        call: &Call,
        state: &SavedState,
    ) -> std::result::Result<QueueConnection, HandoverError> {
        self.resume(call, state).map(QueueConnection)
    }
}

impl Session for QueueConnection {
    fn frame(&self, head: &[u8]) -> Result<Option<usize>, Malformed> {
        let size = self.0.frame(head)?;
        let is_write =
            Header::decode(head).is_ok_and(|header| header.number == Kind::Write.request());
        Ok(size.map(|size| match is_write {
            true => size.min(WRITE_HEAD),
            false => size,
        }))
    }

    fn role(&self, message: &[u8]) -> Result<Role, Malformed> {
        self.0.role(self.trimmed(message)?)
    }

    fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &dyn Incoming,
        out: &mut dyn Outgoing,
    ) -> Result<ServeOutcome, Malformed> {
        if out.room() < DATA_HEAD {
            let what = format!("expected room for {DATA_HEAD} bytes, got {}", out.room());
            return Err(Malformed::new(what));
        }
        let bytes = self.trimmed(message.bytes())?;
        self.0
            .serve(call, patience, &TrimmedMessage { message, bytes }, out)
    }

    fn answer_failure(&self, message: &dyn Incoming, out: &mut dyn Outgoing) -> bool {
        self.0.answer_failure(message, out)
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        self.0.vocabulary()
    }

    fn was_interrupted(&self, call: &Call) -> bool {
        self.0.was_interrupted(call)
    }

    fn save_state(&self, call: &Call) -> Option<SavedState> {
        self.0.save_state(call)
    }

    fn client_info(&self) -> ClientInfo {
        self.0.client_info()
    }
}

impl QueueConnection {
    /// Returns `message` without trailing bytes from the guest.
    fn trimmed<'a>(&self, message: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let size = self.0.frame(message)?;
        Ok(&message[..message.len().min(size.unwrap_or(0))])
    }
}

/// A message without trailing bytes.
struct TrimmedMessage<'a> {
    message: &'a dyn Incoming,
    bytes: &'a [u8],
}

impl Incoming for TrimmedMessage<'_> {
    fn bytes(&self) -> &[u8] {
        self.bytes
    }

    fn size(&self) -> usize {
        self.message.size()
    }

    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> vfs::Result<usize>,
    ) -> vfs::Result<usize> {
        self.message.payload(range, write)
    }
}
