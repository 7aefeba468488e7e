//! LOCK (RFC 7530 section 16.10).

use std::sync::Arc;
use std::time::Duration;

use layers::Fault;
use layers::fault::{FaultKind, Trigger};
use memory::Memory;
use vfs::Errno;
use vfs_testkit::clock;

use super::*;
use crate::v4::callback::{CallbackOp, NotifyLock};
use crate::v4::op::{Lock, Locker, NewLocker, Unlock};
use crate::v4::types::LockKind;

#[test]
fn rfc7530_16_10_a_lock_owner_is_of_the_client_of_its_open() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let other = Client40::new(&world, b"other");
    let (handle, open) = client.create(b"owner", b"file");
    for (whose, want) in [
        (0, Status::StaleClientid),
        (other.id, Status::BadStateid),
        (client.id, Status::Ok),
    ] {
        let lock = Op::Lock(Lock {
            kind: LockKind::Write,
            reclaim: false,
            offset: 0,
            length: 1,
            locker: Locker::New(NewLocker {
                open_seqid: 3,
                open,
                lock_seqid: 0,
                owner: Owner {
                    client: whose,
                    name: b"locker",
                },
            }),
        });
        let reply = client.net.send(&[Op::Putfh(&handle), lock]);
        assert_eq!(reply.status, want);
    }
}

/// Opens or creates `f` as a v4.1 client. Returns its handle, its stateid and the flags.
fn opened(client: &Client41) -> (Vec<u8>, StateId, u32) {
    let how = OpenHow::Create(CreateHow::Unchecked(Attributes::default()));
    let open = client.open(BOTH, how, Claim::Null(b"f"));
    let reply = client.send(&[Op::Putrootfh, open, Op::Getfh]).done();
    let () = reply.ok();
    let opened: Opened<'_> = reply.ok();
    let handle: &[u8] = reply.ok();
    (handle.to_vec(), opened.state, opened.flags)
}

/// Returns a waiting LOCK of `open` for 10 bytes from `offset`.
fn wait_for(open: StateId, offset: u64) -> Op<'static> {
    Op::Lock(Lock {
        kind: LockKind::WriteWait,
        reclaim: false,
        offset,
        length: 10,
        locker: Locker::New(NewLocker {
            open_seqid: 0,
            open,
            lock_seqid: 0,
            owner: Owner {
                client: 0,
                name: b"lock owner",
            },
        }),
    })
}

#[test]
fn a_blocking_lock_that_fails_for_want_of_a_descriptor_leaves_no_waiter_behind() {
    let fault = Arc::new(Fault::new(1, Arc::new(|| Duration::ZERO)));
    let world = World::over(layers::stack(Memory::new(clock()), fault.clone()));
    let client = Client41::called(&world, b"client");
    let (handle, open, _) = opened(&client);
    let held = || world.server.held_bytes().state;
    let before = held();
    fault.add(
        vfs::Op::HostLock,
        Trigger::Always,
        FaultKind::Fail(Errno::EMFILE),
    );
    let lock = wait_for(open, 0);
    let refused = client.send(&[Op::Putfh(&handle), lock]);
    assert_ne!(refused.status, Status::Ok);
    // A client that can be notified keeps its place without a limit of time.
    assert_eq!(held(), before);
}

#[test]
fn rfc8881_20_11_who_waits_for_a_lock_is_told_when_it_is_free() {
    const MAY_NOTIFY_LOCK: u32 = 0x20;
    let world = World::new();
    let [holder, waiter] =
        [b"holder", b"waiter"].map(|name| Client41::called(&world, name.as_slice()));
    let (handle, held, _) = opened(&holder);
    let (_, waited, flags) = opened(&waiter);
    assert_eq!(flags & MAY_NOTIFY_LOCK, MAY_NOTIFY_LOCK);
    let lock = |client: &Client41, open, offset| {
        let lock = wait_for(open, offset);
        client.send(&[Op::Putfh(&handle), lock])
    };
    let locked = lock(&holder, held, 0).done();
    let () = locked.ok();
    let state: StateId = locked.ok();
    // One place, regardless of the number of requests and of their ranges.
    for offset in [5, 5, 6, 6, 6] {
        assert_eq!(lock(&waiter, waited, offset).status, Status::Denied);
    }
    let unlock = Op::Unlock(Unlock {
        kind: LockKind::Write,
        seqid: 0,
        state,
        offset: 0,
        length: 10,
    });
    holder.send(&[Op::Putfh(&handle), unlock]).done();
    let told = Called::on(&waiter.net);
    let (_, op) = told.read();
    let owner = Owner {
        client: 0,
        name: b"lock owner",
    };
    let handle = &handle;
    assert_eq!(op, CallbackOp::NotifyLock(NotifyLock { handle, owner }));
    told.answer(&waiter.net, Status::Ok);
    assert!(waiter.net.heard.try_recv().is_err(), "once");
    lock(&waiter, waited, 6).done();
    // A destroyed client leaves no waiters in the lock table.
    assert_eq!(lock(&holder, held, 0).status, Status::Denied);
    drop((holder, waiter));
    // After the courtesy period.
    world.pass(90 * 961);
    assert!(world.server.export.locks.is_empty());
}

