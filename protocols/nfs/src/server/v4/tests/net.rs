//! A client that sends raw compounds.

use std::cell::Cell;
use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostdir::HostDir;
use memory::Memory;
use vfs::memory::MemoryBudget;
use vfs::{Call, Export, FileSystem, HandleKey, Peer};
use vfs_testkit::{Message, clock, session};
use wire::{MessageSender, ServeOutcome, Session as _, Xdr, XdrReader};

use crate::rpc::{self, flavor, program};
use crate::server::{Connection, Options, Server};
use crate::v4::Status;
use crate::v4::callback::{self, CallbackHead, CallbackOp, CallbackSequence};
use crate::v4::op::Op;

/// A server with a simulated clock.
pub(super) struct World {
    pub(super) server: Arc<Server>,
    clock: Arc<AtomicU64>,
}

impl World {
    /// Creates a server of a tree in memory.
    pub(super) fn new() -> World {
        World::over(Memory::new(clock()))
    }

    /// Creates a server of a directory of the host, with these options. Its handles are also valid
    /// in another such server.
    pub(super) fn on_host(directory: &Path, set: impl FnOnce(&mut Options)) -> World {
        let shown = hostdir::Options {
            key: Some(HandleKey::new([7; 32])),
            ..hostdir::Options::default()
        };
        let source = HostDir::open(directory, shown).expect("exported");
        World::with(source, set)
    }

    /// Creates a server of `tree`.
    pub(super) fn over(tree: Arc<dyn FileSystem>) -> World {
        World::with(tree, |_| {})
    }

