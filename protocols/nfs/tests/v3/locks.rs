//! NLM, and NSM notifications of restarts.

use nfs::nlm::{
    CancelArgs, FreeArgs, Lock, LockArgs, LockResult, Procedure, Status, TestArgs, TestResult,
    Tested, UnlockArgs,
};
use std::sync::Arc;
use std::time::Duration;

use layers::Fault;
use layers::fault::{FaultKind, Trigger};
use memory::Memory;
use nfs::nsm::StatChange;
use nfs::server::NlmCallback;
use nfs::server::v4::state::{InMemory, Stable};
use nfs::v3::Handle;
use vfs::{Errno, Op};
use vfs_testkit::clock;
use vfs_testkit::session::Served;
use wire::Xdr;

use self::faulty::Faulty;
use crate::net::{Host, NLM, NSM, Net, Replied, whole};

#[path = "../../src/server/v4/state/tests/faulty.rs"]
mod faulty;

fn lock(file: &Handle, process: i32, offset: u64, len: u64) -> Lock<'_> {
    Lock {
        caller: b"guest",
        file: file.bytes(),
        owner: b"owner",
        process,
        offset,
        len,
    }
}

fn args(lock: Lock<'_>, exclusive: bool, block: bool) -> LockArgs<'_> {
    LockArgs {
        cookie: b"biscuit",
        block,
        exclusive,
        lock,
        reclaim: false,
        state: 1,
    }
}

#[track_caller]
fn status(replied: Replied) -> Status {
    let result: LockResult<'_> = whole(replied.expect("results"));
    assert_eq!(result.cookie, b"biscuit");
    result.status
}

fn exclusive(net: &Net, lock: Lock<'_>) -> Status {
    status(net.call((NLM, 4, 2), &args(lock, true, false)))
}

fn unlock(net: &Net, lock: Lock<'_>) -> Status {
    let args = UnlockArgs {
        cookie: b"biscuit",
        lock,
    };
    status(net.call((NLM, 4, 4), &args))
}

#[test]
fn a_lock_keeps_others_out_until_it_is_given_back() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    assert_eq!(exclusive(&net, lock(&file, 1, 10, 10)), Status::Granted);
    assert_eq!(exclusive(&net, lock(&file, 2, 15, 0)), Status::Denied);
    assert_eq!(exclusive(&net, lock(&file, 2, 20, 0)), Status::Granted);
    let shared = args(lock(&file, 3, 0, 10), false, false);
    assert_eq!(status(net.call((NLM, 4, 22), &shared)), Status::Granted);
    let test = |process| -> Tested<'_> {
        let args = TestArgs {
            cookie: b"biscuit",
            exclusive: true,
            lock: lock(&file, process, 12, 1),
        };
        let result: TestResult<'_> = whole(net.call((NLM, 4, 1), &args).expect("results"));
        result.tested
    };
    assert_eq!(test(1), Tested::Other(Status::Granted), "its own");
    let Tested::Denied(holder) = test(2) else {
        panic!("nobody is in the way")
    };
    assert_eq!((holder.process, holder.owner), (1, &b"owner"[..]));
    assert_eq!((holder.offset, holder.len), (10, 10));
    assert_eq!(unlock(&net, lock(&file, 1, 0, 0)), Status::Granted);
    assert_eq!(exclusive(&net, lock(&file, 2, 15, 0)), Status::Granted);
}

#[test]
fn who_waits_is_granted_when_it_can_be() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let whole_file = |process| lock(&file, process, 0, 0);
    assert_eq!(exclusive(&net, whole_file(1)), Status::Granted);
    let waits = net
        .park((NLM, 4, 2), &args(whole_file(2), true, true))
        .parked();
    assert_eq!(unlock(&net, whole_file(1)), Status::Granted);
    assert!(waits.is_woken());
    assert_eq!(status(net.resume(waits).reply()), Status::Granted);
    assert_eq!(exclusive(&net, whole_file(1)), Status::Denied);
}

#[test]
fn processes_that_wait_for_each_other_are_told() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    assert_eq!(exclusive(&net, lock(&file, 1, 0, 1)), Status::Granted);
    assert_eq!(exclusive(&net, lock(&file, 2, 1, 1)), Status::Granted);
    let wait = |process, at| net.park((NLM, 4, 2), &args(lock(&file, process, at, 1), true, true));
    let waits = wait(1, 1).parked();
    assert_eq!(status(wait(2, 0).reply()), Status::Deadlock);
    assert_eq!(unlock(&net, lock(&file, 2, 0, 0)), Status::Granted);
    assert!(waits.is_woken());
    assert_eq!(status(net.resume(waits).reply()), Status::Granted);
}

