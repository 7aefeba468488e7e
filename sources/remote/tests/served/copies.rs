//! How often each way of data copies what it carries. Debug builds count, for a whole process: so each of these tests runs
//! itself once more, alone in a process of its own.

use std::process::Command;
use std::sync::Arc;

use engine::Tuning;
use remote::ninep::{LastingLink, Options, Remote9p, Retry};
use remote::virtiofs::{self, RemoteFuse};
use sys::payload::{SlicePayload, SliceSink};
use transports::Link;
use vfs::{Call, Caller, Cx, FileSystem, Mode, Name, OpenFlags, Result, Want};
use vfs_testkit::bed::{Seen, ok, pattern, run};

use crate::device::Shared;
use crate::net::Served;
use crate::nfs;
use crate::pages::directory;

/// Of a message.
const SIZE: usize = 512 << 10;

/// How many are measured, behind one for which buffers grow.
const MESSAGES: usize = 4;

/// Runs `test`, which is called `name`, where nothing else is copied.
fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "BARGE_TEST_ALONE";
    if vfs::copies::so_far().is_none() {
        return eprintln!("skipped: copies are counted in debug builds only");
    }
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let mut this = Command::new(std::env::current_exe().expect("this program"));
    let ran = this
        .args(["--exact", &format!("copies::{name}")])
        .env(ALONE, "1");
    let ran = ran.output().expect("runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

/// How often each byte is copied that is read from `fs`, and written to it.
fn copies(fs: &dyn FileSystem) -> (f64, f64) {
    let call = Call::detached();
    let cx = &Cx::new(&Caller::ROOT, &call);
    let root = ok(fs.root(cx));
    let found = ok(root.lookup(cx, ok(Name::new(b"file"))));
    let file = ok(found.node.open(cx, OpenFlags::READ));
    let (name, mode) = (ok(Name::new(b"out")), Mode::exactly(0o600));

    let (_, out) = ok(root.create(cx, name, OpenFlags::WRITE, mode));
    let mut memory = vec![0; SIZE];
    // Whoever answers this has counted all that he did before.
    let settled = || {
        ok(root.attr(cx, Want::STAT));
        vfs::copies::so_far().expect("a debug build")
    };
    let read = each(settled, || {
        file.read(cx, 5, SIZE, &mut SliceSink::new(&mut memory))
    });
    assert!(memory == pattern(SIZE * 2, 7)[5..][..SIZE]);
    let write = each(settled, || {
        out.write(cx, 0, &mut SlicePayload::new(&memory))
    });
    (read, write)
}

/// How often each byte is copied by `act`, which moves [`SIZE`] of them. `so_far` says how many have been copied.
fn each(so_far: impl Fn() -> u64, mut act: impl FnMut() -> Result<usize>) -> f64 {
    assert_eq!(act(), Ok(SIZE));
    let before = so_far();
    for _ in 0..MESSAGES {
        assert_eq!(act(), Ok(SIZE));
    }
    (so_far() - before) as f64 / (SIZE * MESSAGES) as f64
}

/// What is around payloads is copied, too, and of one that comes in pieces the beginning: more of it where a reader is woken late,
/// so the best of a few tries counts.
fn assert_copies(what: &str, fs: &dyn FileSystem, expected: (f64, f64)) {
    let near = |found: f64, expected: f64| (-0.01..0.1).contains(&(found - expected));
    let mut tries = Vec::new();
    while tries.len() < 8 {
        let (read, write) = copies(fs);
        if near(read, expected.0) && near(write, expected.1) {
            return;
        }
        tries.push((read, write));
    }
    panic!("{what}: {tries:.3?} copies to read and to write, not {expected:?}");
}

fn connect(link: impl Link + 'static, zerocopy: bool) -> Arc<Remote9p> {
    let options = Options {
        uname: "root".into(),
        zerocopy,
        ..Options::default()
    };
    Remote9p::connect(link, options).expect("attached")
}

#[test]
fn sockets_copy_twice_at_each_end_at_most() {
    alone("sockets_copy_twice_at_each_end_at_most", || {
        let (dir, fs) = directory(SIZE * 2);
        let pages = Served::of(fs.clone());
        let copying = Served::tuned(
            fs,
            Tuning {
                zerocopy: false,
                ..Tuning::default()
            },
        );
        let file = std::fs::File::open(dir.path().join("file")).expect("there");
        let asked = sys::cache::is_cached(std::os::fd::AsFd::as_fd(&file), 0, SIZE as u64);
        // To read: of the client from the socket. Of the server none, or from the file and to the socket.
        let server = if asked == Ok(true) { 0.0 } else { 2.0 };
        let (on, off) = (connect(pages.link(), true), connect(copying.link(), false));
        // To write: of the client to the socket; of the server from there and to the file.
        assert_copies("zerocopy", &*on, (server + 1.0, 3.0));
        // From and to the buffers of messages as well.
        assert_copies("zerocopy=off", &*off, (4.0, 4.0));
        // A client that goes on when its server is lost does not keep what it has sent either.
        let link: Box<dyn Link> = Box::new(copying.link());
        let never = Box::new(|| Err(std::io::ErrorKind::ConnectionRefused.into()));
        let link = LastingLink::new(link, never, Retry::default()).expect("a link");
        let lasting = connect(link, true);
        assert_copies("that lasts", &*lasting, (3.0, 3.0));
    });
}

#[test]
fn nfs_copies_as_9p_does() {
    alone("nfs_copies_as_9p_does", || {
        for version in [(3, 0), (4, 0), (4, 1), (4, 2)] {
            // Not of the host: no pages are moved, whatever else the machine does, so the server copies from the file and to the socket.
            let tree = nfs::net::Served::new().mount(remote::nfs::Options {
                version: Some(version),
                ..remote::nfs::Options::default()
            });
            let root = ok(run(&Caller::ROOT, |cx| tree.root(cx)));
            let who = Caller::ROOT;
            ok(Seen { node: root, who }.file("file", &pattern(SIZE * 2, 7)));
            assert_copies(&format!("{version:?}"), &*tree, (3.0, 2.0));
        }
    });
}

/// What the driver half copies from and to its queue's memory is a program's own in a guest, and does not count.
#[test]
fn virtiofs_copies_once() {
    alone("virtiofs_copies_once", || {
        let (_dir, fs) = directory(SIZE * 2);
        let (_shared, socket) = Shared::of(fs, fuse::server::Options::default());
        let mount = RemoteFuse::mount(socket, virtiofs::Options::default()).expect("mounted");
        assert_copies("virtiofs", &*mount, (1.0, 1.0));
    });
}
