//! Every table against every protocol: one client that fills it makes no other client fail.
//!
//! A row names a protocol, a table and its bounds, how the attacker fills it, and an ordinary
//! operation of the bystander. The attacker is another user of this host, and so another peer on
//! TCP and Unix sockets alike.

#![forbid(unsafe_code)]

mod client;

use std::any::Any;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{ConnectionRefusals, Service, Tuning};
use hostdir::HostDir;
use hostile::server::{Server, Via, host_dir, nfs, nine, tuning};
use p9::{Fid, Tmessage as T};
use rustix::process::Uid;
use transports::Addr;
use vfs::{Attr, Export, FileSystem, Kind, Op, Patience};
use vfs_testkit::script::{Answer, Gate, Script, plain_attr};

use self::client::{Client, FILE, Protocol, SIZE, connect};

/// A user of this host that is not the one who runs the tests.
const OTHER: u32 = 65534;

/// How many other files there are.
const FILES: usize = 1000;

/// A cell of the matrix.
struct Row {
    protocol: Protocol,
    table: &'static str,
    /// What is served, within which bounds.
    serve: fn(Protocol) -> Stage,
    /// Fills the table, and returns what keeps it full.
    fill: fn(&Stage) -> Held,
    /// What an ordinary client does.
    ordinary: fn(&mut Client),
}

type Held = Box<dyn Any + Send>;

/// A server, and what it serves.
struct Stage {
    protocol: Protocol,
    server: Server,
    dir: Option<(tempfile::TempDir, Arc<HostDir>)>,
    /// Opens when requests that hang may end.
    gate: Gate,
}

impl Stage {
    fn addr(&self) -> &Addr {
        &self.server.addr
    }

    fn client(&self, name: &str) -> Client {
        Client::new(self.protocol, self.addr(), name)
    }

    fn start(protocol: Protocol, fs: Arc<dyn FileSystem>, tuning: Tuning) -> Server {
        let service: Arc<dyn Service> = match protocol {
            Protocol::P9 | Protocol::P9Unix => Arc::new(nine(fs, Default::default())),
            Protocol::Nfs3 | Protocol::Nfs40 | Protocol::Nfs41 => Arc::new(nfs(fs)),
            Protocol::Nbd => Arc::new(Nbd(block::nbd::Server::new(
                Arc::new(Export::new("", fs)),
                false,
                Vec::new(),
            ))),
        };
        let via = match protocol {
            Protocol::P9Unix => Via::Unix,
            _ => Via::Tcp,
        };
        let server = Server::of(via, tuning, service);
        if let Addr::Unix(path) = &server.addr {
            let everybody = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(path, everybody).expect("the socket's mode");
        }
        server
    }

    /// A directory of the host with [`FILE`], other files and 20 directories, within `bounds`.
    fn directory(protocol: Protocol, bounds: Tuning) -> Stage {
        /// Descriptors of the directory.
        const DESCRIPTORS: usize = 64;
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(FILE), vec![7; SIZE as usize]).expect("written");
        for number in 0..FILES {
            std::fs::write(dir.path().join(format!("file {number}")), "").expect("written");
        }
        for number in 0..20 {
            std::fs::create_dir(dir.path().join(number.to_string())).expect("made");
        }
        let served = host_dir(dir.path(), Some(DESCRIPTORS));
        Stage {
            protocol,
            server: Stage::start(protocol, served.clone(), bounds),
            dir: Some((dir, served)),
            gate: Gate::new(),
        }
    }

    /// The number of connections that were refused because their client had too many.
    fn refused(&self) -> u64 {
        let all = self.server.engine.connection_refusals();
        let is_it = |(name, _): &(&str, u64)| *name == ConnectionRefusals::CLIENT_CONNECTIONS;
        all.into_iter().find(is_it).expect("a reason").1
    }
}

/// NBD, as the engine takes it.
struct Nbd(block::nbd::Server);

impl Service for Nbd {
    fn session(&self) -> Box<dyn wire::Session> {
        Box::new(self.0.session())
    }
}

/// A few tens of connections and some megabytes.
fn small() -> Tuning {
    Tuning {
        connections: 64,
        memory: 32 << 20,
        ..tuning()
    }
}

