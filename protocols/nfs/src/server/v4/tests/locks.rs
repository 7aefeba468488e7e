//! LOCK (RFC 7530 section 16.10).

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

/// A client of v4.1 that has `f` open, which is made if need be: its handle and stateid.
fn opened(client: &Client41) -> (Vec<u8>, StateId, u32) {
    let how = OpenHow::Create(CreateHow::Unchecked(Attributes::default()));
    let open = client.open(BOTH, how, Claim::Null(b"f"));
    let reply = client.send(&[Op::Putrootfh, open, Op::Getfh]).done();
    let () = reply.ok();
    let opened: Opened<'_> = reply.ok();
    let handle: &[u8] = reply.ok();
    (handle.to_vec(), opened.state, opened.flags)
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
        let lock = Op::Lock(Lock {
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
        });
        client.send(&[Op::Putfh(&handle), lock])
    };
    let locked = lock(&holder, held, 0).done();
    let () = locked.ok();
    let state: StateId = locked.ok();
    // One place, however often it asks and for what.
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
    // Whoever goes leaves nothing behind.
    assert_eq!(lock(&holder, held, 0).status, Status::Denied);
    drop((holder, waiter));
    // Beyond all courtesy.
    world.pass(90 * 961);
    assert!(world.server.export.locks.is_empty());
}
