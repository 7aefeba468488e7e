//! A client of nothing but messages.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU16, Ordering};
use std::task::{Wake, Waker};

use memory::Memory;
use p9::server::{Connection, ExportList, NumericUsers, Options, Server};
use p9::{Dialect, Fid, Names, Qid, Rmessage, Tag, Tmessage, Uid};
use vfs::{Call, Errno, Export, Patience, Payload, Result, Sink, Time};
use wire::{Answer, Incoming, Outgoing, Session};

/// The root of every attach of [`Net::attached`].
pub(crate) const ROOT: Fid = Fid(0);

/// A fid that no test means anything by.
pub(crate) const FREE: Fid = Fid(77);

/// A server over a tree in memory, whose clock moves by a nanosecond each time it is looked at.
pub(crate) fn server(options: Options) -> Server {
    Server::new(
        Arc::new(ExportList(vec![Arc::new(Export::new("", tree()))])),
        Arc::new(NumericUsers),
        options,
    )
}

pub(crate) fn tree() -> Arc<Memory> {
    let ticks = AtomicI64::new(1_000_000_000_000_000_000);
    Memory::new(Arc::new(move || {
        let now = ticks.fetch_add(1, Ordering::Relaxed);
        Time {
            sec: now / 1_000_000_000,
            nsec: (now % 1_000_000_000) as u32,
        }
    }))
}

/// A connection.
pub(crate) struct Net {
    pub(crate) session: Connection,
    pub(crate) dialect: Dialect,
    pub(crate) msize: u32,
    next_tag: AtomicU16,
}

/// A request that is parked.
pub(crate) struct Parked {
    call: Arc<Call>,
    message: Vec<u8>,
    woken: Arc<Woken>,
}

struct Woken(std::sync::atomic::AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What a request came to.
pub(crate) enum Came {
    Reply(Rmessage<'static>),
    Parked(Parked),
}

impl Net {
    /// A connection that has said nothing yet.
    pub(crate) fn silent(server: &Server) -> Net {
        Net {
            session: server.session(),
            dialect: Dialect::Plan9,
            msize: 8192,
            next_tag: AtomicU16::new(1),
        }
    }

    /// A connection in its session.
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

    /// A connection whose [`ROOT`] is the super-user's root of a fresh tree.
    pub(crate) fn attached(dialect: Dialect) -> Net {
        Net::on(&server(Options::default()), dialect)
    }

    /// A connection whose [`ROOT`] is the super-user's root.
    pub(crate) fn on(server: &Server, dialect: Dialect) -> Net {
        let net = Net::new(server, dialect, 1 << 16);
        net.attach(ROOT, 0);
        net
    }

    /// Sends a request and takes its reply, an error's as well.
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
        let reply = self.exchange(message);
        let (answered, reply) = Rmessage::decode(dialect, Vec::leak(reply)).expect("a reply");
        assert_eq!(answered, tag);
        reply
    }

    /// Sends bytes and takes bytes.
    pub(crate) fn exchange(&self, message: Vec<u8>) -> Vec<u8> {
        let frame = self.session.frame(&message).expect("a frame");
        assert_eq!(frame, Some(message.len()));
        self.session.role(&message).expect("a role");
        match self.try_exchange(&Call::detached(), &message) {
            Ok((Answer::Done, reply)) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// Serves with ever more patience, as the engine does.
    pub(crate) fn try_exchange(
        &self,
        call: &Call,
        message: &[u8],
    ) -> std::result::Result<(Answer, Vec<u8>), wire::Malformed> {
        for patience in [Patience::None, Patience::Brief, Patience::Full] {
            let mut out = Reply {
                bytes: Vec::new(),
                most: self.msize as usize,
            };
            let message = Message(message);
            let answer = self.session.serve(call, patience, &message, &mut out)?;
            if answer != Answer::Done {
                assert_eq!(out.bytes, b"", "{answer:?} leaves nothing behind");
            }
            if answer != Answer::WouldBlock {
                return Ok((answer, out.bytes));
            }
        }
        panic!("a request that full patience is too short for");
    }

    /// Sends a request that may have to wait.
    pub(crate) fn park(&self, request: &Tmessage<'_>) -> Came {
        let mut message = Vec::new();
        request.encode(self.dialect, self.tag(), &mut message);
        let woken = Arc::new(Woken(false.into()));
        let call = Call::parkable(Waker::from(woken.clone()));
        self.resume(Parked {
            call: Arc::new(call),
            message,
            woken,
        })
    }

    /// Serves a parked request again.
    pub(crate) fn resume(&self, parked: Parked) -> Came {
        match self.try_exchange(&parked.call, &parked.message) {
            Ok((Answer::Done, reply)) => {
                let reply = Rmessage::decode(self.dialect, Vec::leak(reply));
                Came::Reply(reply.expect("a reply").1)
            }
            Ok((Answer::Parked, _)) => Came::Parked(parked),
            other => panic!("{other:?}"),
        }
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

    /// Walks a path with slashes all the way, from `fid` to `newfid`.
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

    /// The path from the root does not lead anywhere.
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

/// What an error says.
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

impl Came {
    #[track_caller]
    pub(crate) fn parked(self) -> Parked {
        match self {
            Came::Parked(parked) => parked,
            Came::Reply(reply) => panic!("{reply:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn reply(self) -> Rmessage<'static> {
        match self {
            Came::Reply(reply) => reply,
            Came::Parked(_) => panic!("parked"),
        }
    }
}

impl Parked {
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    pub(crate) fn cancel(&self) {
        self.call.cancel();
    }
}

/// A whole message as it came.
pub(crate) struct Message<'a>(pub(crate) &'a [u8]);

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

/// A reply under construction, never longer than was agreed on.
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) most: usize,
}

impl Sink for Reply {
    fn room(&self) -> usize {
        self.most - self.bytes.len()
    }

    fn bytes(&mut self, data: &[u8]) {
        assert!(data.len() <= self.room(), "a reply beyond msize");
        self.bytes.extend_from_slice(data);
    }

    fn zeros(&mut self, len: usize) {
        assert!(len <= self.room(), "a reply beyond msize");
        self.bytes.resize(self.bytes.len() + len, 0);
    }

    fn file(&mut self, _: BorrowedFd<'_>, _: u64, _: usize, _: Patience) -> Result<usize> {
        unreachable!("a tree in memory has no descriptors")
    }
}

impl Outgoing for Reply {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn patch(&mut self, at: usize, data: &[u8]) {
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }
}
