//! Tests of deadlocks in `vfs::lock::LockTable`: cycles of owners, those that are none, and any
//! sequence of requests, against a model and against the kernel's own locks.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use proptest::prelude::*;
use vfs::lock::{Lock, LockFamily, LockKind, LockTable, Owner};
use vfs::{Call, Caller, Cx, Errno, Kind, Node, Result};
use vfs_testkit::Script;

use LockKind::{Exclusive, Shared};

struct Fixture {
    table: LockTable,
    nodes: Vec<Arc<dyn Node>>,
}

/// Records that it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A request that waits.
struct Request {
    node: usize,
    lock: Lock,
    call: Call,
    woken: Arc<Woken>,
}

fn owner(id: u8) -> Owner {
    Owner {
        client: 1,
        id: Arc::from([id]),
        pid: 100 + u32::from(id),
    }
}

fn posix(id: u8, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock {
        family: LockFamily::Posix,
        start,
        end,
        kind,
        owner: owner(id),
    }
}

impl Fixture {
    fn new() -> Fixture {
        let script = Script::new();
        Fixture {
            table: LockTable::default(),
            nodes: (5..8).map(|id| script.node(id, Kind::File)).collect(),
        }
    }

    /// Requests a lock that is free.
    fn hold(&self, node: usize, lock: Lock) {
        assert_eq!(self.try_lock(node, lock), Ok(()));
    }

    fn try_lock(&self, node: usize, lock: Lock) -> Result<()> {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        self.table.lock(&cx, &*self.nodes[node], lock, false)
    }

    fn wait(&self, node: usize, lock: Lock) -> (Result<()>, Request) {
        let woken = Arc::new(Woken::default());
        let call = Call::parkable(Waker::from(woken.clone()));
        let request = Request {
            node,
            lock,
            call,
            woken,
        };
        (self.retry(&request), request)
    }

    fn retry(&self, request: &Request) -> Result<()> {
        request.woken.0.store(false, Ordering::SeqCst);
        let cx = Cx::new(&Caller::ROOT, &request.call);
        let node = &*self.nodes[request.node];
        self.table.lock(&cx, node, request.lock.clone(), true)
    }

    /// Lets a request wait.
    fn park(&self, node: usize, lock: Lock) -> Request {
        let (result, request) = self.wait(node, lock);
        assert_eq!(result, Err(Errno::PARKED));
        request
    }

    fn cancel(&self, request: &Request) {
        let node = self.nodes[request.node].id();
        self.table.cancel_wait(node, &request.call);
    }

    fn unlock(&self, node: usize, lock: &Lock) {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let (start, end) = (lock.start, lock.end);
        let node = &*self.nodes[node];
        let unlocked = self
            .table
            .unlock(&cx, node, lock.family, start, end, &lock.owner);
        assert_eq!(unlocked, Ok(()));
    }
}

#[test]
fn two_owners_that_wait_for_each_other_are_a_deadlock() {
    let fixture = Fixture::new();
    fixture.hold(0, posix(1, Exclusive, 0, 0));
    fixture.hold(0, posix(2, Exclusive, 50, 50));
    let first = fixture.park(0, posix(1, Exclusive, 50, 50));
    let (second, _) = fixture.wait(0, posix(2, Exclusive, 0, 0));
    assert_eq!(second, Err(Errno::EDEADLK));
    // It keeps what it had, and the other one goes on when it is released.
    assert_eq!(fixture.retry(&first), Err(Errno::PARKED));
    fixture.unlock(0, &posix(2, Exclusive, 50, 50));
    assert!(first.woken.0.load(Ordering::SeqCst));
    assert_eq!(fixture.retry(&first), Ok(()));
}

#[test]
fn three_owners_and_several_files_are_a_deadlock() {
    let fixture = Fixture::new();
    for id in 0..3 {
        fixture.hold(id.into(), posix(id, Exclusive, 0, u64::MAX));
    }
    let _first = fixture.park(1, posix(0, Shared, 7, 9));
    let _second = fixture.park(2, posix(1, Exclusive, 3, 3));
    let (third, _) = fixture.wait(0, posix(2, Shared, 0, 0));
    assert_eq!(third, Err(Errno::EDEADLK));
}

