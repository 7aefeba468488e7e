//! What it takes to go on with a session when its server is lost and comes again.
//!
//! A [`Record`] hears all that a client asks and all that it is answered: whose fids point where, what is open and
//! locked by them, and what is in flight. When the connection is lost, a [`Recovery`] made of it says everything
//! again to the server that has come, any server: it attaches, walks every fid by the names that lead to it now,
//! checks that the same file is there (the qid's type and path), opens what was open, without making or cutting it,
//! and takes locks again. A fid that cannot have all back that it had is stale: whoever uses it is answered `ESTALE`,
//! and everybody else goes on. Then what was in flight is sent again; of what must not be done twice (`doubt`) it is
//! found out first whether it was done.
//!
//! Whoever is between a client and a server can keep one: the client half of this program as well as a proxy for
//! another. It takes 9P2000.L only.
//!
//! What it lacks on purpose: connections, clocks, threads, and when to try again. It takes no lock. The files of other
//! clients that were moved meanwhile are not searched for, and a file without a name has none to be found by.

mod again;
mod doubt;
mod names;
mod session;

use std::collections::HashMap;
use std::sync::Arc;

use vfs::Errno;
use wire::Malformed;

pub use self::again::{Failure, Recovery, Server};
use self::doubt::is_doubtful;
use self::session::{Session, State, fids_of};
use crate::message::{HEADER, Header, WRITE_HEAD};
use crate::{Dialect, Fid, Kind, Qids, Rmessage, Tag, Tmessage};

/// The dialect that all of this is about.
const DIALECT: Dialect = Dialect::Linux;

/// The answer to a Twalk without names.
const CLONED: Rmessage<'static> = Rmessage::Walk {
    qids: Qids::new(&[]),
};

/// What a client has, and has asked for.
#[derive(Default)]
pub struct Record {
    session: Session,
    /// What was agreed on; 0 if nothing, or another dialect.
    msize: u32,
    /// Whether open files may be asked for ([`Dialect::HANDING`]).
    hands: bool,
    flights: HashMap<Tag, Flight>,
    /// Which of them are Twalks without names, by the fids that they make.
    clones: HashMap<Fid, Tag>,
    next: u64,
    /// How many fids are stale.
    stale: usize,
    /// Memory of requests that are answered.
    spare: Vec<Vec<u8>>,
}

/// A request in flight.
struct Flight {
    message: Arc<Vec<u8>>,
    /// The fid that it makes, if it is a Twalk without names.
    makes: Option<Fid>,
    /// Its place among the others.
    order: u64,
    sent: bool,
    /// It was sent to a server that is lost.
    doubted: bool,
    /// A Twalk that is known to have succeeded, by the answer to what was built on it.
    implied: bool,
    /// A Twrite whose payload its client has: the message is one of no bytes.
    lent: bool,
    /// The latest time that the server had told of before.
    latest: (u64, u64),
}

/// What is to be done about what is in flight, when there is a server again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// What is to be sent, in order; it counts as sent.
    pub messages: Vec<Arc<Vec<u8>>>,
    /// The answers of what need not be.
    pub answers: Vec<Vec<u8>>,
    /// What its client has to ask again ([`Record::lent`]), as if it had not yet.
    pub lent: Vec<Tag>,
}

/// A request in flight, as recoveries have it.
struct InFlight {
    tag: Tag,
    order: u64,
    message: Arc<Vec<u8>>,
    latest: (u64, u64),
}

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// It goes to the server.
    Send,
    /// It waits for the server to come again.
    Wait,
    /// This is its answer.
    Answer(Vec<u8>),
}

impl Record {
    /// How many requests' memory is kept to be used again.
    const SPARE: usize = 16;

    /// Memory for a request.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes note of a whole request, and says what is to be done with it; `up` is whether there is a server.
    pub fn asked(&mut self, message: Vec<u8>, up: bool) -> Result<Asked, Malformed> {
        let tag = Header::decode(&message)?.tag;
        if up && self.stale > 0 {
            if let Some(answer) = self.answer_of_stale(&message) {
                return Ok(Asked::Answer(answer));
            }
        } else if !up && message[4] == Kind::Flush.request() {
            // Nobody has to wait for a server to be told that nobody waits.
            if let Ok((_, Tmessage::Flush { oldtag })) = Tmessage::decode(DIALECT, &message) {
                self.take(oldtag);
            }
            return Ok(Asked::Answer(encoded(tag, &Rmessage::Flush {})));
        }
        self.next += 1;
        let makes = makes(&message);
        let flight = Flight {
            message: Arc::new(message),
            makes,
            order: self.next,
            sent: up,
            doubted: false,
            implied: false,
            lent: false,
            latest: self.session.latest,
        };
        self.take(tag);
        self.flights.insert(tag, flight);
        if let Some(fid) = makes {
            self.clones.insert(fid, tag);
        }
        Ok(if up { Asked::Send } else { Asked::Wait })
    }

