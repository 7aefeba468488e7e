//! Several exports as one tree.

use std::collections::HashSet;
use std::sync::Arc;

use layers::{Bundle, ReadOnly, stack};
use memory::Memory;
use vfs::lock::{Lock, LockFamily, LockKind, Owner};
use vfs::{
    Access, Caller, CopyMode, Errno, Export, FileSystem, Handle, Kind, Mode, NewNode, NodeId, Op,
    OpenFlags, ReaddirMode, RenameFlags, SetAttr, Support, Time, XattrFlags,
};
use vfs_testkit::context::{R, RW, TestNode, W, ok, refused};
use vfs_testkit::{Answer, Script, clock, run};

const MADE: Time = Time {
    sec: 1_700_000_000,
    nsec: 5,
};

fn member(name: &str) -> Arc<Export> {
    Arc::new(Export::new(name, Memory::new(clock())))
}

fn bundle(members: &[&Arc<Export>]) -> Arc<dyn FileSystem> {
    let members: Vec<_> = members.iter().map(|&member| member.clone()).collect();
    Bundle::new(&members, MADE).expect("names of a tree")
}

fn root(fs: &Arc<dyn FileSystem>) -> TestNode {
    TestNode {
        node: ok(run(&Caller::ROOT, |cx| fs.root(cx))),
        caller: Caller::ROOT,
    }
}

fn resolve(fs: &Arc<dyn FileSystem>, handle: &Handle) -> vfs::Result<NodeId> {
    run(&Caller::ROOT, |cx| fs.resolve(cx, handle)).map(|node| node.id())
}

#[test]
fn the_root_has_the_members_and_directories_on_the_way() {
    let [a, b, c] = ["srv/a", "/b/", "srv/deep/c"].map(member);
    let root = root(&bundle(&[&a, &b, &c]));
    let attr = root.attr();
    assert_eq!(
        (attr.mode, attr.nlink, attr.uid, attr.gid),
        (0o755, 4, 0, 0)
    );
    assert_eq!((attr.mtime, attr.btime), (MADE, Some(MADE)));
    assert_eq!(attr, root.attr());
    assert_eq!(ok(root.names()), [b"b".to_vec(), b"srv".to_vec()]);
    let srv = ok(root.lookup("srv"));
    assert_eq!(ok(srv.names()), [b"a".to_vec(), b"deep".to_vec()]);
    let c = ok(ok(srv.lookup("deep")).lookup("c"));
    ok(c.file("file", b"data"));
    let up = ok(c.parent());
    assert_eq!(up.id(), ok(srv.lookup("deep")).id());
    assert_eq!(ok(ok(up.parent()).parent()).id(), root.id());
    assert_eq!(ok(root.parent()).id(), root.id());
    refused(root.lookup("c"), Errno::ENOENT);
    let figures = ok(root.statfs());
    assert_eq!((figures.blocks, figures.files), (0, 0));
    assert_eq!((figures.bsize, figures.namelen), (4096, 255));
}

#[test]
fn its_own_directories_are_listed_from_any_cookie() {
    let members = ["a", "b", "c/d"].map(member);
    let root = root(&bundle(&members.each_ref()));
    let dir = ok(root.open(R));
    for plus in [ReaddirMode::Names, ReaddirMode::Entries] {
        let all = ok(dir.readdir(0, plus, 9));
        assert_eq!(all.len(), 3);
        for (at, kept) in all.iter().enumerate() {
            assert_eq!(
                (kept.kind, kept.entry.is_some()),
                (Some(Kind::Directory), plus == ReaddirMode::Entries)
            );
            let behind = ok(dir.readdir(kept.cookie, plus, 1));
            let names: Vec<_> = behind.iter().map(|kept| &kept.name).collect();
            let next: Vec<_> = all[at + 1..]
                .iter()
                .map(|kept| &kept.name)
                .take(1)
                .collect();
            assert_eq!(names, next);
        }
    }
}