#[test]
fn who_waits_too_long_is_told_to_come_again() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    assert_eq!(exclusive(&net, lock(&file, 1, 0, 0)), Status::Granted);
    let ask = args(lock(&file, 2, 0, 0), true, true);
    let waits = net.park((NLM, 4, 2), &ask).parked();
    net.host.later(60);
    let waits = net.resume(waits).parked();
    net.host.later(60);
    assert_eq!(status(net.resume(waits).reply()), Status::Blocked);
    let again = net.park((NLM, 4, 2), &ask);
    assert!(matches!(again, Served::Parked(_)));
}

#[test]
fn who_waits_no_more_gets_nothing() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let whole_file = |process| lock(&file, process, 0, 0);
    assert_eq!(exclusive(&net, whole_file(1)), Status::Granted);
    let waits = net
        .park((NLM, 4, 2), &args(whole_file(2), true, true))
        .parked();
    let cancel = CancelArgs {
        cookie: b"biscuit",
        block: true,
        exclusive: true,
        lock: whole_file(2),
    };
    assert_eq!(status(net.call((NLM, 4, 3), &cancel)), Status::Granted);
    assert!(waits.is_woken());
    assert_eq!(unlock(&net, whole_file(1)), Status::Granted);
    assert_eq!(status(net.resume(waits).reply()), Status::Denied);
    assert_eq!(exclusive(&net, whole_file(3)), Status::Granted);
}

#[test]
fn a_client_that_restarts_holds_nothing() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    let of = |caller| Lock {
        caller,
        ..lock(&file, 1, 0, 0)
    };
    assert_eq!(exclusive(&net, of(b"guest")), Status::Granted);
    assert_eq!(exclusive(&net, of(b"other")), Status::Denied);
    let changed = StatChange {
        name: b"guest.example.org",
        state: 3,
    };
    assert_eq!(net.call((NSM, 1, 6), &changed), Ok(&b""[..]));
    assert_eq!(exclusive(&net, of(b"other")), Status::Granted);
    let free = FreeArgs {
        caller: b"other",
        state: 3,
    };
    assert_eq!(net.call((NLM, 4, 23), &free), Ok(&b""[..]));
    assert_eq!(exclusive(&net, of(b"guest")), Status::Granted);
}

#[test]
fn what_cannot_be_locked_is_said() {
    let net = Net::new();
    let file = net.file(b"f", 0o600);
    assert_eq!(exclusive(&net, lock(&file, 1, u64::MAX, 2)), Status::Fbig);
    let stranger = Lock {
        file: b"who",
        ..lock(&file, 1, 0, 0)
    };
    assert_eq!(exclusive(&net, stranger), Status::StaleFh);
    let other = net.of_user(1000);
    assert_eq!(exclusive(&other, lock(&file, 1, 0, 0)), Status::Failed);
}

#[test]
fn xnfs_11_who_had_locks_has_them_again_after_a_restart_before_anybody_else() {
    let tree = Memory::new(clock());
    let stable: Arc<dyn Stable> = Arc::new(InMemory::default());
    let start = || Host::with(tree.clone(), |options| options.monitored = stable.clone());
    let host = start();
    let net = Net::from(&host, "10.0.0.1");
    let file = net.file(b"f", 0o644);
    assert_eq!(exclusive(&net, lock(&file, 1, 0, 10)), Status::Granted);
    assert_eq!(host.server.to_notify(), [], "nobody was there before");
    // A client at a loopback address and an NM_LOCK are not recorded on stable storage.
    for (addr, procedure) in [("127.0.0.1", 2), ("10.0.0.2", 22)] {
        let other = Lock {
            caller: b"other",
            ..lock(&file, 2, 20, 10)
        };
        let near = Net::from(&host, addr);
        let args = args(other, true, false);
        assert_eq!(
            status(near.call((NLM, 4, procedure), &args)),
            Status::Granted
        );
        near.call(
            (NLM, 4, 23),
            &FreeArgs {
                caller: b"other",
                state: 0,
            },
        )
        .expect("freed");
    }
    assert_eq!(stable.list().len(), 1);
    unlock(&net, lock(&file, 1, 0, 10));

    let host = start();
    let [told] = &host.server.to_notify()[..] else {
        panic!("expected one")
    };
    assert_eq!(
        (&*told.name, told.addr),
        (&b"guest"[..], "10.0.0.1".parse().expect("one"))
    );
    let [net, other] = ["10.0.0.1", "10.0.0.2"].map(|addr| Net::from(&host, addr));
    let grace = Status::DeniedGracePeriod;
    assert_eq!(exclusive(&other, lock(&file, 3, 0, 10)), grace);
    let test = TestArgs {
        cookie: b"biscuit",
        exclusive: true,
        lock: lock(&file, 3, 0, 10),
    };
    let tested: TestResult<'_> = whole(other.call((NLM, 4, 1), &test).expect("results"));
    assert_eq!(tested.tested, Tested::Other(grace));
    host.server.notified();
    host.later(89);
    assert_eq!(exclusive(&other, lock(&file, 3, 0, 10)), grace);
    let again = LockArgs {
        reclaim: true,
        ..args(lock(&file, 1, 0, 10), true, false)
    };
    assert_eq!(status(net.call((NLM, 4, 2), &again)), Status::Granted);
    let stranger = LockArgs {
        reclaim: true,
        ..args(
            Lock {
                caller: b"stranger",
                ..lock(&file, 1, 20, 10)
            },
            true,
            false,
        )
    };
    let not_on_record = status(other.call((NLM, 4, 2), &stranger));
    assert_eq!(not_on_record, Status::Denied);
    host.later(2);
    let other_file = lock(&file, 3, 0, 10);
    assert_eq!(exclusive(&other, other_file), Status::Denied);
    assert_eq!(status(net.call((NLM, 4, 2), &again)), grace, "it is over");
    assert_eq!(exclusive(&net, lock(&file, 1, 10, 10)), Status::Granted);
}

