//! A client that sends and receives single messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuse::dirent::Dirent;
use fuse::layout::*;
use fuse::message::{HEADER, InitIn, REPLY_HEADER, Text, WRITE_HEAD};
use fuse::numbers::{Flags, InitFlags, ROOT_ID};
use fuse::server::{Options, Server, Session};
use fuse::{Header, Request, WireFormat};
use memory::Memory;
use vfs::{Call, Errno, Export, Patience, Result};
use vfs_testkit::session::{self, Parked};
use vfs_testkit::{Message, clock};
use wire::{ServeOutcome, Session as _};

/// The outcome of a request: its reply's arguments, or that it waits.
pub(crate) type Served = session::Served<Result<Vec<u8>>>;

/// Returns a server for a tree in memory.
pub(crate) fn server(options: Options) -> Server {
    let export = Export::new("", Memory::new(clock()));
    Server::new(Arc::new(export), options)
}

/// A mount.
pub(crate) struct Net {
    pub(crate) session: Arc<Session>,
    /// The largest reply in bytes.
    pub(crate) room: usize,
    pub(crate) uid: u32,
    next: AtomicU64,
}

/// All flags that a kernel may offer.
pub(crate) const OFFERED: InitFlags = InitFlags::all();

impl Net {
    /// Returns a mount before INIT.
    pub(crate) fn silent(server: &Server) -> Net {
        Net::of(server.session())
    }

    /// Returns the mount of a session before INIT.
    pub(crate) fn of(session: Session) -> Net {
        Net {
            session: Arc::new(session),
            room: 1 << 16,
            uid: 0,
            next: AtomicU64::new(2),
        }
    }

    /// Returns a mount with all flags offered.
    pub(crate) fn on(server: &Server) -> Net {
        let net = Net::silent(server);
        net.init();
        net
    }

    /// Returns root's mount of a fresh tree.
    pub(crate) fn new() -> Net {
        Net::on(&server(Options::default()))
    }

    #[track_caller]
    pub(crate) fn init(&self) -> InitOut {
        let answer = self.ok(ROOT_ID, &init(7, 45, OFFERED));
        InitOut::decode(&answer).expect("an answer")
    }