#[test]
fn its_own_directories_do_not_change() {
    let a = member("a");
    let root = root(&bundle(&[&a]));
    let inside = ok(root.lookup("a"));
    let made = ok(inside.file("file", b""));
    let mode = Mode::without_umask(0o644);
    refused(root.create("new", RW, 0o644), Errno::EROFS);
    refused(root.create("a", RW, 0o644), Errno::EISDIR);
    refused(root.create("a", RW | OpenFlags::EXCL, 0o644), Errno::EEXIST);
    refused(root.mkdir("new", 0o755), Errno::EROFS);
    refused(root.make("a", NewNode::File, mode), Errno::EEXIST);
    refused(root.tmpfile(RW, 0o644), Errno::EROFS);
    refused(root.link("new", &made), Errno::EROFS);
    refused(root.rmdir("a"), Errno::EBUSY);
    refused(root.rmdir("b"), Errno::ENOENT);
    refused(root.rename("a", &root, "b"), Errno::EBUSY);
    refused(root.rename("b", &root, "c"), Errno::ENOENT);
    refused(root.rename("a", &inside, "b"), Errno::EXDEV);
    refused(root.set(SetAttr::default()), Errno::EROFS);
    refused(
        root.set_xattr(b"user.a", b"", XattrFlags::empty()),
        Errno::EROFS,
    );
    refused(root.xattr(b"user.a"), Errno::ENODATA);
    assert_eq!(ok(root.xattrs()), Vec::<Vec<u8>>::new());
    let all = Access::READ | Access::WRITE | Access::EXEC;
    assert_eq!(ok(root.access(all)), Access::READ | Access::EXEC);
    refused(root.open(W), Errno::EISDIR);
    let open = ok(root.open(R));
    refused(open.read(0, 1), Errno::EISDIR);
    refused(open.write(0, b"x"), Errno::EBADF);
    assert_eq!(open.attr(), root.attr());
}

#[test]
fn nothing_goes_from_one_member_to_another() {
    let [a, b] = ["a", "b"].map(member);
    let root = root(&bundle(&[&a, &b]));
    let [a, b] = ["a", "b"].map(|name| ok(root.lookup(name)));
    let file = ok(a.file("file", b"data"));
    refused(b.link("link", &file), Errno::EXDEV);
    refused(a.rename("file", &b, "file"), Errno::EXDEV);
    refused(a.rename("file", &root, "file"), Errno::EXDEV);
    refused(
        a.rename_with("file", &b, "file", RenameFlags::EXCHANGE),
        Errno::EXDEV,
    );
    let to = ok(ok(b.file("to", b"")).open(RW));
    let from = ok(file.open(RW));
    refused(from.copy(0, &to, 0, 4, CopyMode::Any), Errno::EXDEV);
    ok(a.rename("file", &a, "moved"));
}

/// The numbers of two members of one kind are equal below the bundle.
#[test]
fn numbers_and_devices_are_each_members_own() {
    let [a, b] = ["a", "b"].map(member);
    let root = root(&bundle(&[&a, &b]));
    let mut ids = HashSet::from([root.id()]);
    let mut devices = HashSet::from([root.attr().device]);
    for kept in ok(ok(root.open(R)).readdir(0, ReaddirMode::Names, 9)) {
        assert!(kept.id != 0 && ids.insert(kept.id));
    }
    for name in ["a", "b"] {
        let member = ok(root.lookup(name));
        let file = ok(member.file("file", b"data"));
        assert!(devices.insert(member.attr().device));
        assert_eq!(file.attr().device, member.attr().device);
        assert!(ids.insert(member.id()) && ids.insert(file.id()));
        assert_eq!(ok(file.open(R)).attr().id, file.id());
        let listed = ok(ok(member.open(R)).readdir(0, ReaddirMode::Entries, 9));
        let entry = listed[0].entry.as_ref().expect("with nodes");
        assert_eq!(
            [listed[0].id, entry.node.id(), entry.attr.id],
            [file.id(); 3]
        );
    }
}

/// Numbers and handles survive a restart, and do not depend on the other members.
#[test]
fn another_bundle_of_the_same_members_knows_them_again() {
    let [a, b, c] = ["a", "b", "srv/c"].map(member);
    let one = bundle(&[&a, &b, &c]);
    let top = root(&one);
    let srv = ok(top.lookup("srv"));
    let dir = ok(ok(srv.lookup("c")).mkdir("dir", 0o755));
    let seen = [&top, &srv, &ok(srv.lookup("c")), &dir].map(|seen| (seen.id(), ok(seen.handle())));
    let other = bundle(&[&c, &member("d"), &a]);
    for (id, handle) in &seen {
        assert_eq!(resolve(&one, handle), Ok(*id));
        assert_eq!(resolve(&other, handle), Ok(*id));
    }
    assert_eq!(ok(root(&other).lookup("srv")).id(), srv.id());
    let of_b = ok(ok(top.lookup("b")).handle());
    refused(resolve(&other, &of_b), Errno::ESTALE);
    // Refused: a handle that is too long, and one of another bundle's node at the same place.
    let root_handle = ok(top.handle());
    let longer = [root_handle.bytes(), b"x"].concat();
    refused(resolve(&one, &ok(Handle::new(&longer))), Errno::ESTALE);
    refused(
        resolve(&bundle(&[&member("a")]), &ok(ok(top.lookup("a")).handle())),
        Errno::ESTALE,
    );
}