#[test]
fn rfc8881_18_10_owners_that_wait_for_each_other_are_told() {
    let world = World::new();
    let [one, other] = [b"one..", b"other"].map(|name| Client41::called(&world, name.as_slice()));
    let (handle, opened_by_one, _) = opened(&one);
    let (_, opened_by_other, _) = opened(&other);
    let lock = |client: &Client41, open, offset| {
        let lock = wait_for(open, offset);
        client.send(&[Op::Putfh(&handle), lock])
    };
    let locked = lock(&one, opened_by_one, 0).done();
    let () = locked.ok();
    let state: StateId = locked.ok();
    lock(&other, opened_by_other, 10).done();
    let waits = || lock(&one, opened_by_one, 10).status;
    assert_eq!(waits(), Status::Denied);
    for _ in 0..2 {
        let told = lock(&other, opened_by_other, 0).status;
        assert_eq!(told, Status::Deadlock);
    }
    assert_eq!(waits(), Status::Denied, "it still waits");
    let unlock = Op::Unlock(Unlock {
        kind: LockKind::Write,
        seqid: 0,
        state,
        offset: 0,
        length: 10,
    });
    one.send(&[Op::Putfh(&handle), unlock]).done();
    lock(&other, opened_by_other, 0).done();
}

#[test]
fn rfc8881_9_6_who_does_not_come_when_told_loses_its_place() {
    let world = World::new();
    let [holder, first, second] =
        [b"holder", b"first.", b"second"].map(|name| Client41::called(&world, name.as_slice()));
    let (handle, held, _) = opened(&holder);
    let [(_, by_first, _), (_, by_second, _)] = [opened(&first), opened(&second)];
    let lock = |client: &Client41, open| client.send(&[Op::Putfh(&handle), wait_for(open, 0)]);
    let locked = lock(&holder, held).done();
    let () = locked.ok();
    let state: StateId = locked.ok();
    assert_eq!(lock(&first, by_first).status, Status::Denied);
    assert_eq!(lock(&second, by_second).status, Status::Denied);
    // Owners that will be notified need not poll meanwhile.
    world.pass(60);
    let unlock = Op::Unlock(Unlock {
        kind: LockKind::Write,
        seqid: 0,
        state,
        offset: 0,
        length: 10,
    });
    holder.send(&[Op::Putfh(&handle), unlock]).done();
    Called::on(&first.net).answer(&first.net, Status::Ok);
    assert_eq!(lock(&second, by_second).status, Status::Denied);
    world.pass(3);
    assert!(second.net.heard.try_recv().is_err(), "not its turn");
    world.pass(1);
    Called::on(&second.net).answer(&second.net, Status::Ok);
    assert_eq!(lock(&first, by_first).status, Status::Denied);
    lock(&second, by_second).done();
}

/// A v4.0 client with `file` open, and its lock requests.
struct Locking40 {
    client: Client40,
    handle: Vec<u8>,
    open: StateId,
    seqid: std::cell::Cell<u32>,
}

