//! Locks on the file system's nodes, through the table that all protocols share.

use std::sync::Arc;
use std::thread;

use vfs::lock::{Lock, LockFamily, LockKind, LockTable, Owner};
use vfs::{Call, Cx, Errno};

use crate::context::{TestContext, TestNode, ok, refused};

fn lock(client: u64, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock {
        family: LockFamily::Posix,
        start,
        end,
        kind,
        owner: owner(client),
    }
}

fn owner(client: u64) -> Owner {
    Owner {
        client,
        id: Arc::from(&b"id"[..]),
        pid: 1,
    }
}

fn take(table: &LockTable, node: &TestNode, lock: &Lock) -> vfs::Result<()> {
    crate::run(&node.caller, |cx| {
        table.lock(cx, &*node.node, lock.clone(), false)
    })
}

fn unlock(table: &LockTable, node: &TestNode, start: u64, end: u64, client: u64) {
    ok(crate::run(&node.caller, |cx| {
        table.unlock(
            cx,
            &*node.node,
            LockFamily::Posix,
            start,
            end,
            &owner(client),
        )
    }));
}

/// Writers exclude each other, readers do not.
pub fn locks_conflict(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    let table = LockTable::default();
    ok(take(&table, &node, &lock(1, LockKind::Exclusive, 0, 9)));
    refused(
        take(&table, &node, &lock(2, LockKind::Shared, 5, 5)),
        Errno::EAGAIN,
    );
    ok(take(
        &table,
        &node,
        &lock(2, LockKind::Exclusive, 10, u64::MAX),
    ));
    ok(take(&table, &node, &lock(1, LockKind::Shared, 0, 9)));
    ok(take(&table, &node, &lock(2, LockKind::Shared, 5, 5)));
    unlock(&table, &node, 0, u64::MAX, 1);
    ok(take(&table, &node, &lock(2, LockKind::Exclusive, 0, 9)));
    unlock(&table, &node, 0, u64::MAX, 2);
}

/// The table reports the holder of a conflicting lock.
pub fn the_holder_is_told(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    let table = LockTable::default();
    let held = lock(1, LockKind::Shared, 3, 7);
    ok(take(&table, &node, &held));
    let holder = |wanted: Lock| {
        ok(crate::run(&node.caller, |cx| {
            table.holder(cx, &*node.node, &wanted)
        }))
    };
    assert_eq!(holder(lock(2, LockKind::Exclusive, 0, 100)), Some(held));
    assert_eq!(holder(lock(2, LockKind::Shared, 0, 100)), None);
    assert_eq!(holder(lock(1, LockKind::Exclusive, 0, 100)), None);
    assert_eq!(holder(lock(2, LockKind::Exclusive, 8, 100)), None);
    unlock(&table, &node, 0, u64::MAX, 1);
}

/// A waiter gets the lock when it is released.
pub fn a_waiter_gets_the_lock(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    let table = LockTable::default();
    ok(take(&table, &node, &lock(1, LockKind::Exclusive, 0, 9)));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            vfs::cx::block_on(&node.caller, |cx| {
                table.lock(cx, &*node.node, lock(2, LockKind::Exclusive, 0, 9), true)
            })
        });
        unlock(&table, &node, 0, 9, 1);
        assert_eq!(waiter.join().expect("no panic"), Ok(()));
    });
    refused(
        take(&table, &node, &lock(1, LockKind::Shared, 0, 0)),
        Errno::EAGAIN,
    );
    unlock(&table, &node, 0, u64::MAX, 2);
}

/// An interrupted waiter leaves the queue, and gets a lock that is free.
pub fn a_signal_ends_a_wait_for_a_lock(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    let table = LockTable::default();
    ok(take(&table, &node, &lock(1, LockKind::Exclusive, 0, 9)));
    let call = Call::parkable(vfs::cx::thread_waker());
    let cx = Cx::new(&node.caller, &call);
    let wait = |start| {
        let wanted = lock(2, LockKind::Exclusive, start, 20);
        table.lock(&cx, &*node.node, wanted, true)
    };
    refused(wait(0), Errno::PARKED);
    call.interrupt();
    refused(wait(0), Errno::EINTR);
    ok(wait(10));
    unlock(&table, &node, 0, u64::MAX, 1);
    unlock(&table, &node, 0, u64::MAX, 2);
    assert!(table.is_empty());
}

/// Whole-file locks are independent of byte-range locks.
pub fn flock_does_not_see_byte_ranges(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    let table = LockTable::default();
    let whole = |client| Lock {
        family: LockFamily::Flock,
        ..lock(client, LockKind::Exclusive, 0, u64::MAX)
    };
    ok(take(&table, &node, &whole(1)));
    ok(take(&table, &node, &lock(2, LockKind::Exclusive, 0, 9)));
    refused(take(&table, &node, &whole(2)), Errno::EAGAIN);
    let call = Call::detached();
    let cx = Cx::new(&node.caller, &call);
    table.release(&cx, &*node.node, |owner| owner.client == 1);
    ok(take(&table, &node, &whole(2)));
    table.release(&cx, &*node.node, |owner| owner.client == 2);
    ok(take(&table, &node, &lock(1, LockKind::Exclusive, 0, 9)));
    table.release(&cx, &*node.node, |_| true);
}

/// A node without a name can be locked.
pub fn locks_outlast_names(test: &TestContext) {
    crate::needs!(test.profile.open_unlinked, "nodes that outlast their name");
    let root = test.root();
    let node = ok(root.file("file", b"data"));
    let table = LockTable::default();
    ok(take(&table, &node, &lock(1, LockKind::Exclusive, 0, 9)));
    ok(root.unlink("file"));
    refused(
        take(&table, &node, &lock(2, LockKind::Shared, 0, 0)),
        Errno::EAGAIN,
    );
    unlock(&table, &node, 0, u64::MAX, 1);
    ok(take(&table, &node, &lock(2, LockKind::Shared, 0, 0)));
    unlock(&table, &node, 0, u64::MAX, 2);
}