    /// Creates a server of `tree` with this clock.
    pub(super) fn at(
        tree: Arc<dyn FileSystem>,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> World {
        World::with(tree, |options| options.clock = Arc::new(clock))
    }

    /// Creates a server of `tree` as the only export, called `name`.
    pub(super) fn named(name: &str, tree: Arc<dyn FileSystem>) -> World {
        World::exporting(Export::new(name, tree), |_| {})
    }

    /// Creates a server of `tree`, with some options.
    pub(super) fn with(tree: Arc<dyn FileSystem>, set: impl FnOnce(&mut Options)) -> World {
        World::exporting(Export::new("", tree), set)
    }

    fn exporting(export: Export, set: impl FnOnce(&mut Options)) -> World {
        let export = Arc::new(export);
        let clock = Arc::new(AtomicU64::new(0));
        let time = clock.clone();
        let now = move || Duration::from_secs(time.load(Ordering::SeqCst));
        let mut options = Options::new(7, Arc::new(now));
        set(&mut options);
        World {
            server: Server::new(export, options),
            clock,
        }
    }

    /// Advances the clock, and runs the server's periodic work.
    pub(super) fn pass(&self, seconds: u64) {
        self.clock.fetch_add(seconds, Ordering::SeqCst);
        self.server.maintain();
    }

    /// Returns a connection of the superuser.
    pub(super) fn net(&self, minor: u32) -> Net {
        let session = self.server.session();
        let (say, heard) = channel();
        session.set_message_sender(Arc::new(Said(Mutex::new(say))));
        Net {
            session,
            heard,
            minor,
            uid: Cell::new(0),
            peer: None,
            xid: Cell::new(1),
        }
    }

    /// Returns a connection of the superuser from `addr`.
    pub(super) fn net_from(&self, minor: u32, addr: &str) -> Net {
        let addr = addr.parse().expect("an address");
        Net {
            peer: Some(Arc::new(Peer::remote(addr, 700))),
            ..self.net(minor)
        }
    }
}

impl Net {
    /// Changes the connection's peer to one at `addr` whose memory is reserved in `budget`.
    pub(super) fn reserving(self, addr: &str, budget: &Arc<MemoryBudget>) -> Net {
        let addr = addr.parse().expect("an address");
        Net {
            peer: Some(Arc::new(Peer::remote(addr, 700).with_budget(budget))),
            ..self
        }
    }
}

/// The receiver of the server's own messages.
struct Said(Mutex<Sender<Vec<u8>>>);

impl MessageSender for Said {
    fn send(&self, message: &[u8]) -> bool {
        let to = self.0.lock().expect("no panic holds it");
        to.send(message.to_vec()).is_ok()
    }
}

/// A connection.
pub(super) struct Net {
    session: Connection,
    /// The server's own messages: callbacks.
    pub(super) heard: Receiver<Vec<u8>>,
    pub(super) minor: u32,
    /// The caller's user ID.
    pub(super) uid: Cell<u32>,
    /// The peer, if it has an address.
    pub(super) peer: Option<Arc<Peer>>,
    xid: Cell<u32>,
}

impl Net {
    /// Sends a compound and returns its reply.
    pub(super) fn send(&self, ops: &[Op<'_>]) -> Reply {
        self.again(&self.message(ops))
    }

    /// Returns an encoded compound with a new XID.
    pub(super) fn message(&self, ops: &[Op<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for op in ops {
            op.put(&mut bytes);
        }
        self.message_of(ops.len() as u32, &bytes)
    }

    /// Returns an encoded compound of `count` operations, which are encoded in `ops`.
    pub(super) fn message_of(&self, count: u32, ops: &[u8]) -> Vec<u8> {
        let xid = self.xid.get();
        self.xid.set(xid + 1);
        let mut message = vec![0; rpc::MARK];
        let head = [xid, rpc::CALL, 2, program::NFS, 4, 1];
        let credential = [flavor::SYS, 20, 0, 0, self.uid.get(), self.uid.get(), 0];
        let verifier = [flavor::NONE, 0];
        let compound = [0, self.minor, count];
        for number in [&head[..], &credential, &verifier, &compound].concat() {
            number.put(&mut message);
        }
        message.extend_from_slice(ops);
        let mark = (message.len() - rpc::MARK) as u32 | rpc::LAST;
        message[..rpc::MARK].copy_from_slice(&mark.to_be_bytes());
        message
    }

    /// Sends a message that is not a call.
    pub(super) fn tell(&self, message: &[u8]) {
        let call = Call::detached();
        let served = session::serve_patiently(&self.session, &call, &Message::new(message), 0);
        assert_eq!(served, Ok((ServeOutcome::Done, Vec::new())));
    }

    /// Sends a message, possibly again.
    pub(super) fn again(&self, message: &[u8]) -> Reply {
        const MOST: usize = 2 << 20;
        assert_eq!(self.session.frame(message), Ok(Some(message.len())));
        let call = match &self.peer {
            Some(peer) => Call::detached().with_peer(peer.clone()),
            None => Call::detached(),
        };
        let served = session::serve_patiently(&self.session, &call, &Message::new(message), MOST);
        match served {
            Ok((ServeOutcome::Done, bytes)) => Reply::new(bytes),
            other => panic!("{other:?}"),
        }
    }
}

/// A received callback: CB_SEQUENCE and one operation.
pub(super) struct Called(Vec<u8>);

impl Called {
    /// Receives the next callback on a connection.
    #[track_caller]
    pub(super) fn on(net: &Net) -> Called {
        let said = net.heard.recv_timeout(Duration::from_secs(20));
        Called(said.expect("the server calls"))
    }

    /// Returns its operations.
    #[track_caller]
    pub(super) fn read(&self) -> (CallbackSequence, CallbackOp<'_>) {
        let mut from = XdrReader::new(&self.0[rpc::MARK + 4..]);
        assert_eq!(from.u32(), Ok(rpc::CALL));
        let call = rpc::Call::read(&mut from).expect("a call");
        assert_eq!((call.program, call.version), (0x4000_0000, 1));
        let head = CallbackHead::get(&mut from).expect("a head");
        assert_eq!(head.count, 2);
        let sequence = CallbackOp::get(&mut from).expect("an operation");
        let CallbackOp::Sequence(sequence) = sequence else {
            panic!("expected CB_SEQUENCE, got {sequence:?}");
        };
        let op = CallbackOp::get(&mut from).expect("an operation");
        from.end().expect("nothing behind it");
        (sequence, op)
    }

    /// Answers it: the operation after CB_SEQUENCE has this status.
    pub(super) fn answer(&self, net: &Net, status: Status) {
        let mut from = XdrReader::new(&self.0[rpc::MARK..]);
        let xid = from.u32().expect("an id");
        let (sequence, op) = self.read();
        let number = match op {
            CallbackOp::Recall(_) => 4,
            CallbackOp::RecallAny(_) => 8,
            CallbackOp::Sequence(_) => 11,
            CallbackOp::NotifyLock(_) => 13,
            CallbackOp::Offload(_) => 15,
        };
        net.tell(&callback::reply(xid, &sequence, number, status));
    }
}

/// The reply to a compound.
#[derive(PartialEq)]
pub(super) struct Reply {
    pub(super) bytes: Vec<u8>,
    pub(super) status: Status,
    /// The number of operations with a result.
    pub(super) count: u32,
    at: Cell<usize>,
}

impl Reply {
    fn new(bytes: Vec<u8>) -> Reply {
        let mut from = XdrReader::new(&bytes[rpc::MARK..]);
        for want in [None, Some(1), Some(0), Some(0), Some(0), Some(0)] {
            let got = from.u32().expect("a head");
            assert_eq!(got, want.unwrap_or(got), "it is carried out");
        }
        let status = Status::get(&mut from).expect("a status");
        assert_eq!(from.opaque(0), Ok(&b""[..]), "the tag");
        let count = from.u32().expect("a count");
        let at = Cell::new(rpc::MARK + from.position());
        Reply {
            bytes,
            status,
            count,
            at,
        }
    }

    /// Returns its length in bytes, without the record mark.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - rpc::MARK
    }

    /// Returns the next operation's status and, if it has one, its body.
    fn next<'a, R: Xdr<'a>>(
        &'a self,
        has_body: impl FnOnce(Status) -> bool,
    ) -> (Status, Option<R>) {
        let mut from = XdrReader::new(&self.bytes[self.at.get()..]);
        from.u32().expect("a number");
        let status = Status::get(&mut from).expect("a status");
        let body = has_body(status).then(|| R::get(&mut from).expect("a result"));
        self.at.set(self.at.get() + from.position());
        (status, body)
    }

    /// Returns the next operation's result, which must have succeeded.
    #[track_caller]
    pub(super) fn ok<'a, R: Xdr<'a>>(&'a self) -> R {
        let (status, body) = self.next(|status| status == Status::Ok);
        body.unwrap_or_else(|| panic!("expected it to be done, got {status:?}"))
    }

    /// Returns the body of the last operation's error.
    #[track_caller]
    pub(super) fn refused<'a, R: Xdr<'a> + Debug>(&'a self) -> (Status, R) {
        let (status, body) = self.next(|_| true);
        assert_eq!(status, self.status, "{body:?}");
        (status, body.expect("asked for"))
    }

    /// Checks that all operations have succeeded.
    #[track_caller]
    pub(super) fn done(self) -> Reply {
        assert_eq!(self.status, Status::Ok, "after {} operations", self.count);
        self
    }
}

impl Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} after {}: {:?}",
            self.status, self.count, self.bytes
        )
    }
}
