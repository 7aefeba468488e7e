//! Asynchronous copies (RFC 7862 sections 4, 15.2, 15.8, 15.9 and 16.1). The test is their
//! executor.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use layers::Limiter;
use layers::limit::{Limits, Rates, Timer};
use vfs::{Attr, Errno, Kind};
use vfs_testkit::script::{Answer, Script, default_attr};

use super::*;
use crate::server::Work;
use crate::v4::callback::{CallbackOp, Offload, Offloaded};
use crate::v4::op::{Close, Copy};
use crate::v4::reply::{Copied, OffloadState};
use crate::v4::types::{Stable, WriteResponse};

const MIB: u64 = 1 << 20;

/// A server of files of 100 MiB, whose copies follow a script.
struct Scene {
    world: World,
    script: Arc<Script>,
    time: Arc<Mutex<Time>>,
    work: Arc<Mutex<VecDeque<Work>>>,
}

/// A clock that operations advance.
#[derive(Default)]
struct Time {
    now: Duration,
    /// The slow operation and its duration.
    slow: Option<(vfs::Op, Duration)>,
    /// The number of operations already counted.
    seen: usize,
}

impl Time {
    fn look(&mut self, done: &[vfs::Op]) -> Duration {
        for op in done.iter().skip(self.seen) {
            if let Some((slow, takes)) = &self.slow
                && slow == op
            {
                self.now += *takes;
            }
        }
        self.seen = done.len();
        self.now
    }
}

impl Scene {
    fn new() -> Scene {
        Scene::over(|script| script)
    }

    /// Creates one whose clients use the tree that `layered` returns for the script.
    fn over(layered: impl FnOnce(Arc<Script>) -> Arc<dyn vfs::FileSystem>) -> Scene {
        let script = Script::new();
        let size = Attr {
            size: 100 * MIB,
            ..default_attr(2, Kind::File)
        };
        script
            .always(vfs::Op::FileAttr, Answer::Attr(size))
            .always(vfs::Op::Lookup, Answer::Node(2, Kind::File))
            .always(vfs::Op::Copy, Answer::Count(16 * MIB));
        let time = Arc::<Mutex<Time>>::default();
        let work = Arc::<Mutex<VecDeque<Work>>>::default();
        let (of, by, to) = (script.clone(), time.clone(), work.clone());
        let world = World::with(layered(script.clone()), |options| {
            options.clock = Arc::new(move || {
                let mut time = by.lock().expect("no panic holds it");
                time.look(&of.ops())
            });
            options.run = Some(Arc::new(move |work| {
                to.lock().expect("no panic holds it").push_back(work);
            }));
        });
        Scene {
            world,
            script,
            time,
            work,
        }
    }

    fn client(&self, name: &[u8]) -> Client41 {
        Client41::called_by_4_2(&self.world, name)
    }

    fn time(&self) -> std::sync::MutexGuard<'_, Time> {
        self.time.lock().expect("no panic holds it")
    }

    /// Returns the number of copy operations.
    fn copies(&self) -> usize {
        let ops = self.script.ops();
        ops.iter().filter(|op| **op == vfs::Op::Copy).count()
    }

    /// Advances the clock, and runs the server's periodic work.
    fn pass(&self, seconds: u64) {
        self.time().now += Duration::from_secs(seconds);
        self.world.server.maintain();
    }

    /// Runs at most `most` scheduled pieces of work. Returns their number.
    fn work(&self, most: usize) -> usize {
        let next = || self.work.lock().expect("no panic holds it").pop_front();
        (0..most).map_while(|_| next()).map(|work| work()).count()
    }

    /// Sends `ops`, of which COPY is the last, while each `slow` takes this number of milliseconds.
    fn copy(&self, client: &Client41, ops: &[Op<'_>], slow: vfs::Op, millis: u64) -> Copied {
        self.time().slow = Some((slow, Duration::from_millis(millis)));
        let reply = client.send(ops).done();
        self.time().slow = None;
        for _ in 1..ops.len() {
            let () = reply.ok();
        }
        reply.ok()
    }

    /// Runs [`copy`] slowly: it is answered after 16 MiB.
    fn slowly(&self, client: &Client41, synchronous: bool) -> Copied {
        self.copy(client, &copy(synchronous), vfs::Op::Copy, 1000)
    }

    /// Starts an asynchronous copy of 96 MiB. Returns its stateid and its verifier.
    fn goes_on(&self, client: &Client41) -> (StateId, [u8; 8]) {
        let copied = self.slowly(client, false);
        let [state] = copied.written.callback[..] else {
            panic!("expected it to go on: {copied:?}");
        };
        (state, copied.written.verifier)
    }
}

