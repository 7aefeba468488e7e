//! NFS state is limited, and separate for each client: a stranger can neither use nor evict it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hostile::process::Process;
use hostile::rpc::{self, MOUNT, NFS, NLM, Ops};
use hostile::server::tree;
use nfs::mount;
use nfs::nlm::{FreeArgs, Lock, LockArgs, LockResult, Status as NlmStatus};
use nfs::nsm::StatChange;
use nfs::server::{Connection, Options, Server};
use nfs::v3::{CreateArgs, CreateHow, CreateOk, Handle, NameArgs, Outcome, SetAttributes, Wcc};
use nfs::v4::Status;
use transports::Addr;
use vfs::{Call, Export, Peer};
use vfs_testkit::{Message, session};
use wire::{ServeOutcome, Xdr, XdrReader};

const NSM: u32 = 100_024;

const MIB: usize = 1 << 20;

/// A server in this process, used through its sessions.
struct TestServer(Arc<Server>);

impl TestServer {
    fn new() -> TestServer {
        let start = Instant::now();
        let options = Options::new(7, Arc::new(move || start.elapsed()));
        TestServer(Server::new(Arc::new(Export::new("", tree())), options))
    }

    /// Connects from this address.
    fn connect_from(&self, addr: [u8; 4]) -> NfsClient {
        NfsClient {
            session: self.0.session(),
            peer: Arc::new(Peer::remote(addr.into(), 700)),
            next_xid: AtomicU32::new(1),
        }
    }
}

struct NfsClient {
    session: Connection,
    peer: Arc<Peer>,
    next_xid: AtomicU32,
}

impl NfsClient {
    /// Calls a procedure and returns the results of the reply.
    fn call_raw(&self, what: (u32, u32, u32), body: &[u8]) -> Vec<u8> {
        let xid = self.next_xid.fetch_add(1, Ordering::Relaxed);
        let call = Call::detached().with_peer(self.peer.clone());
        let message = rpc::call(xid, what, body);
        let message = Message::new(&message);
        let served = session::serve_patiently(&self.session, &call, &message, 4 * MIB);
        let (answer, reply) = served.expect("a call");
        assert_eq!(answer, ServeOutcome::Done);
        // The message type, reply status, verifier and accept status.
        assert_eq!(
            reply[8..28],
            [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        reply[28..].to_vec()
    }

    fn call<'a>(&self, what: (u32, u32, u32), arguments: &impl Xdr<'a>) -> Vec<u8> {
        let mut body = Vec::new();
        arguments.put(&mut body);
        self.call_raw(what, &body)
    }

    /// Executes a compound; returns its status, and the results of its operations.
    fn compound(&self, minor: u32, ops: &Ops) -> (Status, Vec<u8>) {
        let reply = self.call_raw((NFS, 4, 1), &ops.compound(minor));
        let mut from = XdrReader::new(&reply);
        let status = Status::get(&mut from).expect("a status");
        // The tag, and the number of results.
        let (_, _) = (from.u32(), from.u32());
        (status, from.rest().to_vec())
    }

    /// Performs EXCHANGE_ID; returns the client ID and its sequence ID.
    fn exchange_id(&self, owner: &[u8]) -> Result<([u8; 8], u32), Status> {
        let ops = Ops::default().op(42, &[1, 1]).opaque(owner);
        let (status, results) = self.compound(1, &ops.words(&[0, 0, 0]));
        match status {
            Status::Ok => {
                let words =
                    |at: usize| u32::from_be_bytes(results[at..][..4].try_into().expect("4"));
                let id = results[8..16].try_into().expect("8 bytes");
                Ok((id, words(16)))
            }
            status => Err(status),
        }
    }

    /// Performs CREATE_SESSION with one slot; returns the session ID.
    fn create_session(&self, client: ([u8; 8], u32)) -> Result<[u8; 16], Status> {
        self.create_session_of(client, 1)
    }

    /// Performs CREATE_SESSION with `slots` slots; returns the session ID.
    fn create_session_of(
        &self,
        (client, sequence): ([u8; 8], u32),
        slots: u32,
    ) -> Result<[u8; 16], Status> {
        let channel = [0, 8192, 8192, 4096, 16, slots, 0];
        let ops = Ops::default().op(43, &[]).raw(&client);
        let ops = ops.words(&[sequence, 0]).words(&channel).words(&channel);
        let (status, results) = self.compound(1, &ops.words(&[0x4000_0000, 0]));
        match status {
            Status::Ok => Ok(results[8..24].try_into().expect("16 bytes")),
            status => Err(status),
        }
    }

    /// Creates a file in the root; returns its file handle.
    fn file(&self, name: &[u8]) -> Handle {
        let path = mount::Path { bytes: b"/" };
        let reply = self.call((MOUNT, 3, 1), &path);
        let mut from = XdrReader::new(&reply);
        let mount::Mounted::Done(mounted) = mount::Mounted::get(&mut from).expect("a result")
        else {
            panic!("not mounted");
        };
        let set = SetAttributes {
            mode: Some(0o666),
            ..SetAttributes::default()
        };
        let place = NameArgs {
            dir: mounted.root,
            name,
        };
        let how = CreateHow::Guarded(set);
        let reply = self.call((NFS, 3, 8), &CreateArgs { place, how });
        let mut from = XdrReader::new(&reply);
        match Outcome::<CreateOk, Wcc>::get(&mut from).expect("a result") {
            Outcome::Done(made) => made.object.expect("a handle"),
            Outcome::Failed(status, _) => panic!("{status:?}"),
        }
    }

    /// Calls NLM's LOCK of the whole file, for the client `caller`.
    fn lock(&self, file: &Handle, caller: &[u8]) -> NlmStatus {
        let args = LockArgs {
            cookie: b"",
            block: false,
            exclusive: true,
            lock: Lock {
                caller,
                file: file.bytes(),
                owner: b"owner",
                process: 1,
                offset: 0,
                len: 0,
            },
            reclaim: false,
            state: 1,
        };
        let reply = self.call((NLM, 4, 2), &args);
        let mut from = XdrReader::new(&reply);
        LockResult::get(&mut from).expect("a result").status
    }
}

#[test]
fn a_stranger_frees_no_locks_of_another_host() {
    let host = TestServer::new();
    let [owner, stranger] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|addr| host.connect_from(addr));
    let file = owner.file(b"f");
    assert_eq!(owner.lock(&file, b"guest"), NlmStatus::Granted);
    let free = FreeArgs {
        caller: b"guest",
        state: 3,
    };
    let changed = StatChange {
        name: b"guest.example.org",
        state: 3,
    };
    stranger.call((NLM, 4, 23), &free);
    stranger.call((NSM, 1, 6), &changed);
    // A client with the same name at another address is not the owner either.
    assert_eq!(stranger.lock(&file, b"guest"), NlmStatus::Denied);
    owner.call((NSM, 1, 6), &changed);
    assert_eq!(stranger.lock(&file, b"guest"), NlmStatus::Granted);
}

