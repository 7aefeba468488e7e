//! A connection, driven as the engine drives one, and what must hold of each answer.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use p9::message::{HEADER, Header};
use p9::server::{Connection, Options, Server};
use p9::{Dialect, Kind, Qid, Rmessage, Tag, Tmessage};
use vfs::{Call, Patience, Payload, Result, Sink};
use wire::{Answer, Incoming, Outgoing, Reader, Role, Session};

/// The largest message before anything is agreed on; the server's own bound, repeated here on purpose.
const FIRST_MSIZE: usize = 8192;

/// A client that sends whatever it is told to, and the session that answers it.
pub(super) struct Client {
    session: Connection,
    /// What Rversion agreed on.
    agreed: Option<(Dialect, usize)>,
    input: Vec<u8>,
    parked: Vec<Flight>,
    closed: bool,
}

/// A request that waits.
struct Flight {
    id: u64,
    message: Vec<u8>,
    call: Call,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Client {
    pub(super) fn new(server: &Server) -> Client {
        Client {
            session: server.session(),
            agreed: None,
            input: Vec::new(),
            parked: Vec::new(),
            closed: false,
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.agreed.map_or(Dialect::Plan9, |(dialect, _)| dialect)
    }

    /// Takes bytes off the wire and answers the whole messages among them.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while !self.closed {
            let msize = self.msize();
            let Ok(frame) = self.session.frame(&self.input) else {
                return self.close();
            };
            let Some(len) = frame else {
                assert!(self.input.len() < 4, "a size is there and not told");
                return;
            };
            assert!((HEADER..=msize).contains(&len), "a message of {len} bytes");
            if self.input.len() < len {
                return;
            }
            let message: Vec<u8> = self.input.drain(..len).collect();
            self.take(message);
        }
    }

    /// Serves again what waits and has been woken.
    pub(super) fn resume(&mut self) {
        let woken = |flight: &Flight| flight.woken.0.swap(false, Ordering::SeqCst);
        while let Some(at) = self.parked.iter().position(woken) {
            let flight = self.parked.remove(at);
            self.run(flight);
        }
    }

    fn take(&mut self, message: Vec<u8>) {
        let Ok(role) = self.session.role(&message) else {
            return self.close();
        };
        let id = match role {
            Role::Request { id } => id,
            Role::Cancel { id, target } => {
                if let Some(at) = self.parked.iter().position(|flight| flight.id == target)
                    && id != target
                {
                    let flight = self.parked.remove(at);
                    self.cancel(flight);
                }
                id
            }
            Role::Reset { id } => {
                self.cancel_all();
                id
            }
        };
        if self.parked.iter().any(|flight| flight.id == id) {
            return self.close();
        }
        match self.serve(&Call::detached(), Patience::Brief, &message) {
            Some(Answer::Done) | None => {}
            Some(Answer::WouldBlock | Answer::Parked) => {
                let woken = Arc::new(Woken::default());
                let call = Call::parkable(Waker::from(woken.clone()));
                self.run(Flight {
                    id,
                    message,
                    call,
                    woken,
                });
            }
        }
    }

    fn run(&mut self, flight: Flight) {
        match self.serve(&flight.call, Patience::Full, &flight.message) {
            Some(Answer::Parked) => self.parked.push(flight),
            Some(Answer::Done) | None => {}
            Some(Answer::WouldBlock) => panic!("would block where it may wait"),
        }
    }

    fn cancel(&mut self, flight: Flight) {
        flight.call.cancel();
        let answer = self.serve(&flight.call, Patience::Full, &flight.message);
        assert_ne!(answer, Some(Answer::WouldBlock));
        assert_ne!(answer, Some(Answer::Parked), "cancelled, and still waits");
    }

    fn cancel_all(&mut self) {
        for flight in std::mem::take(&mut self.parked) {
            self.cancel(flight);
        }
    }

    /// Serves once; nothing if that ends the connection.
    fn serve(&mut self, call: &Call, patience: Patience, message: &[u8]) -> Option<Answer> {
        let mut out = Reply(Vec::new());
        let answer = self
            .session
            .serve(call, patience, &Message(message), &mut out);
        match answer {
            Ok(Answer::Done) => self.check(message, &out.0),
            Ok(Answer::WouldBlock | Answer::Parked) => {
                assert_eq!(out.0, b"", "{answer:?} leaves something behind");
            }
            Err(_) => {
                assert_eq!(out.0, b"", "a reply to what is no message");
                self.closed = true;
            }
        }
        answer.ok()
    }

