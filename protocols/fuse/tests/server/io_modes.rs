//! Files with I/O past the client's page cache, and with passthrough.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fuse::Request as R;
use fuse::layout::LinkIn;
use fuse::message::Text;
use fuse::numbers::{InitFlags, ROOT_ID};
use fuse::server::{BackingRegistry, Coverage, Options, Server};
use hostdir::HostDir;
use layers::pagecache::Mode;
use layers::{Fault, OwnerOverride, PageCache, ReadOnly, stack};
use parking_lot::Mutex;
use tempfile::TempDir;
use vfs::{Change, ChangeKinds, Export, FileSystem};

use crate::net::{Net, OFFERED, entry, init, server};

/// `FOPEN_PASSTHROUGH` alone.
const PASSES: u32 = 1 << 7;

/// `FOPEN_DIRECT_IO` and `FOPEN_PARALLEL_DIRECT_WRITES`.
const PAST: u32 = 1 | 1 << 6;

const RDONLY: u32 = 0;
const WRONLY: u32 = 1;
const RDWR: u32 = 2;
const APPEND: u32 = 0o2000;

/// The client's kernel, with ascending backing ids.
#[derive(Default)]
struct Kernel(Mutex<State>);

#[derive(Default)]
struct State {
    last: u32,
    open: BTreeSet<u32>,
    refuses: bool,
}

impl Kernel {
    fn refuses(&self, refuses: bool) {
        self.0.lock().refuses = refuses;
    }

    fn open(&self) -> Vec<u32> {
        let state = self.0.lock();
        state.open.iter().copied().collect()
    }
}

impl BackingRegistry for Kernel {
    fn open(&self, _file: BorrowedFd<'_>) -> Option<NonZeroU32> {
        let mut state = self.0.lock();
        if state.refuses {
            return None;
        }
        state.last += 1;
        let last = state.last;
        state.open.insert(last);
        NonZeroU32::new(last)
    }

    fn close(&self, number: NonZeroU32) {
        let mut state = self.0.lock();
        assert!(state.open.remove(&number.get()), "closed twice");
    }
}

/// Returns an empty directory on a file system that supports passthrough on every machine.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory")
}

fn exported(dir: &TempDir) -> Arc<dyn FileSystem> {
    HostDir::open(dir.path(), hostdir::Options::default()).expect("exports")
}

/// Mounts a directory, with the layer `above` on top.
fn mount(
    dir: &TempDir,
    above: impl FnOnce(Arc<dyn FileSystem>) -> Arc<dyn FileSystem>,
) -> (Net, Arc<Kernel>) {
    let export = Arc::new(Export::new("", above(exported(dir))));
    passing(&Server::new(export, Options::default()))
}

fn passing(server: &Server) -> (Net, Arc<Kernel>) {
    let kernel = Arc::new(Kernel::default());
    let net = Net::of(server.session().with_passthrough(kernel.clone()));
    let out = net.init();
    assert_eq!((out.flags2 >> 5 & 1, out.max_stack_depth), (1, 1));
    (net, kernel)
}

#[test]
fn who_opens_first_decides_for_all_until_the_last_has_closed_it() {
    let dir = directory();
    let (net, kernel) = mount(&dir, |fs| fs);
    let (made, first) = net.create(ROOT_ID, "a");
    assert_eq!((first.open_flags, first.backing_id), (PASSES, 1));
    let args = LinkIn {
        oldnodeid: made.nodeid,
    };
    let name = Text(b"b");
    let linked = entry(&net.ok(ROOT_ID, &R::Link { args, name }));
    let second = net.open(linked.nodeid, RDONLY);
    let again = net.create(ROOT_ID, "b").1;
    assert_eq!((second.backing_id, again.backing_id), (1, 1));
    net.release(first.fh);
    net.release(second.fh);
    assert_eq!(kernel.open(), [1]);
    net.release(again.fh);
    assert!(kernel.open().is_empty());
    assert_eq!(net.open(made.nodeid, RDWR).backing_id, 2);
    assert_eq!(net.create(ROOT_ID, "c").1.backing_id, 3);
    assert_eq!(kernel.open(), [2, 3]);
    net.ok(ROOT_ID, &R::Destroy {});
    assert!(kernel.open().is_empty());
}

#[test]
fn writes_to_a_file_that_is_passed_through_are_the_clients_own() {
    let dir = directory();
    let export = Arc::new(Export::new("", exported(&dir)));
    let server = Server::new(export, Options::default());
    let session = server.session().with_notification(Coverage {
        device: std::os::unix::fs::MetadataExt::dev(&dir.path().metadata().expect("there")),
        validity: std::time::Duration::from_secs(60),
        each_write: true,
    });
    let net = Net::of(session.with_passthrough(Arc::new(Kernel::default())));
    net.init();
    let (made, file) = net.create(ROOT_ID, "a");
    assert_eq!(file.open_flags, PASSES);
    let messages = |kinds| {
        let change = Change {
            kinds,
            node: Some(made.nodeid),
            ..Change::default()
        };
        let mut sent = 0;
        net.session.notify(&change, &mut |_| sent += 1);
        sent
    };
    assert_eq!(messages(ChangeKinds::CONTENTS), 0);
    assert_eq!(messages(ChangeKinds::ATTRIBUTES), 1);
    assert_eq!(messages(ChangeKinds::CONTENTS | ChangeKinds::ATTRIBUTES), 1);
    assert_eq!(net.lookup(ROOT_ID, "a").attr_valid, 1);
    net.release(file.fh);
    assert_eq!(messages(ChangeKinds::CONTENTS), 1);
    assert_eq!(net.lookup(ROOT_ID, "a").attr_valid, 60);
}

