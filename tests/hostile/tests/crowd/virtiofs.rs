//! virtiofs: a device belongs to one guest, so the other client is another device of the same
//! server. Each queue has its own thread, so a guest's hanging requests do not block another's.

use std::time::Duration;

use hostile::client::FILE;
use hostile::server::Server;
use remote::virtiofs::{Options, RemoteFuse, WaitMode};
use transports::Addr;
use vfs::lock::{HostLock, LockFamily};
use vfs::memory::MemoryBudget;
use vfs::{Call, Caller, Cx, Errno, FileSystem, OpenFlags, ReaddirMode};
use vfs_testkit::TestNode;

use super::sockets::small_limits;
use super::{DIRECTORIES, FILES, Guard, TestServer, Tree, assert_all_pass, case};

const READ: OpenFlags = OpenFlags::READ;
const BOTH: OpenFlags = READ.union(OpenFlags::WRITE);

/// The protocol of this stage.
#[derive(Clone, Copy, Debug)]
struct Virtiofs;

/// A server of devices.
struct Devices {
    server: Server,
    tree: Tree,
}

/// The root of a device with a well-behaved driver.
struct Guest(TestNode);

impl TestServer for Devices {
    type Client = Guest;

    fn client(&self, _: &str) -> Guest {
        let Addr::Unix(path) = &self.server.addr else {
            panic!("{} is no Unix socket", self.server.addr);
        };
        let socket = std::os::unix::net::UnixStream::connect(path).expect("connected");
        let options = Options {
            queues: 2,
            depth: 16,
            waiting: WaitMode::Adaptive(Duration::ZERO),
            ..Options::default()
        };
        let device = RemoteFuse::mount(socket, options).expect("mounted");
        let call = Call::detached();
        let node = device.root(&Cx::new(&Caller::ROOT, &call));
        Guest(TestNode {
            node: node.expect("a root"),
            caller: Caller::ROOT,
        })
    }

    fn budget(&self) -> Option<&MemoryBudget> {
        Some(self.server.engine.budget())
    }
}

fn plain() -> Devices {
    let tree = Tree::new();
    Devices {
        server: Server::virtiofs_with(tree.host_dir.clone(), small_limits()),
        tree,
    }
}

/// Opens unlinked files, whose file descriptors cannot be reclaimed.
fn open_descriptors(stage: &Devices) -> Guard {
    let guest = stage.client("attacker");
    let mut open = Vec::new();
    let refused = (0..200).find_map(|number| {
        let name = format!("unnamed {number}");
        match guest.0.create(&name, BOTH, 0o644) {
            Ok((_, file)) => open.push(file),
            Err(errno) => return Some(errno),
        }
        guest.0.unlink(&name).err()
    });
    assert!(refused.is_some(), "no bound");
    Box::new((open, guest))
}

/// Opens many handles of one file, whose file descriptors can be reclaimed.
fn handles(stage: &Devices) -> Guard {
    let guest = stage.client("attacker");
    let file = guest.0.lookup(FILE).expect("there");
    let mut open = Vec::new();
    let refused = (0..40_000).find_map(|_| match file.open(READ) {
        Ok(file) => {
            open.push(file);
            None
        }
        Err(errno) => Some(errno),
    });
    assert_eq!(refused, Some(Errno::ENFILE), "no bound");
    Box::new((open, guest))
}

/// Lists more directories at a time than there are file descriptors.
fn directory_streams(stage: &Devices) -> Guard {
    let guest = stage.client("attacker");
    let list = |number: u32| {
        let directory = guest.0.lookup(&(number % DIRECTORIES).to_string());
        let opened = directory.and_then(|directory| directory.open(READ));
        opened.inspect(|opened| drop(opened.readdir(0, ReaddirMode::Names, 10)))
    };
    let open: Vec<_> = (0..400).map(list).collect();
    assert!(stage.tree.host_dir.open_descriptors() > 20);
    Box::new((open, guest))
}

/// Lists the root, and opens, reads and closes the file.
fn lists_and_opens(guest: &mut Guest) {
    assert!(guest.0.list().expect("listed").len() >= FILES);
    let file = guest.0.lookup(FILE).and_then(|file| file.open(BOTH));
    let read = file.and_then(|file| file.read(0, 4096)).expect("read");
    assert_eq!(read.len(), 4096);
}

/// Locks or unlocks a byte of the file.
fn lock(guest: &Guest, at: u64, state: HostLock) -> Result<(), Errno> {
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let node = guest.0.lookup(FILE)?.node;
    node.host_lock(&cx, LockFamily::Posix.range(at, at), state)
}

fn locks(stage: &Devices) -> Guard {
    const FAR: u64 = 1 << 40;
    let guest = stage.client("attacker");
    let lock = |number: u64| lock(&guest, FAR + 2 * number, HostLock::Exclusive);
    let refused = (0..5000).find_map(|number| lock(number).err());
    assert_eq!(refused, Some(Errno::ENOLCK), "no bound");
    Box::new(guest)
}

fn locks_a_byte(guest: &mut Guest) {
    lock(guest, 0, HostLock::Exclusive).expect("locked");
    lock(guest, 0, HostLock::Unlocked).expect("unlocked");
}

#[test]
fn one_guest_that_fills_a_table_makes_no_other_fail() {
    let named = Virtiofs;
    assert_all_pass([
        case(
            named,
            "open descriptors",
            plain,
            open_descriptors,
            lists_and_opens,
        ),
        case(named, "handles", plain, handles, lists_and_opens),
        case(
            named,
            "directory streams",
            plain,
            directory_streams,
            lists_and_opens,
        ),
        case(named, "byte-range locks", plain, locks, locks_a_byte),
    ]);
}
