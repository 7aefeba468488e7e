//! Limits of operations and bytes, through the layer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use layers::fault::{Fault, FaultKind, Trigger};
use layers::limit::{Limits, Rates, Timer};
use layers::{Limiter, stack};
use memory::Memory;
use vfs::{
    Account, AttrMask, Call, Caller, CopyMode, Cx, Errno, File, Mode, Name, Node, Op, OpenFlags,
    Patience, PeerKey, ReaddirMode, Result,
};
use vfs_testkit::{ReplyBuffer, TestPayload, clock, wait_until};

/// A clock that stands still until it is set.
#[derive(Clone, Default)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn clock(&self) -> layers::Clock {
        let millis = self.0.clone();
        Arc::new(move || Duration::from_millis(millis.load(Ordering::SeqCst)))
    }

    fn set(&self, millis: u64) {
        self.0.store(millis, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct World {
    clock: TestClock,
    limiter: Arc<Limiter>,
    fault: Arc<Fault>,
    root: Arc<dyn Node>,
    file: Arc<dyn File>,
}

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn rates(text: &str) -> Rates {
    text.parse().expect("rates")
}

fn limits(share: &str, client: &str) -> Limits {
    Limits {
        share: rates(share),
        client: rates(client),
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

impl World {
    /// A tree with a file of 1000 bytes, without a limit yet.
    fn new() -> World {
        let clock = TestClock::default();
        let limiter = Limiter::new(Limits::default(), clock.clock(), Timer::new());
        let fault = Arc::new(Fault::new(1, clock.clock()));
        let fs = stack(Memory::new(self::clock()), fault.clone());
        let fs = stack(fs, limiter.clone());
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let root = fs.root(&cx).expect("a root");
        let made = root.create(&cx, name("file"), RW, Mode::without_umask(0o644));
        let file = made.expect("a new file").1;
        let data = file.write(&cx, 0, &mut TestPayload::new(&[7; 1000]));
        assert_eq!(data, Ok(1000));
        World {
            clock,
            limiter,
            fault,
            root,
            file,
        }
    }

    fn read(&self, cx: &Cx<'_>, offset: u64, len: usize) -> Result<usize> {
        self.file.read(cx, offset, len, &mut ReplyBuffer::new(len))
    }
}

/// A request on a lane's thread.
fn inline(client: u32) -> Call {
    Call::detached().with_account(Account::of(PeerKey::User(client)))
}

/// A request on a worker, and the number of times that it was woken.
fn on_worker(client: u32) -> (Call, Arc<Wakes>) {
    let wakes = Arc::new(Wakes::default());
    let call = Call::parkable(Waker::from(wakes.clone()));
    (call.with_account(Account::of(PeerKey::User(client))), wakes)
}

fn brief(call: &Call) -> Cx<'_> {
    Cx {
        patience: Patience::Brief,
        ..Cx::new(&Caller::ROOT, call)
    }
}

fn full(call: &Call) -> Cx<'_> {
    Cx::new(&Caller::ROOT, call)
}

/// A COMPOUND with 60 LOOKUPs was one operation.
#[test]
fn each_step_of_a_compound_and_each_entry_with_attributes_is_an_operation() {
    let world = World::new();
    world.limiter.set(limits("ops=10", "none"));
    let attr = |call: &Call| world.root.attr(&full(call), AttrMask::STAT).map(drop);
    let compound = on_worker(1).0;
    for attempt in 0..3 {
        for step in 0..60 {
            compound.begin_step(step);
            // Steps that call nothing are free, and all calls of one are one operation.
            for _ in 0..step % 3 {
                world
                    .root
                    .lookup(&full(&compound), name("file"))
                    .expect("admitted");
            }
        }
        assert_eq!(
            attempt,
            attempt.min(2),
            "an attempt that is repeated is not charged again"
        );
    }
    // 40 operations, of which 1 was saved up.
    let next = on_worker(1).0;
    assert_eq!(attr(&next), Err(Errno::PARKED));
    world.clock.set(3900);
    assert_eq!(attr(&next), Err(Errno::PARKED));
    world.clock.set(4000);
    assert_eq!(attr(&next), Ok(()));

    for number in 0..29 {
        let call = Call::detached();
        let cx = Cx::new(&Caller::ROOT, &call);
        let file = format!("file{number}");
        let made = world
            .root
            .create(&cx, name(&file), RW, Mode::without_umask(0o644));
        made.expect("made");
    }
    let dir = world
        .root
        .open(&full(&Call::detached()), OpenFlags::READ)
        .expect("opened");
    world.clock.set(10_000);
    for (mode, millis) in [(ReaddirMode::Names, 100), (ReaddirMode::Entries, 3100)] {
        let start = world.clock.0.load(Ordering::SeqCst);
        let listing = on_worker(1).0;
        let mut all = 0;
        dir.readdir(&full(&listing), 0, mode, &mut |_: vfs::DirEntry<'_>| {
            all += 1;
            true
        })
        .expect("admitted");
        assert_eq!(all, 30);
        drop(listing);
        let next = on_worker(1).0;
        assert_eq!(attr(&next), Err(Errno::PARKED), "{mode:?}");
        world.clock.set(start + millis - 1);
        assert_eq!(attr(&next), Err(Errno::PARKED), "{mode:?}");
        world.clock.set(start + millis);
        assert_eq!(attr(&next), Ok(()), "{mode:?}");
        world.clock.set(start + 10_000);
    }
}

#[test]
fn a_request_is_one_operation_whatever_it_calls() {
    let world = World::new();
    world.limiter.set(limits("ops=1", "none"));
    let call = inline(1);
    let cx = brief(&call);
    for _ in 0..5 {
        world.root.attr(&cx, AttrMask::STAT).expect("admitted");
        world.root.lookup(&cx, name("file")).expect("admitted");
        world.read(&cx, 0, 1000).expect("admitted");
    }
    let next = inline(1);
    let attr = |call| world.root.attr(&brief(call), AttrMask::STAT).map(drop);
    assert_eq!(attr(&next), Err(Errno::WOULD_BLOCK));
    // It is the next request of its lane.
    call.forget_admission();
    assert_eq!(attr(&call), Err(Errno::WOULD_BLOCK));
    world.clock.set(1000);
    assert_eq!(attr(&call), Ok(()));
}

#[test]
fn a_request_waits_without_a_thread_and_is_charged_once() {
    let world = World::new();
    world.limiter.set(limits("ops=10", "none"));
    let (first, _) = on_worker(1);
    let (second, wakes) = on_worker(1);
    let attr = |call: &Call| world.root.attr(&full(call), AttrMask::STAT).map(drop);
    assert_eq!(attr(&first), Ok(()));
    assert_eq!(attr(&second), Err(Errno::PARKED));
    assert!(second.take_awaits_admission());
    // A rerun without a reason keeps the place.
    assert_eq!(attr(&second), Err(Errno::PARKED));
    let stats = world.limiter.stats();
    assert_eq!((stats.waiting, stats.delayed), (1, 0));
    world.clock.set(100);
    wait_until("the first one is woken", || {
        wakes.0.load(Ordering::SeqCst) > 0
    });
    // Others come too late for its token.
    let third = inline(2);
    assert_eq!(
        world.root.attr(&brief(&third), AttrMask::STAT).err(),
        Some(Errno::WOULD_BLOCK)
    );
    assert_eq!((attr(&second), attr(&second)), (Ok(()), Ok(())));
    let stats = world.limiter.stats();
    assert_eq!((stats.waiting, stats.delayed), (0, 1));
    assert_eq!(stats.waited, Duration::from_millis(100));
}

#[test]
fn a_cancelled_request_ends_and_returns_its_token() {
    let world = World::new();
    world.limiter.set(limits("ops=10", "none"));
    let attr = |call: &Call| world.root.attr(&full(call), AttrMask::STAT).map(drop);
    let calls = [1, 1, 2, 3].map(|client| on_worker(client).0);
    assert_eq!(attr(&calls[0]), Ok(()));
    for call in &calls[1..] {
        assert_eq!(attr(call), Err(Errno::PARKED));
    }
    calls[1].cancel();
    assert_eq!(attr(&calls[1]), Err(Errno::EINTR));
    assert_eq!(world.limiter.stats().waiting, 2);
    let [_, _, third, fourth] = calls;
    world.clock.set(100);
    wait_until("one of them no longer waits", || {
        world.limiter.stats().waiting != 2
    });
    assert_eq!(attr(&fourth), Err(Errno::PARKED));
    // The token of a request that ends before it uses it goes to the next one.
    drop(third);
    assert_eq!(attr(&fourth), Ok(()));
}

#[test]
fn a_read_costs_the_bytes_that_it_moved() {
    let world = World::new();
    world.limiter.set(limits("bytes=10000,burst=1s", "none"));
    // 1000 bytes of a MiB; then none, at the end of the file.
    for (offset, moved) in [(0, 1000), (1000, 0), (5000, 0), (0, 1000)] {
        let call = inline(1);
        assert_eq!(world.read(&brief(&call), offset, 1 << 20), Ok(moved));
    }
    for _ in 0..8 {
        let call = inline(1);
        assert_eq!(world.read(&brief(&call), 0, 1 << 20), Ok(1000));
    }
    let call = inline(1);
    assert_eq!(world.read(&brief(&call), 0, 1), Err(Errno::WOULD_BLOCK));
}

#[test]
fn a_write_above_the_burst_passes_and_leaves_a_debt() {
    let world = World::new();
    world.limiter.set(limits("none", "bytes=1000"));
    let write = |call: &Call, len: usize| {
        let data = vec![1; len];
        world
            .file
            .write(&brief(call), 0, &mut TestPayload::new(&data))
    };
    assert_eq!(write(&inline(1), 5000), Ok(5000));
    assert_eq!(write(&inline(1), 1), Err(Errno::WOULD_BLOCK));
    assert_eq!(write(&inline(2), 1), Ok(1), "another client");
    // Requests without bytes pass.
    assert!(world.file.attr(&brief(&inline(1)), AttrMask::STAT).is_ok());
    world.clock.set(4901);
    assert_eq!(write(&inline(1), 1), Ok(1));
}

#[test]
fn a_request_that_first_moves_no_bytes_waits_for_them_later() {
    let world = World::new();
    world.limiter.set(limits("ops=10,bytes=1000", "none"));
    let attr = |cx: &Cx<'_>| world.root.attr(cx, AttrMask::STAT).map(drop);
    assert_eq!(world.read(&brief(&inline(1)), 0, 1000), Ok(1000));
    world.clock.set(100);
    let (call, _) = on_worker(1);
    let cx = full(&call);
    assert_eq!(attr(&cx), Ok(()));
    assert_eq!(world.read(&cx, 0, 1000), Err(Errno::PARKED));
    assert!(call.take_awaits_admission());
    // It is served again from its beginning, and is the same operation.
    assert_eq!((attr(&cx), attr(&cx)), (Ok(()), Ok(())));
    assert_eq!(world.read(&cx, 0, 1000), Err(Errno::PARKED));
    world.clock.set(901);
    assert_eq!(world.read(&cx, 0, 1000), Ok(1000));
    // Once it has waited, it does so no more, but owes.
    assert_eq!(world.read(&cx, 0, 1000), Ok(1000));
    assert_eq!(
        world.read(&brief(&inline(1)), 0, 1),
        Err(Errno::WOULD_BLOCK)
    );
    world.clock.set(2902);
    assert_eq!(world.read(&brief(&inline(1)), 0, 1), Ok(1));
}

#[test]
fn a_request_that_uses_two_shares_is_limited_in_both() {
    let worlds = [World::new(), World::new()];
    for world in &worlds {
        world.limiter.set(limits("ops=1", "none"));
        assert!(world.root.attr(&brief(&inline(1)), AttrMask::STAT).is_ok());
    }
    worlds.iter().for_each(|world| world.clock.set(1000));
    assert!(
        worlds[1]
            .root
            .attr(&brief(&inline(2)), AttrMask::STAT)
            .is_ok()
    );
    let (call, _) = on_worker(1);
    let serve = || {
        let one = |world: &World| world.root.attr(&full(&call), AttrMask::STAT).map(drop);
        one(&worlds[0])
            .and_then(|()| one(&worlds[1]))
            .and_then(|()| one(&worlds[0]))
    };
    assert_eq!((serve(), serve()), (Err(Errno::PARKED), Err(Errno::PARKED)));
    worlds[1].clock.set(2000);
    assert_eq!((serve(), serve()), (Ok(()), Ok(())));
    for world in &worlds {
        let refused = world.root.attr(&brief(&inline(1)), AttrMask::STAT).err();
        assert_eq!(refused, Some(Errno::WOULD_BLOCK));
    }
}

#[test]
fn an_attempt_that_would_block_is_not_charged() {
    let world = World::new();
    world.limiter.set(limits("ops=1,bytes=1000", "none"));
    world.fault.add(Op::Read, Trigger::Always, FaultKind::Block);
    for _ in 0..10 {
        let call = inline(1);
        assert!(world.root.attr(&brief(&call), AttrMask::STAT).is_ok());
        assert_eq!(world.read(&brief(&call), 0, 1000), Err(Errno::WOULD_BLOCK));
        assert_eq!(call.admitted_by(), 0);
    }
    let (call, _) = on_worker(1);
    assert_eq!(world.read(&full(&call), 0, 1000), Ok(1000));
    let (call, _) = on_worker(1);
    assert_eq!(world.read(&full(&call), 0, 1000), Err(Errno::PARKED));
}

#[test]
fn requests_that_had_an_effect_do_not_wait() {
    let world = World::new();
    world.limiter.set(limits("ops=1", "none"));
    let attr = |call: &Call| world.root.attr(&full(call), AttrMask::STAT).map(drop);
    for _ in 0..3 {
        let (call, _) = on_worker(1);
        call.end_admission();
        assert_eq!(attr(&call), Ok(()));
    }
    // One that would move bytes is refused while there is a debt.
    let (call, _) = on_worker(1);
    call.end_admission();
    assert_eq!(world.read(&full(&call), 0, 1000), Err(Errno::EAGAIN));
    // Nor do those of a thread without an engine.
    assert_eq!(attr(&inline(1)), Ok(()));
    world.clock.set(3500);
    assert_eq!(attr(&on_worker(1).0), Err(Errno::PARKED));
    world.clock.set(4000);
    assert_eq!(attr(&on_worker(1).0), Ok(()));
}

#[test]
fn calls_of_barge_itself_and_handles_are_free() {
    let world = World::new();
    world.limiter.set(limits("ops=1", "ops=1"));
    let used = inline(1);
    assert!(world.root.attr(&brief(&used), AttrMask::STAT).is_ok());
    for call in [Call::detached(), used.internal()] {
        let attr = world.root.attr(&brief(&call), AttrMask::STAT);
        assert!(attr.is_ok());
    }
    assert!(world.root.handle(&brief(&inline(1))).is_ok());
}

#[test]
fn copies_are_charged_but_clones_are_not() {
    let world = World::new();
    world.limiter.set(limits("bytes=1000", "none"));
    let copy = |call: &Call, how| {
        let file = &*world.file;
        file.copy(&brief(call), 0, &*world.file, 2000, 1000, how)
    };
    assert!(copy(&inline(1), CopyMode::Clone).is_err(), "not in memory");
    assert_eq!(copy(&inline(1), CopyMode::Any), Ok(1000));
    assert_eq!(copy(&inline(1), CopyMode::Any), Err(Errno::WOULD_BLOCK));
}

#[test]
fn waiting_requests_follow_a_change() {
    let world = World::new();
    world.limiter.set(limits("ops=1", "none"));
    let attr = |call: &Call| world.root.attr(&full(call), AttrMask::STAT).map(drop);
    assert_eq!(attr(&inline(1)), Ok(()));
    let (call, wakes) = on_worker(1);
    assert_eq!(attr(&call), Err(Errno::PARKED));
    world.limiter.set(limits("none", "none"));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert_eq!(attr(&call), Ok(()));
    assert_eq!(world.limiter.stats().waiting, 0);
}

#[test]
fn files_are_not_passed_to_the_host_while_there_is_a_limit() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("file"), b"data").expect("a file");
    let options = hostdir::Options {
        identity: hostdir::Identity::Fixed,
        ..Default::default()
    };
    let fs = hostdir::HostDir::open(dir.path(), options).expect("exports");
    let clock = TestClock::default().clock();
    let limiter = Limiter::new(Limits::default(), clock, Timer::new());
    let fs = stack(fs, limiter.clone());
    let call = Call::detached();
    let cx = Cx::new(&Caller::ROOT, &call);
    let root = fs.root(&cx).expect("a root");
    let node = root.lookup(&cx, name("file")).expect("a file").node;
    let file = node.open(&cx, OpenFlags::READ).expect("opens");
    let passed = |expected: bool, when: &str| {
        assert_eq!(file.backing(&cx).is_some(), expected, "{when}");
    };
    passed(true, "without a limit");
    for set in [limits("ops=1", "none"), limits("none", "bytes=1G")] {
        limiter.set(set);
        passed(false, "with a limit");
    }
    limiter.set(Limits::default());
    passed(true, "after it");
}

/// Many threads, each a client, with a clock that goes on: all requests are admitted, and not
/// before the rate allows it.
#[test]
fn the_timer_admits_all_requests_at_the_rate() {
    const REQUESTS: u32 = 20;
    let start = std::time::Instant::now();
    let clock: layers::Clock = Arc::new(move || start.elapsed());
    let limiter = Limiter::new(limits("ops=1000,burst=10ms", "none"), clock, Timer::new());
    let fs = stack(Memory::new(self::clock()), limiter.clone());
    std::thread::scope(|scope| {
        for client in 0..8 {
            let fs = &fs;
            scope.spawn(move || {
                for _ in 0..REQUESTS {
                    let account = Account::of(PeerKey::User(client));
                    let call = Call::parkable(vfs::cx::thread_waker()).with_account(account);
                    let attr = vfs::cx::block_on_call(&Caller::ROOT, &call, |cx| {
                        fs.root(cx)?.attr(cx, AttrMask::STAT)
                    });
                    attr.expect("admitted");
                }
            });
        }
    });
    let stats = limiter.stats();
    assert_eq!(stats.waiting, 0);
    // All but the burst.
    let least = Duration::from_millis(u64::from(8 * REQUESTS) - 10);
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}
