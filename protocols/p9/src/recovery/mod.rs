//! Continuation of a session after its server is lost and comes back.
//!
//! A [`Record`] observes all requests of a client and all replies: it knows where fids point, their
//! open files and locks, and the requests in flight. When the connection is lost, a [`Recovery`]
//! made from it restores the session on any server that has come: it attaches, walks every fid by
//! its current path, checks that the file is the same (the qid's type and path), opens open files
//! again without creating or truncating, and takes locks again. A fid that cannot be restored
//! completely is stale: requests that use it fail with `ESTALE`, and all others continue. Then the
//! requests in flight are sent again; for those that must not be carried out twice (`in_doubt`) the
//! recovery first finds out whether they were.
//!
//! Any component between a client and a server can have a record: this program's client half as
//! well as a proxy for another client. Only 9P2000.L is supported.
//!
//! Deliberately absent: connections, clocks, threads, and when to retry. It takes no lock. Files
//! that other clients moved meanwhile are not searched for, and an unnamed file cannot be found.

mod in_doubt;
mod names;
mod restore;
mod session;

use std::collections::HashMap;
use std::sync::Arc;

use vfs::Errno;
use wire::Malformed;

use self::in_doubt::is_doubtful;
pub use self::restore::{Failure, Recovery, Server};
use self::session::{Session, State, fids_of};
use crate::message::{HEADER, Header, WRITE_HEAD};
use crate::{Dialect, Fid, Kind, Qids, Rmessage, Tag, Tmessage};

/// The supported dialect.
const DIALECT: Dialect = Dialect::Linux;

/// The reply to a Twalk without names.
const CLONE_REPLY: Rmessage<'static> = Rmessage::Walk {
    qids: Qids::new(&[]),
};

/// A client's session and its requests in flight.
#[derive(Default)]
pub struct Record {
    session: Session,
    /// The msize agreed on; 0 before Tversion and with another dialect.
    msize: u32,
    /// Whether open files may be requested ([`Dialect::FD_PASSING`]).
    fd_passing: bool,
    requests: HashMap<Tag, PendingRequest>,
    /// The Twalks without names in flight, by the fids that they make.
    clones: HashMap<Fid, Tag>,
    next: u64,
    /// The number of stale fids.
    stale: usize,
    /// Buffers of answered requests, for reuse.
    spare: Vec<Vec<u8>>,
}

/// A request in flight.
struct PendingRequest {
    message: Arc<Vec<u8>>,
    /// The new fid of a Twalk without names.
    new_fid: Option<Fid>,
    /// The position in the order of requests.
    order: u64,
    sent: bool,
    /// Whether it was sent to a server that is lost.
    in_doubt: bool,
    /// A Twalk that must have succeeded, because a request on its new fid did.
    implied: bool,
    /// A Twrite whose client holds the payload: the message has a count of 0.
    lent: bool,
    /// The latest time that the server had reported before.
    latest: (u64, u64),
}

/// The actions for the requests in flight once there is a server again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// The messages to send, in order; they count as sent.
    pub messages: Vec<Arc<Vec<u8>>>,
    /// The replies to requests that need not be sent.
    pub answers: Vec<Vec<u8>>,
    /// Requests that the client has to issue again ([`Record::on_lent_write`]), as if they were
    /// new.
    pub lent: Vec<Tag>,
}

/// A request in flight, as recoveries see it.
struct InFlight {
    tag: Tag,
    order: u64,
    message: Arc<Vec<u8>>,
    latest: (u64, u64),
}

/// The action for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestAction {
    /// Send it to the server.
    Send,
    /// Keep it until the server comes back.
    Wait,
    /// Answer with this reply.
    Answer(Vec<u8>),
}

impl Record {
    /// The most buffers kept for reuse.
    const MAX_SPARE: usize = 16;

