//! The seqids of v4.0.

use super::*;

/// Returns the request of an OPEN, which must be new.
pub(super) fn start_open(
    world: &World,
    client: &ClientRef<TestTree>,
    owner: &str,
    seqid: u32,
) -> OwnerRequest<TestTree> {
    new(world.state.start_open(client.id(), owner.as_bytes(), seqid))
}

fn new(started: Result<Started<OwnerRequest<TestTree>>, Status>) -> OwnerRequest<TestTree> {
    match started {
        Ok(Started::New(request)) => request,
        Ok(Started::Replay(_)) => panic!("a replay"),
        Err(status) => panic!("{status:?}"),
    }
}

fn replay(started: Result<Started<OwnerRequest<TestTree>>, Status>) -> Arc<[u8]> {
    match started {
        Ok(Started::Replay(reply)) => reply,
        Ok(Started::New(_)) => panic!("new"),
        Err(status) => panic!("{status:?}"),
    }
}

fn reply(text: &str) -> Arc<[u8]> {
    text.as_bytes().into()
}

/// Opens `key` and confirms the owner, whose next seqid is 3.
pub(super) fn confirmed_open(
    world: &World,
    client: &ClientRef<TestTree>,
    owner: &str,
    access: Share,
) -> StateId {
    let request = start_open(world, client, owner, 1);
    let opening = world.state.open(client, ask(owner, A, access, NONE));
    let opened = opening.and_then(|opening| opening.commit(Arc::new("file")));
    let opened = opened.expect("opened");
    assert!(opened.confirm);
    request.finish(Status::Ok, reply("open"));
    let request = new(world.state.start_on_stateid(&opened.stateid, 2));
    let stateid = world.state.open_confirm(client, &opened.stateid, A);
    request.finish(Status::Ok, reply("confirm"));
    stateid.expect("confirmed")
}

#[test]
fn rfc7530_9_1_7_a_request_is_served_once() {
    let world = World::new();
    let client = world.v40("a");
    let stateid = confirmed_open(&world, &client, "o", RW);
    assert_eq!(
        &*replay(world.state.start_on_stateid(&stateid, 2)),
        b"confirm"
    );
    assert_eq!(
        world.state.start_on_stateid(&stateid, 1).err(),
        Some(Status::BadSeqid)
    );
    assert_eq!(
        world.state.start_on_stateid(&stateid, 4).err(),
        Some(Status::BadSeqid)
    );
    let request = new(world.state.start_on_stateid(&stateid, 3));
    assert_eq!(
        world.state.start_on_stateid(&stateid, 3).err(),
        Some(Status::Delay)
    );
    assert_eq!(
        world.state.start_open(client.id(), b"o", 3).err(),
        Some(Status::Delay)
    );
    // It would have blocked: the same request is sent again.
    drop(request);
    let request = new(world.state.start_on_stateid(&stateid, 3));
    request.finish(Status::Ok, reply("three"));
    assert_eq!(
        &*replay(world.state.start_on_stateid(&stateid, 3)),
        b"three"
    );
}

#[test]
fn rfc7530_9_1_7_some_errors_do_not_count() {
    let world = World::new();
    let client = world.v40("a");
    let stateid = confirmed_open(&world, &client, "o", RW);
    for status in [Status::BadStateid, Status::Resource, Status::Nofilehandle] {
        new(world.state.start_on_stateid(&stateid, 3)).finish(status, reply("no"));
    }
    new(world.state.start_on_stateid(&stateid, 3)).finish(Status::Inval, reply("counts"));
    assert_eq!(
        &*replay(world.state.start_on_stateid(&stateid, 3)),
        b"counts"
    );
}

#[test]
fn rfc7530_16_18_5_an_owner_that_did_not_confirm_is_taken_for_new() {
    let world = World::new();
    let client = world.v40("a");
    let request = start_open(&world, &client, "o", 5);
    let first = world.open(&client, "o", A, R, NONE).expect("opened");
    request.finish(Status::Ok, reply("first"));
    // The first open is gone for all operations.
    assert_eq!(
        world.state.io(None, &first, A, R).err(),
        Some(Status::BadStateid)
    );
    assert_eq!(
        world.state.close(&client, &first, A),
        Err(Status::BadStateid)
    );
    // The seqid is the same, as from clients whose OPEN failed.
    let request = start_open(&world, &client, "o", 5);
    let second = world.open(&client, "o", A, W, NONE).expect("opened");
    request.finish(Status::Ok, reply("second"));
    assert_eq!(
        world.state.start_on_stateid(&first, 6).err(),
        Some(Status::BadStateid)
    );
    let request = new(world.state.start_on_stateid(&second, 6));
    let second = world
        .state
        .open_confirm(&client, &second, A)
        .expect("confirmed");
    request.finish(Status::Ok, reply("confirmed"));
    assert_eq!(
        world.state.open_confirm(&client, &second, A),
        Err(Status::BadStateid)
    );
    assert_eq!(
        world.state.io(None, &second, A, R).err(),
        Some(Status::Openmode)
    );
    assert!(world.state.io(None, &second, A, W).is_ok());
}

