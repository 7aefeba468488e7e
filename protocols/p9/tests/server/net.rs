//! A client that sends and receives single messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use memory::Memory;
use p9::client::reply;
use p9::server::{Connection, ExportList, NumericUsers, Options, Server};
use p9::{Dialect, Fid, Names, Qid, Rmessage, Tag, Tmessage, Uid};
use vfs::{Call, Errno, Export, Patience, Peer};
use vfs_testkit::session::{self, Parked};
use vfs_testkit::{Message, clock};
use wire::{Malformed, ServeOutcome, Session};

/// The root fid of [`Net::attached`].
pub(crate) const ROOT: Fid = Fid(0);

/// A fid that tests leave unused.
pub(crate) const FREE: Fid = Fid(77);

/// The outcome of a request.
pub(crate) type Served = session::Served<Rmessage<'static>>;

/// Returns a server for a tree in memory.
pub(crate) fn server(options: Options) -> Server {
    let export = Arc::new(Export::new("", Memory::new(clock())));
    Server::new(
        Arc::new(ExportList(vec![export])),
        Arc::new(NumericUsers),
        options,
    )
}

/// A connection.
pub(crate) struct Net {
    pub(crate) session: Connection,
    pub(crate) dialect: Dialect,
    pub(crate) msize: u32,
    /// The origin of its requests; `None` if they have none.
    pub(crate) peer: Option<Arc<Peer>>,
    next_tag: AtomicU16,
}

impl Net {
    /// Returns a connection before Tversion.
    pub(crate) fn silent(server: &Server) -> Net {
        Net::of(server.session(), Dialect::Plan9, 8192)
    }

    /// Returns the connection of a session after Tversion.
    pub(crate) fn of(session: Connection, dialect: Dialect, msize: u32) -> Net {
        Net {
            session,
            dialect,
            msize,
            peer: None,
            next_tag: AtomicU16::new(1),
        }
    }

    /// Returns a call of this connection.
    pub(crate) fn call(&self) -> Call {
        match &self.peer {
            Some(peer) => Call::detached().with_peer(peer.clone()),
            None => Call::detached(),
        }
    }

    /// Returns a connection after Tversion.
    pub(crate) fn new(server: &Server, dialect: Dialect, msize: u32) -> Net {
        let mut net = Net::silent(server);
        let version = dialect.version().as_bytes();
        let reply = net.send(Tag::NONE, &Tmessage::Version { msize, version });
        let Rmessage::Version {
            msize,
            version: answer,
        } = reply
        else {
            panic!("{reply:?}");
        };
        assert_eq!(answer, version);
        net.dialect = dialect;
        net.msize = msize;
        net
    }

    /// Returns a connection whose [`ROOT`] is root's attach to a fresh tree.
    pub(crate) fn attached(dialect: Dialect) -> Net {
        Net::on(&server(Options::default()), dialect)
    }

    /// Returns a connection whose [`ROOT`] is root's attach.
    pub(crate) fn on(server: &Server, dialect: Dialect) -> Net {
        let net = Net::new(server, dialect, 1 << 16);
        net.attach(ROOT, 0);
        net
    }