    /// The reply is one, and one to this request.
    fn check(&mut self, request: &[u8], reply: &[u8]) {
        let most = self.msize();
        assert!(reply.len() <= most, "{} bytes of {most}", reply.len());
        let asked = Header::decode(request).expect("it was framed");
        let told = Header::decode(reply).expect("a reply");
        assert_eq!(told.tag, asked.tag);
        if let Ok((_, Tmessage::Version { msize, .. })) = Tmessage::decode(self.dialect(), request)
        {
            return self.check_version(msize, reply);
        }
        let dialect = self.dialect();
        let (_, reply) = Rmessage::decode(dialect, reply).expect("a reply of its dialect");
        match reply {
            Rmessage::Lerror { errno } => assert!((1..=4095).contains(&errno)),
            Rmessage::Error { text, .. } => assert!(!text.is_empty()),
            _ => {
                assert!(self.agreed.is_some(), "served before Tversion");
                assert_ne!(asked.tag, Tag::NONE);
                assert_eq!(reply.kind().request(), asked.number);
                let (_, request) = Tmessage::decode(dialect, request).expect("it was served");
                check_contents(&request, &reply);
            }
        }
    }

    /// What it says holds from now on, and nothing of what held before.
    fn check_version(&mut self, asked: u32, reply: &[u8]) {
        self.agreed = None;
        let decoded = Dialect::ALL
            .into_iter()
            .find_map(|dialect| Rmessage::decode(dialect, reply).ok());
        let (_, reply) = decoded.expect("a reply of some dialect");
        let Rmessage::Version { msize, version } = reply else {
            return assert!(matches!(reply.kind(), Kind::Lerror | Kind::Error));
        };
        assert!(msize <= asked);
        if version == b"unknown" {
            return;
        }
        assert!(msize >= Options::MIN_MSIZE);
        let is_it = |dialect: &Dialect| dialect.version().as_bytes() == version;
        let dialect = Dialect::ALL.into_iter().find(is_it);
        self.agreed = Some((dialect.expect("a dialect"), msize as usize));
    }

    fn msize(&self) -> usize {
        self.agreed.map_or(FIRST_MSIZE, |(_, msize)| msize)
    }

    fn close(&mut self) {
        self.closed = true;
        self.cancel_all();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.cancel_all();
        }
    }
}

/// No more than was asked for, and whole entries.
fn check_contents(request: &Tmessage<'_>, reply: &Rmessage<'_>) {
    match (request, reply) {
        (Tmessage::Walk { names, .. }, Rmessage::Walk { qids }) => {
            assert!(qids.len() <= names.len());
            assert!(names.is_empty() || !qids.is_empty());
        }
        (Tmessage::Read { count, .. }, Rmessage::Read { data }) => {
            assert!(data.0.len() <= *count as usize);
        }
        (Tmessage::Write { data, .. }, Rmessage::Write { count }) => {
            assert!(*count as usize <= data.0.len());
        }
        (Tmessage::Readdir { count, .. }, Rmessage::Readdir { data }) => {
            assert!(data.0.len() <= *count as usize);
            let mut entries = Reader::new(data.0);
            while !entries.rest().is_empty() {
                entries.bytes(Qid::SIZE).expect("a qid");
                entries.u64().expect("an offset");
                entries.u8().expect("a type");
                let len = entries.u16().expect("a length");
                let name = entries.bytes(len.into()).expect("a name");
                assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
            }
        }
        _ => {}
    }
}

/// A whole message as it came.
struct Message<'a>(&'a [u8]);

impl Incoming for Message<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }

    fn payload(
        &self,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut dyn Payload) -> Result<usize>,
    ) -> Result<usize> {
        write(&mut Bytes(&self.0[range]))
    }
}

struct Bytes<'a>(&'a [u8]);

impl Payload for Bytes<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        take(std::mem::take(&mut self.0))
    }

    fn file(&mut self, _: BorrowedFd<'_>, _: u64) -> Result<usize> {
        unreachable!("a tree in memory has no descriptors")
    }
}

/// A reply under construction, with far more room than any session may use.
struct Reply(Vec<u8>);

impl Reply {
    const ROOM: usize = 64 << 20;
}

impl Sink for Reply {
    fn room(&self) -> usize {
        Reply::ROOM - self.0.len()
    }

    fn bytes(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        self.0.resize(self.0.len() + len, 0);
    }

    fn file(&mut self, _: BorrowedFd<'_>, _: u64, _: usize, _: Patience) -> Result<usize> {
        unreachable!("a tree in memory has no descriptors")
    }
}

impl Outgoing for Reply {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn patch(&mut self, at: usize, data: &[u8]) {
        self.0[at..at + data.len()].copy_from_slice(data);
    }

    fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
}