#[test]
fn rfc8881_8_4_2_while_clients_of_v4_reclaim_v3_has_no_locks_either() {
    let stable = InMemory::default();
    stable.put(b"\x01a client of v4.1").expect("kept");
    let host = Host::with(Memory::new(clock()), |options| {
        options.stable = Arc::new(stable);
    });
    let net = Net::on(&host);
    let file = net.file(b"f", 0o644);
    let mine = lock(&file, 1, 0, 10);
    assert_eq!(exclusive(&net, mine), Status::DeniedGracePeriod);
    let again = LockArgs {
        reclaim: true,
        ..args(mine, true, false)
    };
    assert_eq!(status(net.call((NLM, 4, 2), &again)), Status::Denied);
    host.later(90);
    assert_eq!(exclusive(&net, mine), Status::Granted);
}

#[test]
fn who_cannot_be_told_is_not_waited_for() {
    let tree = Memory::new(clock());
    let stable: Arc<dyn Stable> = Arc::new(InMemory::default());
    let start = || Host::with(tree.clone(), |options| options.monitored = stable.clone());
    let net = Net::from(&start(), "10.0.0.1");
    let file = net.file(b"f", 0o644);
    assert_eq!(exclusive(&net, lock(&file, 1, 0, 10)), Status::Granted);
    unlock(&net, lock(&file, 1, 0, 10));
    let host = start();
    host.later(11);
    let other = Net::from(&host, "127.0.0.1");
    assert_eq!(exclusive(&other, lock(&file, 3, 0, 10)), Status::Granted);
    assert_eq!(stable.list().len(), 0);
}

#[test]
fn rfc1813_ii_what_is_sent_as_a_message_is_answered_by_a_call() {
    let (send, called) = std::sync::mpsc::channel();
    let host = Host::with(Memory::new(clock()), |options| {
        options.call_back = Arc::new(move |call| send.send(call).expect("heard"));
    });
    let net = Net::from(&host, "10.0.0.1");
    let file = net.file(b"f", 0o644);
    let result = |procedure: u32, answer: Procedure, arguments: &[u8]| {
        assert_eq!(net.call((NLM, 4, procedure), &Raw(arguments)), Ok(&b""[..]));
        let NlmCallback {
            addr,
            procedure,
            arguments,
        } = called.try_recv().expect("a call");
        assert_eq!(
            (addr, procedure),
            ("10.0.0.1".parse().expect("one"), answer)
        );
        arguments.leak()
    };
    let put = |arguments: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        arguments(&mut bytes);
        bytes
    };
    let (mine, others) = (lock(&file, 1, 0, 10), lock(&file, 2, 0, 10));
    let cookie = b"biscuit";
    let ask = put(&|to| args(mine, true, false).put(to));
    let granted = result(7, Procedure::LockRes, &ask);
    assert_eq!(status(Ok(granted)), Status::Granted);
    let ask = put(&|to| {
        TestArgs {
            cookie,
            exclusive: true,
            lock: others,
        }
        .put(to)
    });
    let tested: TestResult<'_> = whole(result(6, Procedure::TestRes, &ask));
    assert!(matches!(tested.tested, Tested::Denied(_)), "{tested:?}");
    let ask = put(&|to| {
        CancelArgs {
            cookie,
            block: true,
            exclusive: true,
            lock: others,
        }
        .put(to)
    });
    assert_eq!(
        status(Ok(result(8, Procedure::CancelRes, &ask))),
        Status::Granted
    );
    let ask = put(&|to| UnlockArgs { cookie, lock: mine }.put(to));
    assert_eq!(
        status(Ok(result(9, Procedure::UnlockRes, &ask))),
        Status::Granted
    );
    // A client without an address cannot be called, and a result that the server has not asked for
    // is rejected.
    let nowhere = Net::on(&host);
    assert_eq!(nowhere.call((NLM, 4, 9), &Raw(&ask)), Err(3));
    assert_eq!(net.call((NLM, 4, 12), &Raw(&ask)), Err(3));
    assert!(called.try_recv().is_err());
}