#[test]
fn a_cycle_of_many_owners_is_a_deadlock() {
    const OWNERS: u8 = 200;
    let fixture = Fixture::new();
    for id in 0..OWNERS {
        fixture.hold(0, posix(id, Exclusive, id.into(), id.into()));
    }
    let wait = |id: u8| {
        let next = u64::from((id + 1) % OWNERS);
        fixture.wait(0, posix(id, Exclusive, next, next))
    };
    let waiting: Vec<_> = (0..OWNERS - 1).map(wait).collect();
    assert!(waiting.iter().all(|(one, _)| *one == Err(Errno::PARKED)));
    assert_eq!(wait(OWNERS - 1).0, Err(Errno::EDEADLK));
}

/// Readers that both want to write wait for each other; a third one waits for both.
#[test]
fn two_readers_that_both_want_to_write_are_a_deadlock() {
    let fixture = Fixture::new();
    fixture.hold(0, posix(1, Shared, 0, 99));
    fixture.hold(0, posix(2, Shared, 50, 149));
    let _writer = fixture.park(0, posix(3, Exclusive, 0, 149));
    let first = fixture.park(0, posix(1, Exclusive, 40, 60));
    let (second, _) = fixture.wait(0, posix(2, Exclusive, 60, 70));
    assert_eq!(second, Err(Errno::EDEADLK));
    // Outside what the other one has, there is nothing to wait for.
    fixture.hold(0, posix(2, Exclusive, 100, 149));
    fixture.unlock(0, &posix(2, Shared, 0, 60));
    assert_eq!(fixture.retry(&first), Ok(()));
}

/// Linux follows only the first one's wait.
#[test]
fn each_of_several_readers_counts() {
    let fixture = Fixture::new();
    for reader in 1..4 {
        fixture.hold(0, posix(reader, Shared, 0, 0));
    }
    fixture.hold(1, posix(9, Exclusive, 0, 0));
    let _waits_for_readers = fixture.park(0, posix(9, Exclusive, 0, 0));
    for reader in 1..4 {
        let (result, _) = fixture.wait(1, posix(reader, Shared, 0, 0));
        assert_eq!(result, Err(Errno::EDEADLK), "{reader}");
    }
}

#[test]
fn requests_that_do_not_wait_are_refused_as_ever() {
    let fixture = Fixture::new();
    fixture.hold(0, posix(1, Exclusive, 0, 0));
    fixture.hold(0, posix(2, Exclusive, 1, 1));
    let first = fixture.park(0, posix(1, Exclusive, 1, 1));
    let tried = fixture.try_lock(0, posix(2, Exclusive, 0, 0));
    assert_eq!(tried, Err(Errno::EAGAIN));
    // A signal ends the first one's wait.
    fixture.cancel(&first);
    let _second = fixture.park(0, posix(2, Exclusive, 0, 0));
}

/// As on Linux.
#[test]
fn whole_files_of_flock_have_no_deadlocks() {
    let fixture = Fixture::new();
    let flock = |id| Lock {
        family: LockFamily::Flock,
        ..posix(id, Exclusive, 0, u64::MAX)
    };
    fixture.hold(0, flock(1));
    fixture.hold(1, flock(2));
    let _first = fixture.park(1, flock(1));
    let _second = fixture.park(0, flock(2));
    // Nor do they count for the other kind.
    fixture.hold(0, posix(3, Exclusive, 0, 0));
    fixture.hold(1, posix(1, Exclusive, 0, 0));
    let _third = fixture.park(1, posix(3, Exclusive, 0, 0));
}

/// FUSE does not tell such locks from those of processes: two owners of one process are open files.
#[test]
fn open_files_of_one_process_have_no_deadlocks() {
    let fixture = Fixture::new();
    let of_one_process = |id, start| {
        let mut lock = posix(id, Exclusive, start, start);
        lock.owner.pid = 7;
        lock
    };
    fixture.hold(0, of_one_process(1, 0));
    fixture.hold(0, of_one_process(2, 1));
    let _first = fixture.park(0, of_one_process(1, 1));
    let _second = fixture.park(0, of_one_process(2, 0));
}

#[test]
fn owners_of_several_clients_are_a_deadlock() {
    let fixture = Fixture::new();
    let of = |client, id, start| {
        let mut lock = posix(id, Exclusive, start, start);
        (lock.owner.client, lock.owner.pid) = (client, 7);
        lock
    };
    fixture.hold(0, of(1, 1, 0));
    fixture.hold(0, of(2, 1, 1));
    let _first = fixture.park(0, of(1, 1, 1));
    let (second, _) = fixture.wait(0, of(2, 1, 0));
    assert_eq!(second, Err(Errno::EDEADLK));
}

