//! Changes of terms while clients are connected.

use std::sync::Arc;

use layers::gate::AccessPolicy;
use layers::squash::{NOBODY, Squash, SquashMode};
use layers::{Gate, stack};
use memory::{Memory, Options};
use vfs::lock::{HostLock, LockFamily};
use vfs::{Caller, Errno, Node};
use vfs_testkit::context::{RW, TestNode, ok, refused};
use vfs_testkit::{clock, run};

const ALICE: Caller = Caller::new(1000, 1000);

fn terms(whom: SquashMode, read_only: bool) -> AccessPolicy {
    AccessPolicy {
        squash: Squash::new(whom),
        read_only,
        admission: Arc::default(),
    }
}

fn gated() -> (Arc<Gate>, TestNode) {
    let options = Options {
        mode: 0o777,
        ..Options::default()
    };
    let gate = Arc::new(Gate::new(terms(SquashMode::None, false)));
    let fs = stack(Memory::with_options(clock(), options), gate.clone());
    let node = ok(run(&ALICE, |cx| fs.root(cx)));
    (
        gate,
        TestNode {
            node,
            caller: ALICE,
        },
    )
}

#[test]
fn terms_hold_at_once_for_what_is_open_too() {
    let (gate, root) = gated();
    let file = ok(root.file("file", b"data"));
    let open = ok(file.open(RW));
    gate.set(terms(SquashMode::None, true));
    refused(open.write(0, b"x"), Errno::EROFS);
    refused(root.create("new", RW, 0o644), Errno::EROFS);
    assert_eq!(ok(open.read(0, 9)), b"data");
    gate.set(terms(SquashMode::All, false));
    ok(open.write(0, b"x"));
    let new = ok(root.file("new", b""));
    assert_eq!((file.attr().uid, new.attr().uid), (1000, NOBODY));
}

#[test]
fn behind_a_closed_gate_nothing_is_but_locks_are_given_back() {
    let (gate, root) = gated();
    let file = ok(root.file("file", b"data"));
    let open = ok(file.open(RW));
    let lock = |node: &dyn Node, state| {
        run(&ALICE, |cx| {
            node.host_lock(cx, LockFamily::Posix.range(0, 9), state)
        })
    };
    lock(&*file.node, HostLock::Exclusive).expect("locked");
    gate.close();
    refused(open.read(0, 9), Errno::ESTALE);
    refused(open.write(0, b"x"), Errno::ESTALE);
    refused(root.lookup("file"), Errno::ESTALE);
    refused(root.names(), Errno::ESTALE);
    assert_eq!(lock(&*file.node, HostLock::Shared), Err(Errno::ESTALE));
    assert_eq!(lock(&*file.node, HostLock::Unlocked), Ok(()));
    gate.set(terms(SquashMode::None, false));
    assert_eq!(ok(open.read(0, 9)), b"data");
}
