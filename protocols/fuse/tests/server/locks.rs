//! Locks of byte ranges and of whole files, and waiting for them.

use fuse::Request as R;
use fuse::layout::{FlushIn, LkIn, LkOut, ReleaseIn};
use fuse::numbers::{LK_FLOCK, RELEASE_FLOCK_UNLOCK, ROOT_ID, lock_kind};
use fuse::server::Options;
use vfs::{Errno, Result};

use crate::net::{Net, server};

const END: u64 = i64::MAX as u64;

fn lk(fh: u64, owner: u64, kind: u32, range: (u64, u64)) -> LkIn {
    LkIn {
        fh,
        owner,
        start: range.0,
        end: range.1,
        kind,
        pid: 5,
        lk_flags: 0,
    }
}

fn exclusive(fh: u64, owner: u64) -> LkIn {
    lk(fh, owner, lock_kind::WRLCK, (0, END))
}

fn set(net: &Net, args: LkIn) -> Result<Vec<u8>> {
    net.rpc(ROOT_ID, &R::Setlk { args })
}

fn flush(net: &Net, fh: u64, lock_owner: u64) {
    let args = FlushIn { fh, lock_owner };
    net.ok(ROOT_ID, &R::Flush { args });
}

#[test]
fn locks_are_in_the_way_and_told() {
    let net = Net::new();
    let fh = net.create(ROOT_ID, "a").1.fh;
    set(&net, lk(fh, 1, lock_kind::WRLCK, (10, 19))).expect("free");
    assert_eq!(set(&net, exclusive(fh, 2)), Err(Errno::EAGAIN));
    set(&net, lk(fh, 2, lock_kind::WRLCK, (20, END))).expect("free");
    let args = lk(fh, 2, lock_kind::RDLCK, (0, END));
    let held = LkOut::decode(&net.ok(ROOT_ID, &R::Getlk { args })).expect("an answer");
    let expected = LkOut {
        start: 10,
        end: 19,
        kind: lock_kind::WRLCK,
        pid: 5,
    };
    assert_eq!(held, expected);
    let args = lk(fh, 1, lock_kind::RDLCK, (0, END));
    let held = LkOut::decode(&net.ok(ROOT_ID, &R::Getlk { args })).expect("an answer");
    assert_eq!((held.start, held.end), (20, END));
    set(&net, lk(fh, 1, lock_kind::UNLCK, (0, END))).expect("unlocked");
    let args = lk(fh, 2, lock_kind::RDLCK, (0, 9));
    let held = LkOut::decode(&net.ok(ROOT_ID, &R::Getlk { args })).expect("an answer");
    assert_eq!(held.kind, lock_kind::UNLCK);
    for (range, kind) in [((5, 4), 0), ((1 << 63, u64::MAX), 0), ((0, 1), 9)] {
        assert_eq!(set(&net, lk(fh, 1, kind, range)), Err(Errno::EINVAL));
    }
    assert_eq!(set(&net, exclusive(999, 1)), Err(Errno::EBADF));
}

#[test]
fn a_waiting_lock_parks_and_is_granted() {
    let net = Net::new();
    let fh = net.create(ROOT_ID, "a").1.fh;
    set(&net, exclusive(fh, 1)).expect("free");
    let args = exclusive(fh, 2);
    let parked = net.park(ROOT_ID, &R::Setlkw { args }).parked();
    assert!(!parked.is_woken());
    flush(&net, fh, 1);
    assert!(parked.is_woken());
    assert_eq!(net.resume(parked).reply(), Ok(vec![]));
    assert_eq!(set(&net, exclusive(fh, 1)), Err(Errno::EAGAIN));
}

#[test]
fn a_waiting_lock_can_be_cancelled() {
    let net = Net::new();
    let fh = net.create(ROOT_ID, "a").1.fh;
    set(&net, exclusive(fh, 1)).expect("free");
    let args = exclusive(fh, 2);
    let parked = net.park(ROOT_ID, &R::Setlkw { args }).parked();
    parked.cancel();
    assert_eq!(net.resume(parked).reply(), Err(Errno::EINTR));
}

#[test]
fn a_handle_that_ends_takes_what_waits_through_it_along() {
    let server = server(Options::default());
    let (net, witness) = (Net::on(&server), Net::on(&server));
    let (_, open) = net.create(ROOT_ID, "a");
    let theirs = witness.open(witness.lookup(ROOT_ID, "a").nodeid, 2).fh;
    set(&witness, exclusive(theirs, 1)).expect("free");
    let args = exclusive(open.fh, 1);
    let parked = net.park(ROOT_ID, &R::Setlkw { args }).parked();
    net.release(open.fh);
    assert!(parked.is_woken());
    assert_eq!(net.resume(parked).reply(), Err(Errno::EBADF));
    let args = lk(theirs, 2, lock_kind::UNLCK, (0, END));
    set(&witness, args).expect("nothing to do");
}

#[test]
fn whole_file_locks_are_others_and_go_with_their_file() {
    let net = Net::new();
    let (file, open) = net.create(ROOT_ID, "a");
    let other = net.open(file.nodeid, 2).fh;
    let flock = |fh, owner| LkIn {
        lk_flags: LK_FLOCK,
        ..exclusive(fh, owner)
    };
    set(&net, flock(open.fh, 1)).expect("free");
    set(&net, exclusive(open.fh, 9)).expect("another kind");
    assert_eq!(set(&net, flock(other, 2)), Err(Errno::EAGAIN));
    // A POSIX owner with the same number is a different owner.
    flush(&net, open.fh, 1);
    assert_eq!(set(&net, flock(other, 2)), Err(Errno::EAGAIN));
    let args = ReleaseIn {
        fh: open.fh,
        flags: 0,
        release_flags: RELEASE_FLOCK_UNLOCK,
        lock_owner: 1,
    };
    net.ok(ROOT_ID, &R::Release { args });
    set(&net, flock(other, 2)).expect("free");
}