/// A lock that is granted while others wait is what these wait for from now on.
#[test]
fn what_is_granted_meanwhile_counts() {
    let fixture = Fixture::new();
    fixture.hold(0, posix(1, Shared, 0, 0));
    fixture.hold(1, posix(9, Exclusive, 0, 0));
    let _writer = fixture.park(0, posix(9, Exclusive, 0, 0));
    fixture.hold(0, posix(2, Shared, 0, 0));
    fixture.unlock(0, &posix(1, Shared, 0, 0));
    let _no_longer = fixture.park(1, posix(1, Exclusive, 0, 0));
    let (second, _) = fixture.wait(1, posix(2, Exclusive, 0, 0));
    assert_eq!(second, Err(Errno::EDEADLK));
}

/// The locks of a model: who holds each of a few bytes of a file, and who waits for what.
#[derive(Default)]
struct Model {
    held: HashMap<(usize, u64), Vec<(u8, LockKind)>>,
    waiting: HashMap<u8, (usize, Lock)>,
}

impl Model {
    fn blockers(&self, node: usize, lock: &Lock, id: u8) -> Vec<u8> {
        let held = (lock.start..=lock.end).filter_map(|byte| self.held.get(&(node, byte)));
        let in_the_way = held
            .flatten()
            .filter(|&&(other, kind)| other != id && (kind == Exclusive || lock.kind == Exclusive));
        in_the_way.map(|&(other, _)| other).collect()
    }

    /// Returns whether `from` waits for `id`, perhaps through others.
    fn waits_for(&self, from: u8, id: u8, depth: usize) -> bool {
        let Some((node, lock)) = self.waiting.get(&from) else {
            return false;
        };
        let blockers = self.blockers(*node, lock, from);
        let mut blockers = blockers.into_iter();
        depth < OWNERS && blockers.any(|one| one == id || self.waits_for(one, id, depth + 1))
    }

    fn set(&mut self, node: usize, lock: &Lock, id: u8, kind: Option<LockKind>) {
        for byte in lock.start..=lock.end {
            let held = self.held.entry((node, byte)).or_default();
            held.retain(|&(other, _)| other != id);
            held.extend(kind.map(|kind| (id, kind)));
        }
    }
}

const OWNERS: usize = 6;

proptest! {
    /// With any requests of owners that wait for one lock at a time, one is refused exactly if it
    /// would close a cycle.
    #[test]
    fn a_request_is_refused_exactly_if_it_would_wait_for_itself(
        steps in proptest::collection::vec(
            (0..OWNERS as u8, 0..2usize, any::<bool>(), 0..4u64, 0..3u64, 0..4u8), 1..120)
    ) {
        let fixture = Fixture::new();
        let mut model = Model::default();
        let mut parked: HashMap<u8, Request> = HashMap::new();
        for (id, node, exclusive, start, len, action) in steps {
            let kind = if exclusive { Exclusive } else { Shared };
            let lock = posix(id, kind, start, start + len);
            if let Some(request) = parked.get(&id) {
                if action == 0 {
                    fixture.cancel(request);
                    parked.remove(&id);
                    model.waiting.remove(&id);
                }
                continue;
            }
            if action == 0 {
                fixture.unlock(node, &lock);
                model.set(node, &lock, id, None);
            } else {
                let blockers = model.blockers(node, &lock, id);
                let expected = if blockers.is_empty() {
                    model.set(node, &lock, id, Some(kind));
                    Ok(())
                } else if blockers.iter().any(|&one| model.waits_for(one, id, 0)) {
                    Err(Errno::EDEADLK)
                } else {
                    model.waiting.insert(id, (node, lock.clone()));
                    Err(Errno::PARKED)
                };
                let (result, request) = fixture.wait(node, lock);
                prop_assert_eq!(result, expected);
                if result == Err(Errno::PARKED) {
                    parked.insert(id, request);
                }
            }
            // A request that is woken is retried at once.
            while let Some(id) = parked.iter().find_map(|(&id, request)| {
                request.woken.0.load(Ordering::SeqCst).then_some(id)
            }) {
                let request = parked.remove(&id).expect("it waits");
                let blockers = model.blockers(request.node, &request.lock, id);
                let result = fixture.retry(&request);
                prop_assert_eq!(result.is_ok(), blockers.is_empty());
                model.waiting.remove(&id);
                match result {
                    Ok(()) => model.set(request.node, &request.lock, id, Some(request.lock.kind)),
                    Err(Errno::PARKED) => {
                        model.waiting.insert(id, (request.node, request.lock.clone()));
                        parked.insert(id, request);
                    }
                    Err(errno) => {
                        let is_cycle = blockers.iter().any(|&one| model.waits_for(one, id, 0));
                        prop_assert!(errno == Errno::EDEADLK && is_cycle);
                    }
                }
            }
        }
    }
}