    /// [`Record::asked`] of a Twrite whose payload its client has until it is answered: `head` is what stands before that. Not for
    /// a file that is open to append, of which it could not be told how much was written.
    pub fn lent(&mut self, mut head: Vec<u8>, up: bool) -> Result<Asked, Malformed> {
        let header = Header::decode(&head)?;
        if head.len() != WRITE_HEAD || header.number != Kind::Write.request() {
            return Err(Malformed::new("expected the head of a Twrite"));
        }
        head[..4].copy_from_slice(&(WRITE_HEAD as u32).to_le_bytes());
        head[WRITE_HEAD - 4..].fill(0);
        let asked = self.asked(head, up)?;
        if let Some(flight) = self.flights.get_mut(&header.tag) {
            flight.lent = true;
        }
        Ok(asked)
    }

    /// How much of a reply's beginning [`Record::answered`] looks at: of data its head, of others all.
    pub fn looks_at(kind: u8, size: usize) -> usize {
        let data = kind == Kind::Read.reply() || kind == Kind::Readdir.reply();
        if data { HEADER } else { size }
    }

    /// Takes note of a reply: of as much as [`Record::looks_at`] says.
    pub fn answered(&mut self, reply: &[u8]) -> Result<(), Malformed> {
        let header = Header::decode(reply)?;
        let Some(flight) = self.take(header.tag) else {
            return Ok(());
        };
        let kind = flight.message[4];
        if !flight.implied && self.tells(kind, &flight.message) {
            let request = Tmessage::decode(DIALECT, &flight.message);
            let reply = Rmessage::decode(DIALECT, reply);
            if let (Ok((_, request)), Ok((_, reply))) = (request, reply) {
                self.learn(&request, &reply);
            }
        }
        if let Ok(mut message) = Arc::try_unwrap(flight.message)
            && self.spare.len() < Record::SPARE
        {
            message.clear();
            self.spare.push(message);
        }
        Ok(())
    }

