//! Tests of `vfs::lock::LockTable`, on a scripted node.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use vfs::lock::{ForeignLock, HostLock, Lock, LockFamily, LockKind, LockTable, Owner};
use vfs::memory::MemoryBudget;
use vfs::{Account, Call, Caller, Cx, Errno, Kind, Node, Op, Patience, PeerKey, Result};
use vfs_testkit::{Answer, Script};

use LockKind::{Exclusive, Shared};

const ALL: u64 = u64::MAX;

struct Fixture {
    table: LockTable,
    script: Arc<Script>,
    node: Arc<dyn Node>,
    call: Call,
}

fn owner(client: u64) -> Owner {
    Owner {
        client,
        id: Arc::from(&b"owner"[..]),
        pid: 7,
    }
}

fn posix(client: u64, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock {
        family: LockFamily::Posix,
        start,
        end,
        kind,
        owner: owner(client),
    }
}

fn flock(client: u64, kind: LockKind) -> Lock {
    Lock {
        family: LockFamily::Flock,
        ..posix(client, kind, 0, ALL)
    }
}

impl Fixture {
    fn new() -> Fixture {
        let script = Script::new();
        Fixture {
            table: LockTable::default(),
            node: script.node(5, Kind::File),
            script,
            call: Call::detached(),
        }
    }

    fn cx(&self) -> Cx<'_> {
        Cx::new(&Caller::ROOT, &self.call)
    }

    fn lock(&self, lock: Lock) -> Result<()> {
        self.table.lock(&self.cx(), &*self.node, lock, false)
    }

    fn wait(&self, call: &Call, lock: Lock) -> Result<()> {
        let cx = Cx::new(&Caller::ROOT, call);
        self.table.lock(&cx, &*self.node, lock, true)
    }

    fn unlock(&self, client: u64, start: u64, end: u64) -> Result<()> {
        self.table.unlock(
            &self.cx(),
            &*self.node,
            LockFamily::Posix,
            start,
            end,
            &owner(client),
        )
    }

    fn release(&self, client: u64) {
        self.table
            .release(&self.cx(), &*self.node, |owner| owner.client == client);
    }

    fn holder(&self, lock: Lock) -> Option<Lock> {
        self.table
            .holder(&self.cx(), &*self.node, &lock)
            .expect("the script refuses nothing")
    }

    /// Returns the host's lock calls since the last time.
    fn told(&self) -> Vec<String> {
        self.script
            .take_calls()
            .into_iter()
            .filter(|call| call.op == Op::HostLock)
            .map(|call| call.arguments)
            .collect()
    }
}

/// Counts wake-ups.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    fn call() -> (Arc<Woken>, Call) {
        let woken = Arc::new(Woken::default());
        let call = Call::parkable(Waker::from(woken.clone()));
        (woken, call)
    }

    /// Returns a call of a client that polls.
    fn polled() -> (Arc<Woken>, Call) {
        let woken = Arc::new(Woken::default());
        let call = Call::detached().retried_by_client(Waker::from(woken.clone()));
        (woken, call)
    }

    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn writers_exclude_and_readers_share() {
    let fixture = Fixture::new();
    assert_eq!(fixture.lock(posix(1, Shared, 0, 9)), Ok(()));
    assert_eq!(fixture.lock(posix(2, Shared, 5, 15)), Ok(()));
    assert_eq!(fixture.lock(posix(3, Exclusive, 9, 9)), Err(Errno::EAGAIN));
    assert_eq!(fixture.lock(posix(3, Exclusive, 16, ALL)), Ok(()));
    assert_eq!(fixture.lock(posix(1, Shared, ALL, ALL)), Err(Errno::EAGAIN));
    assert_eq!(fixture.lock(flock(1, Exclusive)), Ok(()), "another world");
    assert_eq!(
        fixture.holder(posix(3, Exclusive, 0, 100)),
        Some(posix(1, Shared, 0, 9))
    );
}

#[test]
fn a_range_that_ends_before_it_starts_is_einval() {
    let fixture = Fixture::new();
    assert_eq!(fixture.lock(posix(1, Shared, 5, 4)), Err(Errno::EINVAL));
    assert_eq!(fixture.unlock(1, 5, 4), Err(Errno::EINVAL));
    assert!(fixture.table.is_empty());
}

