//! A test client that makes single calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use memory::Memory;
use nfs::mount::{self, Mounted};
use nfs::server::{Connection, Listed, Options, Ports, Server};
use nfs::v3::*;
use vfs::{Call, Export, FileSystem, Patience, Peer};
use vfs_testkit::session::{self, Parked, Served};
use vfs_testkit::{Message, clock};
use wire::{ServeOutcome, Session, Xdr, XdrReader};

pub(crate) const PORTMAP: u32 = 100_000;
pub(crate) const NFS: u32 = 100_003;
pub(crate) const MOUNT: u32 = 100_005;
pub(crate) const NLM: u32 = 100_021;
pub(crate) const NSM: u32 = 100_024;
pub(crate) const NFS_ACL: u32 = 100_227;

/// The results of a call, or the error (`accept_stat`, or the reply's status if denied).
pub(crate) type Replied = Result<&'static [u8], u32>;

/// A server with a manual clock.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) server: Arc<Server>,
    seconds: Arc<AtomicU64>,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host::over(Memory::new(clock()))
    }

    /// Creates a server of `tree`.
    pub(crate) fn over(tree: Arc<dyn FileSystem>) -> Host {
        Host::with(tree, |_| {})
    }

    /// Creates a server of `tree` with some options changed.
    pub(crate) fn with(tree: Arc<dyn FileSystem>, set: impl FnOnce(&mut Options)) -> Host {
        let seconds = Arc::new(AtomicU64::new(1000));
        let time = seconds.clone();
        let clock_of = Arc::new(move || Duration::from_secs(time.load(Ordering::Relaxed)));
        let mut options = Options::new(7, clock_of);
        options.ports = Some(Ports {
            tcp: 2049,
            udp: 2050,
        });
        options.listed = vec![Listed {
            replicas: Vec::new(),
            path: "/data".into(),
            clients: vec!["10.0.0.0/8".into(), "*".into()],
        }];
        set(&mut options);
        let server = Server::new(Arc::new(Export::new("data", tree)), options);
        Host { server, seconds }
    }

    /// Advances the clock by `seconds`, and runs periodic maintenance.
    pub(crate) fn later(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
        self.server.maintain();
    }
}

/// A connection.
pub(crate) struct Net {
    pub(crate) host: Host,
    pub(crate) session: Connection,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The peer with its address.
    peer: Option<Arc<Peer>>,
    xid: AtomicU32,
}

/// Returns an encoded call with its record mark.
pub(crate) fn call_bytes<'a>(
    xid: u32,
    ids: (u32, u32),
    (program, version, procedure): (u32, u32, u32),
    arguments: &impl Xdr<'a>,
) -> Vec<u8> {
    let mut credential = Vec::new();
    0u32.put(&mut credential);
    (&b"client"[..]).put(&mut credential);
    ids.0.put(&mut credential);
    ids.1.put(&mut credential);
    Vec::<u32>::new().put(&mut credential);
    let mut body = Vec::new();
    for number in [xid, 0, 2, program, version, procedure, 1] {
        number.put(&mut body);
    }
    credential.as_slice().put(&mut body);
    0u64.put(&mut body);
    arguments.put(&mut body);
    fragments(&body, body.len())
}

/// Splits a record into fragments of at most `most` bytes.
pub(crate) fn fragments(body: &[u8], most: usize) -> Vec<u8> {
    let mut record = Vec::new();
    let count = body.chunks(most).count();
    for (index, fragment) in body.chunks(most).enumerate() {
        let last = if index + 1 == count { 1 << 31 } else { 0 };
        (fragment.len() as u32 | last).put(&mut record);
        record.extend_from_slice(fragment);
    }
    record
}

/// Decodes a reply.
pub(crate) fn open(reply: Vec<u8>) -> Replied {
    let reply: &'static [u8] = reply.leak();
    let (mark, body) = reply.split_at(4);
    assert_eq!(mark, (body.len() as u32 | 1 << 31).to_be_bytes());
    let mut reader = XdrReader::new(body);
    let mut number = || reader.u32().expect("a reply's head");
    let (_xid, kind, denied) = (number(), number(), number());
    assert_eq!(kind, 1, "a reply");
    if denied != 0 {
        return Err(number());
    }
    let (flavor, len, status) = (number(), number(), number());
    assert_eq!((flavor, len), (0, 0));
    match status {
        0 => Ok(reader.rest()),
        status => Err(status),
    }
}

/// Decodes a value that takes up all of `bytes`.
#[track_caller]
pub(crate) fn whole<T: Xdr<'static>>(bytes: &'static [u8]) -> T {
    let mut reader = XdrReader::new(bytes);
    let value = T::get(&mut reader).expect("a result");
    reader.end().expect("nothing behind it");
    value
}

impl Net {
    /// Connects as root to a server of a new tree.
    pub(crate) fn new() -> Net {
        Net::on(&Host::new())
    }

    pub(crate) fn on(host: &Host) -> Net {
        Net {
            session: host.server.session(),
            host: host.clone(),
            uid: 0,
            gid: 0,
            peer: None,
            xid: AtomicU32::new(1),
        }
    }

    /// Connects as root from `addr`.
    pub(crate) fn from(host: &Host, addr: &str) -> Net {
        let addr = addr.parse().expect("an address");
        Net {
            peer: Some(Arc::new(Peer::remote(addr, 700))),
            ..Net::on(host)
        }
    }