/// Returns a COPY of 96 MiB within a file.
fn copy(synchronous: bool) -> [Op<'static>; 4] {
    [
        Op::Putrootfh,
        Op::Lookup(b"file"),
        Op::Savefh,
        Op::Copy(Copy {
            from: StateId::ANONYMOUS,
            to: StateId::ANONYMOUS,
            from_offset: 0,
            to_offset: 200 * MIB,
            count: 96 * MIB,
            consecutive: true,
            synchronous,
            servers: Vec::new(),
        }),
    ]
}

fn status(client: &Client41, state: StateId) -> Result<(u64, Vec<Status>), Status> {
    let file = [Op::Putrootfh, Op::Lookup(b"file")];
    let reply = client.send(&[&file[..], &[Op::OffloadStatus(state)]].concat());
    if reply.status != Status::Ok {
        return Err(reply.status);
    }
    let () = reply.ok();
    let () = reply.ok();
    let OffloadState { count, complete } = reply.ok();
    Ok((count, complete))
}

fn cancel(client: &Client41, state: StateId) -> Status {
    let file = [Op::Putrootfh, Op::Lookup(b"file")];
    let reply = client.send(&[&file[..], &[Op::OffloadCancel(state)]].concat());
    reply.status
}

/// Receives the CB_OFFLOAD of `state`, and sends `answer`.
#[track_caller]
fn told(client: &Client41, state: StateId, answer: Status) -> Offloaded {
    let called = Called::on(&client.net);
    let (_, CallbackOp::Offload(Offload { state: of, how, .. })) = called.read() else {
        panic!("expected CB_OFFLOAD, got {:?}", called.read());
    };
    assert_eq!(of, state);
    called.answer(&client.net, answer);
    how
}

fn done(count: u64, verifier: [u8; 8]) -> Offloaded {
    Offloaded::Done(WriteResponse {
        callback: Vec::new(),
        count,
        committed: Stable::Unstable,
        verifier,
    })
}

#[test]
fn rfc7862_16_1_a_copy_goes_on_and_the_client_is_told_of_its_end() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    let (state, verifier) = scene.goes_on(&client);
    assert_eq!(status(&client, state), Ok((16 * MIB, Vec::new())));
    assert_eq!(scene.work(2), 2);
    assert_eq!(status(&client, state), Ok((48 * MIB, Vec::new())));
    assert_eq!(scene.work(9), 3);
    let ended = Ok((96 * MIB, vec![Status::Ok]));
    assert_eq!(status(&client, state), ended);
    assert_eq!(told(&client, state, Status::Ok), done(96 * MIB, verifier));
    // RFC 7862 section 4.8: the stateid is valid until that reply.
    assert_eq!(status(&client, state), Err(Status::BadStateid));
}

#[test]
fn a_copy_waits_for_a_limit_without_a_thread() {
    let limits = |rates: &str| Limits {
        share: rates.parse().expect("rates"),
        client: Rates::UNLIMITED,
    };
    let clock: layers::Clock = Arc::new(|| Duration::ZERO);
    let limiter = Limiter::new(Limits::default(), clock, Timer::new());
    let scene = Scene::over(|script| layers::stack(script, limiter.clone()));
    let mut client = scene.client(b"client");
    client.net.peer = Some(Arc::new(vfs::Peer::remote([10, 0, 0, 1].into(), 700)));
    limiter.set(limits("bytes=1M,burst=1s"));
    // The first step leaves a debt of 15 MiB, though a fast copy would be done within the second.
    let copied = scene.copy(&client, &copy(false), vfs::Op::Copy, 1);
    let [state] = copied.written.callback[..] else {
        panic!("expected it to go on: {copied:?}");
    };
    assert_eq!(scene.work(9), 1);
    assert_eq!((scene.copies(), limiter.stats().waiting), (1, 1));
    limiter.set(limits("bytes=2M,burst=1s"));
    assert_eq!(scene.work(9), 2, "a step, and an attempt of the next one");
    assert_eq!((scene.copies(), limiter.stats().waiting), (2, 1));
    limiter.set(Limits::default());
    assert_eq!(scene.work(9), 4);
    assert_eq!(
        told(&client, state, Status::Ok),
        done(96 * MIB, copied.written.verifier)
    );

    // A synchronous one ends with its first step.
    limiter.set(limits("bytes=1M,burst=1s"));
    let copied = scene.copy(&client, &copy(true), vfs::Op::Copy, 1);
    assert_eq!((copied.synchronous, copied.written.count), (true, 16 * MIB));

    // A copy that waits can be cancelled.
    limiter.set(limits("bytes=2M,burst=1s"));
    let (state, _) = scene.goes_on(&client);
    assert_eq!(scene.work(9), 1);
    assert_eq!(limiter.stats().waiting, 1);
    assert_eq!(cancel(&client, state), Status::Delay);
    assert_eq!((scene.work(9), limiter.stats().waiting), (1, 0));
    assert_eq!(cancel(&client, state), Status::Ok);
}