#[test]
fn an_owner_is_known_without_its_process_id() {
    let fixture = Fixture::new();
    let mut lock = posix(1, Exclusive, 0, 9);
    assert_eq!(fixture.lock(lock.clone()), Ok(()));
    lock.owner.pid = 0;
    assert_eq!(
        fixture.lock(lock.clone()),
        Ok(()),
        "its own lock is not in the way"
    );
    let unlocked = fixture.table.unlock(
        &fixture.cx(),
        &*fixture.node,
        LockFamily::Posix,
        0,
        ALL,
        &lock.owner,
    );
    assert_eq!(unlocked, Ok(()));
    assert!(fixture.table.is_empty());
}

#[test]
fn the_host_is_told_of_each_stretch_that_changes() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Shared, 10, 19)).expect("free");
    assert_eq!(fixture.told(), ["Posix 10..=19 Shared"]);
    fixture.lock(posix(2, Shared, 15, 29)).expect("shared");
    assert_eq!(fixture.told(), ["Posix 20..=29 Shared"]);
    fixture.lock(posix(1, Exclusive, 0, 14)).expect("its own");
    assert_eq!(
        fixture.told(),
        ["Posix 0..=9 Exclusive", "Posix 10..=14 Exclusive"]
    );
    fixture.unlock(1, 0, ALL).expect("its own");
    assert_eq!(
        fixture.told(),
        ["Posix 0..=14 Unlocked"],
        "15..=19 is still the other's"
    );
    fixture.release(2);
    assert_eq!(fixture.told(), ["Posix 15..=29 Unlocked"]);
    assert!(fixture.table.is_empty());
}

#[test]
fn a_host_that_refuses_midway_is_put_back() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Shared, 10, 19)).expect("free");
    fixture.told();
    fixture
        .script
        .next(Op::HostLock, Answer::Done)
        .next(Op::HostLock, Answer::Fail(Errno::EAGAIN));
    assert_eq!(fixture.lock(posix(1, Exclusive, 0, 29)), Err(Errno::EAGAIN));
    assert_eq!(
        fixture.told(),
        [
            "Posix 0..=9 Exclusive",
            "Posix 10..=19 Exclusive",
            "Posix 0..=9 Unlocked"
        ]
    );
    assert_eq!(
        fixture.holder(posix(2, Exclusive, 0, ALL)),
        Some(posix(1, Shared, 10, 19))
    );
}

#[test]
fn an_outsider_is_tried_again_soon() {
    let fixture = Fixture::new();
    let (_woken, call) = Woken::call();
    fixture
        .script
        .next(Op::HostLock, Answer::Fail(Errno::EAGAIN));
    let lock = posix(1, Exclusive, 0, 9);
    assert_eq!(fixture.wait(&call, lock.clone()), Err(Errno::PARKED));
    let again = call.take_wake_within().expect("nobody else wakes it");
    assert!(again <= Duration::from_millis(100));
    assert_eq!(fixture.wait(&call, lock), Ok(()));
    fixture.release(1);
    assert!(fixture.table.is_empty());
}

#[test]
fn an_outsider_is_told_as_holder() {
    let fixture = Fixture::new();
    let outsider = ForeignLock {
        start: 3,
        end: 4,
        kind: Shared,
        pid: 99,
    };
    fixture
        .script
        .next(Op::HostLockHolder, Answer::ForeignLock(outsider));
    let holder = fixture
        .holder(posix(1, Exclusive, 0, 9))
        .expect("an outsider");
    assert_eq!((holder.start, holder.end, holder.owner.pid), (3, 4, 99));
    assert!(fixture.table.is_empty(), "asking leaves nothing behind");
}

#[test]
fn a_waiter_is_woken_when_its_range_is_free() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Exclusive, 0, 9)).expect("free");
    let (woken, call) = Woken::call();
    let wanted = posix(2, Exclusive, 5, 20);
    assert_eq!(fixture.wait(&call, wanted.clone()), Err(Errno::PARKED));
    fixture.lock(posix(3, Exclusive, 100, 200)).expect("free");
    fixture.unlock(3, 0, ALL).expect("its own");
    fixture.unlock(1, 0, 4).expect("its own");
    assert_eq!(woken.times(), 0, "nothing in its way went");
    fixture.unlock(1, 5, 9).expect("its own");
    assert_eq!(woken.times(), 1);
    assert_eq!(fixture.wait(&call, wanted), Ok(()));
    fixture.release(2);
    assert!(fixture.table.is_empty());
}

