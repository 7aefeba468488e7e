//! Lines 16 and 17: advisory locks.

use super::*;

pub(crate) const RDLCK: u8 = 0;
pub(crate) const WRLCK: u8 = 1;
pub(crate) const UNLCK: u8 = 2;
const BLOCK: u32 = 1;
const RECLAIM: u32 = 2;

pub(crate) fn lock(fid: Fid, kind: u8, flags: u32, range: (u64, u64), proc_id: u32) -> T<'static> {
    T::Lock {
        fid,
        kind,
        flags,
        start: range.0,
        length: range.1,
        proc_id,
        client_id: b"guest",
    }
}

#[track_caller]
pub(crate) fn status(reply: Rmessage<'_>) -> u8 {
    match reply {
        Rmessage::Lock { status } => status,
        other => panic!("{other:?}"),
    }
}

/// Returns a connection with the file `f` open as fid 1.
fn locker(server: &p9::server::Server) -> Net {
    let net = Net::on(server, Dialect::Linux);
    create(&net, ROOT, Fid(1), "f", O_RDWR);
    net
}

#[test]
fn linux_16_locks_are_real_and_waiting_for_one_is_parked() {
    let server = server(Options::default());
    let (one, other) = (locker(&server), locker(&server));
    let f = Fid(1);
    let all = (0, 0);
    assert_eq!(status(one.ok(&lock(f, WRLCK, 0, all, 10))), 0);
    // The same owner again, another process, another connection.
    assert_eq!(status(one.ok(&lock(f, WRLCK, 0, all, 10))), 0);
    assert_eq!(status(one.ok(&lock(f, RDLCK, 0, all, 11))), 1);
    assert_eq!(status(other.ok(&lock(f, RDLCK, 0, all, 10))), 1);
    let parked = other.park(&lock(f, RDLCK, BLOCK, all, 10)).parked();
    assert!(!parked.is_woken());
    let parked = other.resume(parked).parked();
    assert_eq!(status(one.ok(&lock(f, UNLCK, 0, all, 10))), 0);
    assert!(parked.is_woken());
    assert_eq!(status(other.resume(parked).reply()), 0);
    // Byte ranges; to the end; beyond the largest number.
    assert_eq!(status(other.ok(&lock(f, UNLCK, 0, all, 10))), 0);
    assert_eq!(status(one.ok(&lock(f, WRLCK, 0, (0, 10), 10))), 0);
    assert_eq!(status(other.ok(&lock(f, WRLCK, 0, (10, 0), 10))), 0);
    assert_eq!(status(other.ok(&lock(f, WRLCK, 0, (9, 1), 10))), 1);
    assert_eq!(
        one.err(&lock(f, WRLCK, 0, (u64::MAX, 2), 10)),
        Errno::EOVERFLOW
    );
    assert_eq!(one.err(&lock(f, 7, 0, all, 10)), Errno::EINVAL);
    // A cancelled request is answered and waits no longer.
    let parked = other.park(&lock(f, WRLCK, BLOCK, (0, 1), 10)).parked();
    parked.cancel();
    assert_eq!(errno(&other.resume(parked).reply()), Some(Errno::EINTR));
    // The clunk of the fid that took the locks, and the end of a session.
    one.clunk(f);
    assert_eq!(status(other.ok(&lock(f, WRLCK, 0, (9, 1), 10))), 0);
    let third = locker(&server);
    let parked = third.park(&lock(f, WRLCK, BLOCK, all, 1)).parked();
    drop(other);
    assert!(parked.is_woken());
    assert_eq!(status(third.resume(parked).reply()), 0);
    // An unopened fid cannot lock.
    third.walk(f, Fid(2), "");
    assert_eq!(third.err(&lock(Fid(2), RDLCK, 0, all, 1)), Errno::EBADF);

    let polite = Options {
        blocking_locks: false,
        ..Options::default()
    };
    let server = crate::net::server(polite);
    let (one, other) = (locker(&server), locker(&server));
    assert_eq!(status(one.ok(&lock(f, WRLCK, BLOCK, all, 10))), 0);
    assert_eq!(
        status(other.park(&lock(f, WRLCK, BLOCK, all, 10)).reply()),
        1
    );
}

#[test]
fn linux_16_a_fid_that_goes_takes_its_waiting_along() {
    let server = server(Options::default());
    let (one, other) = (locker(&server), locker(&server));
    assert_eq!(status(one.ok(&lock(Fid(1), WRLCK, 0, (0, 0), 1))), 0);
    let parked = other.park(&lock(Fid(1), WRLCK, BLOCK, (0, 0), 1)).parked();
    other.clunk(Fid(1));
    assert!(parked.is_woken());
    assert_eq!(errno(&other.resume(parked).reply()), Some(Errno::EBADF));
}