#[test]
fn a_member_is_wrapped_and_so_is_the_bundle() {
    let a = Arc::new(Export::new("a", stack(Memory::new(clock()), ReadOnly)));
    let fs = stack(bundle(&[&a, &member("b")]), ReadOnly);
    let root = root(&fs);
    let inside = ok(root.lookup("b"));
    refused(inside.file("file", b""), Errno::EROFS);
    assert_eq!(ok(inside.parent()).id(), root.id());
    refused(ok(inside.parent()).set(SetAttr::default()), Errno::EROFS);
    // A bundle can be a member of another one.
    let inner = Arc::new(Export::new("inner", fs));
    let outer = bundle(&[&inner, &a]);
    let inside = ok(ok(self::root(&outer).lookup("inner")).lookup("b"));
    assert_eq!(
        ok(ok(inside.parent()).parent()).id(),
        self::root(&outer).id()
    );
    assert_eq!(resolve(&outer, &ok(inside.handle())), Ok(inside.id()));
}

#[test]
fn it_can_do_what_all_members_can() {
    let script = Script::new();
    script.set_capabilities(vfs::Capabilities {
        read_only: true,
        xattr: Support::Emulated,
        ..Default::default()
    });
    let poor = Arc::new(Export::new("poor", script));
    let rich = member("rich");
    let caps = bundle(&[&poor, &rich]).capabilities();
    assert_eq!(
        (caps.read_only, caps.xattr, caps.handles),
        (false, Support::Emulated, Support::None)
    );
    assert_eq!(bundle(&[&rich]).capabilities(), rich.fs.capabilities());
    assert!(bundle(&[&poor]).capabilities().read_only);
}

#[test]
fn a_member_that_fails_hides_no_other() {
    let script = Script::new();
    let dead = Arc::new(Export::new("dead", script.clone()));
    let fs = bundle(&[&dead, &member("live")]);
    let root = root(&fs);
    for (op, errno) in [(Op::Root, Errno::EIO), (Op::Sync, Errno::ENOSPC)] {
        script.always(op, Answer::Fail(errno));
    }
    refused(root.lookup("dead"), Errno::EIO);
    for plus in [ReaddirMode::Names, ReaddirMode::Entries] {
        let kept = ok(ok(root.open(R)).readdir(0, plus, 9));
        let kinds: Vec<_> = kept.iter().map(|kept| kept.kind).collect();
        assert_eq!(kinds, [Some(Kind::Directory); 2]);
    }
    refused(run(&Caller::ROOT, |cx| fs.sync(cx)), Errno::ENOSPC);
}

#[test]
fn names_that_make_no_tree_are_refused() {
    for (names, why) in [
        (["a", "a/b"], "another contains it"),
        (["a", "/a"], "twice"),
        (["a", ".."], "invalid name"),
    ] {
        let error = Bundle::new(&names.map(member), MADE)
            .err()
            .expect("refused");
        assert!(error.to_string().contains(why), "{error}");
    }
}

fn lock(client: u64, space: LockFamily, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock {
        family: space,
        start,
        end,
        kind,
        owner: Owner {
            client,
            id: Arc::from(&b"id"[..]),
            pid: 7,
        },
    }
}

/// A client that locks through the bundle, and one that locks through the member.
struct Two {
    bundle: Export,
    member: Arc<Export>,
    inside: TestNode,
    direct: TestNode,
    clients: [u64; 2],
}

impl Two {
    fn new() -> Two {
        let member = member("a");
        let direct = ok(root(&member.fs).file("file", b"data"));
        let fs = bundle(&[&member, &self::member("b")]);
        let inside = ok(ok(root(&fs).lookup("a")).lookup("file"));
        Two {
            bundle: Export::new("", fs),
            member,
            inside,
            direct,
            clients: [Owner::new_client(), Owner::new_client()],
        }
    }

