//! Memory and file descriptors per client, measured from outside the server's process.
//!
//! BARGE_FULL=1 walks a million files instead of an eighth, which fills doubling tables equally
//! well or badly.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hostile::process::Process;
use hostile::raw_client::{ROOT, RawClient, encode_request};
use p9::{Fid, Names, Rmessage, Tag, Tmessage as T};
use rustix::process::{Resource, Rlimit, prlimit};
use vfs::{AttrMask, Call, Caller, Cx, FileSystem, Name};
use vfs_testkit::wait_until;

use crate::mounted;

const SERVER: &str = env!("CARGO_BIN_EXE_hostile-server");

/// Number of simultaneous connections.
const CONNECTIONS: usize = 1000;

/// Maximum memory in bytes of a connection in its first half second.
const CONNECTION_MEMORY: u64 = 50 << 10;

/// Maximum memory in bytes of an idle connection: the stack frames of test builds are larger.
const IDLE_MEMORY: u64 = if cfg!(debug_assertions) { 20 } else { 16 } << 10;

/// Opens connections, each with a session, and returns the server's memory in bytes per connection.
fn connections(server: &Process, number: usize, msize: u32) -> (Vec<RawClient>, u64) {
    sys::limits::raise_descriptors();
    // Makes one-time allocations before the measurement.
    drop(RawClient::connect_attached(&server.addr, msize));
    let before = server.memory();
    let peers: Vec<RawClient> = (0..number)
        .map(|_| RawClient::connect_attached(&server.addr, msize))
        .collect();
    let each = server.memory().saturating_sub(before) / number as u64;
    (peers, each)
}

/// Waits until `server` takes less than `most` bytes, while other clients connect, so that its
/// threads run.
#[track_caller]
fn await_memory(server: &Process, most: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.memory() > most {
        assert!(
            Instant::now() < deadline,
            "{} KiB instead of {}",
            server.memory() >> 10,
            most >> 10
        );
        std::thread::yield_now();
    }
}

#[test]
fn ten_thousand_connections_fit_into_twenty_thousand_descriptors_and_160_mib() {
    const MANY: usize = 10_000;
    const DESCRIPTORS: u64 = 20_000;
    let server = Process::with_connection_limit(SERVER, "9p", MANY + 100);
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum: Some(DESCRIPTORS),
    };
    prlimit(Some(server.pid()), Resource::Nofile, limit).expect("a limit");
    let before = server.memory();
    let (mut peers, fresh) = connections(&server, MANY, 8192);
    println!("a connection that begins costs {} KiB", fresh >> 10);
    await_memory(&server, before + MANY as u64 * IDLE_MEMORY);
    for peer in peers.iter_mut().step_by(97) {
        peer.expect_ok(&T::Statfs { fid: ROOT });
    }
    drop(peers);
    // Tables do not shrink, and the allocator retains some pages.
    await_memory(&server, before + MANY as u64 * (2 << 10));
    RawClient::connect_attached(&server.addr, 8192);
}

#[test]
fn a_connection_costs_little_and_less_while_it_is_idle() {
    let dir = tempfile::tempdir().expect("a directory");
    for server in [
        Process::start(SERVER, None, None),
        Process::start(SERVER, Some(dir.path()), None),
    ] {
        let before = server.memory();
        let (mut peers, each) = connections(&server, CONNECTIONS, 1 << 20);
        println!("a connection that begins costs {} KiB", each >> 10);
        assert!(each < CONNECTION_MEMORY, "{each} bytes");
        await_memory(&server, before + CONNECTIONS as u64 * IDLE_MEMORY);
        for peer in &mut peers {
            peer.expect_ok(&T::Statfs { fid: ROOT });
        }
    }
}

#[test]
fn a_message_that_does_not_go_on_wakes_nobody_until_its_deadline() {
    let server = Process::start(SERVER, None, None);
    let (mut peers, _) = connections(&server, 100, 8192);
    let message = encode_request(Tag(1), &T::Statfs { fid: ROOT });
    for peer in &mut peers {
        peer.send(&message[..message.len() - 1]);
    }
    wait_until("a thread receives", || server.receiving_threads() > 0);
    // A thread in recv(2) wakes twice a second.
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.receiving_threads() > 0 {
        assert!(
            Instant::now() < deadline,
            "{} receive",
            server.receiving_threads()
        );
        std::thread::yield_now();
    }
    for peer in &mut peers {
        peer.send(&message[message.len() - 1..]);
        assert!(peer.receive().is_some());
    }
}

#[test]
fn a_connection_that_was_busy_costs_no_more_once_it_is_idle() {
    let server = Process::start(SERVER, None, None);
    let (mut peers, _) = connections(&server, 100, 1 << 20);
    let idle = server.memory();
    let burst: Vec<u8> = (0..5_000)
        .flat_map(|_| encode_request(Tag(1), &T::Statfs { fid: ROOT }))
        .collect();
    for peer in &mut peers {
        std::thread::scope(|scope| {
            let (mut sender, burst) = (peer.duplicate(), &burst);
            scope.spawn(move || sender.send(burst));
            for _ in 0..5_000 {
                assert!(matches!(peer.reply().1, Rmessage::Statfs { .. }));
            }
        });
    }
    // Buffers may be retained for a while for reuse.
    await_memory(&server, idle + peers.len() as u64 * IDLE_MEMORY);
}

#[test]
fn the_beginning_of_a_large_message_costs_what_has_come_of_it() {
    let server = Process::start(SERVER, None, None);
    let msize = 4 << 20;
    let (mut peers, idle) = connections(&server, 200, msize);
    let before = server.memory();
    for peer in &mut peers {
        // A Twrite of 4 MiB, whose payload is never sent.
        let head = p9::message::write_head(Tag(1), Fid(9), 0, msize - 23);
        peer.send(&head);
    }
    // This attach is served by the lane that received the last partial message.
    drop(RawClient::connect_attached(&server.addr, msize));
    let each = server.memory().saturating_sub(before) / peers.len() as u64;
    println!("a message that has only begun costs {} KiB", each >> 10);
    assert!(idle + each < 2 * CONNECTION_MEMORY, "{each} bytes for 23");
}