/// A step of the kernel: a request with its result, and results of earlier requests.
struct Step {
    id: u8,
    node: usize,
    /// `None` unlocks.
    kind: Option<LockKind>,
    lock: Lock,
    result: String,
    later: Vec<(u8, String)>,
}

/// Returns the steps of processes that lock files of a directory, or `None` without Python.
fn kernel_steps(seed: u32, kinds: &str) -> Option<Vec<Step>> {
    let dir = tempfile::tempdir().expect("a directory");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernel_locks.py");
    let mut python = Command::new("python3");
    python.arg("-B").arg(script).arg(dir.path());
    let output = python
        .args([&seed.to_string(), "80", kinds])
        .output()
        .ok()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let mut steps: Vec<Step> = Vec::new();
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let id = number(0) as u8;
        if let [_, result] = words[..] {
            let step = steps.last_mut().expect("a step");
            step.later.push((id, result.to_owned()));
            continue;
        }
        let kind = match words[2] {
            "r" => Some(Shared),
            "w" => Some(Exclusive),
            _ => None,
        };
        let (start, end) = (number(3), number(3) + number(4) - 1);
        steps.push(Step {
            id,
            node: number(1) as usize,
            kind,
            lock: posix(id, kind.unwrap_or(Shared), start, end),
            result: words[5].to_owned(),
            later: Vec::new(),
        });
    }
    Some(steps)
}

fn named(result: Result<()>) -> &'static str {
    match result {
        Ok(()) => "got",
        Err(Errno::PARKED) => "waits",
        Err(Errno::EDEADLK) => "deadlock",
        Err(errno) => panic!("{errno:?}"),
    }
}

/// Repeats what the kernel did, until the table finds a deadlock that the kernel does not. Returns
/// the number of deadlocks before, and whether there was such a one.
fn replay(steps: &[Step], name: &str) -> (usize, bool) {
    let fixture = Fixture::new();
    let mut parked: HashMap<u8, Request> = HashMap::new();
    let mut deadlocks = 0;
    for (at, step) in steps.iter().enumerate() {
        let place = format!("{name}, step {at}");
        match step.kind {
            None => fixture.unlock(step.node, &step.lock),
            Some(_) => {
                let (result, request) = fixture.wait(step.node, step.lock.clone());
                if (named(result), &*step.result) == ("deadlock", "waits") {
                    return (deadlocks, true);
                }
                assert_eq!(named(result), step.result, "{place}");
                match result {
                    Err(Errno::PARKED) => drop(parked.insert(step.id, request)),
                    Err(_) => deadlocks += 1,
                    Ok(()) => {}
                }
            }
        }
        // Those that got their locks had them before others found that they would wait for them.
        let (got, others): (Vec<_>, Vec<_>) =
            step.later.iter().partition(|(_, result)| result == "got");
        for (id, result) in got.into_iter().chain(others) {
            let request = parked.remove(id).expect("it waits");
            assert!(
                request.woken.0.load(Ordering::SeqCst),
                "{place}: {id} is woken"
            );
            assert_eq!(named(fixture.retry(&request)), result, "{place}: {id}");
            deadlocks += usize::from(result == "deadlock");
        }
        for (id, request) in &parked {
            if request.woken.0.load(Ordering::SeqCst) {
                match named(fixture.retry(request)) {
                    "waits" => {}
                    "deadlock" => return (deadlocks, true),
                    other => panic!("{place}: {id}: {other}"),
                }
            }
        }
    }
    (deadlocks, false)
}

/// With locks of one byte for one owner, of which a request waits for one at a time, both find the
/// same deadlocks; otherwise Linux finds some of them, as it follows only one owner.
#[test]
fn deadlocks_are_those_of_the_kernel() {
    for kinds in ["exclusive", "any"] {
        let mut deadlocks = 0;
        for seed in 0..6 {
            let Some(steps) = kernel_steps(seed, kinds) else {
                return eprintln!("skipped: this takes python3");
            };
            let name = format!("{kinds}, seed {seed}");
            let (found, more) = replay(&steps, &name);
            assert!(
                !more || kinds == "any",
                "{name}: the kernel finds no deadlock"
            );
            deadlocks += found;
        }
        assert!(deadlocks > 0, "{kinds}");
    }
}