    /// Returns the bundle's for 0, the member's for 1.
    fn at(&self, which: usize) -> (&Export, &TestNode) {
        [(&self.bundle, &self.inside), (&*self.member, &self.direct)][which]
    }

    fn take(&self, which: usize, kind: LockKind, start: u64, end: u64) -> vfs::Result<()> {
        self.take_as(
            which,
            lock(self.clients[which], LockFamily::Posix, kind, start, end),
            false,
        )
    }

    fn take_as(&self, which: usize, lock: Lock, wait: bool) -> vfs::Result<()> {
        let (export, seen) = self.at(which);
        vfs::cx::block_on(&seen.caller, |cx| {
            export.locks.lock(cx, &*seen.node, lock.clone(), wait)
        })
    }

    fn holder(&self, which: usize, kind: LockKind, start: u64, end: u64) -> Option<Lock> {
        let (export, seen) = self.at(which);
        let asked = lock(self.clients[which], LockFamily::Posix, kind, start, end);
        ok(run(&seen.caller, |cx| {
            export.locks.holder(cx, &*seen.node, &asked)
        }))
    }

    fn release(&self, which: usize) {
        let (export, seen) = self.at(which);
        let client = self.clients[which];
        ok(run(&seen.caller, |cx| {
            let whose = |owner: &Owner| owner.client == client;
            export.locks.release(cx, &*seen.node, whose);
            Ok(())
        }));
    }
}

#[test]
fn locks_in_the_bundle_and_at_the_member_see_each_other() {
    use LockKind::{Exclusive, Shared};
    let two = Two::new();
    for (one, other) in [(0, 1), (1, 0)] {
        ok(two.take(one, Exclusive, 5, 9));
        refused(two.take(other, Shared, 9, 20), Errno::EAGAIN);
        let held = two.holder(other, Shared, 0, 20).expect("somebody");
        assert_eq!((held.start, held.end, held.kind), (5, 9, Exclusive));
        ok(two.take(other, Exclusive, 10, 20));
        ok(two.take(one, Shared, 5, 9));
        ok(two.take(other, Shared, 0, 9));
        refused(two.take(other, Exclusive, 0, 9), Errno::EAGAIN);
        refused(two.take(one, Exclusive, 0, 9), Errno::EAGAIN);
        two.release(one);
        ok(two.take(other, Exclusive, 0, 9));
        two.release(other);
        assert!(two.bundle.locks.is_empty() && two.member.locks.is_empty());
    }
    // The bundle reports the holder of a lock at the member.
    ok(two.take(1, Exclusive, 0, 0));
    assert_eq!(
        two.holder(0, Shared, 0, 9).map(|held| held.owner.pid),
        Some(7)
    );
}

#[test]
fn clients_of_the_bundle_are_one_to_the_member() {
    use LockKind::{Exclusive, Shared};
    let two = Two::new();
    let third = lock(Owner::new_client(), LockFamily::Posix, Shared, 0, 9);
    ok(two.take(0, Shared, 0, 9));
    ok(two.take_as(0, third, false));
    two.release(0);
    // The other client of the bundle still holds it.
    refused(two.take(1, Exclusive, 0, 0), Errno::EAGAIN);
    refused(two.take(0, Exclusive, 0, 0), Errno::EAGAIN);
}

#[test]
fn each_waits_for_the_other() {
    for space in [LockFamily::Posix, LockFamily::Flock] {
        let two = Two::new();
        let whole =
            |which: usize| lock(two.clients[which], space, LockKind::Exclusive, 0, u64::MAX);
        for (one, other) in [(0, 1), (1, 0)] {
            ok(two.take_as(one, whole(one), false));
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| two.take_as(other, whole(other), true));
                two.release(one);
                assert_eq!(waits.join().expect("no panic"), Ok(()));
            });
            two.release(other);
        }
        assert!(two.bundle.locks.is_empty() && two.member.locks.is_empty());
    }
}

#[test]
fn devices_and_handles_are_the_same_whatever_the_order_and_whoever_is_beside() {
    let [a, b, c] = ["a", "b", "c"].map(member);
    let known = |members: &[&Arc<Export>]| {
        let a = ok(root(&bundle(members)).lookup("a"));
        let handle = ok(run(&Caller::ROOT, |cx| a.node.handle(cx)));
        (a.attr().device, a.node.id(), handle)
    };
    let first = known(&[&a, &b]);
    assert_eq!(known(&[&b, &a]), first);
    assert_eq!(known(&[&c, &a]), first);
    let b = ok(root(&bundle(&[&a, &b])).lookup("b"));
    assert_ne!(b.attr().device, first.0);
}