    /// Returns a buffer for a request.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Records a whole request and returns the action for it; `up` says whether there is a server.
    pub fn on_request(&mut self, message: Vec<u8>, up: bool) -> Result<RequestAction, Malformed> {
        let tag = Header::decode(&message)?.tag;
        if up && self.stale > 0 {
            if let Some(answer) = self.stale_reply(&message) {
                return Ok(RequestAction::Answer(answer));
            }
        } else if !up && message[4] == Kind::Flush.request() {
            // A Tflush need not wait for a server: the client no longer waits for its target.
            if let Ok((_, Tmessage::Flush { oldtag })) = Tmessage::decode(DIALECT, &message) {
                self.take(oldtag);
            }
            return Ok(RequestAction::Answer(encode_reply(
                tag,
                &Rmessage::Flush {},
            )));
        }
        self.next += 1;
        let makes = new_fid_of(&message);
        let pending = PendingRequest {
            message: Arc::new(message),
            new_fid: makes,
            order: self.next,
            sent: up,
            in_doubt: false,
            implied: false,
            lent: false,
            latest: self.session.latest,
        };
        self.take(tag);
        self.requests.insert(tag, pending);
        if let Some(fid) = makes {
            self.clones.insert(fid, tag);
        }
        Ok(if up {
            RequestAction::Send
        } else {
            RequestAction::Wait
        })
    }

    /// [`Record::on_request`] for a Twrite whose payload the client holds until the reply: `head`
    /// is the message before the payload. Not for a file that is open to append, because a recovery
    /// could not tell how much was written.
    pub fn on_lent_write(
        &mut self,
        mut head: Vec<u8>,
        up: bool,
    ) -> Result<RequestAction, Malformed> {
        let header = Header::decode(&head)?;
        if head.len() != WRITE_HEAD || header.number != Kind::Write.request() {
            return Err(Malformed::new("expected the header of a Twrite"));
        }
        head[..4].copy_from_slice(&(WRITE_HEAD as u32).to_le_bytes());
        head[WRITE_HEAD - 4..].fill(0);
        let action = self.on_request(head, up)?;
        if let Some(pending) = self.requests.get_mut(&header.tag) {
            pending.lent = true;
        }
        Ok(action)
    }

    /// Returns how many bytes of a reply [`Record::on_reply`] reads: the head of data, all of other
    /// replies.
    pub fn reply_bytes_needed(kind: u8, size: usize) -> usize {
        let data = kind == Kind::Read.reply() || kind == Kind::Readdir.reply();
        if data { HEADER } else { size }
    }

    /// Records a reply, of which the bytes that [`Record::reply_bytes_needed`] returns suffice.
    pub fn on_reply(&mut self, reply: &[u8]) -> Result<(), Malformed> {
        let header = Header::decode(reply)?;
        let Some(pending) = self.take(header.tag) else {
            return Ok(());
        };
        let kind = pending.message[4];
        if !pending.implied && self.changes_session(kind, &pending.message) {
            let request = Tmessage::decode(DIALECT, &pending.message);
            let reply = Rmessage::decode(DIALECT, reply);
            if let (Ok((_, request)), Ok((_, reply))) = (request, reply) {
                self.apply_reply(&request, &reply);
            }
        }
        if let Ok(mut message) = Arc::try_unwrap(pending.message)
            && self.spare.len() < Record::MAX_SPARE
        {
            message.clear();
            self.spare.push(message);
        }
        Ok(())
    }

    /// Returns whether the reply to a request of this type changes the recorded session.
    fn changes_session(&self, kind: u8, message: &[u8]) -> bool {
        match Kind::of(kind) {
            Some(
                Kind::Read
                | Kind::Readdir
                | Kind::Readlink
                | Kind::Statfs
                | Kind::Setattr
                | Kind::Fsync
                | Kind::Getlock
                | Kind::Hand
                | Kind::Symlink
                | Kind::Mknod
                | Kind::Mkdir
                | Kind::Link,
            )
            | None => false,
            Some(Kind::Write) => {
                let fid = message[HEADER..]
                    .first_chunk()
                    .map(|fid| u32::from_le_bytes(*fid));
                let known = fid.and_then(|fid| self.session.fids.get(&Fid(fid)));
                known.is_some_and(|known| matches!(known.state, State::XattrWrite { .. }))
            }
            Some(_) => true,
        }
    }