#[test]
fn rfc7862_15_2_3_a_copy_is_synchronous_for_who_asks_for_it_or_cannot_be_told() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    let copied = scene.slowly(&client, true);
    assert!(copied.synchronous);
    assert_eq!(copied.written.count, 16 * MIB);
    let copied = scene.copy(&client, &copy(false), vfs::Op::Copy, 1);
    assert!(copied.synchronous);
    assert_eq!(copied.written.count, 96 * MIB);

    // CB_OFFLOAD exists since v4.2.
    let mut earlier = Client41::called(&scene.world, b"earlier");
    earlier.net.minor = 2;
    let mut without = Client41::new(&scene.world, b"without");
    without.net.minor = 2;
    for client in [earlier, without] {
        assert!(scene.slowly(&client, false).synchronous);
    }
    assert_eq!(scene.work(1), 0);
}

#[test]
fn rfc7862_15_8_a_copy_that_is_cancelled_ends_and_nobody_is_told() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    let (state, _) = scene.goes_on(&client);
    // As long as the copy may still write.
    assert_eq!(cancel(&client, state), Status::Delay);
    assert_eq!(scene.work(9), 1);
    assert_eq!(scene.copies(), 1);
    assert_eq!(cancel(&client, state), Status::Ok);
    assert_eq!(cancel(&client, state), Status::BadStateid);
    scene.pass(2);
    assert!(client.net.heard.try_recv().is_err());

    // The server forgets a cancelled copy even without another request.
    let (state, _) = scene.goes_on(&client);
    assert_eq!(cancel(&client, state), Status::Delay);
    scene.work(1);
    assert_eq!(status(&client, state), Ok((16 * MIB, vec![Status::Ok])));
    scene.pass(60);
    client.send(&[]).done();
    scene.pass(60);
    assert_eq!(status(&client, state), Err(Status::BadStateid));
}

#[test]
fn rfc7862_4_8_a_copy_is_named_by_its_client_and_its_target() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    let other = scene.client(b"other");
    let (state, _) = scene.goes_on(&client);
    assert_eq!(cancel(&other, state), Status::BadStateid);
    scene
        .script
        .next(vfs::Op::Lookup, Answer::Node(3, Kind::File));
    assert_eq!(cancel(&client, state), Status::BadStateid);
    let later = StateId { seqid: 2, ..state };
    assert_eq!(cancel(&client, later), Status::BadStateid);
    let close = Op::Close(Close { seqid: 0, state });
    let reply = client.send(&[Op::Putrootfh, Op::Lookup(b"file"), close]);
    assert_eq!(reply.status, Status::BadStateid);
    let reply = client.send(&[Op::FreeStateId(state)]);
    assert_eq!(reply.status, Status::LocksHeld);
    assert_eq!(scene.work(9), 5);
}

#[test]
fn a_copy_that_fails_on_its_way_tells_how_far_it_came() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    let (state, verifier) = scene.goes_on(&client);
    scene.work(1);
    scene
        .script
        .next(vfs::Op::Copy, Answer::Fail(Errno::ENOSPC));
    assert_eq!(scene.work(9), 1);
    assert_eq!(told(&client, state, Status::Ok), done(32 * MIB, verifier));

    // Opening the files already took a second.
    let copied = scene.copy(&client, &copy(false), vfs::Op::FileAttr, 1000);
    let state = copied.written.callback[0];
    scene
        .script
        .next(vfs::Op::Copy, Answer::Fail(Errno::ENOSPC));
    scene.work(9);
    assert_eq!(status(&client, state), Ok((0, vec![Status::Nospc])));
    let failed = Offloaded::Failed(Status::Nospc, 0);
    assert_eq!(told(&client, state, Status::Ok), failed);
}