fn plain(protocol: Protocol) -> Stage {
    Stage::directory(protocol, small())
}

/// A server whose first reads hang, and whose attributes take a worker.
fn hanging(protocol: Protocol) -> Stage {
    let bounds = Tuning {
        workers: 4,
        ..small()
    };
    let script = Script::new();
    script.set_capabilities(vfs::Capabilities {
        handles: vfs::Level::Native,
        ..Default::default()
    });
    let gate = Gate::new();
    for _ in 0..1000 {
        script.next(Op::Read, Answer::Hold(gate.clone()));
    }
    let slow = match protocol {
        Protocol::Nbd => Op::Fsync,
        _ => Op::Attr,
    };
    script.always(slow, Answer::Needs(Patience::Full));
    let file = Attr {
        size: SIZE.into(),
        ..plain_attr(2, Kind::File)
    };
    script.always(Op::FileAttr, Answer::Attr(file));
    Stage {
        protocol,
        server: Stage::start(protocol, script, bounds),
        dir: None,
        gate,
    }
}

/// What most clients do: attributes, a write that needs memory, and a read whose reply does.
fn reads_and_writes(client: &mut Client) {
    client.attributes();
    client.write(64 << 10);
    client.read(SIZE);
}

/// Waits until the table is full.
#[track_caller]
fn until(full: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !full() {
        assert!(Instant::now() < deadline, "the table does not fill");
        std::thread::yield_now();
    }
}

fn all_connections(stage: &Stage) -> Held {
    let all: Vec<_> = (0..100).map(|_| connect(stage.addr())).collect();
    until(|| stage.refused() >= 50);
    Box::new(all)
}

/// Messages of 1 MiB without their last byte.
fn unfinished_messages(stage: &Stage) -> Held {
    let budget = stage.server.engine.budget();
    let mut all = Vec::new();
    for number in 0..30 {
        let mut client = stage.client(&format!("attacker {number}"));
        let mut message = client.write_request(SIZE);
        message.pop();
        client.stuff(&message, 1);
        all.push(client);
    }
    until(|| budget.used() >= budget.limit() / 3);
    Box::new(all)
}

/// Requests for 1 MiB each, whose replies are not read.
fn unread_replies(stage: &Stage) -> Held {
    let mut all: Vec<_> = (0..30)
        .map(|number| stage.client(&format!("attacker {number}")))
        .collect();
    let served = || stage.server.engine.stats().1.requests;
    let before = served();
    for client in &mut all {
        for _ in 0..20 {
            let request = client.read_request(SIZE);
            client.stuff(&request, 1);
        }
    }
    until(|| served() >= before + all.len() as u64);
    Box::new(all)
}

/// Opens its gate when the attacker goes: a request that hangs ends some time.
struct Hung {
    gate: Gate,
    _clients: Vec<Client>,
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.gate.open();
    }
}

fn hung_requests(stage: &Stage) -> Held {
    let mut clients: Vec<_> = (0..8)
        .map(|number| stage.client(&format!("attacker {number}")))
        .collect();
    let offloaded = || stage.server.engine.stats().1.offloaded;
    let before = offloaded();
    for client in &mut clients {
        for _ in 0..16 {
            let request = client.read_request(4096);
            client.send(&request);
        }
    }
    until(|| offloaded() >= before + 8 * 16);
    Box::new(Hung {
        gate: stage.gate.clone(),
        _clients: clients,
    })
}

/// Open files without names, whose descriptors cannot be lent.
fn open_descriptors(stage: &Stage) -> Held {
    let mut client = stage.client("attacker");
    let made = (2..200u32).find_map(|number| {
        let (fid, name) = (Fid(number), format!("unnamed {number}"));
        client.walk(fid, &[]).expect("walked");
        let name = name.as_bytes();
        let made = client.p9_rpc(&hostile::peer::create(fid, name));
        let (dirfid, flags) = (Fid(0), 0);
        let unlink = T::Unlinkat {
            dirfid,
            name,
            flags,
        };
        made.and_then(|()| client.p9_rpc(&unlink)).err()
    });
    assert!(made.is_some(), "no bound");
    Box::new(client)
}