#[test]
fn what_the_client_forgets_goes_with_the_last_handle_it_locked_through() {
    let server = server(Options::default());
    let (net, witness) = (Net::on(&server), Net::on(&server));
    let (file, open) = net.create(ROOT_ID, "a");
    let second = net.open(file.nodeid, 2).fh;
    let seen = witness.lookup(ROOT_ID, "a").nodeid;
    let theirs = witness.open(seen, 2).fh;
    set(&net, lk(open.fh, 1, lock_kind::WRLCK, (0, 9))).expect("free");
    set(&net, lk(second, 1, lock_kind::WRLCK, (20, 29))).expect("free");
    net.release(open.fh);
    assert_eq!(set(&witness, exclusive(theirs, 1)), Err(Errno::EAGAIN));
    let args = exclusive(theirs, 1);
    let parked = witness.park(ROOT_ID, &R::Setlkw { args }).parked();
    net.release(second);
    assert!(parked.is_woken());
    assert_eq!(witness.resume(parked).reply(), Ok(vec![]));
}

#[test]
fn a_mount_that_ends_releases_its_locks() {
    let server = server(Options::default());
    let witness = Net::on(&server);
    let theirs = witness.create(ROOT_ID, "a").1.fh;
    for destroy in [false, true] {
        let net = Net::on(&server);
        let node = net.lookup(ROOT_ID, "a").nodeid;
        let fh = net.open(node, 2).fh;
        set(&net, exclusive(fh, 1)).expect("free");
        assert_eq!(set(&witness, exclusive(theirs, 1)), Err(Errno::EAGAIN));
        if destroy {
            net.ok(ROOT_ID, &R::Destroy {});
        } else {
            drop(net);
        }
        set(&witness, exclusive(theirs, 1)).expect("free");
        flush(&witness, theirs, 1);
    }
}

/// The client sends RELEASE alone when an open file description lock ends.
#[test]
fn a_lock_of_an_open_file_ends_with_its_handle_while_others_have_locks() {
    let net = Net::new();
    let (file, open) = net.create(ROOT_ID, "a");
    let keeper = lk(open.fh, 1, lock_kind::RDLCK, (50, 50));
    set(&net, keeper).expect("free");
    for owner in 10..15 {
        let fh = net.open(file.nodeid, 2).fh;
        set(&net, lk(fh, owner, lock_kind::RDLCK, (100, 100))).expect("shared");
        set(&net, lk(fh, owner, lock_kind::WRLCK, (200, 200))).expect("free");
        // The process that closes it has other locks.
        flush(&net, fh, 1);
        net.release(fh);
    }
    let fh = net.open(file.nodeid, 2).fh;
    for at in [100, 200] {
        let args = lk(fh, 20, lock_kind::WRLCK, (at, at));
        assert_eq!(set(&net, args), Ok(vec![]), "{at}");
    }
}

/// A child of the process has the first file open, and closes it after the process has locked the
/// file through another one.
#[test]
fn a_lock_of_a_process_outlives_a_handle_that_it_has_closed() {
    let net = Net::new();
    let (file, open) = net.create(ROOT_ID, "a");
    let (second, third) = (net.open(file.nodeid, 2).fh, net.open(file.nodeid, 2).fh);
    set(&net, exclusive(open.fh, 1)).expect("free");
    flush(&net, open.fh, 1);
    set(&net, exclusive(third, 2)).expect("the first one closed a file");
    flush(&net, third, 2);
    set(&net, exclusive(second, 1)).expect("free");
    flush(&net, open.fh, 9);
    net.release(open.fh);
    assert_eq!(set(&net, exclusive(third, 2)), Err(Errno::EAGAIN));
    // One that has locked through both keeps the lock until it has closed both.
    set(&net, lk(third, 1, lock_kind::WRLCK, (0, 9))).expect("its own");
    net.release(third);
    let fourth = net.open(file.nodeid, 2).fh;
    assert_eq!(set(&net, exclusive(fourth, 2)), Err(Errno::EAGAIN));
    net.release(second);
    assert_eq!(set(&net, exclusive(fourth, 2)), Ok(vec![]));
}

#[test]
fn two_processes_that_wait_for_each_other_are_told() {
    let net = Net::new();
    let fh = net.create(ROOT_ID, "a").1.fh;
    let of = |owner, pid, at| LkIn {
        pid,
        ..lk(fh, owner, lock_kind::WRLCK, (at, at))
    };
    let wait = |args| net.park(ROOT_ID, &R::Setlkw { args });
    set(&net, of(1, 11, 0)).expect("free");
    set(&net, of(2, 12, 50)).expect("free");
    let first = wait(of(1, 11, 50)).parked();
    assert_eq!(wait(of(2, 12, 0)).reply(), Err(Errno::EDEADLK));
    flush(&net, fh, 2);
    assert_eq!(net.resume(first).reply(), Ok(vec![]));
    flush(&net, fh, 1);
    // Two owners of one process are open file descriptions, which Linux does not check.
    set(&net, of(3, 11, 0)).expect("free");
    set(&net, of(4, 11, 50)).expect("free");
    let _third = wait(of(3, 11, 50)).parked();
    let _fourth = wait(of(4, 11, 0)).parked();
}
