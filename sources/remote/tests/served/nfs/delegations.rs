//! Delegations, over a host directory on a file system with kernel leases.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostdir::{HostDir, Identity, Options as Shown};
use remote::nfs::{Mount, Options, mount};
use tempfile::TempDir;
use vfs::{Caller, FileSystem, OpenFlags};
use vfs_testkit::context::{TestNode, ok, run};

use super::net::Served;

const READ: OpenFlags = OpenFlags::READ;

/// A server, and a client that the test can keep from reconnecting.
struct Bed {
    fs: Arc<dyn FileSystem>,
    served: Arc<Served>,
    away: Arc<AtomicBool>,
    dir: TempDir,
}

impl Bed {
    fn new() -> Bed {
        Bed::with(Options::default())
    }

    fn with(options: Options) -> Bed {
        // /dev/shm is a tmpfs on every Linux.
        let dir = TempDir::new_in("/dev/shm").expect("a directory");
        let shown = Shown {
            identity: Identity::Fixed,
            ..Shown::default()
        };
        let fs = HostDir::open(dir.path(), shown).expect("exported");
        let served = Served::over(fs);
        let away = Arc::new(AtomicBool::new(false));
        let (there, gone) = (served.clone(), away.clone());
        let (fs, _) = mount(&Mount {
            dial: Arc::new(move |_| match gone.load(Ordering::SeqCst) {
                false => Ok(Box::new(there.link())),
                true => Err(ErrorKind::ConnectionRefused.into()),
            }),
            path: "",
            require_full_path: true,
            options,
        })
        .expect("mounted");
        Bed {
            fs,
            served,
            away,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn root(&self) -> TestNode {
        root(&self.fs)
    }

    /// A file that the client has read.
    fn was_read(&self, name: &str) -> TestNode {
        fs::write(self.path(name), "before").expect("written");
        let node = ok(self.root().lookup(name));
        assert_eq!(ok(ok(node.open(READ)).read_all()), b"before");
        node
    }

    /// Writes the file as a program of the host, which waits while the file is delegated.
    fn write(&self, name: &str) {
        // The time after which barge's server revokes a recalled delegation.
        const REVOKED: Duration = Duration::from_secs(40);
        let began = Instant::now();
        fs::write(self.path(name), "behind").expect("written");
        assert!(began.elapsed() < REVOKED / 2);
    }

    /// Returns whether an open for writing by a program of the host would block, which also recalls
    /// the delegation.
    fn is_delegated(&self, name: &str) -> bool {
        const NONBLOCK: i32 = 0o4000;
        let mut options = fs::OpenOptions::new();
        let opened = options
            .write(true)
            .custom_flags(NONBLOCK)
            .open(self.path(name));
        match opened {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => true,
            Err(error) => panic!("{error}"),
        }
    }
}

fn root(fs: &Arc<dyn FileSystem>) -> TestNode {
    let who = Caller::ROOT;
    let node = ok(run(&who, |cx| fs.root(cx)));
    TestNode { node, caller: who }
}

#[test]
fn a_file_that_was_read_is_opened_again_without_the_server() {
    let bed = Bed::new();
    let node = bed.was_read("file");
    bed.away.store(true, Ordering::SeqCst);
    bed.served.hang_up();
    let file = ok(node.open(READ));
    bed.away.store(false, Ordering::SeqCst);
    assert_eq!(ok(file.read_all()), b"before");
}

#[test]
fn a_program_of_the_host_writes_after_a_recall() {
    let bed = Bed::new();
    for minor in [1, 2] {
        let bed = match minor {
            2 => &bed,
            _ => &Bed::with(Options {
                version: Some((4, 1)),
                ..Options::default()
            }),
        };
        let node = bed.was_read("file");
        let kept = ok(node.open(READ));
        assert!(bed.is_delegated("file"), "4.{minor}");
        // The write waits until the delegation is returned, while the client sends no other
        // requests.
        bed.write("file");
        assert_eq!(ok(kept.read_all()), b"behind");
        assert_eq!(ok(ok(node.open(READ)).read_all()), b"behind");
        assert!(!bed.is_delegated("file"));
    }
}

#[test]
fn another_client_writes_after_a_recall() {
    let bed = Bed::new();
    let node = bed.was_read("file");
    let theirs = bed.served.mount(Options::default());
    let file = ok(ok(root(&theirs).lookup("file")).open(OpenFlags::WRITE));
    ok(file.write_all(0, b"behind"));
    assert_eq!(ok(ok(node.open(READ)).read_all()), b"behind");
}

#[test]
fn who_was_read_is_written_and_removed_from_here() {
    let bed = Bed::new();
    let written = bed.was_read("written");
    let file = ok(written.open(OpenFlags::READ | OpenFlags::WRITE));
    ok(file.write_all(0, b"behind"));
    assert_eq!(ok(written.content()), b"behind");
    bed.was_read("renamed");
    bed.was_read("over");
    ok(bed.root().rename("renamed", &bed.root(), "over"));
    bed.was_read("removed");
    ok(bed.root().unlink("removed"));
    assert!(!bed.path("removed").exists());
}

#[test]
fn a_recall_comes_by_the_connection_that_there_is() {
    let bed = Bed::new();
    let node = bed.was_read("file");
    bed.served.hang_up();
    bed.write("file");
    assert_eq!(ok(node.content()), b"behind");
}

#[test]
fn a_server_that_has_begun_anew_has_none() {
    let bed = Bed::new();
    let node = bed.was_read("file");
    let file = ok(node.open(READ));
    bed.served.restart();
    bed.write("file");
    assert_eq!(ok(file.read_all()), b"behind");
    assert_eq!(ok(node.content()), b"behind");
}

#[test]
fn none_is_left_behind() {
    let mut bed = Bed::new();
    drop(bed.was_read("file"));
    bed.fs = bed.served.mount(Options::default());
    bed.write("file");
}

#[test]
fn none_is_taken_if_none_is_wanted() {
    let bed = Bed::with(Options {
        no_delegations: true,
        ..Options::default()
    });
    bed.was_read("file");
    assert!(!bed.is_delegated("file"));
}