/// Directories that are being listed: more than there are descriptors.
fn directory_streams(stage: &Stage) -> Held {
    let mut client = stage.client("attacker");
    for number in 2..400u32 {
        let fid = Fid(number);
        let name = (number % 20).to_string();
        let (offset, count) = (0, 4096);
        let done = client
            .walk(fid, &[name.as_bytes()])
            .and_then(|()| client.p9_rpc(&T::Lopen { fid, flags: 0 }))
            .and_then(|()| client.p9_rpc(&T::Readdir { fid, offset, count }));
        assert!(done.is_ok() || done == Err(24), "{done:?}");
    }
    let (_, served) = stage.dir.as_ref().expect("a directory");
    assert!(served.open_descriptors() > 20);
    Box::new(client)
}

/// Lists the root, and opens, reads and closes the file.
fn lists_and_opens(client: &mut Client) {
    for (names, flags) in [(&[][..], 0), (&[FILE.as_bytes()][..], 2)] {
        let fid = Fid(500);
        client.walk(fid, names).expect("walked");
        client.p9_rpc(&T::Lopen { fid, flags }).expect("opened");
        let (offset, count) = (0, 4096);
        let read = match names.len() {
            0 => T::Readdir { fid, offset, count },
            _ => T::Read { fid, offset, count },
        };
        client.p9_rpc(&read).expect("read");
        client.p9_rpc(&T::Clunk { fid }).expect("closed");
    }
}

fn p9_lock(kind: u8, start: u64, proc_id: u32) -> T<'static> {
    T::Lock {
        fid: Fid(1),
        kind,
        flags: 0,
        start,
        length: 1,
        proc_id,
        client_id: b"client",
    }
}

/// Where locks of attackers are.
const FAR: u64 = 1 << 40;

fn p9_locks(stage: &Stage) -> Held {
    let mut client = stage.client("attacker");
    let refused = (0..5000).find_map(|number| {
        let lock = p9_lock(1, FAR + 2 * u64::from(number), number);
        client.p9_rpc(&lock).err()
    });
    assert!(refused.is_some(), "no bound");
    Box::new(client)
}

fn p9_locks_a_byte(client: &mut Client) {
    client.p9_rpc(&p9_lock(1, 0, 1)).expect("locked");
    client.p9_rpc(&p9_lock(2, 0, 1)).expect("unlocked");
}

const GRANTED: u32 = 0;
const NO_LOCKS: u32 = 2;

/// Names of clients that one host makes up.
fn nlm_names(stage: &Stage) -> Held {
    let mut client = stage.client("attacker");
    let lock = |number: u64| {
        let name = format!("made up {number}");
        client.nlm(false, name.as_bytes(), FAR + 2 * number)
    };
    let end = (0..5000).map(lock).find(|status| *status != GRANTED);
    assert_eq!(end, Some(NO_LOCKS));
    Box::new(client)
}

fn nlm_locks_a_byte(client: &mut Client) {
    assert_eq!(client.nlm(false, b"bystander", 0), GRANTED);
    assert_eq!(client.nlm(true, b"bystander", 0), GRANTED);
}

/// Clients that one peer makes up: those of its own that hold nothing make room for them.
fn v4_clients(stage: &Stage) -> Held {
    let mut client = stage.client("attacker");
    for number in 0..4500 {
        let name = format!("made up {number}");
        match stage.protocol {
            Protocol::Nfs40 => drop(client.set_client_id(name.as_bytes())),
            _ => {
                if let Ok((id, sequence)) = client.exchange_id(name.as_bytes()) {
                    (client.id, client.sequence) = (id, sequence);
                    let _ = client.create_session();
                }
            }
        }
    }
    Box::new(client)
}

/// Sessions of one client, with as many slots as the server grants.
fn v4_sessions(stage: &Stage) -> Held {
    let mut client = stage.client("attacker");
    let refused = (0..20_000).find_map(|_| client.create_session().err());
    assert!(refused.is_some(), "no bound");
    Box::new(client)
}