    fn encode(&self, nodeid: u64, request: &Request<'_>, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            unique: self.next.fetch_add(2, Ordering::Relaxed),
            nodeid,
            uid: self.uid,
            gid: self.uid,
            pid: 77,
            ..Header::default()
        };
        let mut message = Vec::new();
        request.encode(FORM, header, &mut message);
        message.extend_from_slice(payload);
        message
    }

    /// Sends a request and returns its reply's arguments or error.
    pub(crate) fn rpc(&self, nodeid: u64, request: &Request<'_>) -> Result<Vec<u8>> {
        self.exchange(&self.encode(nodeid, request, b""))
    }

    /// Sends a message that must be answered.
    #[track_caller]
    pub(crate) fn exchange(&self, message: &[u8]) -> Result<Vec<u8>> {
        let frame = self.session.frame(message).expect("a frame");
        assert!(frame.is_some_and(|len| len == message.len() || len == WRITE_HEAD));
        self.session.role(message).expect("a role");
        match self.try_exchange(&Call::detached(), message) {
            (ServeOutcome::Done, reply) => open(message, &reply),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request that has no reply.
    #[track_caller]
    pub(crate) fn tell(&self, nodeid: u64, request: &Request<'_>) {
        let message = self.encode(nodeid, request, b"");
        let answer = self.try_exchange(&Call::detached(), &message);
        assert_eq!(answer, (ServeOutcome::Done, vec![]));
    }

    /// Serves with increasing patience, as the engine does.
    pub(crate) fn try_exchange(&self, call: &Call, message: &[u8]) -> (ServeOutcome, Vec<u8>) {
        session::serve_patiently(&*self.session, call, &self.queued(message), self.room)
            .expect("a header")
    }

    pub(crate) fn serve(
        &self,
        call: &Call,
        patience: Patience,
        message: &[u8],
    ) -> (ServeOutcome, Vec<u8>) {
        session::serve(
            &*self.session,
            call,
            patience,
            &self.queued(message),
            self.room,
        )
        .expect("a header")
    }

    /// Returns a message as a virtqueue holds it: a write's data are in its payload only.
    fn queued<'a>(&self, message: &'a [u8]) -> Message<&'a [u8]> {
        let together = self.session.frame(message).ok().flatten();
        Message::with_separate_payload(message, together.unwrap_or(message.len()))
    }

    /// Sends a request that may be parked.
    pub(crate) fn park(&self, nodeid: u64, request: &Request<'_>) -> Served {
        self.resume(Parked::new(self.encode(nodeid, request, b"")))
    }

    /// Serves a parked request again.
    pub(crate) fn resume(&self, parked: Parked) -> Served {
        let reply = parked.serve(|call, message| match self.try_exchange(call, message) {
            (ServeOutcome::Done, reply) => Some(open(message, &reply)),
            (ServeOutcome::Parked, _) => None,
            other => panic!("{other:?}"),
        });
        reply.map_or_else(|| Served::Parked(parked), Served::Reply)
    }

    /// Sends a request that must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, nodeid: u64, request: &Request<'_>) -> Vec<u8> {
        self.rpc(nodeid, request)
            .unwrap_or_else(|errno| panic!("{request:?}: {errno}"))
    }

    /// Sends a request that must fail.
    #[track_caller]
    pub(crate) fn err(&self, nodeid: u64, request: &Request<'_>) -> Errno {
        match self.rpc(nodeid, request) {
            Err(errno) => errno,
            Ok(reply) => panic!("{request:?}: {reply:x?}"),
        }
    }

    #[track_caller]
    pub(crate) fn lookup(&self, up: u64, name: &str) -> EntryOut {
        entry(&self.ok(up, &lookup(name)))
    }

    #[track_caller]
    pub(crate) fn mkdir(&self, up: u64, name: &str) -> EntryOut {
        let args = MkdirIn {
            mode: 0o755,
            umask: 0,
        };
        let name = Text(name.as_bytes());
        entry(&self.ok(up, &Request::Mkdir { args, name }))
    }

    /// Makes a file and opens it for reading and writing.
    #[track_caller]
    pub(crate) fn create(&self, up: u64, name: &str) -> (EntryOut, OpenOut) {
        let answer = self.ok(up, &create(name, 0o102));
        let open = OpenOut::decode(&answer[EntryOut::SIZE..]).expect("an answer");
        (entry(&answer), open)
    }

    #[track_caller]
    pub(crate) fn open(&self, nodeid: u64, flags: u32) -> OpenOut {
        let answer = self.ok(nodeid, &open_with(flags));
        OpenOut::decode(&answer).expect("an answer")
    }

    #[track_caller]
    pub(crate) fn opendir(&self, nodeid: u64) -> OpenOut {
        let args = OpenIn::default();
        let answer = self.ok(nodeid, &Request::Opendir { args });
        OpenOut::decode(&answer).expect("an answer")
    }

    pub(crate) fn write(&self, fh: u64, offset: u64, data: &[u8]) -> Result<u32> {
        self.write_with(fh, offset, data, 0)
    }

    pub(crate) fn write_with(&self, fh: u64, offset: u64, data: &[u8], flags: u32) -> Result<u32> {
        let args = WriteIn {
            write_flags: flags,
            ..WriteIn::default()
        };
        self.write_as(fh, offset, data, args)
    }

    /// Writes through a descriptor that is open to append.
    pub(crate) fn append(&self, fh: u64, offset: u64, data: &[u8]) -> Result<u32> {
        let args = WriteIn {
            flags: Flags::APPEND.bits(),
            ..WriteIn::default()
        };
        self.write_as(fh, offset, data, args)
    }

    pub(crate) fn write_as(&self, fh: u64, offset: u64, data: &[u8], args: WriteIn) -> Result<u32> {
        let args = WriteIn {
            fh,
            offset,
            size: data.len() as u32,
            ..args
        };
        let message = self.encode(ROOT_ID, &Request::Write { args }, data);
        let answer = self.exchange(&message)?;
        Ok(WriteOut::decode(&answer).expect("an answer").size)
    }

    pub(crate) fn read(&self, fh: u64, offset: u64, size: u32) -> Result<Vec<u8>> {
        let args = ReadIn {
            fh,
            offset,
            size,
            ..ReadIn::default()
        };
        self.rpc(ROOT_ID, &Request::Read { args })
    }

    #[track_caller]
    pub(crate) fn getattr(&self, nodeid: u64) -> Attr {
        let args = GetattrIn::default();
        let answer = self.ok(nodeid, &Request::Getattr { args });
        AttrOut::decode(&answer).expect("an answer").attr
    }

    #[track_caller]
    pub(crate) fn release(&self, fh: u64) {
        let args = ReleaseIn {
            fh,
            ..ReleaseIn::default()
        };
        self.ok(ROOT_ID, &Request::Release { args });
    }

    #[track_caller]
    pub(crate) fn forget(&self, nodeid: u64, nlookup: u64) {
        let args = ForgetIn { nlookup };
        self.tell(nodeid, &Request::Forget { args });
    }

    /// Returns the entries of one READDIR reply.
    pub(crate) fn list(
        &self,
        nodeid: u64,
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
    ) -> Result<Vec<Listed>> {
        let args = ReadIn {
            fh,
            offset,
            size,
            ..ReadIn::default()
        };
        let request = match plus {
            true => Request::Readdirplus { args },
            false => Request::Readdir { args },
        };
        let answer = self.rpc(nodeid, &request)?;
        assert!(answer.len() <= size as usize);
        let mut from = wire::Reader::new(&answer);
        let mut listed = Vec::new();
        while let Some(dirent) = Dirent::next(plus, &mut from).expect("whole entries") {
            listed.push(Listed {
                name: String::from_utf8(dirent.name.to_vec()).expect("UTF-8"),
                off: dirent.off,
                ino: dirent.ino,
                kind: dirent.kind,
                entry: dirent.entry,
            });
        }
        Ok(listed)
    }
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) off: u64,
    pub(crate) ino: u64,
    pub(crate) kind: u8,
    pub(crate) entry: Option<EntryOut>,
}