#[test]
fn a_weaker_lock_wakes_readers() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Exclusive, 0, 9)).expect("free");
    let (woken, call) = Woken::call();
    assert_eq!(
        fixture.wait(&call, posix(2, Shared, 0, 9)),
        Err(Errno::PARKED)
    );
    fixture.lock(posix(1, Shared, 0, 9)).expect("its own");
    assert_eq!(woken.times(), 1);
    assert_eq!(fixture.wait(&call, posix(2, Shared, 0, 9)), Ok(()));
}

#[test]
fn two_requests_of_one_owner_are_both_woken() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Exclusive, 0, 9)).expect("free");
    let (first, first_call) = Woken::call();
    let (second, second_call) = Woken::call();
    let wanted = posix(2, Exclusive, 0, 9);
    assert_eq!(
        fixture.wait(&first_call, wanted.clone()),
        Err(Errno::PARKED)
    );
    assert_eq!(
        fixture.wait(&second_call, wanted.clone()),
        Err(Errno::PARKED)
    );
    fixture.release(1);
    assert_eq!((first.times(), second.times()), (1, 1));
    assert_eq!(fixture.wait(&first_call, wanted.clone()), Ok(()));
    assert_eq!(fixture.wait(&second_call, wanted), Ok(()));
    fixture.release(2);
    assert!(fixture.table.is_empty());
}

#[test]
fn a_cancelled_waiter_is_gone() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Exclusive, 0, 9)).expect("free");
    let (woken, call) = Woken::call();
    let wanted = posix(2, Exclusive, 0, 9);
    assert_eq!(fixture.wait(&call, wanted.clone()), Err(Errno::PARKED));
    call.cancel();
    assert_eq!(fixture.wait(&call, wanted), Err(Errno::EINTR));
    fixture.release(1);
    assert_eq!(woken.times(), 0);
    assert!(fixture.table.is_empty());
}

#[test]
fn the_end_of_a_client_wakes_what_it_waits_for() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Exclusive, 0, 9)).expect("free");
    let (woken, call) = Woken::call();
    assert_eq!(
        fixture.wait(&call, posix(2, Shared, 0, 9)),
        Err(Errno::PARKED)
    );
    call.cancel();
    fixture.release(2);
    assert_eq!(woken.times(), 1);
    fixture.release(1);
    assert!(fixture.table.is_empty(), "also if it never asks again");
}

#[test]
fn a_release_goes_through_whatever_the_host_says() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Exclusive, 0, 9)).expect("free");
    fixture
        .script
        .always(Op::HostLock, Answer::Fail(Errno::EIO));
    assert_eq!(fixture.unlock(1, 0, 9), Err(Errno::EIO));
    assert!(!fixture.table.is_empty());
    fixture.release(1);
    assert!(fixture.table.is_empty());
}

#[test]
fn waiting_needs_patience_and_something_to_wake() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Exclusive, 0, 9)).expect("free");
    let (_woken, call) = Woken::call();
    let hurried = Cx {
        patience: Patience::None,
        ..Cx::new(&Caller::ROOT, &call)
    };
    let wanted = posix(2, Shared, 0, 9);
    let answer = fixture
        .table
        .lock(&hurried, &*fixture.node, wanted.clone(), true);
    assert_eq!(answer, Err(Errno::WOULD_BLOCK));
    assert_eq!(fixture.wait(&fixture.call, wanted), Err(Errno::EAGAIN));
    fixture.release(1);
    assert!(fixture.table.is_empty());
}

#[test]
fn refused_requests_leave_nothing_behind() {
    let fixture = Fixture::new();
    fixture
        .script
        .next(Op::HostLock, Answer::Fail(Errno::EAGAIN));
    assert_eq!(fixture.lock(posix(1, Shared, 0, 9)), Err(Errno::EAGAIN));
    assert!(fixture.table.is_empty());
    fixture
        .script
        .next(Op::HostLock, Answer::Fail(Errno::ENOLCK));
    assert_eq!(fixture.lock(posix(1, Shared, 0, 9)), Err(Errno::ENOLCK));
    assert!(fixture.table.is_empty());
    assert_eq!(fixture.unlock(1, 0, ALL), Ok(()));
    fixture.release(1);
    assert!(fixture.table.is_empty());
}

