//! The number of times that each data path copies its payload. Debug builds count for a whole
//! process: so each of these tests runs itself once more, alone in a process of its own.

use std::process::Command;
use std::sync::Arc;

use engine::Tuning;
use remote::ninep::{Options, ReconnectingLink, Remote9p, Retry};
use remote::virtiofs::{self, RemoteFuse};
use transports::Link;
use vfs::{AttrMask, Call, Caller, Cx, FileSystem, Mode, Name, OpenFlags, Result};
use vfs_testkit::context::{TestNode, ok, pattern, run};
use wire::payload::{SlicePayload, SliceSink};

use crate::device::Shared;
use crate::net::Served;
use crate::nfs;
use crate::pages::directory;

/// The size of a message's payload.
const SIZE: usize = 512 << 10;

/// The number of measured messages, after a first one that lets buffers grow.
const MESSAGES: usize = 4;

/// Runs `test`, whose name is `name`, in a process where no other test copies.
fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "BARGE_TEST_ALONE";
    if vfs::copies::total_copied().is_none() {
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

/// Returns how often each byte read from and written to `fs` is copied.
fn copies(fs: &dyn FileSystem) -> (f64, f64) {
    let call = Call::detached();
    let cx = &Cx::new(&Caller::ROOT, &call);
    let root = ok(fs.root(cx));
    let found = ok(root.lookup(cx, ok(Name::new(b"file"))));
    let file = ok(found.node.open(cx, OpenFlags::READ));
    let (name, mode) = (ok(Name::new(b"out")), Mode::without_umask(0o600));

    let (_, out) = ok(root.create(cx, name, OpenFlags::WRITE, mode));
    let mut memory = vec![0; SIZE];
    // The thread that answers this request has counted its previous copies.
    let settled = || {
        ok(root.attr(cx, AttrMask::STAT));
        vfs::copies::total_copied().expect("a debug build")
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

/// Returns how often each byte is copied by `act`, which moves [`SIZE`] of them. `so_far` is the
/// copy counter.
fn each(so_far: impl Fn() -> u64, mut act: impl FnMut() -> Result<usize>) -> f64 {
    assert_eq!(act(), Ok(SIZE));
    let before = so_far();
    for _ in 0..MESSAGES {
        assert_eq!(act(), Ok(SIZE));
    }
    (so_far() - before) as f64 / (SIZE * MESSAGES) as f64
}

/// Asserts the number of copies. Headers are copied, too, and the beginning of a payload that
/// arrives in pieces: more of it if a reader is woken late, so the best of a few tries counts.
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
        // Reads: the client copies from the socket; the server not at all, or from the file and to
        // the socket.
        let server = if asked == Ok(true) { 0.0 } else { 2.0 };
        let (on, off) = (connect(pages.link(), true), connect(copying.link(), false));
        // Writes: the client copies to the socket; the server from the socket and to the file.
        assert_copies("zerocopy", &*on, (server + 1.0, 3.0));
        // Message buffers add a copy to each.
        assert_copies("zerocopy=off", &*off, (4.0, 4.0));
        // A client that reconnects does not keep sent payloads either.
        let link: Box<dyn Link> = Box::new(copying.link());
        let never = Box::new(|| Err(std::io::ErrorKind::ConnectionRefused.into()));
        let link = ReconnectingLink::new(link, never, Retry::default()).expect("a link");
        let lasting = connect(link, true);
        assert_copies("that lasts", &*lasting, (3.0, 3.0));
    });
}

#[test]
fn nfs_copies_as_9p_does() {
    alone("nfs_copies_as_9p_does", || {
        for version in [(3, 0), (4, 0), (4, 1), (4, 2)] {
            // Memory instead of host files: no pages can be moved, so the server always copies from
            // the file and to the socket.
            let tree = nfs::net::Served::new().mount(remote::nfs::Options {
                version: Some(version),
                ..remote::nfs::Options::default()
            });
            let root = ok(run(&Caller::ROOT, |cx| tree.root(cx)));
            let who = Caller::ROOT;
            ok(TestNode {
                node: root,
                caller: who,
            }
            .file("file", &pattern(SIZE * 2, 7)));
            assert_copies(&format!("{version:?}"), &*tree, (3.0, 2.0));
        }
    });
}

/// The driver's copies from and to its queue's memory would be the program's own in a guest, and do
/// not count.
#[test]
fn virtiofs_copies_once() {
    alone("virtiofs_copies_once", || {
        let (_dir, fs) = directory(SIZE * 2);
        let (_shared, socket) = Shared::of(fs, fuse::server::Options::default());
        let mount = RemoteFuse::mount(socket, virtiofs::Options::default()).expect("mounted");
        assert_copies("virtiofs", &*mount, (1.0, 1.0));
    });
}
