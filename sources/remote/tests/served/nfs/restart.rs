//! A server that disconnects or restarts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use layers::call_log::{CallLog, Event};
use memory::Memory;
use parking_lot::Mutex;
use remote::Retry;
use remote::nfs::Options;
use vfs::lock::{Lock, LockFamily, LockKind, LockTable, Owner};
use vfs::op::Op;
use vfs::{Caller, Errno, FileSystem, NodeId, OpenFlags};
use vfs_testkit::context::{TestNode, ok, pattern, refused, run};
use vfs_testkit::wait_until;

use super::net::Served;

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const VERSIONS: [(u32, u32); 4] = [(3, 0), (4, 0), (4, 1), (4, 2)];

fn mounted(version: (u32, u32)) -> (Arc<Served>, Arc<dyn FileSystem>, TestNode) {
    // Short, as v4.0's grace period after a restart is that long if there is state to reclaim.
    let served = Served::with_lease(Duration::from_secs(2));
    let fs = served.mount(Options {
        version: Some(version),
        ..Options::default()
    });
    let root = root(&fs);
    (served, fs, root)
}

fn root(fs: &Arc<dyn FileSystem>) -> TestNode {
    let who = Caller::ROOT;
    let node = ok(run(&who, |cx| fs.root(cx)));
    TestNode { node, caller: who }
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
fn a_lost_server_is_waited_for_once() {
    const RETRY: Duration = Duration::from_secs(3);
    for version in VERSIONS {
        let served = Served::with_lease(Duration::from_secs(2));
        let is_away = Arc::new(AtomicBool::new(false));
        let (away, server) = (is_away.clone(), served.clone());
        let dial = move |_: Option<u16>| {
            if away.load(Ordering::SeqCst) {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            Ok(Box::new(server.link()) as Box<dyn transports::Link>)
        };
        let (fs, _) = remote::nfs::mount(&remote::nfs::Mount {
            dial: Arc::new(dial),
            path: "",
            require_full_path: true,
            options: Options {
                version: Some(version),
                retry: Retry::For(RETRY),
                ..Options::default()
            },
        })
        .expect("mounted");
        let root = root(&fs);
        let (node, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"data"));
        ok(file.fsync(false));
        let table = LockTable::default();
        is_away.store(true, Ordering::SeqCst);
        served.hang_up();
        let start = Instant::now();
        std::thread::scope(|scope| {
            // Several calls wait at once, next to the thread that renews the lease.
            for _ in 0..3 {
                scope.spawn(|| refused(file.read_all(), Errno::ETIMEDOUT));
            }
            refused(root.lookup("file"), Errno::ETIMEDOUT);
        });
        assert!(start.elapsed() >= RETRY - Duration::from_millis(100));
        // Later ones fail at once.
        refused(root.lookup("other"), Errno::ETIMEDOUT);
        if version != (3, 0) {
            refused(take(&node, &table, &lock(1, 0, 9)), Errno::ETIMEDOUT);
        }
        refused(file.read_all(), Errno::ETIMEDOUT);
        let waited = start.elapsed();
        assert!(waited < 2 * RETRY, "{version:?}: {waited:?}");
        is_away.store(false, Ordering::SeqCst);
        // An attempt to connect is made once a second.
        while file.read_all() == Err(Errno::ETIMEDOUT) {
            assert!(start.elapsed() < 10 * RETRY, "{version:?}");
        }
        assert_eq!(ok(file.read_all()), b"data");
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

/// Restarts the server after a crash that leaves `left`, the durable content, in `file`.
fn crash(served: &Served, left: &[u8]) {
    served.restart_after(|fs| {
        let file = ok(ok(root(fs).lookup("file")).open(RW | OpenFlags::TRUNC));
        ok(file.write_all(0, left));
    });
}

/// The content of `file` on the server.
fn stored(served: &Served) -> Vec<u8> {
    ok(ok(root(served.tree()).lookup("file")).content())
}

#[test]
fn unstable_writes_that_a_crash_has_lost_are_written_again() {
    for version in VERSIONS {
        let (served, _fs, root) = mounted(version);
        let (_, file) = ok(root.create("file", RW, 0o644));
        let long = pattern(3 << 20, 5);
        ok(file.write_all(0, b"durable"));
        ok(file.fsync(false));
        ok(file.write_all(7, &long));
        ok(file.write_all(9, b"over"));
        crash(&served, b"durable");
        let mut want = [b"durable", &long[..]].concat();
        want[9..13].copy_from_slice(b"over");
        ok(file.fsync(false));
        assert!(stored(&served) == want, "{version:?}");

        // Writes before and after a restart: the newer data wins.
        ok(file.write_all(0, b"first second"));
        crash(&served, b"durable");
        ok(file.write_all(6, b"third!"));
        ok(file.fsync(false));
        assert_eq!(stored(&served), b"first third!", "{version:?}");

        // Data is not written again after it was committed.
        crash(&served, b"gone");
        ok(file.fsync(false));
        assert_eq!(stored(&served), b"gone", "{version:?}");
    }
}

#[test]
fn a_file_is_seen_with_its_unstable_writes_after_a_crash() {
    for version in VERSIONS {
        let (served, _fs, root) = mounted(version);
        let (node, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"written"));
        crash(&served, b"");
        // A call without a file handle's attributes establishes the new connection.
        ok(root.statfs());
        assert_eq!(node.attr().size, 7, "{version:?}");
        assert_eq!(ok(file.read_all()), b"written", "{version:?}");
    }
}

#[test]
fn data_of_a_closed_file_is_written_again() {
    for version in VERSIONS {
        let (served, fs, root) = mounted(version);
        let (_, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"written"));
        drop(file);
        crash(&served, b"");
        ok(run(&root.caller, |cx| fs.sync(cx)));
        assert_eq!(stored(&served), b"written", "{version:?}");
    }
}

#[test]
fn what_was_cut_off_after_an_unstable_write_is_not_written_again() {
    for version in VERSIONS {
        let (served, _fs, root) = mounted(version);
        let (node, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"0123456789"));
        ok(node.truncate(4));
        ok(file.write_all(8, b"8"));
        crash(&served, b"0123");
        ok(file.fsync(false));
        assert_eq!(stored(&served), b"0123\0\0\0\08", "{version:?}");
        if version == (4, 2) {
            ok(file.write_all(0, b"abcdefghi"));
            ok(file.allocate(vfs::AllocateMode::Punch, 2, 2));
            crash(&served, b"__\0\0");
            ok(file.fsync(false));
            assert_eq!(stored(&served), b"ab\0\0efghi");
        }
        // An open with truncation drops all data.
        ok(file.write_all(0, b"again and again"));
        drop(ok(node.open(RW | OpenFlags::TRUNC)));
        crash(&served, b"");
        ok(file.fsync(false));
        assert_eq!(stored(&served), b"", "{version:?}");
    }
}

