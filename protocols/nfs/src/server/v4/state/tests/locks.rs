//! Lock stateids.

use vfs::lock::LockKind::{Exclusive, Shared};

use super::*;

#[test]
fn rfc8881_18_10_a_lock_stateid_counts_its_changes() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = world.open(&client, "o", A, RW, NONE).expect("opened");
    let locked = world.lock(&client, &open, "l", (0, 9)).expect("locked");
    assert_eq!(locked.seqid, 1);
    let again = world.lock(&client, &open, "l", (20, 29)).expect("locked");
    assert_eq!((again.other, again.seqid), (locked.other, 2));
    let known = Locker::Known { lock: &again };
    let locking = world
        .state
        .lock(&client, known, A, Exclusive, false)
        .expect("may");
    assert_eq!(*locking.owner(), client.lock_owner(b"l"));
    let third = locking.granted(40, 49).expect("granted");
    assert_eq!(third.seqid, 3);
    let unlocking = world.state.unlock(&client, &again, A);
    assert_eq!(unlocking.err(), Some(Status::OldStateid));
    let unlocking = world.state.unlock(&client, &third, A).expect("may");
    assert_eq!(*unlocking.owner(), client.lock_owner(b"l"));
    assert_eq!(unlocking.done(0, 9).map(|stateid| stateid.seqid), Ok(4));
    assert!(
        world
            .state
            .io(Some(&client), &StateId { seqid: 0, ..third }, A, W)
            .is_ok()
    );
    let elsewhere = world
        .state
        .io(Some(&client), &StateId { seqid: 0, ..third }, B, W);
    assert_eq!(elsewhere.err(), Some(Status::BadStateid));
}

#[test]
fn rfc8881_18_10_3_a_lock_needs_a_file_open_for_it() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let lock = |access, kind| {
        let open = world.open(&client, "o", A, access, NONE).expect("opened");
        let locker = Locker::New {
            open: &open,
            owner: b"l",
            seqid: 0,
        };
        let status = world.state.lock(&client, locker, A, kind, false).err();
        assert!(world.state.close(&client, &open, A).is_ok());
        status
    };
    assert_eq!(lock(R, Exclusive), Some(Status::Openmode));
    assert_eq!(lock(W, Shared), Some(Status::Openmode));
    assert_eq!(lock(R, Shared), None);
    assert_eq!(lock(W, Exclusive), None);
    let open = world.open(&client, "o", A, RW, NONE).expect("opened");
    let elsewhere = Locker::New {
        open: &open,
        owner: b"l",
        seqid: 0,
    };
    let status = world.state.lock(&client, elsewhere, B, Shared, false).err();
    assert_eq!(status, Some(Status::BadStateid));
    let not_locks = Locker::Known { lock: &open };
    let status = world.state.lock(&client, not_locks, A, Shared, false).err();
    assert_eq!(status, Some(Status::BadStateid));
}

#[test]
fn a_lock_dropped_has_not_been() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = world.open(&client, "o", A, RW, NONE).expect("opened");
    let locker = Locker::New {
        open: &open,
        owner: b"l",
        seqid: 0,
    };
    drop(world.state.lock(&client, locker, A, Exclusive, false));
    assert_eq!(client.0.client_state.lock().locks, 0);
    assert!(world.state.close(&client, &open, A).is_ok());
    assert!(world.unlocked().is_empty());
}

#[test]
fn rfc8881_18_2_close_releases_locks() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = world.open(&client, "o", A, RW, NONE).expect("opened");
    let locked = world.lock(&client, &open, "l", (0, 9)).expect("locked");
    let free = world.lock(&client, &open, "m", (10, 19)).expect("locked");
    let unlocking = world.state.unlock(&client, &free, A).expect("may");
    assert!(unlocking.done(0, u64::MAX).is_ok());
    assert!(world.state.close(&client, &open, A).is_ok());
    assert_eq!(world.unlocked(), [(A.node, b"l".to_vec())]);
    assert_eq!(
        world.state.test_stateid(&client, &locked),
        Status::BadStateid
    );
    assert_eq!(client.0.client_state.lock().lock_owners.len(), 0);
}

#[test]
fn a_lock_granted_after_its_open_was_closed_is_released() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = world.open(&client, "o", A, RW, NONE).expect("opened");
    let locker = Locker::New {
        open: &open,
        owner: b"l",
        seqid: 0,
    };
    let locking = world
        .state
        .lock(&client, locker, A, Exclusive, false)
        .expect("may");
    assert!(world.state.close(&client, &open, A).is_ok());
    assert!(world.unlocked().is_empty());
    assert_eq!(locking.granted(0, 9), Err(Status::BadStateid));
    assert_eq!(world.unlocked(), [(A.node, b"l".to_vec())]);
    assert_eq!(client.0.client_state.lock().lock_owners.len(), 0);
}

#[test]
fn rfc8881_18_38_only_what_holds_nothing_is_freed() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = world.open(&client, "o", A, RW, NONE).expect("opened");
    let locked = world.lock(&client, &open, "l", (0, 9)).expect("locked");
    assert_eq!(
        world.state.free_stateid(&client, &open),
        Err(Status::LocksHeld)
    );
    assert_eq!(
        world.state.free_stateid(&client, &locked),
        Err(Status::LocksHeld)
    );
    let unlocking = world.state.unlock(&client, &locked, A).expect("may");
    let unlocked = unlocking.done(0, 9).expect("unlocked");
    assert_eq!(
        world.state.free_stateid(&client, &locked),
        Err(Status::OldStateid)
    );
    assert_eq!(world.state.free_stateid(&client, &unlocked), Ok(()));
    assert_eq!(
        world.state.free_stateid(&client, &unlocked),
        Err(Status::BadStateid)
    );
    assert_eq!(world.state.test_stateid(&client, &open), Status::Ok);
    assert!(world.state.close(&client, &open, A).is_ok());
    assert!(world.unlocked().is_empty());
}

#[test]
fn rfc7530_16_37_a_lock_owner_is_released_when_it_holds_nothing() {
    let world = World::new();
    let client = world.v40("a");
    let open = super::owners::confirmed_open(&world, &client, "o", RW);
    let locked = world.lock(&client, &open, "l", (0, 9)).expect("locked");
    let release = |owner: &[u8]| world.state.release_lock_owner(&client, owner);
    assert_eq!(release(b"l"), Err(Status::LocksHeld));
    assert_eq!(release(b"unknown"), Ok(()));
    let unlocking = world.state.unlock(&client, &locked, A).expect("may");
    let unlocked = unlocking.done(0, 4).expect("unlocked");
    assert_eq!(release(b"l"), Err(Status::LocksHeld));
    let unlocking = world.state.unlock(&client, &unlocked, A).expect("may");
    assert!(unlocking.done(5, 9).is_ok());
    assert_eq!(release(b"l"), Ok(()));
    assert_eq!(
        world.state.start_on_stateid(&unlocked, 1).err(),
        Some(Status::BadStateid)
    );
    assert_eq!(client.0.client_state.lock().lock_owners.len(), 0);
}

#[test]
fn locks_of_a_client_are_bounded() {
    let world = World::with(Limits {
        locks: 1,
        ..Limits::default()
    });
    let later = world.v41("a").client(&world);
    let open = world.open(&later, "o", A, RW, NONE).expect("opened");
    assert!(world.lock(&later, &open, "l", (0, 9)).is_ok());
    assert_eq!(world.lock(&later, &open, "m", (20, 29)), Err(Status::Delay));
}
