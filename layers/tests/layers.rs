//! The behaviour of each layer, apart from forwarding.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use layers::fault::{Fault, FaultKind, Trigger};
use layers::squash::{NOBODY, Squash, SquashMode};
use layers::{IdMap, MapIds, Noop, ReadOnly, SealedHandles, Trace, stack};
use memory::{Memory, Options};
use parking_lot::Mutex;
use vfs::{
    Access, Call, Caller, Cx, Errno, FileSystem, Groups, Handle, HandleKey, Kind, Mode, NewNode,
    Op, OpenFlags, Origin, Patience, Peer, SetAttr, SetTime, Time, XattrFlags,
};
use vfs_testkit::context::{R, RW, TestNode, W, ok, refused};
use vfs_testkit::{Answer, Script, run};

const ALICE: Caller = Caller::new(1000, 1000);

fn wall() -> memory::Clock {
    Arc::new(|| Time {
        sec: 1_700_000_000,
        nsec: 0,
    })
}

fn still() -> layers::Clock {
    Arc::new(|| Duration::ZERO)
}

fn tree() -> Arc<dyn FileSystem> {
    let options = Options {
        mode: 0o777,
        ..Options::default()
    };
    Memory::with_options(wall(), options)
}

fn root(fs: &Arc<dyn FileSystem>, who: &Caller) -> TestNode {
    TestNode {
        node: ok(run(who, |cx| fs.root(cx))),
        caller: who.clone(),
    }
}

#[test]
fn readonly_refuses_every_change() {
    let below = tree();
    let raw = root(&below, &Caller::ROOT);
    let file = ok(raw.file("file", b"content"));
    ok(file.set_xattr(b"user.a", b"x", XattrFlags::empty()));
    ok(raw.mkdir("dir", 0o755));
    let before = (raw.attr(), file.attr());

    let fs = stack(below, ReadOnly);
    assert!(fs.capabilities().read_only);
    let top = root(&fs, &Caller::ROOT);
    let file = ok(top.lookup("file"));
    let rofs = Errno::EROFS;
    refused(top.create("new", RW, 0o644), rofs);
    refused(top.create("new", R, 0o644), rofs);
    refused(top.create("file", RW, 0o644), rofs);
    refused(
        top.create("file", R | OpenFlags::EXCL, 0o644),
        Errno::EEXIST,
    );
    refused(top.create("new", RW | OpenFlags::EXCL, 0o644), rofs);
    refused(top.mkdir("new", 0o755), rofs);
    refused(top.mkdir("dir", 0o755), Errno::EEXIST);
    refused(top.symlink("new", b"x"), rofs);
    refused(
        top.make("new", NewNode::Fifo, Mode::without_umask(0o600)),
        rofs,
    );
    refused(top.link("new", &file), rofs);
    refused(top.link("dir", &file), Errno::EEXIST);
    refused(top.tmpfile(RW, 0o600), rofs);
    refused(top.unlink("file"), rofs);
    refused(top.rmdir("dir"), rofs);
    refused(top.rename("file", &top, "other"), rofs);
    refused(file.open(W), rofs);
    refused(file.open(RW), rofs);
    refused(file.open(R | OpenFlags::TRUNC), rofs);
    refused(file.truncate(0), rofs);
    refused(file.chmod(0o777), rofs);
    refused(file.chown(Some(1), None), rofs);
    refused(file.set_xattr(b"user.a", b"y", XattrFlags::empty()), rofs);
    refused(file.remove_xattr(b"user.a"), rofs);

    assert_eq!(
        ok(ok(top.create("file", R, 0o644)).1.read_all()),
        b"content"
    );
    let open = ok(file.open(R));
    refused(open.set(SetAttr::default()), rofs);
    refused(open.write(0, b"x"), rofs);
    refused(open.allocate(vfs::AllocateMode::Extend, 0, 10), rofs);
    refused(open.copy(0, &open, 0, 1, vfs::CopyMode::Any), rofs);
    assert_eq!(ok(file.xattr(b"user.a")), b"x");
    assert_eq!(ok(top.names()).len(), 2);
    assert_eq!(ok(file.access(Access::READ | Access::WRITE)), Access::READ);
    let table = vfs::lock::LockTable::default();
    let lock = vfs::lock::Lock {
        family: vfs::lock::LockFamily::Posix,
        start: 0,
        end: 9,
        kind: vfs::lock::LockKind::Shared,
        owner: vfs::lock::Owner {
            client: 1,
            id: [].into(),
            pid: 0,
        },
    };
    ok(run(&top.caller, |cx| {
        table.lock(cx, &*file.node, lock.clone(), false)
    }));
    assert_eq!((raw.attr(), file.attr()), before, "atime included");
}