    fn apply_reply(&mut self, request: &Tmessage<'_>, reply: &Rmessage<'_>) {
        let ok = !matches!(reply, Rmessage::Lerror { .. } | Rmessage::Error { .. });
        match (request, reply) {
            (Tmessage::Version { .. }, Rmessage::Version { msize, version }) => {
                self.session = Session::default();
                self.stale = 0;
                self.fd_passing = *version == Dialect::FD_PASSING.as_bytes();
                let known = self.fd_passing || *version == DIALECT.version().as_bytes();
                self.msize = if known { *msize } else { 0 };
            }
            // If its target was not answered before, it never will be.
            (Tmessage::Flush { oldtag }, _) => drop(self.take(*oldtag)),
            _ => {
                if ok {
                    for fid in fids_of(request).into_iter().flatten() {
                        self.imply_walk(fid);
                    }
                }
                self.session.apply_reply(request, reply, ok);
            }
        }
    }

    /// Handles a success on `fid`. Replies may arrive out of order, so that of the Twalk that
    /// cloned `fid` may be outstanding: it must have succeeded. (This program's client builds on
    /// other walks only after their replies.)
    fn imply_walk(&mut self, fid: Fid) {
        if self.session.fids.contains_key(&fid) {
            return;
        }
        let tag = self.clones.get(&fid);
        if let Some(pending) = tag.and_then(|tag| self.requests.get_mut(tag))
            && let Ok((_, request)) = Tmessage::decode(DIALECT, &pending.message)
        {
            self.session.apply_reply(&request, &CLONE_REPLY, true);
            pending.implied = true;
        }
    }

    /// Removes a request from those in flight.
    fn take(&mut self, tag: Tag) -> Option<PendingRequest> {
        let pending = self.requests.remove(&tag)?;
        if let Some(fid) = pending.new_fid
            && self.clones.get(&fid) == Some(&tag)
        {
            self.clones.remove(&fid);
        }
        Some(pending)
    }

    /// Returns whether the session can continue on another connection.
    pub fn is_recoverable(&self) -> bool {
        self.msize > 0 && !self.session.too_large
    }

    /// Marks the requests that were sent as doubtful: the server is lost.
    pub fn on_connection_lost(&mut self) {
        for pending in self.requests.values_mut() {
            pending.in_doubt |= pending.sent;
            pending.sent = false;
        }
    }

    /// Begins a recovery on a new server. Requests only wait until it is given back to
    /// [`Record::end`].
    pub fn begin(&mut self) -> Recovery {
        let doubted = self.in_order(|pending| {
            pending.in_doubt && !pending.implied && is_doubtful(&pending.message)
        });
        let agreed = (self.msize, self.fd_passing);
        Recovery::new(std::mem::take(&mut self.session), agreed, doubted)
    }

    /// Ends a recovery, completed or abandoned, and returns the replies that it determined.
    pub fn end(&mut self, recovery: Recovery) -> Vec<Vec<u8>> {
        let (session, settled) = recovery.into_parts();
        self.session = session;
        self.stale = self.session.fids.values().filter(|fid| fid.stale).count();
        let mut answers = Vec::new();
        for InFlight { tag, .. } in self.in_order(|pending| pending.implied) {
            self.take(tag);
            answers.push(encode_reply(tag, &CLONE_REPLY));
        }
        for settled in settled {
            // Skip it if the request was cancelled.
            if (self.requests.get(&settled.tag))
                .is_some_and(|pending| pending.order == settled.order)
            {
                self.take(settled.tag);
                answers.push(settled.reply);
            }
        }
        answers
    }