#[test]
fn members_come_and_go_and_those_that_stay_are_left_as_they_are() {
    let [a, b, c] = ["a", "srv/b", "srv/c"].map(member);
    let bundle = Bundle::new(&[a.clone(), b.clone()], MADE).expect("names of a tree");
    let fs: Arc<dyn FileSystem> = bundle.clone();
    let top = root(&fs);
    let file = ok(ok(top.lookup("a")).file("file", b"data"));
    let (id, handle) = (file.id(), ok(file.handle()));
    let open = ok(file.open(R));
    let (srv, of_b) = (ok(top.lookup("srv")), ok(ok(top.lookup("srv")).lookup("b")));
    let before = top.attr();

    let later = Time {
        sec: MADE.sec + 1,
        nsec: 0,
    };
    bundle
        .change(&[c.clone(), a.clone()], later)
        .expect("names");
    assert_eq!(ok(top.names()), [b"a".to_vec(), b"srv".to_vec()]);
    assert_eq!(ok(srv.names()), [b"c".to_vec()]);
    assert!(top.attr().change > before.change && top.attr().mtime == later);
    assert_eq!((file.id(), resolve(&fs, &handle)), (id, Ok(id)));
    assert_eq!(ok(open.read(0, 9)), b"data");
    assert_eq!(ok(ok(top.lookup("a")).names()), [b"file".to_vec()]);
    assert_eq!(resolve(&fs, &ok(of_b.handle())), Err(Errno::ESTALE));
    // The parent of a removed member's root still exists.
    assert_eq!(ok(of_b.parent()).id(), srv.id());

    bundle
        .change(std::slice::from_ref(&a), later)
        .expect("names");
    refused(srv.names(), Errno::ESTALE);
    refused(of_b.parent(), Errno::ESTALE);
    assert_eq!(ok(top.names()), [b"a".to_vec()]);

    let twice = [a.clone(), a.clone()];
    assert!(bundle.change(&twice, later).is_err());
    bundle.change(&[b, a], later).expect("names");
    assert_eq!(ok(srv.names()), [b"b".to_vec()]);
    assert_eq!(resolve(&fs, &ok(of_b.handle())), Ok(of_b.id()));
}

#[test]
fn a_hidden_member_is_found_by_its_handles_alone() {
    let [a, b] = ["a", "srv/b"].map(member);
    let bundle = Bundle::new(&[a.clone(), b.clone()], MADE).expect("names of a tree");
    let fs: Arc<dyn FileSystem> = bundle.clone();
    let top = root(&fs);
    let of_b = ok(ok(top.lookup("srv")).lookup("b"));
    let file = ok(of_b.file("file", b"data"));
    let handle = ok(file.handle());
    let members = [a, b.clone()];
    let hidden = std::slice::from_ref(&b);
    bundle.change_hiding(&members, hidden, MADE).expect("names");
    let srv = ok(top.lookup("srv"));
    assert_eq!(ok(srv.names()), [b""; 0]);
    refused(srv.lookup("b"), Errno::ENOENT);
    assert_eq!(ok(of_b.names()), [b"file".to_vec()]);
    assert_eq!(resolve(&fs, &handle), Ok(file.id()));
    bundle.change(&members, MADE).expect("names");
    assert_eq!(ok(ok(srv.lookup("b")).names()), [b"file".to_vec()]);
}

#[test]
fn requests_note_which_member_they_are_for() {
    let [a, b] = ["a", "b"].map(member);
    let root = root(&bundle(&[&a, &b]));
    let share = |seen: &TestNode| {
        let mut share = 0;
        ok(run(&Caller::ROOT, |cx| {
            let done = seen.node.open(cx, OpenFlags::READ).map(drop);
            share = cx.call.export_number();
            done
        }));
        share
    };
    let shares = ["a", "b"].map(|name| share(&ok(root.lookup(name))));
    assert!(shares[0] != shares[1] && !shares.contains(&0));
    assert_eq!(share(&ok(root.lookup("a"))), shares[0]);
    assert_eq!(share(&root), 0);
}