    /// Whether the answer to a request of this kind changes what is to be known.
    fn tells(&self, kind: u8, message: &[u8]) -> bool {
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
                known.is_some_and(|known| matches!(known.state, State::Draft { .. }))
            }
            Some(_) => true,
        }
    }

    fn learn(&mut self, request: &Tmessage<'_>, reply: &Rmessage<'_>) {
        let ok = !matches!(reply, Rmessage::Lerror { .. } | Rmessage::Error { .. });
        match (request, reply) {
            (Tmessage::Version { .. }, Rmessage::Version { msize, version }) => {
                self.session = Session::default();
                self.stale = 0;
                self.hands = *version == Dialect::HANDING.as_bytes();
                let known = self.hands || *version == DIALECT.version().as_bytes();
                self.msize = if known { *msize } else { 0 };
            }
            // If it was not answered before, it never is.
            (Tmessage::Flush { oldtag }, _) => drop(self.take(*oldtag)),
            _ => {
                if ok {
                    for fid in fids_of(request).into_iter().flatten() {
                        self.imply(fid);
                    }
                }
                self.session.answered(request, reply, ok);
            }
        }
    }

    /// Something was done with `fid`. Answers may come in another order than what they answer, also that to the Twalk that made it another for
    /// the same file: so that has succeeded. (Nobody here builds on other walks before they are answered.)
    fn imply(&mut self, fid: Fid) {
        if self.session.fids.contains_key(&fid) {
            return;
        }
        let tag = self.clones.get(&fid);
        if let Some(flight) = tag.and_then(|tag| self.flights.get_mut(tag))
            && let Ok((_, request)) = Tmessage::decode(DIALECT, &flight.message)
        {
            self.session.answered(&request, &CLONED, true);
            flight.implied = true;
        }
    }

    /// A request that is in flight no more.
    fn take(&mut self, tag: Tag) -> Option<Flight> {
        let flight = self.flights.remove(&tag)?;
        if let Some(fid) = flight.makes
            && self.clones.get(&fid) == Some(&tag)
        {
            self.clones.remove(&fid);
        }
        Some(flight)
    }

    /// Whether the session can be gone on with on another connection.
    pub fn is_recoverable(&self) -> bool {
        self.msize > 0 && !self.session.too_large
    }

    /// The server is lost: what was sent to it is in doubt.
    pub fn lost(&mut self) {
        for flight in self.flights.values_mut() {
            flight.doubted |= flight.sent;
            flight.sent = false;
        }
    }

    /// What is to be done with a server that has come. Until it is given back ([`Record::end`]), requests only wait.
    pub fn begin(&mut self) -> Recovery {
        let doubted = self
            .in_order(|flight| flight.doubted && !flight.implied && is_doubtful(&flight.message));
        let agreed = (self.msize, self.hands);
        Recovery::new(std::mem::take(&mut self.session), agreed, doubted)
    }

    /// It has been done, or given up.
    pub fn end(&mut self, recovery: Recovery) -> Vec<Vec<u8>> {
        let (session, settled) = recovery.into_parts();
        self.session = session;
        self.stale = self.session.fids.values().filter(|fid| fid.stale).count();
        let mut answers = Vec::new();
        for InFlight { tag, .. } in self.in_order(|flight| flight.implied) {
            self.take(tag);
            answers.push(encoded(tag, &CLONED));
        }
        for settled in settled {
            // Unless nobody waits for it any more.
            if (self.flights.get(&settled.tag)).is_some_and(|flight| flight.order == settled.order)
            {
                self.take(settled.tag);
                answers.push(settled.reply);
            }
        }
        answers
    }

    /// What has not been sent to this server yet.
    pub fn unsent(&mut self) -> Unsent {
        let mut unsent = Unsent::default();
        for InFlight { tag, message, .. } in self.in_order(|flight| !flight.sent) {
            if let Some(answer) = self.answer_of_stale(&message) {
                self.take(tag);
                unsent.answers.push(answer);
                continue;
            }
            match self.flights.get_mut(&tag) {
                Some(flight) if flight.lent => {
                    self.take(tag);
                    unsent.lent.push(tag);
                    continue;
                }
                Some(flight) => (flight.sent, flight.doubted) = (true, false),
                None => {}
            }
            unsent.messages.push(message);
        }
        unsent
    }

    /// How many fids are stale.
    pub fn stale(&self) -> usize {
        self.stale
    }

    fn in_order(&self, which: impl Fn(&Flight) -> bool) -> Vec<InFlight> {
        let flights = self.flights.iter().filter(|(_, flight)| which(flight));
        let mut flights: Vec<_> = flights
            .map(|(tag, flight)| InFlight {
                tag: *tag,
                order: flight.order,
                message: flight.message.clone(),
                latest: flight.latest,
            })
            .collect();
        flights.sort_by_key(|flight| flight.order);
        flights
    }

    /// The answer to a request that builds on a fid that is stale.
    fn answer_of_stale(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let (tag, request) = Tmessage::decode(DIALECT, message).ok()?;
        let is_stale = |fid: &Fid| self.session.fids.get(fid).is_some_and(|fid| fid.stale);
        let fid = fids_of(&request).into_iter().flatten().find(is_stale)?;
        let gives_up = matches!(request, Tmessage::Clunk { .. } | Tmessage::Remove { .. });
        if gives_up {
            let errno = Errno::ESTALE.raw().into();
            let nothing = Rmessage::Lerror { errno };
            self.session
                .answered(&Tmessage::Clunk { fid }, &nothing, false);
            self.stale -= 1;
        }
        Some(match request {
            Tmessage::Clunk { .. } => encoded(tag, &Rmessage::Clunk {}),
            _ => refused(tag, Errno::ESTALE),
        })
    }
}

/// The fid that a Twalk without names makes.
fn makes(message: &[u8]) -> Option<Fid> {
    if message[4] != Kind::Walk.request() {
        return None;
    }
    match Tmessage::decode(DIALECT, message) {
        Ok((_, Tmessage::Walk { newfid, names, .. })) if names.is_empty() => Some(newfid),
        _ => None,
    }
}

fn encoded(tag: Tag, reply: &Rmessage<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    reply.encode(DIALECT, tag, &mut message);
    message
}

fn refused(tag: Tag, errno: Errno) -> Vec<u8> {
    let errno = errno.raw().into();
    encoded(tag, &Rmessage::Lerror { errno })
}