#[test]
fn readonly_reads_what_is_not_the_callers_too() {
    let below = tree();
    let file = ok(root(&below, &Caller::ROOT).file("file", b"content"));
    let set = SetAttr {
        atime: Some(SetTime::At(Time { sec: 1, nsec: 0 })),
        ..SetAttr::default()
    };
    ok(file.set(set));
    let fs = stack(below, ReadOnly);
    let alices = ok(root(&fs, &ALICE).lookup("file"));
    assert_eq!(ok(alices.content()), b"content");
    refused(alices.open(R | OpenFlags::NOATIME), Errno::EPERM);
}

fn map(texts: &[&str]) -> IdMap {
    let ranges = texts.iter().map(|text| text.parse().expect("a range"));
    IdMap::new(ranges.collect()).expect("a map")
}

#[test]
fn idmap_shows_and_makes_other_owners() {
    let below = tree();
    let ids = map(&["0:100000:65536"]);
    let fs = stack(
        below.clone(),
        MapIds {
            uids: ids.clone(),
            gids: ids,
        },
    );
    let alice = root(&fs, &ALICE);
    let made = ok(alice.file("file", b""));
    assert_eq!((made.attr().uid, made.attr().gid), (1000, 1000));
    let host = root(&below, &Caller::ROOT);
    let seen = ok(host.lookup("file")).attr();
    assert_eq!((seen.uid, seen.gid), (101_000, 101_000));
    assert_eq!(
        alice.attr().uid,
        NOBODY,
        "the host's super-user is nobody here"
    );

    refused(made.chown(Some(70_000), None), Errno::EOVERFLOW);
    refused(made.chown(None, Some(70_000)), Errno::EOVERFLOW);
    let client_root = root(&fs, &Caller::ROOT);
    refused(
        ok(client_root.lookup("file")).chown(Some(5), None),
        Errno::EPERM,
    );
    ok(ok(host.lookup("file")).chown(Some(100_005), Some(7)));
    let attr = made.attr();
    assert_eq!((attr.uid, attr.gid), (5, NOBODY));
    let listed = ok(ok(alice.open(R)).readdir(0, vfs::ReaddirMode::Entries, 9));
    assert_eq!(
        listed[0].entry.as_ref().map(|entry| entry.attr.uid),
        Some(5)
    );
}

#[test]
fn idmap_forbids_and_squashes() {
    let below = tree();
    let rules = ["forbid-guest:70000:1", "squash-guest:1000:500:9"];
    let rules = rules.map(|rule| rule.parse().expect("a translation"));
    let ids = IdMap::translate(&rules).expect("they do not overlap");
    let fs = stack(
        below,
        MapIds {
            uids: ids.clone(),
            gids: ids,
        },
    );
    let made = ok(root(&fs, &ALICE).file("file", b"content"));
    assert_eq!((made.attr().uid, made.attr().gid), (500, 500));
    let client_root = ok(root(&fs, &Caller::ROOT).lookup("file"));
    refused(client_root.chown(Some(70_000), None), Errno::EPERM);
    assert_eq!(ok(client_root.chown(Some(1001), Some(5))).gid, 5);
    assert_eq!(made.attr().uid, 500);
    let stranger = root(&fs, &Caller::new(70_000, 1));
    assert_eq!(ok(ok(stranger.lookup("file")).content()), b"content");
    refused(stranger.create("new", RW, 0o644), Errno::EPERM);
    refused(stranger.mkdir("new", 0o755), Errno::EPERM);
}

#[test]
fn idmap_lets_the_unmapped_look_but_not_make() {
    let ids = map(&["0:100000:65536"]);
    let fs = stack(
        tree(),
        MapIds {
            uids: ids.clone(),
            gids: ids,
        },
    );
    ok(root(&fs, &ALICE).file("file", b"content"));
    for who in [Caller::new(70_000, 0), Caller::new(0, 70_000)] {
        let stranger = root(&fs, &who);
        assert_eq!(ok(ok(stranger.lookup("file")).content()), b"content");
        refused(stranger.create("new", RW, 0o644), Errno::EOVERFLOW);
        refused(stranger.mkdir("new", 0o755), Errno::EOVERFLOW);
        refused(stranger.mkdir("file", 0o755), Errno::EEXIST);
        refused(stranger.symlink("new", b"x"), Errno::EOVERFLOW);
        refused(stranger.tmpfile(RW, 0o600), Errno::EOVERFLOW);
        ok(stranger.create("file", R, 0o644));
    }
}