#[test]
fn two_readers_that_both_want_to_write_do_not_wait_forever() {
    let fixture = Fixture::new();
    fixture.lock(flock(1, Shared)).expect("free");
    fixture.lock(flock(2, Shared)).expect("shared");
    let (_woken, first) = Woken::call();
    assert_eq!(
        fixture.wait(&first, flock(1, Exclusive)),
        Err(Errno::PARKED)
    );
    let (_woken, second) = Woken::call();
    assert_eq!(fixture.wait(&second, flock(2, Exclusive)), Ok(()));
    fixture.release(2);
    assert_eq!(fixture.wait(&first, flock(1, Exclusive)), Ok(()));
}

#[test]
fn one_that_comes_when_it_likes_keeps_its_place() {
    let fixture = Fixture::new();
    let parked = Err(Errno::PARKED);
    let wanted = |client| posix(client, Exclusive, 0, 9);
    fixture.lock(wanted(1)).expect("free");
    let (first_woken, first) = Woken::polled();
    let (second_woken, second) = Woken::polled();
    let (third_woken, third) = Woken::call();
    assert_eq!(fixture.wait(&first, wanted(2)), parked);
    assert_eq!(fixture.wait(&second, wanted(3)), parked);
    assert_eq!(fixture.wait(&third, wanted(4)), parked);
    assert_eq!(fixture.wait(&first, wanted(2)), parked);
    let woken = || [&first_woken, &second_woken, &third_woken].map(|one| one.times());
    fixture.release(1);
    assert_eq!(woken(), [1, 0, 0], "the first is told");
    assert_eq!(fixture.wait(&third, wanted(4)), parked);
    assert_eq!(fixture.wait(&second, wanted(3)), parked);
    let (_woken, late) = Woken::call();
    assert_eq!(fixture.wait(&late, wanted(5)), parked);
    let next = fixture.table.next_waiter(fixture.node.id(), &wanted(5));
    assert_eq!(next, Some(wanted(2)));
    assert_eq!(fixture.wait(&first, wanted(2)), Ok(()));
    assert_eq!(woken(), [1, 0, 0]);
    fixture.release(2);
    assert_eq!(woken(), [1, 1, 0]);
    second.cancel();
    fixture.table.cancel_wait(fixture.node.id(), &second);
    assert_eq!(woken(), [1, 1, 1], "its place has gone to the next");
    assert_eq!(fixture.wait(&third, wanted(4)), Ok(()));
    assert_eq!(fixture.lock(wanted(5)), Err(Errno::EAGAIN));
    late.cancel();
    fixture.table.cancel_wait(fixture.node.id(), &late);
    fixture.release(4);
    assert!(fixture.table.is_empty());
}

#[test]
fn one_that_waited_before_it_goes_before_it() {
    let fixture = Fixture::new();
    let wanted = |client| posix(client, Exclusive, 0, 9);
    fixture.lock(wanted(1)).expect("free");
    let (first_woken, first) = Woken::call();
    let (second_woken, second) = Woken::polled();
    assert_eq!(fixture.wait(&first, wanted(2)), Err(Errno::PARKED));
    assert_eq!(fixture.wait(&second, wanted(3)), Err(Errno::PARKED));
    fixture.release(1);
    assert_eq!((first_woken.times(), second_woken.times()), (1, 1));
    assert_eq!(fixture.wait(&first, wanted(2)), Ok(()));
    assert_eq!(fixture.wait(&second, wanted(3)), Err(Errno::PARKED));
    fixture.release(2);
    assert_eq!(second_woken.times(), 2);
    fixture.release(3);
    assert!(fixture.table.is_empty());
}