/// Encoded arguments.
struct Raw<'a>(&'a [u8]);

impl Xdr<'_> for Raw<'_> {
    fn get(_: &mut wire::XdrReader<'_>) -> Result<Self, wire::Malformed> {
        Err(wire::Malformed::new("they are only sent"))
    }

    fn put(&self, to: &mut impl wire::Put) {
        wire::Put::put(to, self.0);
    }
}

#[test]
fn a_client_without_a_record_gets_a_lock_only_if_no_other_server_may_take_over() {
    for (is_required, expected) in [(false, Status::Granted), (true, Status::DeniedNoLocks)] {
        let stable = Arc::new(Faulty::new(is_required));
        let host = Host::with(Memory::new(clock()), |options| options.monitored = stable);
        let net = Net::from(&host, "10.0.0.1");
        let file = net.file(b"f", 0o644);
        assert_eq!(exclusive(&net, lock(&file, 1, 0, 10)), expected);
        // A lock that was not granted is not held.
        let near = Net::from(&host, "127.0.0.1");
        let other = match is_required {
            true => Status::Granted,
            false => Status::Denied,
        };
        assert_eq!(exclusive(&near, lock(&file, 2, 0, 10)), other);
    }
}

/// Requests and releases a lock on each of more files than one peer may have locked, while `ops`
/// fail for want of a descriptor. Returns the result of the last request without that fault.
fn after_failures_of(ops: &[Op], expected: Status) -> Status {
    let fault = Arc::new(Fault::new(1, Arc::new(|| Duration::ZERO)));
    let host = Host::over(layers::stack(Memory::new(clock()), fault.clone()));
    let net = Net::from(&host, "10.0.0.1");
    for &op in ops {
        fault.add(op, Trigger::Always, FaultKind::Fail(Errno::EMFILE));
    }
    for number in 0..17_000 {
        let file = net.file(number.to_string().as_bytes(), 0o644);
        assert_eq!(exclusive(&net, lock(&file, 1, 0, 10)), expected);
        unlock(&net, lock(&file, 1, 0, 10));
        if number % 100 == 0 {
            host.later(1);
        }
    }
    fault.clear();
    exclusive(&net, lock(&net.file(b"last", 0o644), 1, 0, 10))
}

#[test]
fn a_lock_that_fails_for_want_of_a_descriptor_leaves_no_file_behind() {
    let status = after_failures_of(&[Op::HostLock, Op::HostLockHolder], Status::Failed);
    assert_eq!(status, Status::Granted);
}

#[test]
fn an_unlock_leaves_no_file_behind_while_descriptors_are_short() {
    let status = after_failures_of(&[Op::HostLockHolder], Status::Granted);
    assert_eq!(status, Status::Granted);
}

#[test]
fn a_file_stays_recorded_while_its_lock_is_awaited_and_held() {
    let net = Net::new();
    let file = net.file(b"f", 0o644);
    assert_eq!(exclusive(&net, lock(&file, 1, 0, 10)), Status::Granted);
    let waits = args(lock(&file, 2, 0, 10), true, true);
    let waits = net.park((NLM, 4, 2), &waits).parked();
    // A lock of the same client that is refused, and one that is released.
    assert_eq!(exclusive(&net, lock(&file, 3, 5, 1)), Status::Denied);
    assert_eq!(unlock(&net, lock(&file, 1, 0, 10)), Status::Granted);
    assert_eq!(status(net.resume(waits).reply()), Status::Granted);
    let restarted = StatChange {
        name: b"guest",
        state: 3,
    };
    assert_eq!(net.call((NSM, 1, 6), &restarted), Ok(&[][..]));
    assert_eq!(exclusive(&net, lock(&file, 4, 0, 0)), Status::Granted);
}