/// Owners that have the file open.
fn v4_owners(stage: &Stage) -> Held {
    /// OPENs in a compound, each after a PUTROOTFH.
    const OPENS: usize = 100;
    let mut client = stage.client("attacker");
    let refused = (0..2000).find_map(|batch| {
        let mut ops = client.begin();
        for number in 0..OPENS {
            let file = format!("file {}", (batch * OPENS + number) % FILES);
            let open = client.open(&format!("{batch} {number}"), &file);
            ops = ops.op(24, &[]).then(open);
        }
        match client.compound(&ops).0 {
            0 => None,
            status => Some(status),
        }
    });
    assert!(refused.is_some(), "no bound");
    Box::new(client)
}

/// Opens the file by an owner of its own, and reads.
fn v4_opens(client: &mut Client) {
    let ops = client.begin().op(24, &[]);
    let ops = ops.then(client.open("bystander", FILE));
    assert_eq!(client.compound(&ops).0, 0, "OPEN");
    client.read(SIZE);
}

/// Every cell. To add one is to add a row.
fn rows() -> Vec<Row> {
    use Protocol::{Nfs3, Nfs40, Nfs41, P9, P9Unix};
    let row = |protocol, table, serve, fill, ordinary| Row {
        protocol,
        table,
        serve,
        fill,
        ordinary,
    };
    type Fill = fn(&Stage) -> Held;
    let mut rows = Vec::new();
    for protocol in Protocol::ALL {
        let tables: [(&str, Fill); 3] = [
            ("connections", all_connections),
            ("held bytes of messages", unfinished_messages),
            ("replies not read", unread_replies),
        ];
        rows.extend(
            tables.map(|(table, fill)| row(protocol, table, plain, fill, reads_and_writes)),
        );
        let attributes: fn(&mut Client) = Client::attributes;
        rows.push(row(protocol, "workers", hanging, hung_requests, attributes));
    }
    for protocol in [P9, P9Unix] {
        let tables: [(&str, Fill); 2] = [
            ("open descriptors", open_descriptors),
            ("directory streams", directory_streams),
        ];
        rows.extend(tables.map(|(table, fill)| row(protocol, table, plain, fill, lists_and_opens)));
        let table = "byte-range locks";
        rows.push(row(protocol, table, plain, p9_locks, p9_locks_a_byte));
    }
    let table = "NLM names";
    rows.push(row(Nfs3, table, plain, nlm_names, nlm_locks_a_byte));
    for protocol in [Nfs40, Nfs41] {
        rows.push(row(protocol, "clients", plain, v4_clients, v4_opens));
        rows.push(row(
            protocol,
            "owners and opens",
            plain,
            v4_owners,
            v4_opens,
        ));
    }
    let table = "sessions and slots";
    rows.push(row(Nfs41, table, plain, v4_sessions, v4_opens));
    rows
}

/// Runs `attack` as another user of this host; nothing if that takes privileges that are not there.
fn as_another<T: Send>(attack: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let other = Uid::from_raw(OTHER);
            let became = rustix::thread::set_thread_res_uid(other, other, other);
            became.is_ok().then(attack)
        });
        thread.join().expect("the table can be filled")
    })
}

/// Runs a row; false where that takes privileges that are not there.
fn holds(row: &Row) -> bool {
    let stage = (row.serve)(row.protocol);
    let mut early = stage.client("early");
    (row.ordinary)(&mut early);
    let Some(attack) = as_another(|| (row.fill)(&stage)) else {
        return false;
    };
    (row.ordinary)(&mut early);
    (row.ordinary)(&mut stage.client("late"));
    (row.ordinary)(&mut early);
    drop(attack);
    (row.ordinary)(&mut early);
    (row.ordinary)(&mut stage.client("last"));
    true
}

#[test]
fn one_client_that_fills_a_table_makes_no_other_fail() {
    sys::limits::raise_descriptors();
    let mut failed = Vec::new();
    for row in rows() {
        let name = format!("{:?}, {}", row.protocol, row.table);
        println!("{name}");
        match catch_unwind(AssertUnwindSafe(|| holds(&row))) {
            Ok(true) => {}
            Ok(false) => return println!("skipped: not root"),
            Err(_) => failed.push(name),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