#[test]
fn what_the_kernel_refuses_goes_by_the_server_while_it_is_open() {
    let dir = directory();
    let (net, kernel) = mount(&dir, |fs| fs);
    kernel.refuses(true);
    let (made, first) = net.create(ROOT_ID, "a");
    kernel.refuses(false);
    let second = net.open(made.nodeid, RDWR);
    for open in [first, second] {
        assert_eq!((open.open_flags, open.backing_id), (0, 0));
        net.release(open.fh);
    }
    assert_eq!(net.open(made.nodeid, RDWR).backing_id, 1);
}

#[test]
fn what_has_set_id_bits_goes_by_the_server() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = directory();
    std::fs::write(dir.path().join("a"), "").expect("written");
    let bits = std::fs::Permissions::from_mode(0o4777);
    std::fs::set_permissions(dir.path().join("a"), bits).expect("changed");
    let (net, kernel) = mount(&dir, |fs| fs);
    let nodeid = net.lookup(ROOT_ID, "a").nodeid;
    assert_eq!(net.open(nodeid, RDWR).backing_id, 0);
    assert!(kernel.open().is_empty());
}

#[test]
fn layers_that_want_to_know_of_reads_and_writes_do() {
    let owned = OwnerOverride {
        uid: Some(7),
        gid: None,
    };
    let dir = directory();
    std::fs::write(dir.path().join("a"), "").expect("written");
    let passes = |above: fn(Arc<dyn FileSystem>, OwnerOverride) -> Arc<dyn FileSystem>| {
        let (net, _) = mount(&dir, |fs| above(fs, owned));
        let nodeid = net.lookup(ROOT_ID, "a").nodeid;
        net.open(nodeid, RDONLY).backing_id != 0
    };
    assert!(passes(stack));
    assert!(!passes(|fs, _| stack(fs, ReadOnly)));
    assert!(!passes(|fs, _| stack(
        fs,
        Fault::new(1, Arc::new(|| std::time::Duration::ZERO))
    )));
    fn cached(fs: Arc<dyn FileSystem>, mode: Mode) -> Arc<dyn FileSystem> {
        let options = layers::pagecache::Options {
            mode,
            ..Default::default()
        };
        stack(fs, PageCache::new(options).expect("starts"))
    }
    assert!(passes(|fs, owned| cached(stack(fs, owned), Mode::Mmap)));
    assert!(!passes(|fs, _| cached(fs, Mode::Loose)));
}

#[test]
fn what_is_no_file_of_this_host_goes_by_the_server() {
    let (net, kernel) = passing(&server(Options::default()));
    let (_, open) = net.create(ROOT_ID, "a");
    assert_eq!((open.open_flags, open.backing_id), (0, 0));
    assert_eq!(net.opendir(ROOT_ID).backing_id, 0);
    assert!(kernel.open().is_empty());
}

#[test]
fn it_is_granted_where_there_is_a_kernel_to_tell() {
    let granted = |net: &Net| {
        let out = net.init();
        let flags = u64::from(out.flags2) << 32;
        (
            InitFlags::from_bits_retain(flags).contains(InitFlags::PASSTHROUGH),
            out.max_stack_depth,
        )
    };
    assert_eq!(
        granted(&Net::silent(&server(Options::default()))),
        (false, 0)
    );
    let behind = Options {
        writeback: true,
        ..Options::default()
    };
    let session = server(behind).session();
    let net = Net::of(session.with_passthrough(Arc::new(Kernel::default())));
    assert_eq!(granted(&net), (false, 0));
}

/// Returns a mount on which files opened for writing only bypass the client's page cache; the
/// client does not offer the required flags `but`.
fn going_past(options: Options, but: InitFlags) -> (Net, u64) {
    let options = Options {
        writers_bypass_cache: true,
        ..options
    };
    let net = Net::silent(&server(options));
    net.ok(ROOT_ID, &init(7, 45, OFFERED - but));
    let (made, open) = net.create(ROOT_ID, "a");
    net.release(open.fh);
    (net, made.nodeid)
}

#[test]
fn who_only_writes_goes_past_what_is_kept_and_so_do_those_who_come_meanwhile() {
    let (net, nodeid) = going_past(Options::default(), InitFlags::empty());
    let flags = |flags: u32| {
        let open = net.open(nodeid, flags);
        (open.open_flags, open.fh)
    };
    let (writer, first) = flags(WRONLY);
    let (reader, second) = flags(RDONLY);
    assert_eq!((writer, reader), (PAST, PAST));
    net.release(first);
    let (third_flags, third) = flags(RDWR);
    assert_eq!(third_flags, PAST);
    net.release(second);
    net.release(third);
    // In the opposite order.
    let (reader, first) = flags(RDONLY);
    let (writer, second) = flags(WRONLY);
    assert_eq!((reader, writer), (0, 0));
    net.release(first);
    net.release(second);
    for other in [RDWR, WRONLY | APPEND] {
        let (flags, fh) = flags(other);
        assert_eq!(flags, 0);
        net.release(fh);
    }
    assert_eq!(flags(WRONLY).0, PAST);
}

#[test]
fn nobody_goes_past_what_a_client_cannot_drop_or_has_not_sent() {
    let writeback = Options {
        writeback: true,
        ..Options::default()
    };
    let cases = [
        (Options::default(), InitFlags::DIRECT_IO_ALLOW_MMAP),
        (writeback, InitFlags::empty()),
    ];
    for (options, but) in cases {
        let (net, nodeid) = going_past(options, but);
        assert_eq!(net.open(nodeid, WRONLY).open_flags, 0);
    }
    let net = Net::new();
    let (made, open) = net.create(ROOT_ID, "a");
    net.release(open.fh);
    assert_eq!(net.open(made.nodeid, WRONLY).open_flags, 0);
}