#[test]
fn a_place_is_in_the_way_of_nobody_who_does_not_wait() {
    let fixture = Fixture::new();
    let wanted = |client| posix(client, Exclusive, 0, 9);
    fixture.lock(wanted(1)).expect("free");
    let (woken, first) = Woken::polled();
    assert_eq!(fixture.wait(&first, wanted(2)), Err(Errno::PARKED));
    fixture.release(1);
    assert_eq!(fixture.holder(wanted(3)), None);
    assert_eq!(fixture.lock(wanted(3)), Ok(()));
    assert_eq!(fixture.wait(&first, wanted(2)), Err(Errno::PARKED));
    fixture.release(3);
    assert_eq!(woken.times(), 2);
}

#[test]
fn a_place_that_cannot_be_used_is_in_the_way_of_nobody() {
    let fixture = Fixture::new();
    fixture.lock(posix(1, Exclusive, 0, 9)).expect("free");
    let (_woken, first) = Woken::polled();
    let (second_woken, second) = Woken::call();
    let first_wants = posix(2, Exclusive, 0, 19);
    let second_wants = posix(3, Exclusive, 10, 19);
    assert_eq!(
        fixture.wait(&first, first_wants.clone()),
        Err(Errno::PARKED)
    );
    fixture.release(1);
    assert_eq!(
        fixture.wait(&second, second_wants.clone()),
        Err(Errno::PARKED)
    );
    fixture
        .lock(posix(4, Exclusive, 0, 0))
        .expect("it does not wait");
    assert_eq!(second_woken.times(), 1);
    assert_eq!(fixture.wait(&second, second_wants), Ok(()));
    let of_the_holder = posix(4, Exclusive, 5, 9);
    let (_woken, call) = Woken::call();
    assert_eq!(
        fixture.wait(&call, of_the_holder),
        Ok(()),
        "or both would wait"
    );
}

#[test]
fn the_ranges_of_a_node_are_bounded() {
    let fixture = Fixture::new();
    for i in 0.. {
        match fixture.lock(posix(1, Shared, i * 2, i * 2)) {
            Ok(()) => assert!(i < LockTable::MAX_RANGES_PER_NODE as u64),
            Err(errno) => {
                assert_eq!(errno, Errno::ENOLCK);
                break;
            }
        }
    }
    assert_eq!(fixture.unlock(1, 0, ALL), Ok(()));
    assert!(fixture.table.is_empty());
}

/// Returns a call of `user`, charged to `budget`.
fn call_of(user: u32, budget: &Arc<MemoryBudget>) -> Call {
    Call::detached().with_account(Account::in_budget(budget, PeerKey::User(user)))
}

#[test]
fn a_peer_leaves_ranges_of_a_node_to_others() {
    let fixture = Fixture::new();
    let budget = MemoryBudget::new(1 << 30);
    let lock = |user, client, at: u64| {
        let call = call_of(user, &budget);
        let cx = Cx::new(&Caller::ROOT, &call);
        let lock = posix(client, Shared, at * 2, at * 2);
        fixture.table.lock(&cx, &*fixture.node, lock, false)
    };
    // Two clients of one user.
    let took = (0..).take_while(|at| lock(1, at % 2, *at).is_ok()).count();
    assert_eq!(took, LockTable::MAX_RANGES_PER_NODE / 2 - 1);
    assert_eq!(lock(1, 7, 1), Err(Errno::ENOLCK));
    let took = (0..).take_while(|at| lock(2, 2, *at).is_ok()).count();
    assert!(took >= LockTable::MAX_RANGES_PER_NODE / 4 - 2, "{took}");
    // Ranges that are unlocked can be locked again.
    assert_eq!(fixture.unlock(0, 0, ALL), Ok(()));
    assert_eq!(lock(1, 0, 0), Ok(()));
    for client in 0..3 {
        fixture.release(client);
    }
    assert!(fixture.table.is_empty());
    assert_eq!(budget.used(), 0);
}

#[test]
fn ranges_are_part_of_the_memory_budget() {
    let fixture = Fixture::new();
    let budget = MemoryBudget::new(256 << 10);
    let lock = |user, at: u64| {
        let call = call_of(user, &budget);
        let cx = Cx::new(&Caller::ROOT, &call);
        let lock = posix(user.into(), Shared, at * 2, at * 2);
        fixture.table.lock(&cx, &*fixture.node, lock, false)
    };
    let took = (0..).take_while(|at| lock(1, *at).is_ok()).count();
    assert!((200..1000).contains(&took), "{took} ranges");
    assert!(budget.state_bytes() <= budget.limit() / 4);
    assert_eq!(lock(2, 0), Ok(()));
    fixture.release(1);
    fixture.release(2);
    assert_eq!(budget.used(), 0);
}