    /// Answers all requests in flight with `errno`, because no server comes, and returns the
    /// replies. The lost server may have carried them out. The session can still be recovered.
    pub fn give_up(&mut self, errno: Errno) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        for InFlight { tag, message, .. } in self.in_order(|_| true) {
            let implied = self.take(tag).is_some_and(|pending| pending.implied);
            let fid = match Tmessage::decode(DIALECT, &message) {
                Ok((_, Tmessage::Clunk { fid } | Tmessage::Remove { fid })) => Some(fid),
                _ => None,
            };
            if let Some(fid) = fid {
                self.release_fid(fid);
            }
            answers.push(match (implied, message[4] == Kind::Clunk.request()) {
                (true, _) => encode_reply(tag, &CLONE_REPLY),
                (false, true) => encode_reply(tag, &Rmessage::Clunk {}),
                (false, false) => encode_error(tag, errno),
            });
        }
        answers
    }

    /// Removes a fid from the session. A new server does not get it.
    fn release_fid(&mut self, fid: Fid) {
        let known = self.session.fids.get(&fid);
        self.stale -= usize::from(known.is_some_and(|known| known.stale));
        let errno = Errno::ESTALE.raw().into();
        let nothing = Rmessage::Lerror { errno };
        let clunk = Tmessage::Clunk { fid };
        self.session.apply_reply(&clunk, &nothing, false);
    }

    /// Returns the actions for the requests that were not sent to this server yet.
    pub fn unsent(&mut self) -> Unsent {
        let mut unsent = Unsent::default();
        for InFlight { tag, message, .. } in self.in_order(|pending| !pending.sent) {
            if let Some(answer) = self.stale_reply(&message) {
                self.take(tag);
                unsent.answers.push(answer);
                continue;
            }
            match self.requests.get_mut(&tag) {
                Some(pending) if pending.lent => {
                    self.take(tag);
                    unsent.lent.push(tag);
                    continue;
                }
                Some(pending) => (pending.sent, pending.in_doubt) = (true, false),
                None => {}
            }
            unsent.messages.push(message);
        }
        unsent
    }

    /// Returns the number of stale fids.
    pub fn stale(&self) -> usize {
        self.stale
    }

    fn in_order(&self, which: impl Fn(&PendingRequest) -> bool) -> Vec<InFlight> {
        let in_flight = self.requests.iter().filter(|(_, pending)| which(pending));
        let mut in_flight: Vec<_> = in_flight
            .map(|(tag, pending)| InFlight {
                tag: *tag,
                order: pending.order,
                message: pending.message.clone(),
                latest: pending.latest,
            })
            .collect();
        in_flight.sort_by_key(|pending| pending.order);
        in_flight
    }

    /// Returns the reply to a request on a stale fid.
    fn stale_reply(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let (tag, request) = Tmessage::decode(DIALECT, message).ok()?;
        let is_stale = |fid: &Fid| self.session.fids.get(fid).is_some_and(|fid| fid.stale);
        let fid = fids_of(&request).into_iter().flatten().find(is_stale)?;
        let gives_up = matches!(request, Tmessage::Clunk { .. } | Tmessage::Remove { .. });
        if gives_up {
            self.release_fid(fid);
        }
        Some(match request {
            Tmessage::Clunk { .. } => encode_reply(tag, &Rmessage::Clunk {}),
            _ => encode_error(tag, Errno::ESTALE),
        })
    }
}

/// Returns the new fid of a Twalk without names.
fn new_fid_of(message: &[u8]) -> Option<Fid> {
    if message[4] != Kind::Walk.request() {
        return None;
    }
    match Tmessage::decode(DIALECT, message) {
        Ok((_, Tmessage::Walk { newfid, names, .. })) if names.is_empty() => Some(newfid),
        _ => None,
    }
}

fn encode_reply(tag: Tag, reply: &Rmessage<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    reply.encode(DIALECT, tag, &mut message);
    message
}

fn encode_error(tag: Tag, errno: Errno) -> Vec<u8> {
    let errno = errno.raw().into();
    encode_reply(tag, &Rmessage::Lerror { errno })
}
