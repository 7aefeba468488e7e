//! The host's tree changes while a client walks it: no walk leads outside.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hostile::raw_client::{ROOT, RawClient};
use hostile::server::{Server, Transport, host_dir};
use p9::{Fid, Rmessage, Tmessage as T};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use vfs_testkit::{SetOnDrop, wait_until};

const ONE: Fid = Fid(1);

/// Minimum number of walks with each outcome.
const MIN_COUNT: usize = 200;

/// Repeats `walk` until each of its outcomes was frequent enough, while another thread repeats
/// `change`.
fn race(change: impl Fn() + Sync, mut walk: impl FnMut() -> usize, outcomes: usize) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                change();
            }
        });
        // Ends the other thread, even on a panic.
        let _end = SetOnDrop(&over);
        let mut seen = vec![0; outcomes];
        while seen.iter().any(|&count| count < MIN_COUNT) {
            seen[walk()] += 1;
        }
    });
}

fn exchange(one: &Path, other: &Path) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("exchanged");
}

/// Makes `outside` with a file `secret`, and `served` in it with a directory `x` and a symbolic
/// link `y` to `target`, which are swapped.
fn tree(target: &str) -> tempfile::TempDir {
    let outside = tempfile::tempdir().expect("a directory");
    let served = outside.path().join("served");
    fs::create_dir_all(served.join("x/etc")).expect("made");
    fs::write(served.join("x/secret"), b"inside").expect("written");
    fs::write(outside.path().join("secret"), b"outside").expect("written");
    symlink(target, served.join("y")).expect("made");
    outside
}

#[test]
fn a_directory_that_becomes_a_link_to_outside_leads_nowhere() {
    for (target, descriptors) in [("..", None), ("/", None), ("..", Some(16))] {
        let outside = tree(target);
        let served = outside.path().join("served");
        let server = Server::new(Transport::Unix, host_dir(&served, descriptors));
        let mut peer = RawClient::connect_attached(&server.addr, 8192);
        let etc = fs::metadata("/etc").expect("there");
        let (x, y) = (served.join("x"), served.join("y"));
        race(
            || exchange(&x, &y),
            || {
                let walked = peer.try_walk(ROOT, ONE, &[b"x", b"secret"]);
                match walked.expect("x is there, whatever it is").len() {
                    1 => return 0,
                    2 => {}
                    more => panic!("{more} of two names"),
                }
                // Opens and reads the walked file, which may have another name by now.
                peer.expect_ok(&T::Lopen { fid: ONE, flags: 0 });
                let (fid, offset, count) = (ONE, 0, 100);
                let Rmessage::Read { data } = peer.expect_ok(&T::Read { fid, offset, count })
                else {
                    panic!("not read");
                };
                assert_eq!(data.0, b"inside");
                peer.expect_ok(&T::Clunk { fid: ONE });
                // A name that also exists in /.
                if let Ok([_, qid]) = peer.try_walk(ROOT, ONE, &[b"x", b"etc"]).as_deref() {
                    let Rmessage::Getattr { mtime_sec, .. } = peer.expect_ok(&T::Getattr {
                        fid: ONE,
                        mask: 0x7ff,
                    }) else {
                        panic!("no attributes");
                    };
                    use std::os::unix::fs::MetadataExt;
                    assert_ne!(mtime_sec as i64, etc.mtime(), "{qid:?}");
                    peer.expect_ok(&T::Clunk { fid: ONE });
                }
                1
            },
            2,
        );
    }
}

#[test]
fn creating_below_a_directory_that_becomes_a_link_makes_nothing_outside() {
    let outside = tree("..");
    let served = outside.path().join("served");
    let server = Server::new(Transport::Unix, host_dir(&served, Some(16)));
    let mut peer = RawClient::connect_attached(&server.addr, 8192);
    let (x, y) = (served.join("x"), served.join("y"));
    race(
        || exchange(&x, &y),
        || {
            peer.walk(ROOT, ONE, &[b"x"]);
            let made = peer.try_create(ONE, b"new").is_ok();
            peer.expect_ok(&T::Clunk { fid: ONE });
            assert!(!outside.path().join("new").exists(), "made outside");
            // The file is in the directory, whatever its current name is.
            if made {
                wait_until("the file is removed", || {
                    fs::remove_file(x.join("new")).is_ok()
                });
            }
            usize::from(made)
        },
        2,
    );
}

#[test]
fn a_directory_that_is_moved_out_has_nothing_above_it() {
    for descriptors in [None, Some(16)] {
        let outside = tempfile::tempdir().expect("a directory");
        let served = outside.path().join("served");
        fs::create_dir_all(served.join("a/b")).expect("made");
        fs::write(outside.path().join("secret"), b"outside").expect("written");
        let server = Server::new(Transport::Unix, host_dir(&served, descriptors));
        let mut peer = RawClient::connect_attached(&server.addr, 8192);
        let (home, away) = (served.join("a/b"), outside.path().join("b"));
        race(
            || {
                fs::rename(&home, &away).expect("moved");
                fs::rename(&away, &home).expect("moved back");
            },
            || {
                if peer
                    .try_walk(ROOT, ONE, &[b"a", b"b"])
                    .is_ok_and(|qids| qids.len() == 2)
                {
                    let up = peer.try_walk(ONE, Fid(2), &[b"..", b"secret"]);
                    let further = peer.try_walk(ONE, Fid(2), &[b"..", b"..", b"secret"]);
                    peer.expect_ok(&T::Clunk { fid: ONE });
                    assert!(up.as_ref().is_ok_and(|qids| qids.len() < 2) || up.is_err());
                    assert!(further.as_ref().is_ok_and(|qids| qids.len() < 3) || further.is_err());
                    return usize::from(up.is_ok());
                }
                0
            },
            2,
        );
    }
}
