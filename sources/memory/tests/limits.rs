//! Tests beyond the shared suite: budgets, sharing, very deep trees.

use std::sync::Arc;

use memory::{Memory, Options};
use vfs::{AllocateMode, Caller, CopyMode, Errno, FileSystem, Time, XattrFlags};
use vfs_testkit::context::{RW, TestNode, ok, pattern, refused};
use vfs_testkit::run;

fn root(options: Options) -> TestNode {
    let memory = Memory::with_options(Arc::new(Time::default), options);
    TestNode {
        node: ok(run(&Caller::ROOT, |cx| memory.root(cx))),
        caller: Caller::ROOT,
    }
}

fn small(max_bytes: u64) -> TestNode {
    root(Options {
        max_bytes,
        ..Options::default()
    })
}

fn used(root: &TestNode) -> u64 {
    let figures = ok(root.statfs());
    (figures.blocks - figures.bfree) * u64::from(figures.bsize)
}

#[test]
fn contents_are_bounded_and_come_back() {
    let root = small(1 << 20);
    let (node, file) = ok(root.create("file", RW, 0o644));
    let data = pattern(2 << 20, 1);
    let wrote = ok(file.write(0, &data));
    assert!(wrote > 900 << 10 && wrote < 1 << 20, "{wrote}");
    assert_eq!(node.attr().size, wrote as u64);
    refused(
        file.write(wrote as u64, b"x".repeat(5000).as_slice()),
        Errno::ENOSPC,
    );
    refused(file.write(1 << 30, b"x"), Errno::ENOSPC);
    assert_eq!(
        node.attr().size,
        wrote as u64,
        "what found no room moves no end"
    );
    ok(file.write(0, b"overwriting needs no room"));
    refused(root.file("other", &[1; 4096]), Errno::ENOSPC);
    ok(node.truncate(0));
    ok(root.mkdir("dir", 0o755));
    assert!(used(&root) < 8192);
}

#[test]
fn everything_a_peer_can_grow_is_bounded() {
    let root = small(1 << 20);
    let dir = ok(root.mkdir("dir", 0o755));
    let mut made = 0;
    let refusal = loop {
        match dir.symlink(&format!("{made}"), &[b't'; 4000]) {
            Ok(_) => made += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!(refusal, Errno::ENOSPC);
    assert!(made < 300, "{made}");
    for i in 0..made {
        ok(dir.unlink(&format!("{i}")));
    }
    let refusal = (0..).find_map(|i| {
        let name = format!("user.{i}");
        let set = dir.set_xattr(name.as_bytes(), &[0; 60_000], XattrFlags::empty());
        set.err()
    });
    assert_eq!(refusal, Some(Errno::ENOSPC));
    for name in ok(dir.xattrs()) {
        ok(dir.remove_xattr(&name));
    }
    let file = ok(root.file("file", b""));
    let refusal = (0..).find_map(|i| dir.link(&format!("{i:0250}"), &file).err());
    assert_eq!(refusal, Some(Errno::ENOSPC));
}

#[test]
fn nodes_are_bounded_and_come_back() {
    let root = root(Options {
        max_nodes: 3,
        ..Options::default()
    });
    ok(root.file("a", b""));
    let b = ok(root.file("b", b""));
    refused(root.file("c", b""), Errno::ENOSPC);
    ok(root.unlink("b"));
    refused(root.file("c", b""), Errno::ENOSPC);
    drop(b);
    ok(root.file("c", b""));
    assert_eq!(ok(root.statfs()).ffree, 0);
}

#[test]
fn reserving_takes_from_the_budget_all_or_nothing() {
    let root = small(1 << 20);
    let (node, file) = ok(root.create("file", RW, 0o644));
    refused(
        file.allocate(AllocateMode::Extend, 0, 2 << 20),
        Errno::ENOSPC,
    );
    refused(
        file.allocate(AllocateMode::Extend, 0, i64::MAX as u64),
        Errno::ENOSPC,
    );
    assert_eq!((node.attr().size, node.attr().blocks), (0, 0));
    ok(file.allocate(AllocateMode::Extend, 0, 900 << 10));
    refused(root.file("other", &[0; 200 << 10]), Errno::ENOSPC);
    assert_eq!(ok(file.write(0, &pattern(900 << 10, 1))), 900 << 10);
}

#[test]
fn a_clone_counts_in_full_and_happens_whole_or_not() {
    let root = small(1 << 20);
    let from = ok(ok(root.file("from", &pattern(600 << 10, 1))).open(RW));
    let (node, to) = ok(root.create("to", RW, 0o644));
    refused(
        from.copy(0, &to, 0, 600 << 10, CopyMode::Clone),
        Errno::ENOSPC,
    );
    assert_eq!((node.attr().size, node.attr().blocks), (0, 0));
    let half = ok(from.copy(0, &to, 0, 600 << 10, CopyMode::Any));
    assert!(half > 0 && half < 600 << 10, "{half}");
}

/// A client may nest directories as deep as the budget allows: dropping them must not recurse as
/// deep.
#[test]
fn a_very_deep_tree_is_let_go() {
    let root = root(Options::default());
    let mut dir = root.clone();
    for _ in 0..50_000 {
        dir = ok(dir.mkdir("d", 0o755));
    }
    drop((dir, root));
}

/// Linux would return the previous position, so the shared suite does not test this.
#[test]
fn a_removed_directory_has_no_parent() {
    let root = root(Options::default());
    let dir = ok(root.mkdir("dir", 0o755));
    ok(root.rmdir("dir"));
    refused(dir.parent(), Errno::ESTALE);
    let over = ok(root.mkdir("over", 0o755));
    ok(root.mkdir("new", 0o755));
    ok(root.rename("new", &root, "over"));
    refused(over.parent(), Errno::ESTALE);
}

#[test]
fn a_handle_of_another_tree_is_stale() {
    let one = Memory::new(Arc::new(Time::default));
    let other = Memory::new(Arc::new(Time::default));
    let who = Caller::ROOT;
    let root = ok(run(&who, |cx| one.root(cx)));
    let handle = ok(run(&who, |cx| root.handle(cx)));
    ok(run(&who, |cx| one.resolve(cx, &handle)));
    refused(run(&who, |cx| other.resolve(cx, &handle)), Errno::ESTALE);
}