mod model {
    //! Random requests, compared with an array of the holder and kind of each range.

    use proptest::prelude::*;
    use vfs::lock::HostLock;

    use super::*;

    const OWNERS: usize = 3;
    const CELLS: usize = 13;

    /// Returns the bytes of a cell: single ones at both ends of a file, and the range between.
    fn cell(i: usize) -> (u64, u64) {
        match i {
            6 => (6, ALL - 6),
            i if i < 6 => (i as u64, i as u64),
            i => (ALL - (12 - i) as u64, ALL - (12 - i) as u64),
        }
    }

    #[derive(Clone, Debug)]
    enum Request {
        Lock(usize, LockKind, usize, usize),
        Unlock(usize, usize, usize),
        Release(usize),
    }

    fn requests() -> impl Strategy<Value = Vec<(Request, Option<usize>)>> {
        let range = (0..CELLS, 0..CELLS).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let kind = prop_oneof![Just(Shared), Just(Exclusive)];
        let request = prop_oneof![
            6 => (0..OWNERS, kind, range.clone())
                .prop_map(|(owner, kind, (a, b))| Request::Lock(owner, kind, a, b)),
            3 => (0..OWNERS, range).prop_map(|(owner, (a, b))| Request::Unlock(owner, a, b)),
            1 => (0..OWNERS).prop_map(Request::Release),
        ];
        // Sometimes the host refuses one of the first calls.
        let refuses = prop_oneof![4 => Just(None), 1 => (0usize..3).prop_map(Some)];
        proptest::collection::vec((request, refuses), 1..40)
    }

    type Held = [[Option<LockKind>; CELLS]; OWNERS];

    fn together(held: &Held, cell: usize) -> HostLock {
        held.iter()
            .filter_map(|owner| owner[cell])
            .map(HostLock::from)
            .max()
            .unwrap_or(HostLock::Unlocked)
    }

    fn parse(told: &str) -> (u64, u64, HostLock) {
        let mut words = told.split(' ').skip(1);
        let (start, end) = words
            .next()
            .and_then(|range| range.split_once("..="))
            .expect("a range");
        let state = match words.next() {
            Some("Unlocked") => HostLock::Unlocked,
            Some("Shared") => HostLock::Shared,
            _ => HostLock::Exclusive,
        };
        (
            start.parse().expect("a number"),
            end.parse().expect("a number"),
            state,
        )
    }