    /// Connects as root as `peer`.
    pub(crate) fn of_peer(host: &Host, peer: Peer) -> Net {
        Net {
            peer: Some(Arc::new(peer)),
            ..Net::on(host)
        }
    }

    /// Connects as another user to the same server, from the same address.
    pub(crate) fn of_user(&self, uid: u32) -> Net {
        Net {
            uid,
            gid: uid,
            peer: self.peer.clone(),
            ..Net::on(&self.host)
        }
    }

    fn next(&self) -> u32 {
        self.xid.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn bytes<'a>(&self, what: (u32, u32, u32), arguments: &impl Xdr<'a>) -> Vec<u8> {
        call_bytes(self.next(), (self.uid, self.gid), what, arguments)
    }

    /// Sends a record, serving it with increasing patience as the engine does.
    #[track_caller]
    pub(crate) fn exchange(&self, record: &[u8]) -> Replied {
        assert_eq!(self.session.frame(record), Ok(Some(record.len())));
        let message = Message::new(record);
        let call = match &self.peer {
            Some(peer) => Call::detached().with_peer(peer.clone()),
            None => Call::detached(),
        };
        let served = session::serve_patiently(&self.session, &call, &message, 2 << 20);
        match served.expect("a call") {
            (ServeOutcome::Done, reply) => open(reply),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn call<'a>(&self, what: (u32, u32, u32), arguments: &impl Xdr<'a>) -> Replied {
        self.exchange(&self.bytes(what, arguments))
    }

    /// Makes a v3 call.
    #[track_caller]
    pub(crate) fn v3<'a, T: Xdr<'static>, F: Xdr<'static>>(
        &self,
        procedure: Procedure,
        arguments: &impl Xdr<'a>,
    ) -> Result<T, (Status, F)> {
        let bytes = self
            .call((NFS, 3, procedure as u32), arguments)
            .expect("results");
        match whole(bytes) {
            Outcome::Done(done) => Ok(done),
            Outcome::Failed(status, rest) => Err((status, rest)),
        }
    }

    /// Starts a call that may have to wait.
    pub(crate) fn park<'a>(
        &self,
        what: (u32, u32, u32),
        arguments: &impl Xdr<'a>,
    ) -> Served<Replied> {
        self.resume(Parked::new(self.bytes(what, arguments)))
    }

    pub(crate) fn resume(&self, parked: Parked) -> Served<Replied> {
        let (answer, reply) = parked.serve(|call, bytes| {
            let message = Message::new(bytes);
            session::serve(&self.session, call, Patience::Full, &message, 1 << 16).expect("a call")
        });
        match answer {
            ServeOutcome::Parked => Served::Parked(parked),
            ServeOutcome::Done => Served::Reply(open(reply)),
            other => panic!("{other:?} with full patience"),
        }
    }

    #[track_caller]
    pub(crate) fn root(&self) -> Handle {
        self.mounted(b"/").expect("a root")
    }

    pub(crate) fn mounted(&self, path: &[u8]) -> Result<Handle, mount::Status> {
        let path = mount::Path { bytes: path };
        match whole(self.call((MOUNT, 3, 1), &path).expect("results")) {
            Mounted::Done(done) => {
                assert_eq!(done.flavors, [1]);
                Ok(done.root)
            }
            Mounted::Failed(status) => Err(status),
        }
    }

    #[track_caller]
    pub(crate) fn getattr(&self, object: Handle) -> Attributes {
        let attributes: Result<_, (_, ())> = self.v3(Procedure::GetAttr, &object);
        attributes.expect("attributes")
    }

    pub(crate) fn create(
        &self,
        dir: Handle,
        name: &[u8],
        how: CreateHow,
    ) -> Result<CreateOk, (Status, Wcc)> {
        let place = NameArgs { dir, name };
        self.v3(Procedure::Create, &CreateArgs { place, how })
    }

    /// Creates a file with this mode.
    #[track_caller]
    pub(crate) fn file(&self, name: &[u8], mode: u32) -> Handle {
        let set = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        let made = self.create(self.root(), name, CreateHow::Guarded(set));
        made.expect("made").object.expect("a handle")
    }

    pub(crate) fn setattr(
        &self,
        object: Handle,
        attributes: SetAttributes,
        guard: Guard,
    ) -> Result<Wcc, (Status, Wcc)> {
        let args = SetAttrArgs {
            object,
            attributes,
            guard,
        };
        self.v3(Procedure::SetAttr, &args)
    }

    pub(crate) fn lookup(
        &self,
        dir: Handle,
        name: &[u8],
    ) -> Result<LookupOk, (Status, Option<Attributes>)> {
        self.v3(Procedure::Lookup, &NameArgs { dir, name })
    }

    pub(crate) fn read(
        &self,
        file: Handle,
        offset: u64,
        count: u32,
    ) -> Result<ReadOk<'static>, (Status, Option<Attributes>)> {
        let args = ReadArgs {
            file,
            offset,
            count,
        };
        self.v3(Procedure::Read, &args)
    }

    pub(crate) fn write(
        &self,
        file: Handle,
        offset: u64,
        data: &[u8],
        stable: Stable,
    ) -> Result<WriteOk, (Status, Wcc)> {
        let args = WriteArgs {
            file,
            offset,
            count: data.len() as u32,
            stable,
            data,
        };
        self.v3(Procedure::Write, &args)
    }
}

/// Returns a SETATTR argument that changes nothing.
pub(crate) fn nothing() -> SetAttributes {
    SetAttributes::default()
}