/// Directories with a fixed number of empty files each.
struct FileTree {
    dir: tempfile::TempDir,
    files: usize,
}

impl FileTree {
    const PER_DIRECTORY: usize = 12_500;

    fn new() -> FileTree {
        let full = std::env::var_os("BARGE_FULL").is_some_and(|value| value == "1");
        let files = if full { 1_000_000 } else { 125_000 };
        let shm = Path::new("/dev/shm");
        let parent: PathBuf = if shm.is_dir() {
            shm.into()
        } else {
            std::env::temp_dir()
        };
        let dir = tempfile::tempdir_in(parent).expect("a directory");
        std::thread::scope(|scope| {
            for half in 0..2 {
                let dir = dir.path();
                scope.spawn(move || {
                    let numbers = (0..files / FileTree::PER_DIRECTORY).filter(|n| n % 2 == half);
                    numbers.for_each(|number| fill(&dir.join(number.to_string())));
                });
            }
        });
        FileTree { dir, files }
    }
}

fn fill(dir: &Path) {
    use rustix::fs::{FileType, Mode, OFlags, mknodat, open};
    std::fs::create_dir(dir).expect("made");
    let dir = open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("there");
    for file in 0..FileTree::PER_DIRECTORY {
        let name = file.to_string();
        mknodat(&dir, name, FileType::RegularFile, Mode::RUSR, 0).expect("made");
    }
}

/// Maximum number of file descriptors for the tree.
const DESCRIPTORS: usize = 1024;

impl FileTree {
    /// Asserts that the server's memory for the files, relative to its memory `empty` without any,
    /// extrapolates to at most `most` bytes for a million. The tables of fids and of nodes double
    /// when full, which happens shortly before a million.
    fn assert_memory(&self, server: &Process, empty: u64, how: &str, most: u64) {
        /// Fixed memory of a server in bytes.
        const BASE: u64 = 2 << 20;
        let taken = server.memory();
        let each = taken.saturating_sub(empty) / self.files as u64;
        println!(
            "{} files {how}: {} MiB, {each} bytes each, {} descriptors",
            self.files,
            taken >> 20,
            server.descriptors()
        );
        let bound = BASE + (most - BASE) * self.files as u64 / 1_000_000;
        assert!(taken < bound, "{taken} bytes");
    }
}

#[test]
fn a_million_files_walked_fit_into_200_mib_and_the_descriptor_budget() {
    let forest = FileTree::new();
    let server = Process::start(SERVER, Some(forest.dir.path()), Some(DESCRIPTORS));
    let mut peer = RawClient::connect_attached(&server.addr, 1 << 16);
    let empty = server.memory();
    let mut next = 0;
    for dir in 0..forest.files / FileTree::PER_DIRECTORY {
        let dir = dir.to_string();
        let dir_fid = Fid(u32::MAX - 1);
        peer.walk(ROOT, dir_fid, &[dir.as_bytes()]);
        // Several in flight, so that the server's time dominates.
        for batch in 0..FileTree::PER_DIRECTORY / 100 {
            let mut walks = Vec::new();
            for tag in 0..100 {
                next += 1;
                let file = (batch * 100 + tag).to_string();
                let names = [file.as_bytes()];
                let walk = T::Walk {
                    fid: dir_fid,
                    newfid: Fid(next),
                    names: Names::new(&names),
                };
                walks.extend(encode_request(Tag(tag as u16), &walk));
            }
            peer.send(&walks);
            for _ in 0..100 {
                let (_, reply) = peer.reply();
                assert!(matches!(reply, Rmessage::Walk { .. }), "{reply:?}");
            }
        }
        peer.expect_ok(&T::Clunk { fid: dir_fid });
        assert!(server.descriptors() < DESCRIPTORS + 100);
    }
    forest.assert_memory(&server, empty, "walked", 200 << 20);
    // All fids are valid, including those whose file descriptors were reclaimed.
    for fid in (1..=next).step_by(997) {
        peer.expect_ok(&T::Getattr {
            fid: Fid(fid),
            mask: 0x7ff,
        });
    }
    assert!(server.descriptors() < DESCRIPTORS + 100);
}

#[test]
fn a_million_nodes_that_a_guest_knows_fit_into_250_mib_and_the_descriptor_budget() {
    let forest = FileTree::new();
    let server = Process::virtiofs(SERVER, Some(forest.dir.path()), Some(DESCRIPTORS));
    let mount = mounted(&server.addr);
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = mount.root(&cx).expect("a root");
    let empty = server.memory();
    // A node is forgotten when its client forgets it.
    let mut known = Vec::new();
    for dir in 0..forest.files / FileTree::PER_DIRECTORY {
        let dir = dir.to_string();
        let name = Name::new(dir.as_bytes()).expect("a name");
        let dir = root.lookup(&cx, name).expect("there").node;
        for file in 0..FileTree::PER_DIRECTORY {
            let file = file.to_string();
            let name = Name::new(file.as_bytes()).expect("a name");
            known.push(dir.lookup(&cx, name).expect("there").node);
        }
        assert!(server.descriptors() < DESCRIPTORS + 100);
    }
    forest.assert_memory(&server, empty, "known", 250 << 20);
    for node in known.iter().step_by(997) {
        node.attr(&cx, AttrMask::STAT).expect("there");
    }
    assert!(server.descriptors() < DESCRIPTORS + 100);
}