    proptest! {
        #[test]
        fn agrees_with_an_array(requests in requests()) {
            let fixture = Fixture::new();
            let mut held: Held = [[None; CELLS]; OWNERS];
            let mut host = [HostLock::Unlocked; CELLS];
            for (request, refuses) in requests {
                let before = held;
                let refuses = refuses.filter(|_| !matches!(request, Request::Release(_)));
                if let Some(after) = refuses {
                    for _ in 0..after {
                        fixture.script.next(Op::HostLock, Answer::Done);
                    }
                    fixture.script.next(Op::HostLock, Answer::Fail(Errno::EAGAIN));
                }
                let (answer, expected) = match request {
                    Request::Lock(who, kind, a, b) => {
                        let conflicts = (0..OWNERS).filter(|other| *other != who).any(|other| {
                            held[other][a..=b].iter().flatten().any(|held| {
                                *held == Exclusive || kind == Exclusive
                            })
                        });
                        if !conflicts {
                            held[who][a..=b].fill(Some(kind));
                        }
                        let expected = if conflicts { Err(Errno::EAGAIN) } else { Ok(()) };
                        (fixture.lock(posix(who as u64, kind, cell(a).0, cell(b).1)), expected)
                    }
                    Request::Unlock(who, a, b) => {
                        held[who][a..=b].fill(None);
                        (fixture.unlock(who as u64, cell(a).0, cell(b).1), Ok(()))
                    }
                    Request::Release(who) => {
                        held[who].fill(None);
                        fixture.release(who as u64);
                        (Ok(()), Ok(()))
                    }
                };
                let told = fixture.told();
                let refused = refuses.is_some_and(|after| told.len() > after);
                if refused {
                    prop_assert_eq!(answer, Err(Errno::EAGAIN));
                    held = before;
                } else {
                    prop_assert_eq!(answer, expected);
                }
                for (nth, told) in told.iter().enumerate() {
                    let (start, end, state) = parse(told);
                    if refused && Some(nth) == refuses {
                        continue;
                    }
                    let cells: Vec<usize> = (0..CELLS)
                        .filter(|i| start <= cell(*i).0 && cell(*i).1 <= end)
                        .collect();
                    prop_assert!(!cells.is_empty());
                    prop_assert_eq!((cell(cells[0]).0, cell(*cells.last().unwrap()).1), (start, end));
                    for i in cells {
                        prop_assert_ne!(host[i], state, "told what it knew");
                        host[i] = state;
                    }
                }
                for (i, state) in host.iter().enumerate() {
                    prop_assert_eq!(*state, together(&held, i), "cell {}", i);
                }
                fixture.script.forget(Op::HostLock);
                for (who, i) in (0..OWNERS).flat_map(|who| (0..CELLS).map(move |i| (who, i))) {
                    for kind in [Shared, Exclusive] {
                        let in_the_way = (0..OWNERS).any(|other| {
                            other != who && match held[other][i] {
                                Some(Exclusive) => true,
                                Some(Shared) => kind == Exclusive,
                                None => false,
                            }
                        });
                        let (start, end) = cell(i);
                        let holder = fixture.holder(posix(who as u64, kind, start, end));
                        prop_assert_eq!(holder.is_some(), in_the_way);
                    }
                }
            }
            for who in 0..OWNERS {
                fixture.release(who as u64);
            }
            prop_assert!(fixture.table.is_empty());
        }
    }
}

/// Locks on behalf of another table, whose clients are one owner here.
fn mirror(fixture: &Fixture, space: LockFamily, range: (u64, u64), state: HostLock) -> Result<()> {
    let range = space.range(range.0, range.1);
    fixture
        .table
        .mirror(&fixture.cx(), &*fixture.node, &owner(9), range, state)
}

#[test]
fn a_mirror_is_an_owner_that_keeps_what_it_has_when_refused() {
    for space in [LockFamily::Posix, LockFamily::Flock] {
        let fixture = Fixture::new();
        let lock = |client, kind| Lock {
            family: space,
            ..posix(client, kind, 0, ALL)
        };
        let mirror = |state| mirror(&fixture, space, (0, ALL), state);
        assert_eq!(mirror(HostLock::Shared), Ok(()));
        assert_eq!(fixture.lock(lock(1, Shared)), Ok(()));
        assert_eq!(mirror(HostLock::Exclusive), Err(Errno::EAGAIN));
        fixture.release(1);
        fixture
            .script
            .next(Op::HostLock, Answer::Fail(Errno::EAGAIN));
        assert_eq!(mirror(HostLock::Exclusive), Err(Errno::EAGAIN));
        assert_eq!(fixture.lock(lock(1, Exclusive)), Err(Errno::EAGAIN));
        let (woken, call) = Woken::call();
        assert_eq!(fixture.wait(&call, lock(1, Exclusive)), Err(Errno::PARKED));
        assert_eq!(mirror(HostLock::Unlocked), Ok(()));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(fixture.table.is_empty());
    }
}

#[test]
fn what_a_mirror_unlocks_is_unlocked_whatever_the_host_says() {
    let fixture = Fixture::new();
    let mirror = |state| mirror(&fixture, LockFamily::Posix, (0, 9), state);
    assert_eq!(mirror(HostLock::Exclusive), Ok(()));
    fixture
        .script
        .next(Op::HostLock, Answer::Fail(Errno::WOULD_BLOCK));
    assert_eq!(mirror(HostLock::Unlocked), Err(Errno::WOULD_BLOCK));
    assert!(!fixture.table.is_empty());
    fixture.script.next(Op::HostLock, Answer::Fail(Errno::EIO));
    assert_eq!(mirror(HostLock::Unlocked), Err(Errno::EIO));
    assert!(fixture.table.is_empty());
}