#[test]
fn idmap_maps_supplementary_groups() {
    let script = Script::new();
    let fs = stack(
        script.clone(),
        MapIds {
            uids: map(&["0:1000:10"]),
            gids: map(&["0:2000:10"]),
        },
    );
    let who = Caller {
        uid: 1,
        gid: 2,
        groups: Groups::Known([3, 99, 4].into()),
    };
    ok(run(&who, |cx| fs.sync(cx)));
    assert_eq!(
        script.calls()[0].caller,
        Caller {
            uid: 1001,
            gid: 2002,
            groups: Groups::Known([2003, 2004].into()),
        }
    );
}

#[test]
fn squash_makes_nobody_of_whom_it_says() {
    let groups = |list: &[u32]| Groups::Known(list.into());
    let someone = Caller {
        groups: groups(&[0, 7]),
        ..ALICE
    };
    for (whom, caller, expected) in [
        (SquashMode::None, Caller::ROOT, Caller::ROOT),
        (
            SquashMode::Root,
            Caller::ROOT,
            Caller {
                groups: groups(&[]),
                ..Caller::new(NOBODY, NOBODY)
            },
        ),
        (SquashMode::Root, ALICE, ALICE),
        (
            SquashMode::Root,
            someone.clone(),
            Caller {
                groups: groups(&[NOBODY, 7]),
                ..ALICE
            },
        ),
        (SquashMode::Root, Caller::new(5, 0), Caller::new(5, NOBODY)),
        (
            SquashMode::All,
            someone,
            Caller {
                groups: groups(&[]),
                ..Caller::new(NOBODY, NOBODY)
            },
        ),
    ] {
        let script = Script::new();
        let fs = stack(script.clone(), Squash::new(whom));
        ok(run(&caller, |cx| fs.sync(cx)));
        assert_eq!(script.calls()[0].caller, expected, "{whom:?} {caller:?}");
    }
}

/// Returns a call over a connection from `origin`.
fn call_from(origin: Origin) -> Call {
    let peer = Peer::new(origin, &vfs::LocalUsers::Privileged, 0);
    Call::detached().with_peer(Arc::new(peer))
}

#[test]
fn by_default_the_super_user_of_another_host_is_squashed_and_those_of_this_one_are_not() {
    let addr = std::net::IpAddr::from([10, 0, 0, 1]);
    let owner = |uid| vfs::peer::Owner {
        uid,
        gid: None,
        groups: None,
    };
    let calls = [
        (call_from(Origin::Remote { addr, port: 700 }), NOBODY),
        (
            call_from(Origin::Local {
                addr: Some(addr),
                owner: owner(0),
            }),
            0,
        ),
        (call_from(Origin::Guest(vfs::peer::GuestId::Cid(3))), 0),
        (Call::detached(), 0),
    ];
    for (call, expected) in calls {
        let script = Script::new();
        let fs = stack(script.clone(), Squash::new(SquashMode::RemoteRoot));
        for caller in [&Caller::ROOT, &ALICE] {
            ok(fs.sync(&vfs::Cx::new(caller, &call)));
        }
        let callers = script.calls();
        assert_eq!(callers[0].caller.uid, expected);
        assert_eq!(callers[1].caller, ALICE);
    }
}

#[test]
fn secure_refuses_high_ports_of_other_hosts_alone_and_each_client_is_counted_once() {
    let list: layers::Admission = "10.0.0.1(rw) 10.0.0.2(rw,insecure) localhost(rw)"
        .parse()
        .expect("a list");
    let fs = stack(Script::new(), list);
    let refusals = Arc::new(vfs::peer::Refusals::default());
    let sync = |origin: Origin| {
        let peer =
            Peer::new(origin, &vfs::LocalUsers::Privileged, 0).with_refusals(refusals.clone());
        let call = Call::detached().with_peer(Arc::new(peer));
        let again = || fs.sync(&vfs::Cx::new(&Caller::ROOT, &call));
        assert_eq!(again(), again());
        again().err()
    };
    let remote = |addr: [u8; 4], port| Origin::Remote {
        addr: addr.into(),
        port,
    };
    let refused = Some(Errno::EACCES);
    assert_eq!(sync(remote([10, 0, 0, 1], 1023)), None);
    assert_eq!(sync(remote([10, 0, 0, 1], 1024)), refused);
    assert_eq!(sync(remote([10, 0, 0, 1], 0)), refused);
    assert_eq!(sync(remote([10, 0, 0, 2], 1024)), None);
    assert_eq!(sync(remote([10, 0, 0, 3], 1023)), refused);
    let local = Origin::Local {
        addr: None,
        owner: vfs::peer::Owner {
            uid: 1000,
            gid: None,
            groups: None,
        },
    };
    assert_eq!(sync(local), None);
    let counts = vfs::peer::Refusal::ALL.map(|why| refusals.of(why));
    assert_eq!(counts, [1, 2, 0, 0, 0]);
}