#[test]
fn rfc7530_9_1_11_a_close_sent_again_is_answered_again() {
    let world = World::new();
    let client = world.v40("a");
    let stateid = confirmed_open(&world, &client, "o", R);
    let request = new(world.state.start_on_stateid(&stateid, 3));
    let closed = world.state.close(&client, &stateid, A).expect("closed");
    assert_eq!(
        (closed.other, closed.seqid),
        (stateid.other, stateid.seqid + 1)
    );
    request.finish(Status::Ok, reply("closed"));
    assert_eq!(
        &*replay(world.state.start_on_stateid(&stateid, 3)),
        b"closed"
    );
    assert_eq!(
        world.state.start_on_stateid(&stateid, 4).err(),
        Some(Status::BadStateid)
    );
    assert_eq!(
        world.state.io(None, &stateid, A, R).err(),
        Some(Status::BadStateid)
    );
    // After the owner's next request, there is no retransmission of the CLOSE.
    start_open(&world, &client, "o", 4).finish(Status::Noent, reply("none"));
    assert_eq!(
        world.state.start_on_stateid(&stateid, 3).err(),
        Some(Status::BadStateid)
    );
}

#[test]
fn rfc7530_9_1_8_lock_owners_count_by_themselves() {
    let world = World::new();
    let client = world.v40("a");
    let open = confirmed_open(&world, &client, "o", RW);
    let locker = |owner, seqid| Locker::New {
        open: &open,
        owner,
        seqid,
    };
    let kind = vfs::lock::LockKind::Exclusive;
    let request = new(world.state.start_on_stateid(&open, 3));
    let locking = world.state.lock(&client, locker(b"l", 70), A, kind, false);
    let locked = locking
        .and_then(|locking| locking.granted(0, 9))
        .expect("locked");
    request.finish(Status::Ok, reply("locked"));
    let request = new(world.state.start_on_stateid(&locked, 71));
    let unlocking = world.state.unlock(&client, &locked, A);
    let unlocked = unlocking
        .and_then(|unlocking| unlocking.done(0, 9))
        .expect("unlocked");
    request.finish(Status::Ok, reply("unlocked"));
    assert_eq!(
        &*replay(world.state.start_on_stateid(&locked, 71)),
        b"unlocked"
    );
    assert_eq!(
        world.state.start_on_stateid(&unlocked, 73).err(),
        Some(Status::BadSeqid)
    );
    // A new lock stateid of a known lock owner continues its seqids.
    let refused = world.state.lock(&client, locker(b"l", 71), A, kind, false);
    assert_eq!(refused.err(), Some(Status::BadSeqid));
    assert!(
        world
            .state
            .lock(&client, locker(b"l", 72), A, kind, false)
            .is_ok()
    );
}

#[test]
fn rfc7530_9_1_10_idle_owners_are_forgotten() {
    let world = World::new();
    let client = world.v40("a");
    let stateid = confirmed_open(&world, &client, "o", R);
    let request = new(world.state.start_on_stateid(&stateid, 3));
    assert!(world.state.close(&client, &stateid, A).is_ok());
    request.finish(Status::Ok, reply("closed"));
    world.pass(LEASE * 2 / 3);
    world.state.renew(client.id()).expect("known");
    world.state.reap();
    assert_eq!(
        &*replay(world.state.start_on_stateid(&stateid, 3)),
        b"closed"
    );
    world.pass(LEASE * 2 / 3);
    world.state.renew(client.id()).expect("known");
    world.state.reap();
    assert_eq!(client.0.client_state.lock().open_owners.len(), 0);
    // The owner is new again, and may use any seqid.
    drop(start_open(&world, &client, "o", 900));
    assert_eq!(client.0.client_state.lock().open_owners.len(), 0);
}

#[test]
fn rfc7530_9_1_4_stateids_of_another_boot_are_stale() {
    let world = World::new();
    let client = world.v40("a");
    let stateid = confirmed_open(&world, &client, "o", R);
    assert_eq!(
        world.state.io(None, &StateId::ANONYMOUS, A, R).err(),
        Some(Status::BadStateid)
    );
    let world = world.restarted();
    assert_eq!(
        world.state.io(None, &stateid, A, R).err(),
        Some(Status::StaleStateid)
    );
    assert_eq!(
        world.state.start_on_stateid(&stateid, 3).err(),
        Some(Status::StaleStateid)
    );
}