#[test]
fn rfc7862_16_1_a_client_is_told_until_it_has_heard() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    let (state, verifier) = scene.goes_on(&client);
    scene.work(9);
    for _ in 0..2 {
        let how = told(&client, state, Status::Delay);
        assert_eq!(how, done(96 * MIB, verifier));
        assert!(client.net.heard.try_recv().is_err());
        scene.pass(1);
    }
    assert_eq!(status(&client, state), Ok((96 * MIB, vec![Status::Ok])));
    told(&client, state, Status::Ok);
    scene.pass(1);
    assert!(client.net.heard.try_recv().is_err());

    // Notifications end for a client that does not know the copy.
    let (state, _) = scene.goes_on(&client);
    scene.work(9);
    told(&client, state, Status::BadStateid);
    scene.pass(60);
    client.send(&[]).done();
    told(&client, state, Status::BadStateid);
    scene.pass(60);
    assert_eq!(status(&client, state), Err(Status::BadStateid));
}

#[test]
fn copies_that_go_on_are_bounded() {
    let scene = Scene::new();
    let from = |peer: u32, name: &[u8]| {
        let net = scene.world.net_from(2, &format!("10.0.0.{peer}"));
        let client = Client41::by(net, name, CHANNEL, BACKCHANNEL);
        client.send(&[Op::ReclaimComplete(false)]).done();
        client
    };
    let client = from(0, b"client");
    for _ in 0..16 {
        scene.goes_on(&client);
    }
    assert!(scene.slowly(&client, false).synchronous, "of a client");
    for number in 1..8u32 {
        if number == 2 {
            let third = from(0, b"third");
            assert!(scene.slowly(&third, false).synchronous, "of a peer");
        }
        let other = from(number / 2, &number.to_be_bytes());
        for _ in 0..16 {
            scene.goes_on(&other);
        }
    }
    let last = from(9, b"last");
    assert!(scene.slowly(&last, false).synchronous, "of all");
    assert_eq!(scene.work(10_000), 128 * 5);
    scene.goes_on(&last);
    // The client does not know the end of its copies yet.
    assert!(scene.slowly(&client, false).synchronous);
}

#[test]
fn a_copy_ends_with_its_client() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    scene.goes_on(&client);
    let mut anew = exchange_id(b"client");
    if let Op::ExchangeId(anew) = &mut anew {
        anew.verifier = [2; 8];
    }
    let again = Client41::by_exchange(scene.world.net(2), anew, CHANNEL, BACKCHANNEL);
    assert_eq!(scene.work(9), 1);
    assert_eq!(scene.copies(), 1);

    // A silent client may return, and is notified.
    again.send(&[Op::ReclaimComplete(false)]).done();
    let (state, verifier) = scene.goes_on(&again);
    // It keeps its opens.
    let open = again.open(READ, OpenHow::NoCreate, Claim::Null(b"file"));
    again.send(&[Op::Putrootfh, open]).done();
    scene.pass(100);
    assert_eq!(scene.work(9), 1);
    assert_eq!(told(&again, state, Status::Ok), done(16 * MIB, verifier));
}

#[test]
fn a_copy_ends_with_the_server() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    scene.goes_on(&client);
    let Scene {
        world,
        script,
        work,
        ..
    } = scene;
    let before = script.ops().len();
    drop((world, client));
    let step = work.lock().expect("no panic holds it").pop_front();
    step.expect("there is one")();
    assert!(!script.ops()[before..].contains(&vfs::Op::Copy));
}

#[test]
fn a_copy_ends_when_its_file_is_closed() {
    let scene = Scene::new();
    let client = scene.client(b"client");
    let open = client.open(BOTH, OpenHow::NoCreate, Claim::Null(b"file"));
    let opened = client.send(&[Op::Putrootfh, open]).done();
    let () = opened.ok();
    let Opened { state, .. } = opened.ok();
    let mut ops = copy(false);
    if let Op::Copy(copy) = &mut ops[3] {
        (copy.from, copy.to) = (state, state);
    }
    let copied = scene.copy(&client, &ops, vfs::Op::Copy, 1000);
    let [copying] = copied.written.callback[..] else {
        panic!("expected it to go on: {copied:?}");
    };
    assert_eq!(scene.work(1), 1);
    let close = Op::Close(Close { seqid: 0, state });
    let file = [Op::Putrootfh, Op::Lookup(b"file")];
    client.send(&[&file[..], &[close]].concat()).done();
    assert_eq!(scene.work(9), 1);
    let told = told(&client, copying, Status::Ok);
    assert_eq!(told, done(32 * MIB, copied.written.verifier));
}