    /// Sends a request and returns its reply, which may be an error.
    pub(crate) fn rpc(&self, request: &Tmessage<'_>) -> Rmessage<'static> {
        self.send(self.tag(), request)
    }

    fn tag(&self) -> Tag {
        Tag(self.next_tag.fetch_add(1, Ordering::Relaxed) & 0x7fff)
    }

    pub(crate) fn send(&self, tag: Tag, request: &Tmessage<'_>) -> Rmessage<'static> {
        let mut message = Vec::new();
        request.encode(self.dialect, tag, &mut message);
        let dialect = match request {
            Tmessage::Version { .. } => Dialect::Plan9,
            _ => self.dialect,
        };
        checked(dialect, &message, self.answer(&message))
    }

    /// Sends a message and returns its reply.
    pub(crate) fn exchange(&self, message: &[u8]) -> Rmessage<'static> {
        checked(self.dialect, message, self.answer(message))
    }

    fn answer(&self, message: &[u8]) -> Vec<u8> {
        let frame = self.session.frame(message).expect("a frame");
        assert_eq!(frame, Some(message.len()));
        self.session.role(message).expect("a role");
        match self.try_exchange(&self.call(), message) {
            Ok((ServeOutcome::Done, reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Serves with increasing patience, as the engine does.
    pub(crate) fn try_exchange(
        &self,
        call: &Call,
        message: &[u8],
    ) -> Result<(ServeOutcome, Vec<u8>), Malformed> {
        let most = self.msize as usize;
        session::serve_patiently(&self.session, call, &Message::new(message), most)
    }

    /// Serves with one level of patience.
    pub(crate) fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &[u8],
    ) -> (ServeOutcome, Vec<u8>) {
        let most = self.msize as usize;
        session::serve(&self.session, call, patience, &Message::new(message), most)
            .expect("it is framed")
    }

    /// Sends a request that may be parked.
    pub(crate) fn park(&self, request: &Tmessage<'_>) -> Served {
        let mut message = Vec::new();
        request.encode(self.dialect, self.tag(), &mut message);
        self.resume(Parked::new(message))
    }

    /// Serves a parked request again.
    pub(crate) fn resume(&self, parked: Parked) -> Served {
        let reply = parked.serve(|call, message| match self.try_exchange(call, message) {
            Ok((ServeOutcome::Done, reply)) => Some(checked(self.dialect, message, reply)),
            Ok((ServeOutcome::Parked, _)) => None,
            other => panic!("{other:?}"),
        });
        reply.map_or_else(|| Served::Parked(parked), Served::Reply)
    }

    /// Sends a request that must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, request: &Tmessage<'_>) -> Rmessage<'static> {
        let reply = self.rpc(request);
        if let Some(errno) = errno(&reply) {
            panic!("{request:?}: {errno}");
        }
        reply
    }

    /// Sends a request that must fail.
    #[track_caller]
    pub(crate) fn err(&self, request: &Tmessage<'_>) -> Errno {
        let reply = self.rpc(request);
        errno(&reply).unwrap_or_else(|| panic!("{request:?}: {reply:?}"))
    }

    pub(crate) fn attach(&self, fid: Fid, uid: u32) -> Qid {
        self.attach_to(fid, uid, b"")
    }

    pub(crate) fn attach_to(&self, fid: Fid, uid: u32, aname: &[u8]) -> Qid {
        let name = uid.to_string();
        match self.ok(&Tmessage::Attach {
            fid,
            afid: Fid::NONE,
            uname: if self.dialect == Dialect::Plan9 {
                name.as_bytes()
            } else {
                b""
            },
            aname,
            n_uname: Uid(uid),
        }) {
            Rmessage::Attach { qid } => qid,
            other => panic!("{other:?}"),
        }
    }

    /// Walks all of a slash-separated path from `fid` to `newfid`.
    #[track_caller]
    pub(crate) fn walk(&self, fid: Fid, newfid: Fid, path: &str) -> Vec<Qid> {
        let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
        let names = if path.is_empty() { &[] } else { &names[..] };
        let walk = Tmessage::Walk {
            fid,
            newfid,
            names: Names::new(names),
        };
        match self.ok(&walk) {
            Rmessage::Walk { qids } if qids.len() == names.len() => qids.iter().collect(),
            other => panic!("{path}: {other:?}"),
        }
    }

    /// Checks that the path from the root does not exist.
    #[track_caller]
    pub(crate) fn assert_gone(&self, path: &str) {
        let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
        let walk = Tmessage::Walk {
            fid: ROOT,
            newfid: FREE,
            names: Names::new(&names),
        };
        match self.rpc(&walk) {
            Rmessage::Walk { qids } => assert!(qids.len() < names.len(), "{path} is there"),
            reply => assert_eq!(errno(&reply), Some(Errno::ENOENT)),
        }
    }

    #[track_caller]
    pub(crate) fn clunk(&self, fid: Fid) {
        self.ok(&Tmessage::Clunk { fid });
    }

    #[track_caller]
    pub(crate) fn write(&self, fid: Fid, offset: u64, data: &[u8]) -> u32 {
        let data = p9::Data(data);
        match self.ok(&Tmessage::Write { fid, offset, data }) {
            Rmessage::Write { count } => count,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn read(&self, fid: Fid, offset: u64, count: u32) -> &'static [u8] {
        match self.ok(&Tmessage::Read { fid, offset, count }) {
            Rmessage::Read { data } => data.0,
            other => panic!("{other:?}"),
        }
    }
}

/// Decodes a reply, which must be a valid one to `message`.
#[track_caller]
pub(crate) fn checked(dialect: Dialect, message: &[u8], reply: Vec<u8>) -> Rmessage<'static> {
    // Leaked: a test is short.
    reply::check(dialect, message, Vec::leak(reply)).expect("a sound reply")
}

/// Returns the errno of an error reply.
pub(crate) fn errno(reply: &Rmessage<'_>) -> Option<Errno> {
    match reply {
        Rmessage::Lerror { errno } => Some(Errno::from_raw(*errno as i32)),
        Rmessage::Error { text, errno } => Some(match errno.0 {
            0 => Errno::from_text(text).expect("a text of errno's"),
            number => Errno::from_raw(number as i32),
        }),
        _ => None,
    }
}