#[test]
fn a_removed_file_has_no_data_to_be_written_again() {
    for version in VERSIONS {
        let (served, fs, root) = mounted(version);
        let (_, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"data"));
        drop(file);
        ok(root.unlink("file"));
        served.restart();
        ok(run(&root.caller, |cx| fs.sync(cx)));
    }
}

/// A server that records the commits of files, by node ID.
fn counting() -> (Arc<Served>, Arc<Mutex<Vec<NodeId>>>) {
    let commits = Arc::<Mutex<Vec<NodeId>>>::default();
    let counted = commits.clone();
    let count = move |event: &Event<'_>| {
        if event.op == Op::Fsync {
            counted.lock().push(event.node);
        }
    };
    let start = Instant::now();
    let record = CallLog::new(Arc::new(move || start.elapsed()), Box::new(count));
    let fs = layers::stack(Memory::new(vfs_testkit::clock()), record);
    (Served::over(fs), commits)
}

#[test]
fn much_uncommitted_data_is_committed_early() {
    for version in [(3, 0), (4, 2)] {
        let (served, commits) = counting();
        let fs = served.mount(Options {
            version: Some(version),
            ..Options::default()
        });
        let root = root(&fs);
        let files: Vec<_> = (0..3)
            .map(|number| ok(root.create(&format!("{number}"), RW, 0o644)))
            .collect();
        let piece = pattern(1 << 20, 7);
        for at in 0..33 {
            ok(files[0].1.write_all(at << 20, &piece));
        }
        let committed = || commits.lock().clone();
        assert!(committed().is_empty(), "{version:?}");
        // More than 64 MiB of one file are committed early.
        for at in 33..66 {
            ok(files[0].1.write_all(at << 20, &piece));
        }
        let first = files[0].0.id();
        let early = committed();
        assert!(!early.is_empty() && early.iter().all(|&id| id == first));
        // So are more than 64 MiB of several files, the oldest first, on a background thread.
        for at in 0..40 {
            ok(files[1].1.write_all(at << 20, &piece));
            ok(files[2].1.write_all(at << 20, &piece));
        }
        wait_until("the oldest file is committed", || {
            committed().contains(&files[1].0.id())
        });
    }
}