#[test]
fn what_is_ours_is_nobody_elses_but_goes_only_where_the_client_may() {
    let uids = map(&["0:1000:10"]);
    let ids = || MapIds {
        uids: uids.clone(),
        gids: uids.clone(),
    };
    let list: layers::Admission = "10.0.0.1(rw,all_squash)".parse().expect("a list");
    let script = Script::new();
    let mut fs: Arc<dyn FileSystem> = stack(script.clone(), ids());
    fs = stack(fs, Squash::new(SquashMode::All));
    fs = stack(fs, list);
    let sync = |addr: &str| {
        let peer = vfs::Peer::remote(addr.parse().expect("an address"), 700);
        let theirs = Call::detached().with_peer(Arc::new(peer));
        [theirs.internal(), theirs]
            .map(|call| fs.sync(&vfs::Cx::new(&Caller::ROOT, &call)).map_err(drop))
    };
    assert_eq!(sync("10.0.0.1"), [Ok(()), Ok(())]);
    let [ours, theirs] = [0, 1].map(|at| script.calls()[at].caller.clone());
    assert_eq!((ours, theirs.uid), (Caller::ROOT, NOBODY));
    assert_eq!(sync("10.0.0.2"), [Err(()), Err(())]);
    assert_eq!(script.calls().len(), 2);
}

#[test]
fn who_is_made_somebody_else_owns_what_that_one_owns() {
    let below = tree();
    let host = root(&below, &Caller::ROOT);
    let files = [0, 1000, NOBODY].map(|uid| {
        let file = ok(host.file(&format!("of{uid}"), b""));
        ok(file.chmod(0o000));
        ok(file.chown(Some(uid), None));
        format!("of{uid}")
    });
    let owner = W | OpenFlags::OWNER;
    for (whom, who, may) in [
        (SquashMode::Root, Caller::ROOT, [false, false, true]),
        (SquashMode::Root, ALICE, [false, true, false]),
        (SquashMode::All, ALICE, [false, false, true]),
        (SquashMode::All, Caller::ROOT, [false, false, true]),
    ] {
        let top = root(&stack(below.clone(), Squash::new(whom)), &who);
        let opened = files.each_ref().map(|name| {
            let file = ok(top.lookup(name));
            file.open(owner).is_ok()
        });
        assert_eq!(opened, may, "{whom:?} {who:?}");
    }
    // The host's user 1000 is shown as nobody, which does not make the user nobody an owner.
    let ids = map(&["1000:100000:10", "65534:65534:1"]);
    let map_ids = MapIds {
        uids: ids.clone(),
        gids: ids,
    };
    let fs = stack(below, map_ids);
    let nobody = Caller::new(NOBODY, NOBODY);
    let [zero, alices, own] = files.map(|name| ok(root(&fs, &nobody).lookup(&name)));
    assert_eq!((zero.attr().uid, alices.attr().uid), (NOBODY, NOBODY));
    refused(zero.open(owner), Errno::EACCES);
    refused(alices.open(owner), Errno::EACCES);
    ok(own.open(owner));
}

#[test]
fn squash_all_gives_files_to_nobody_only() {
    let fs = stack(tree(), Squash::new(SquashMode::All));
    let file = ok(root(&fs, &ALICE).file("file", b""));
    let attr = ok(file.chown(Some(1000), Some(1000)));
    assert_eq!((attr.uid, attr.gid), (NOBODY, NOBODY));
}

