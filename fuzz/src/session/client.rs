//! A connection, driven as the engine drives one, and the invariants of each reply.

use p9::client::reply;
use p9::message::{HEADER, Header};
use p9::server::{Connection, Options, Server};
use p9::{Dialect, Kind, Rmessage, Tag, Tmessage};
use vfs::{Call, Patience};
use vfs_testkit::Message;
use vfs_testkit::session::{self, Parked};
use wire::{Role, ServeOutcome, Session};

use crate::ROOM;

/// The maximum message size before negotiation; the server's own limit, repeated here on purpose.
const FIRST_MSIZE: usize = 8192;

/// A client that sends the bytes it is given, and its session.
pub(super) struct Client {
    session: Connection,
    /// The result of Rversion.
    agreed: Option<(Dialect, usize)>,
    input: Vec<u8>,
    parked: Vec<Flight>,
    closed: bool,
}

/// A parked request.
struct Flight {
    id: u64,
    request: Parked,
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

    /// Receives bytes and serves the complete messages among them.
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

    /// Reruns parked requests that were woken.
    pub(super) fn resume(&mut self) {
        let is_woken = |flight: &Flight| flight.request.is_woken();
        while let Some(at) = self.parked.iter().position(is_woken) {
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
            Role::Cancel { id, target } | Role::Interrupt { id, target } => {
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
            Some(ServeOutcome::Done | ServeOutcome::StartTls) | None => {}
            Some(ServeOutcome::WouldBlock | ServeOutcome::Parked) => {
                let request = Parked::new(message);
                self.run(Flight { id, request });
            }
        }
    }

    fn run(&mut self, flight: Flight) {
        match self.serve_fully(&flight) {
            Some(ServeOutcome::Parked) => self.parked.push(flight),
            Some(ServeOutcome::Done | ServeOutcome::StartTls) | None => {}
            Some(ServeOutcome::WouldBlock) => panic!("would block where it may wait"),
        }
    }

    fn cancel(&mut self, flight: Flight) {
        flight.request.cancel();
        let answer = self.serve_fully(&flight);
        assert_ne!(answer, Some(ServeOutcome::WouldBlock));
        assert_ne!(
            answer,
            Some(ServeOutcome::Parked),
            "cancelled, and still waits"
        );
    }

    fn cancel_all(&mut self) {
        for flight in std::mem::take(&mut self.parked) {
            self.cancel(flight);
        }
    }

    fn serve_fully(&mut self, flight: &Flight) -> Option<ServeOutcome> {
        let serve = |call: &Call, message: &[u8]| self.serve(call, Patience::Full, message);
        flight.request.serve(serve)
    }

    /// Serves a message once; `None` if that closes the connection.
    fn serve(&mut self, call: &Call, patience: Patience, message: &[u8]) -> Option<ServeOutcome> {
        let served = session::serve(&self.session, call, patience, &Message::new(message), ROOM);
        let Ok((answer, reply)) = served else {
            self.closed = true;
            return None;
        };
        if answer == ServeOutcome::Done {
            self.check(message, &reply);
        }
        Some(answer)
    }

    /// Checks that the reply is well-formed and belongs to this request.
    fn check(&mut self, request: &[u8], reply: &[u8]) {
        let most = self.msize();
        assert!(reply.len() <= most, "{} bytes of {most}", reply.len());
        if let Ok((_, Tmessage::Version { msize, .. })) = Tmessage::decode(self.dialect(), request)
        {
            return self.check_version(msize, request, reply);
        }
        let reply = reply::check(self.dialect(), request, reply).expect("a sound reply");
        if !matches!(reply.kind(), Kind::Lerror | Kind::Error) {
            let asked = Header::decode(request).expect("it was framed");
            assert!(self.agreed.is_some(), "served before Tversion");
            assert_ne!(asked.tag, Tag::NONE);
        }
    }

    /// Checks a reply to Tversion, whose parameters replace the previous ones.
    fn check_version(&mut self, asked: u32, request: &[u8], reply: &[u8]) {
        self.agreed = None;
        let checked = Dialect::ALL
            .into_iter()
            .find_map(|dialect| reply::check(dialect, request, reply).ok());
        let reply = checked.expect("a sound reply of some dialect");
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