#[test]
fn linux_16_processes_that_wait_for_each_other_are_told() {
    let server = server(Options::default());
    let (one, other) = (locker(&server), locker(&server));
    let f = Fid(1);
    assert_eq!(status(one.ok(&lock(f, WRLCK, 0, (0, 1), 10))), 0);
    assert_eq!(status(other.ok(&lock(f, WRLCK, 0, (1, 1), 10))), 0);
    let parked = one.park(&lock(f, WRLCK, BLOCK, (1, 1), 10)).parked();
    let refused = other.park(&lock(f, WRLCK, BLOCK, (0, 1), 10)).reply();
    assert_eq!(errno(&refused), Some(Errno::EDEADLK));
    other.clunk(f);
    assert!(parked.is_woken());
    assert_eq!(status(one.resume(parked).reply()), 0);
}

/// A process closes a file, which unlocks it, and locks it through another fid. A child of it keeps
/// the first fid in use, and ends later.
#[test]
fn linux_16_a_lock_outlives_a_fid_that_its_owner_has_closed() {
    let server = server(Options::default());
    let (one, other) = (locker(&server), locker(&server));
    one.walk(ROOT, Fid(2), "f");
    let open = T::Lopen {
        fid: Fid(2),
        flags: O_RDWR,
    };
    one.ok(&open);
    let all = (0, 0);
    assert_eq!(status(one.ok(&lock(Fid(1), WRLCK, 0, all, 10))), 0);
    assert_eq!(status(one.ok(&lock(Fid(1), UNLCK, 0, all, 10))), 0);
    assert_eq!(status(one.ok(&lock(Fid(2), WRLCK, 0, all, 10))), 0);
    one.clunk(Fid(1));
    assert_eq!(status(other.ok(&lock(Fid(1), RDLCK, 0, all, 10))), 1);
    one.clunk(Fid(2));
    assert_eq!(status(other.ok(&lock(Fid(1), RDLCK, 0, all, 10))), 0);
}

#[test]
fn linux_17_getlock_names_the_holder_and_takes_unlck() {
    let server = server(Options::default());
    let (one, other) = (locker(&server), locker(&server));
    let f = Fid(1);
    let getlock = |kind, start, length, proc_id| T::Getlock {
        fid: f,
        kind,
        start,
        length,
        proc_id,
        client_id: b"guest",
    };
    let answer = |kind, start, length, proc_id, client_id: &'static [u8]| Rmessage::Getlock {
        kind,
        start,
        length,
        proc_id,
        client_id,
    };
    one.ok(&lock(f, WRLCK, 0, (5, 10), 10));
    one.ok(&lock(f, RDLCK, 0, (100, 0), 10));
    let ask = |net: &Net, request| net.ok(&request);
    assert_eq!(
        ask(&one, getlock(WRLCK, 0, 0, 11)),
        answer(WRLCK, 5, 10, 10, b"guest")
    );
    assert_eq!(
        ask(&other, getlock(WRLCK, 50, 0, 10)),
        answer(RDLCK, 100, 0, 10, b"")
    );
    assert_eq!(
        ask(&other, getlock(RDLCK, 50, 0, 10)),
        answer(UNLCK, 50, 0, 10, b"guest")
    );
    // Linux sends UNLCK for either type: a write lock conflicts with both, a read lock may not.
    assert_eq!(
        ask(&other, getlock(UNLCK, 0, 0, 10)),
        answer(WRLCK, 5, 10, 10, b"")
    );
    assert_eq!(
        ask(&other, getlock(UNLCK, 50, 0, 10)),
        answer(UNLCK, 50, 0, 10, b"guest")
    );
    assert_eq!(other.err(&getlock(9, 0, 0, 10)), Errno::EINVAL);
}

#[test]
fn linux_16_lock_flags_that_nobody_knows_are_refused() {
    let server = server(Options::default());
    let net = locker(&server);
    for kind in [RDLCK, WRLCK, UNLCK] {
        for flags in [0, BLOCK, RECLAIM, BLOCK | RECLAIM] {
            assert_eq!(status(net.ok(&lock(Fid(1), kind, flags, (0, 1), 1))), 0);
        }
        let unknown = lock(Fid(1), kind, BLOCK | 4, (0, 1), 1);
        assert_eq!(net.err(&unknown), Errno::EINVAL);
    }
}