#[test]
fn names_of_nlm_that_one_host_makes_up_leave_room_for_others() {
    let host = TestServer::new();
    let [greedy, bystander] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|addr| host.connect_from(addr));
    let mut granted = 0;
    for number in 0..5000 {
        let name = number.to_string();
        let file = greedy.file(name.as_bytes());
        granted += usize::from(greedy.lock(&file, name.as_bytes()) == NlmStatus::Granted);
    }
    assert!((100..2000).contains(&granted), "{granted} names");
    let file = bystander.file(b"f");
    assert_eq!(bystander.lock(&file, b"bystander"), NlmStatus::Granted);
}

#[test]
fn a_stranger_takes_no_slot_and_ends_no_session() {
    let host = TestServer::new();
    let [owner, stranger] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|addr| host.connect_from(addr));
    let client = owner.exchange_id(b"owner").expect("a client");
    let session = owner.create_session(client).expect("a session");
    let root = |seqid| Ops::default().sequence(&session, seqid, 0, 1).root();
    assert_eq!(owner.compound(1, &root(1)).0, Status::Ok);
    // The stranger knows the session ID, and cannot use it.
    assert_eq!(stranger.compound(1, &root(2)).0, Status::Badsession);
    let bind = Ops::default().op(41, &[]).raw(&session).words(&[3, 0]);
    assert_eq!(stranger.compound(1, &bind).0, Status::Badsession);
    let destroy = Ops::default().op(44, &[]).raw(&session);
    assert_eq!(stranger.compound(1, &destroy).0, Status::Badsession);
    let more = stranger.create_session((client.0, client.1 + 1));
    assert_eq!(more, Err(Status::StaleClientid));
    let destroy = Ops::default().op(57, &[]).raw(&client.0);
    assert_eq!(stranger.compound(1, &destroy).0, Status::StaleClientid);
    // Nor can it end the client with the same owner name.
    let other = stranger.exchange_id(b"owner").expect("a client");
    let _ = stranger.create_session(other);
    assert_eq!(owner.compound(1, &root(2)).0, Status::Ok);
    // Other connections of the owner join implicitly.
    let another = host.connect_from([10, 0, 0, 1]);
    assert_eq!(another.compound(1, &root(3)).0, Status::Ok);
    // Session IDs cannot be guessed.
    let second = owner.create_session((client.0, client.1 + 1)).expect("one");
    let mut next = session;
    next[15] = next[15].wrapping_add(1);
    assert_ne!(second, next);
}

#[test]
fn clients_that_one_host_makes_up_leave_room_for_others() {
    let host = TestServer::new();
    let [attacker, bystander, third] =
        [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]].map(|addr| host.connect_from(addr));
    let pending = bystander.exchange_id(b"bystander").expect("a client");
    // The attacker leaves all client IDs unconfirmed, and then confirms them.
    for number in 0..8500u32 {
        let _ = attacker.exchange_id(&number.to_be_bytes());
    }
    let session = bystander.create_session(pending);
    let session = session.expect("what others begin does not end what was begun");
    for number in 0..8500u32 {
        if let Ok(client) = attacker.exchange_id(&[b"client", &number.to_be_bytes()[..]].concat()) {
            let _ = attacker.create_session(client);
        }
    }
    let late = third.exchange_id(b"third").expect("room");
    third.create_session(late).expect("room");
    let root = Ops::default().sequence(&session, 1, 0, 1).root();
    assert_eq!(bystander.compound(1, &root).0, Status::Ok);
}

