//! A server that goes away and comes again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remote::nfs::Options;
use vfs::lock::{Lock, LockKind, LockTable, Owner, Space};
use vfs::{Caller, Errno, FileSystem, OpenFlags};
use vfs_testkit::bed::{Seen, ok, pattern, refused, run};

use super::net::Served;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const VERSIONS: [(u32, u32); 4] = [(3, 0), (4, 0), (4, 1), (4, 2)];

fn mounted(version: (u32, u32)) -> (Arc<Served>, Arc<dyn FileSystem>, Seen) {
    // Short, since v4.0 has whoever has something to reclaim wait for so long after a restart.
    let served = Served::with_lease(Duration::from_secs(2));
    let fs = served.mount(Options {
        version: Some(version),
        ..Options::default()
    });
    let root = root(&fs);
    (served, fs, root)
}

fn root(fs: &Arc<dyn FileSystem>) -> Seen {
    let who = Caller::ROOT;
    let node = ok(run(&who, |cx| fs.root(cx)));
    Seen { node, who }
}

#[test]
fn a_lost_connection_is_made_again() {
    for version in VERSIONS {
        let (served, _fs, root) = mounted(version);
        let (node, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"before"));
        served.hang_up();
        assert_eq!(ok(file.read_all()), b"before", "{version:?}");
        served.hang_up();
        ok(file.write_all(0, b"behind"));
        served.hang_up();
        assert_eq!(ok(node.content()), b"behind");
        ok(root.rename("file", &root, "other"));
        assert_eq!(ok(root.lookup("other")).id(), node.id());
    }
}

#[test]
fn what_is_open_stays_open_over_a_restart() {
    for version in VERSIONS {
        let (served, _fs, root) = mounted(version);
        let (node, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"before"));
        ok(file.fsync(false));
        served.restart();
        assert_eq!(ok(file.read_all()), b"before", "{version:?}");
        ok(file.write_all(6, b" and behind"));
        assert_eq!(ok(file.read_all()), b"before and behind");
        ok(file.fsync(false));
        assert_eq!(ok(node.content()), b"before and behind");
        drop(file);
        ok(root.unlink("file"));
        ok(root.file("other", b"new"));
    }
}

#[test]
fn unstable_writes_that_a_restart_may_have_lost_are_told_of() {
    for version in VERSIONS {
        let (served, _fs, root) = mounted(version);
        let (_, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"data"));
        served.restart();
        refused(file.fsync(false), Errno::EIO);
        ok(file.fsync(false));
        ok(file.write_all(0, b"again"));
        ok(file.fsync(false));
    }
}

fn lock(client: u64, start: u64, end: u64) -> Lock {
    Lock {
        space: Space::Posix,
        start,
        end,
        kind: LockKind::Exclusive,
        owner: Owner {
            client,
            id: Arc::from([1]),
            pid: 1,
        },
    }
}

#[test]
fn locks_are_kept_over_a_restart() {
    for version in [(4, 0), (4, 1), (4, 2)] {
        let (served, _fs, one) = mounted(version);
        let node = ok(one.file("file", b"data"));
        let table = LockTable::default();
        let take = |node: &Seen, table: &LockTable, lock: &Lock| {
            run(&node.who, |cx| {
                table.lock(cx, &*node.node, lock.clone(), false)
            })
        };
        ok(take(&node, &table, &lock(1, 0, 9)));
        served.restart();
        // Somebody else, who comes by another connection and asks by another table.
        let fs = served.mount(Options {
            version: Some(version),
            ..Options::default()
        });
        // It is only now that the first one finds that the server has begun anew.
        assert_eq!(ok(node.content()), b"data");
        let theirs = ok(root(&fs).lookup("file"));
        let others = LockTable::default();
        refused(take(&theirs, &others, &lock(2, 5, 5)), Errno::EAGAIN);
        let mine = lock(1, 0, 9);
        ok(run(&node.who, |cx| {
            table.unlock(cx, &*node.node, mine.space, 0, 9, &mine.owner)
        }));
        ok(take(&theirs, &others, &lock(2, 5, 5)));
    }
}

#[test]
fn many_threads_go_on_over_restarts() {
    for version in VERSIONS {
        let (served, fs, _) = mounted(version);
        let (done, restarted) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4u64)
                .map(|worker| {
                    let (fs, done, restarted) = (&fs, &done, &restarted);
                    scope.spawn(move || {
                        let root = root(fs);
                        let mut round = 0;
                        while !done.load(Ordering::Relaxed) || round < 3 {
                            let name = format!("{worker}-{round}");
                            let data = pattern(200_000, worker + round);
                            let (_, file) = ok(root.create(&name, RW, 0o644));
                            ok(file.write_all(0, &data));
                            assert!(ok(file.read_all()) == data, "{version:?}");
                            drop(file);
                            // What has been answered before is not known after a restart, and barge's
                            // server keeps no answers of v4.0.
                            let forgets = || restarted.load(Ordering::Relaxed) || version == (4, 0);
                            match root.unlink(&name) {
                                Err(Errno::ENOENT) if forgets() => {}
                                done => assert_eq!(done, Ok(()), "{version:?}"),
                            }
                            round += 1;
                        }
                    })
                })
                .collect();
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(30));
                served.hang_up();
            }
            restarted.store(true, Ordering::Relaxed);
            served.restart();
            done.store(true, Ordering::Relaxed);
            for worker in workers {
                worker.join().expect("no panic");
            }
        });
    }
}