impl Locking40 {
    fn new(world: &World, name: &[u8]) -> Locking40 {
        let client = Client40::new(world, name);
        let how = OpenHow::Create(CreateHow::Unchecked(Attributes::default()));
        let open = client.opening(b"owner", 1, b"file", BOTH, how);
        let opened = client.net.send(&[Op::Putrootfh, open, Op::Getfh]).done();
        let () = opened.ok();
        let Opened { state, .. } = opened.ok();
        let handle: &[u8] = opened.ok();
        let handle = handle.to_vec();
        let confirm = Op::OpenConfirm(OpenConfirm { state, seqid: 2 });
        let confirmed = client.net.send(&[Op::Putfh(&handle), confirm]).done();
        let () = confirmed.ok();
        let open = confirmed.ok();
        let seqid = std::cell::Cell::new(3);
        Locking40 {
            client,
            handle,
            open,
            seqid,
        }
    }

    fn lock(&self, kind: LockKind) -> Result<StateId, Status> {
        let lock = Op::Lock(Lock {
            kind,
            reclaim: false,
            offset: 0,
            length: 1,
            locker: Locker::New(NewLocker {
                open_seqid: self.seqid.get(),
                open: self.open,
                lock_seqid: 0,
                owner: Owner {
                    client: self.client.id,
                    name: b"locker",
                },
            }),
        });
        self.seqid.set(self.seqid.get() + 1);
        let reply = self.client.net.send(&[Op::Putfh(&self.handle), lock]);
        if reply.status != Status::Ok {
            return Err(reply.status);
        }
        let () = reply.ok();
        Ok(reply.ok())
    }

    fn unlock(&self, state: StateId) {
        let unlock = Op::Unlock(Unlock {
            kind: LockKind::Write,
            seqid: 1,
            state,
            offset: 0,
            length: 1,
        });
        self.client
            .net
            .send(&[Op::Putfh(&self.handle), unlock])
            .done();
    }
}

#[test]
fn rfc7530_16_10_5_who_waits_is_next() {
    let world = World::new();
    let [holder, first, second] =
        [b"holder", b"first.", b"second"].map(|name| Locking40::new(&world, name.as_slice()));
    let wait = LockKind::WriteWait;
    let state = holder.lock(wait).expect("free");
    assert_eq!(first.lock(wait), Err(Status::Denied));
    assert_eq!(second.lock(wait), Err(Status::Denied));
    world.pass(10);
    assert_eq!(first.lock(wait), Err(Status::Denied));
    world.pass(10);
    holder.unlock(state);
    assert_eq!(second.lock(wait), Err(Status::Denied), "before the first");
    world.pass(10);
    assert_eq!(second.lock(wait), Err(Status::Denied), "who asks each 10 s");
    let state = first.lock(wait).expect("its turn");
    first.unlock(state);
    second.lock(wait).expect("its turn");
}

#[test]
fn rfc7530_16_10_5_who_does_not_ask_again_is_not_waited_for() {
    let world = World::new();
    let [holder, dead, other, last] = [b"holder", b"dead..", b"other.", b"last.."]
        .map(|name| Locking40::new(&world, name.as_slice()));
    let state = holder.lock(LockKind::Write).expect("free");
    assert_eq!(dead.lock(LockKind::WriteWait), Err(Status::Denied));
    holder.unlock(state);
    assert_eq!(other.lock(LockKind::WriteWait), Err(Status::Denied));
    world.pass(4);
    let state = other.lock(LockKind::WriteWait).expect("nobody before it");
    // The same holds for a waiter that stops polling while another owner holds the lock.
    assert_eq!(dead.lock(LockKind::WriteWait), Err(Status::Denied));
    world.pass(80);
    world.pass(20);
    other.unlock(state);
    last.lock(LockKind::WriteWait).expect("nobody before it");
}

#[test]
fn rfc7530_16_10_who_does_not_wait_has_no_place_and_heeds_none() {
    let world = World::new();
    let [holder, waiter, other] =
        [b"holder", b"waiter", b"other."].map(|name| Locking40::new(&world, name.as_slice()));
    let state = holder.lock(LockKind::Write).expect("free");
    assert_eq!(other.lock(LockKind::Write), Err(Status::Denied));
    assert_eq!(waiter.lock(LockKind::WriteWait), Err(Status::Denied));
    holder.unlock(state);
    let state = other.lock(LockKind::Write).expect("it is free");
    assert_eq!(waiter.lock(LockKind::WriteWait), Err(Status::Denied));
    other.unlock(state);
    waiter.lock(LockKind::WriteWait).expect("its turn");
}