pub(crate) const FORM: WireFormat = WireFormat { setxattr_ext: true };

pub(crate) fn init(major: u32, minor: u32, flags: InitFlags) -> Request<'static> {
    Request::Init {
        args: InitIn {
            major,
            minor,
            max_readahead: 1 << 17,
            flags,
        },
    }
}

pub(crate) fn lookup(name: &str) -> Request<'_> {
    let name = Text(name.as_bytes());
    Request::Lookup { name }
}

pub(crate) fn create(name: &str, flags: u32) -> Request<'_> {
    Request::Create {
        args: CreateIn {
            flags,
            mode: 0o100644,
            umask: 0,
            open_flags: 0,
        },
        name: Text(name.as_bytes()),
    }
}

pub(crate) fn open_with(flags: u32) -> Request<'static> {
    Request::Open {
        args: OpenIn {
            flags,
            open_flags: 0,
        },
    }
}

pub(crate) fn entry(answer: &[u8]) -> EntryOut {
    EntryOut::decode(answer).expect("an answer")
}

/// Returns a reply's arguments, or its error.
#[track_caller]
fn open(message: &[u8], reply: &[u8]) -> Result<Vec<u8>> {
    let asked = Header::decode(&message[..HEADER]).expect("a header");
    let header = OutHeader::decode(reply).expect("a header");
    assert_eq!(header.unique, asked.unique);
    assert_eq!(header.len as usize, reply.len());
    match header.error {
        0 => Ok(reply[REPLY_HEADER..].to_vec()),
        error => {
            assert_eq!(reply.len(), REPLY_HEADER);
            assert!((-511..0).contains(&error));
            Err(Errno::from_raw(-error))
        }
    }
}