#[test]
fn a_thousand_sessions_whose_connections_have_gone_keep_no_client_of_their_address_out() {
    let host = TestServer::new();
    let mount = |number: u32| {
        let connection = host.connect_from([10, 0, 0, 1]);
        let client = connection.exchange_id(&number.to_be_bytes());
        let client = client.expect("a client");
        let session = connection.create_session_of(client, 64).expect("a session");
        (connection, session)
    };
    for number in 0..1000 {
        drop(mount(number));
    }
    let (connection, session) = mount(1000);
    let root = Ops::default().sequence(&session, 1, 0, 1).root();
    assert_eq!(connection.compound(1, &root).0, Status::Ok);
}

#[test]
fn locks_that_one_host_cannot_get_leave_it_room_for_others() {
    let host = TestServer::new();
    let [owner, greedy] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|addr| host.connect_from(addr));
    for number in 0..17_000 {
        let file = owner.file(number.to_string().as_bytes());
        if number < 16_000 {
            assert_eq!(owner.lock(&file, b"owner"), NlmStatus::Granted);
            assert_eq!(greedy.lock(&file, b"greedy"), NlmStatus::Denied);
        } else {
            assert_eq!(greedy.lock(&file, b"greedy"), NlmStatus::Granted);
        }
    }
}

/// A subscriber that counts events.
struct Counting(Arc<AtomicUsize>);

impl tracing::Subscriber for Counting {
    fn enabled(&self, what: &tracing::Metadata<'_>) -> bool {
        *what.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn mounts_that_fail_do_not_fill_the_log() {
    let host = TestServer::new();
    let net = host.connect_from([10, 0, 0, 1]);
    let lines = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Counting(lines.clone()), || {
        for _ in 0..20_000 {
            net.call((MOUNT, 3, 1), &mount::Path { bytes: b"/none" });
        }
    });
    let lines = lines.load(Ordering::Relaxed);
    assert!((1..100).contains(&lines), "{lines} lines");
}

const SERVER: &str = env!("CARGO_BIN_EXE_hostile-server");

/// Connects to a server in a separate process.
fn connect(server: &Process) -> UnixStream {
    let Addr::Unix(path) = &server.addr else {
        panic!("{} is no Unix socket", server.addr);
    };
    let stream = UnixStream::connect(path).expect("connected");
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).expect("a timeout");
    stream
}

/// Reads the length of the next record, which has one fragment.
fn read_record_mark(stream: &mut UnixStream) -> usize {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).expect("a reply");
    (u32::from_be_bytes(mark) & !(1 << 31)) as usize
}

#[test]
fn replies_of_small_requests_are_bounded() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("file"), vec![1; MIB]).expect("written");
    let server = Process::nfs(SERVER, dir.path());
    let mut ops = Ops::default().root().lookup(b"file");
    for _ in 0..200 {
        ops = ops.read(MIB as u32);
    }
    let mut peers: Vec<UnixStream> = (0..20).map(|_| connect(&server)).collect();
    for (xid, peer) in (0..).zip(&mut peers) {
        let message = rpc::call(xid, (NFS, 4, 1), &ops.compound(0));
        peer.write_all(&message).expect("sent");
    }
    for peer in &mut peers {
        let len = read_record_mark(peer);
        assert!((1000..2 * MIB).contains(&len), "{len} bytes");
    }
    // No client has read its reply.
    let memory = server.memory() as usize;
    assert!(memory < 100 * MIB, "{} MiB", memory / MIB);
}

#[test]
fn little_is_kept_of_replies_when_their_client_has_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    for number in 0..500 {
        let name = format!("{number:0>200}");
        std::fs::write(dir.path().join(name), b"").expect("written");
    }
    let server = Process::nfs(SERVER, dir.path());
    let exchange = |xid, ops: &Ops| {
        let mut peer = connect(&server);
        let message = rpc::call(xid, (NFS, 4, 1), &ops.compound(0));
        peer.write_all(&message).expect("sent");
        let mut reply = vec![0; read_record_mark(&mut peer)];
        peer.read_exact(&mut reply).expect("a reply");
    };
    exchange(1, &Ops::default().root().readdir(MIB as u32));
    let before = server.memory() as usize;
    for xid in 0..48 {
        let mut ops = Ops::default().root().mkdir(xid.to_string().as_bytes());
        ops = ops.root();
        for _ in 0..50 {
            ops = ops.readdir(MIB as u32);
        }
        exchange(xid + 2, &ops);
    }
    let kept = (server.memory() as usize).saturating_sub(before);
    assert!(kept < 24 * MIB, "{} MiB", kept / MIB);
}