#[test]
fn squash_root_cannot_give_files_away() {
    let fs = stack(tree(), Squash::new(SquashMode::Root));
    let file = ok(root(&fs, &Caller::ROOT).file("file", b""));
    assert_eq!(file.attr().uid, NOBODY);
    refused(file.chown(Some(1000), None), Errno::EPERM);
    refused(
        ok(root(&fs, &ALICE).file("hers", b"")).chown(Some(0), None),
        Errno::EPERM,
    );
}

#[test]
fn fault_delays_until_its_time_has_come_or_the_call_is_cancelled() {
    let now = Arc::new(AtomicU64::new(0));
    let clock = {
        let now = now.clone();
        Arc::new(move || Duration::from_secs(now.load(Ordering::SeqCst)))
    };
    let fault = Arc::new(Fault::new(0, clock));
    let script = Script::new();
    let fs = stack(script.clone(), fault.clone());
    fault.add(
        Op::Sync,
        Trigger::Always,
        FaultKind::Delay(Duration::from_secs(3600)),
    );

    let (alice, call) = (ALICE, Call::detached());
    let hurried = vfs::Cx {
        patience: Patience::Brief,
        ..vfs::Cx::new(&alice, &call)
    };
    assert_eq!(fs.sync(&hurried), Err(Errno::WOULD_BLOCK));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| fs.sync(&vfs::Cx::new(&ALICE, &call)));
        call.cancel();
        assert_eq!(slow.join().expect("no panic"), Err(Errno::EINTR));
    });
    assert!(script.calls().is_empty());

    fault.clear();
    fault.add(Op::Sync, Trigger::Always, FaultKind::Delay(Duration::ZERO));
    assert_eq!(fs.sync(&vfs::Cx::new(&ALICE, &Call::detached())), Ok(()));
    assert_eq!(script.ops(), [Op::Sync]);
}

#[test]
fn fault_blocks_once_when_told_which_call() {
    let fault = Fault::new(0, still());
    fault.add(Op::Statfs, Trigger::Nth(2), FaultKind::Block);
    let fs = stack(tree(), fault);
    let top = root(&fs, &ALICE);
    let (alice, call) = (ALICE, Call::detached());
    let hurried = vfs::Cx {
        patience: Patience::None,
        ..vfs::Cx::new(&alice, &call)
    };
    assert!(top.node.statfs(&hurried).is_ok());
    assert_eq!(top.node.statfs(&hurried).err(), Some(Errno::WOULD_BLOCK));
    assert!(top.node.statfs(&vfs::Cx::new(&ALICE, &call)).is_ok());
    assert!(top.node.statfs(&hurried).is_ok());
}

/// Records events as text.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Events {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!(" {}={value:?}", field.name()));
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn trace_tells_what_came_of_each_operation() {
    let ticks = AtomicU64::new(0);
    let clock = Arc::new(move || Duration::from_micros(7 * ticks.fetch_add(1, Ordering::SeqCst)));
    let script = Script::new();
    script
        .next(Op::Lookup, Answer::Node(9, Kind::File))
        .next(Op::Lookup, Answer::Fail(Errno::ENOENT))
        .next(Op::Read, Answer::Bytes(b"abc".to_vec()));
    let fs = stack(script, Trace::new(clock));
    let events = Events::default();
    tracing::subscriber::with_default(events.clone(), || {
        let (alice, call) = (ALICE, Call::detached());
        let cx = vfs::Cx::new(&alice, &call);
        let dir = fs.root(&cx).expect("a root");
        let name = vfs::Name::new(b"name").expect("a name");
        let file = dir.lookup(&cx, name).expect("found").node;
        assert!(dir.lookup(&cx, name).is_err());
        let open = file.open(&cx, R).expect("opens");
        let mut room = vfs_testkit::ReplyBuffer::new(10);
        open.read(&cx, 4096, 10, &mut room).expect("reads");
    });
    let events = events.0.lock().clone();
    assert_eq!(
        events,
        [
            "DEBUG op=\"root\" node=0 uid=1000 us=7",
            "TRACE op=\"lookup\" node=1 uid=1000 us=7",
            "TRACE op=\"lookup\" node=1 uid=1000 us=7 errno=ENOENT",
            "DEBUG op=\"open\" node=9 uid=1000 us=7",
            "TRACE op=\"read\" node=9 offset=4096 len=10 done=3 us=7",
        ]
    );
}