#[test]
fn copies_are_durable() {
    let (served, commits) = counting();
    let fs = served.mount(Options {
        version: Some((4, 2)),
        ..Options::default()
    });
    let root = root(&fs);
    let (_, from) = ok(root.create("from", RW, 0o644));
    let (node, to) = ok(root.create("file", RW, 0o644));
    ok(from.write_all(0, b"copied"));
    ok(to.write_all(0, b"here before"));
    assert_eq!(from.copy(0, &to, 0, 6, vfs::CopyMode::Any), Ok(6));
    assert_eq!(*commits.lock(), [node.id()]);
    crash(&served, b"copied");
    ok(to.fsync(false));
    assert_eq!(stored(&served), b"copiedefore");
}

fn lock(client: u64, start: u64, end: u64) -> Lock {
    Lock {
        family: LockFamily::Posix,
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

fn take(node: &TestNode, table: &LockTable, lock: &Lock) -> vfs::Result<()> {
    run(&node.caller, |cx| {
        table.lock(cx, &*node.node, lock.clone(), false)
    })
}

#[test]
fn locks_are_kept_over_a_restart() {
    for version in [(4, 0), (4, 1), (4, 2)] {
        let (served, _fs, one) = mounted(version);
        let node = ok(one.file("file", b"data"));
        let table = LockTable::default();
        ok(take(&node, &table, &lock(1, 0, 9)));
        served.restart();
        // Another client, with its own connection and lock table.
        let fs = served.mount(Options {
            version: Some(version),
            ..Options::default()
        });
        // Only now does the first client notice the restart.
        assert_eq!(ok(node.content()), b"data");
        let theirs = ok(root(&fs).lookup("file"));
        let others = LockTable::default();
        refused(take(&theirs, &others, &lock(2, 5, 5)), Errno::EAGAIN);
        let mine = lock(1, 0, 9);
        ok(run(&node.caller, |cx| {
            table.unlock(cx, &*node.node, mine.family, 0, 9, &mine.owner)
        }));
        ok(take(&theirs, &others, &lock(2, 5, 5)));
    }
}

/// Runs `what` on a thread, and fails if it takes as long as no call of it may.
fn in_time(what: impl FnOnce() + Send + 'static) {
    let (done, is_done) = sync_channel(1);
    let thread = std::thread::spawn(move || {
        what();
        let _ = done.send(());
    });
    // An error means that the thread has panicked.
    if is_done.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
        panic!("the calls hang");
    }
    thread.join().expect("no panic");
}

#[test]
fn a_file_that_the_server_does_not_let_be_reclaimed_is_opened_again() {
    for version in [(4, 0), (4, 1), (4, 2)] {
        let (served, _fs, root) = mounted(version);
        let (node, file) = ok(root.create("file", RW, 0o644));
        ok(file.write_all(0, b"before"));
        ok(file.fsync(false));
        served.restart_without_state();
        in_time(move || {
            assert_eq!(ok(node.content()), b"before", "{version:?}");
            ok(root.file("other", b"new"));
            ok(file.write_all(6, b" and behind"));
            ok(file.fsync(false));
            assert_eq!(ok(file.read_all()), b"before and behind");
        });
    }
}

#[test]
fn a_lock_that_the_server_does_not_let_be_reclaimed_is_lost_with_its_file_alone() {
    for version in [(4, 0), (4, 1), (4, 2)] {
        let (served, _fs, root) = mounted(version);
        let (node, file) = ok(root.create("file", RW, 0o644));
        let (_, other) = ok(root.create("other", RW, 0o644));
        let table = LockTable::default();
        ok(take(&node, &table, &lock(1, 0, 9)));
        served.restart_without_state();
        let another = served.clone();
        in_time(move || {
            ok(other.write_all(0, b"goes on"));
            // Another client, which gets the lock.
            let fs = another.mount(Options {
                version: Some(version),
                ..Options::default()
            });
            let theirs = ok(self::root(&fs).lookup("file"));
            let others = LockTable::default();
            ok(take(&theirs, &others, &lock(2, 5, 5)));
            ok(ok(theirs.open(RW)).write_all(0, b"theirs"));
            refused(file.write_all(0, b"mine"), Errno::EIO);
            refused(file.read_all(), Errno::EIO);
            refused(take(&node, &table, &lock(1, 20, 29)), Errno::EIO);
            // The program closes the file, and opens it again.
            let mine = lock(1, 0, u64::MAX);
            ok(run(&node.caller, |cx| {
                table.unlock(cx, &*node.node, mine.family, 0, u64::MAX, &mine.owner)
            }));
            drop(file);
            let file = ok(node.open(RW));
            assert_eq!(ok(file.read_all()), b"theirs", "{version:?}");
            refused(take(&node, &table, &lock(1, 0, 9)), Errno::EAGAIN);
            let held = lock(2, 5, 5);
            ok(run(&theirs.caller, |cx| {
                others.unlock(cx, &*theirs.node, held.family, 5, 5, &held.owner)
            }));
            ok(take(&node, &table, &lock(1, 0, 9)));
        });
    }
}

#[test]
fn a_restart_during_recovery_is_recovered_from() {
    const FILES: u64 = 6;
    for version in [(4, 0), (4, 1), (4, 2)] {
        let (slow, opens) = (Arc::new(AtomicBool::new(false)), sync_channel(64));
        let (is_slow, opened) = (slow.clone(), opens.0);
        // While it is slow, the server restarts before the client has recovered all files.
        let delay = move |event: &Event<'_>| {
            if event.op == Op::Open && is_slow.load(Ordering::Relaxed) {
                opened.send(()).expect("heard");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        let record = CallLog::new(Arc::new(|| Duration::ZERO), Box::new(delay));
        let fs = layers::stack(Memory::new(vfs_testkit::clock()), record);
        let served = Served::over_with_lease(fs, Duration::from_secs(2));
        let mount = || {
            served.mount(Options {
                version: Some(version),
                ..Options::default()
            })
        };
        let fs = mount();
        let table = LockTable::default();
        let files: Vec<_> = (0..FILES)
            .map(|number| {
                let name = format!("{number}");
                let (node, file) = ok(root(&fs).create(&name, RW, 0o644));
                ok(file.write_all(0, b"before"));
                ok(take(&node, &table, &lock(1, number, number)));
                (node, file)
            })
            .collect();
        slow.store(true, Ordering::Relaxed);
        served.restart();
        std::thread::scope(|scope| {
            let write = scope.spawn(|| files[0].1.write_all(6, b" and after"));
            for _ in 0..3 {
                opens.1.recv().expect("opened");
                served.restart();
            }
            slow.store(false, Ordering::Relaxed);
            ok(write.join().expect("no panic"));
        });
        // No file is lost, and no lock.
        for (_, file) in &files {
            ok(file.write_all(0, b"BEFORE"));
            ok(file.fsync(false));
        }
        assert_eq!(ok(files[0].1.read_all()), b"BEFORE and after");
        let (fs, others) = (mount(), LockTable::default());
        for number in 0..FILES {
            let theirs = ok(root(&fs).lookup(&format!("{number}")));
            let taken = take(&theirs, &others, &lock(2, number, number));
            refused(taken, Errno::EAGAIN);
        }
    }
}

/// A server whose first file removal blocks until the returned sender is used; the receiver is
/// notified when the file is gone.
fn removing_slowly() -> (Arc<Served>, Receiver<()>, SyncSender<()>) {
    let (removed, is_removed) = sync_channel(1);
    let (end, may_end) = sync_channel(1);
    let may_end = Mutex::new(Some(may_end));
    let hold = move |event: &Event<'_>| {
        let first = (event.op == Op::Unlink).then(|| may_end.lock().take());
        if let Some(may_end) = first.flatten() {
            removed.send(()).expect("heard");
            may_end.recv().expect("told");
        }
    };
    let record = CallLog::new(Arc::new(|| Duration::ZERO), Box::new(hold));
    let fs = layers::stack(Memory::new(vfs_testkit::clock()), record);
    (Served::over(fs), is_removed, end)
}

#[test]
fn a_request_that_goes_on_over_a_lost_connection_is_not_carried_out_twice() {
    for version in [(4, 1), (4, 2)] {
        let (served, is_removed, end) = removing_slowly();
        let fs = served.mount(Options {
            version: Some(version),
            ..Options::default()
        });
        let root = root(&fs);
        ok(root.file("file", b"data"));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let removes = scope.spawn(|| {
                let removed = root.unlink("file");
                done.store(true, Ordering::Relaxed);
                removed
            });
            is_removed.recv().expect("removed");
            served.hang_up();
            // These occupy slots all the time, and notice the lost connection.
            let others: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            root.attr();
                        }
                    })
                })
                .collect();
            // The removal has been retransmitted over the new connection before this call.
            ok(root.file("other", b""));
            end.send(()).expect("heard");
            assert_eq!(removes.join().expect("no panic"), Ok(()), "{version:?}");
            for other in others {
                other.join().expect("no panic");
            }
        });
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
                            // A restarted server has lost its reply cache, and barge's server has
                            // none for v4.0.
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