#[test]
fn what_is_touched_is_recorded_once() {
    let touched = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let told = touched.clone();
    let record = layers::ReadTrace::new(Box::new(move |path, range| {
        let path = String::from_utf8_lossy(path).into_owned();
        told.lock().push((path, range));
    }));
    let below = tree();
    let dir = ok(root(&below, &ALICE).mkdir("d", 0o755));
    ok(dir.file("file", b"0123456789"));
    ok(dir.file("other", b"x"));
    let fs = root(&stack(below, record), &ALICE);
    for _ in 0..2 {
        let dir = ok(fs.lookup("d"));
        let file = ok(ok(dir.lookup("file")).open(R));
        ok(file.read(4, 3));
        ok(file.read(2, 100));
        assert!(dir.lookup("none").is_err());
    }
    let touched = touched.lock().clone();
    let want = [
        ("d", 0..0),
        ("d/file", 0..0),
        ("d/file", 4..7),
        ("d/file", 2..4),
        ("d/file", 7..10),
    ];
    assert_eq!(touched, want.map(|(path, range)| (path.to_owned(), range)));
}

#[test]
fn stacks_tell_their_nodes_from_others() {
    let below = tree();
    let one = root(&stack(below.clone(), Noop), &ALICE);
    let two = root(&stack(below, Noop), &ALICE);
    let file = ok(one.file("file", b"data"));
    refused(two.link("link", &file), Errno::EXDEV);
    refused(two.rename("file", &one, "other"), Errno::EXDEV);
    let to = ok(ok(two.lookup("file")).open(RW));
    let from = ok(file.open(RW));
    refused(from.copy(0, &to, 4, 4, vfs::CopyMode::Any), Errno::EXDEV);
}

#[test]
fn a_sealed_handle_counts_as_it_is_and_with_its_own_key_alone() {
    let tree = Memory::new(wall());
    let sealed = |byte| stack(tree.clone(), SealedHandles(HandleKey::new([byte; 32])));
    let (one, other) = (sealed(7), sealed(8));
    let (call, caller) = (Call::detached(), Caller::ROOT);
    let cx = Cx::new(&caller, &call);
    let root = one.root(&cx).expect("a root");
    let handle = root.handle(&cx).expect("a handle");
    assert_eq!(
        one.resolve(&cx, &handle).map(|node| node.id()),
        Ok(root.id())
    );
    assert_eq!(other.resolve(&cx, &handle).map(drop), Err(Errno::ESTALE));
    // A handle of the source itself, without a seal.
    let bare = tree
        .root(&cx)
        .and_then(|root| root.handle(&cx))
        .expect("a handle");
    assert_eq!(one.resolve(&cx, &bare).map(drop), Err(Errno::ESTALE));
    for at in 0..handle.bytes().len() {
        let mut bytes = handle.bytes().to_vec();
        bytes[at] ^= 1;
        let forged = Handle::new(&bytes).expect("short");
        assert_eq!(
            one.resolve(&cx, &forged).map(drop),
            Err(Errno::ESTALE),
            "{at}"
        );
    }
}

#[test]
fn changes_pass_through_layers_that_do_not_cache() {
    use layers::{Bundle, PageCache, pagecache};

    let dir = tempfile::tempdir().expect("a directory");
    let open = || {
        let export = hostdir::HostDir::open(dir.path(), hostdir::Options::default());
        export.expect("exported") as Arc<dyn FileSystem>
    };
    let (call, caller) = (Call::detached(), Caller::ROOT);
    let cx = Cx::new(&caller, &call);
    let cached = stack(
        open(),
        PageCache::new(pagecache::Options::default()).expect("a cache"),
    );
    let members = [Arc::new(vfs::Export::new("d", open()))];
    let bundle = Bundle::new(&members, Time::default());
    let bundle = bundle.unwrap_or_else(|_| panic!("good names"));
    for fs in [stack(cached, Noop), bundle] {
        assert_eq!(fs.capabilities().changes, vfs::Support::None);
        assert_eq!(fs.watch(&cx).map(drop), Err(Errno::EOPNOTSUPP));
    }
    let fs = stack(stack(open(), ReadOnly), Noop);
    let mut stream = match fs.watch(&cx) {
        Err(errno) => return eprintln!("skipped: no notification here: {errno}"),
        Ok(stream) => stream,
    };
    std::fs::create_dir(dir.path().join("d")).expect("made");
    let root = fs.root(&cx).expect("a root").id();
    let mut created = false;
    while !created {
        stream
            .next(Duration::from_secs(10), &mut |change| {
                created |= change
                    .name
                    .is_some_and(|name| (name.dir, name.name) == (root, b"d"));
            })
            .expect("reads");
    }
}
