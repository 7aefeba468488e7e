//! Restarts and reclaims.

use super::faulty::Faulty;
use super::*;

fn reclaim(world: &World, client: &ClientRef<TestTree>, key: NodeKey) -> Result<StateId, Status> {
    let asked = OpenArgs {
        reclaim: true,
        ..ask("o", key, RW, NONE)
    };
    let opening = world.state.open(client, asked)?;
    Ok(opening.commit(Arc::new("file"))?.stateid)
}

#[test]
fn a_first_start_has_no_grace() {
    let world = World::new();
    assert!(!world.state.in_grace());
    let client = world.v41("a").client(&world);
    assert_eq!(reclaim(&world, &client, A), Err(Status::NoGrace));
    // A client without opens causes no grace period at the next start.
    assert!(!world.restarted().state.in_grace());
}

#[test]
fn rfc8881_8_4_2_those_that_had_something_reclaim_it() {
    let world = World::new();
    for name in ["a", "b"] {
        assert!(
            world
                .open(&world.v41(name).client(&world), "o", A, RW, NONE)
                .is_ok()
        );
    }
    let world = world.restarted();
    assert!(world.state.in_grace());
    let (one, two) = (world.v41_reclaiming("a"), world.v41_reclaiming("b"));
    let new = world.v41("new").client(&world);
    assert_eq!(world.open(&new, "o", A, R, NONE), Err(Status::Grace));
    assert_eq!(reclaim(&world, &new, A), Err(Status::NoGrace));
    assert_eq!(world.state.anonymous(A, R), Err(Status::Grace));
    let never = world.v41_reclaiming("never").client(&world);
    assert_eq!(reclaim(&world, &never, A), Err(Status::ReclaimBad));

    let request = one.request(&world);
    assert_eq!(request.status_flags(), status_flags::RESTART_RECLAIM_NEEDED);
    let client = request.client();
    let open = reclaim(&world, &client, A).expect("reclaimed");
    let locker = || Locker::New {
        open: &open,
        owner: b"l",
        seqid: 0,
    };
    let kind = vfs::lock::LockKind::Exclusive;
    let refused = world.state.lock(&client, locker(), A, kind, false);
    assert_eq!(refused.err(), Some(Status::Grace));
    let locking = world
        .state
        .lock(&client, locker(), A, kind, true)
        .expect("may");
    assert!(locking.granted(0, 9).is_ok());
    assert_eq!(world.state.reclaim_complete(&client), Ok(()));
    assert_eq!(
        world.state.reclaim_complete(&client),
        Err(Status::CompleteAlready)
    );
    assert_eq!(request.status_flags(), 0);
    assert_eq!(reclaim(&world, &client, B), Err(Status::NoGrace));
    assert!(world.state.in_grace());

    // The last client ends it. It reclaimed nothing, so it has no record any more.
    assert_eq!(world.state.reclaim_complete(&two.client(&world)), Ok(()));
    assert!(!world.state.in_grace());
    assert!(world.open(&new, "o", A, R, NONE).is_ok());
    assert_eq!(world.stable.list().len(), 2);
}

#[test]
fn rfc8881_18_51_3_nothing_new_before_reclaim_complete() {
    let world = World::new();
    let peer = world.v41_reclaiming("a");
    let client = peer.client(&world);
    assert_eq!(world.open(&client, "o", A, R, NONE), Err(Status::Grace));
    assert_eq!(world.state.reclaim_complete(&client), Ok(()));
    assert!(world.open(&client, "o", A, R, NONE).is_ok());
}

#[test]
fn rfc7530_9_6_2_grace_ends_after_a_lease() {
    let world = World::new();
    super::owners::confirmed_open(&world, &world.v40("a"), "o", R);
    assert!(
        world
            .open(&world.v41("b").client(&world), "o", A, R, NONE)
            .is_ok()
    );
    let world = world.restarted();
    let client = world.v40("a");
    let request = super::owners::start_open(&world, &client, "o", 1);
    assert_eq!(world.open(&client, "o", A, R, NONE), Err(Status::Grace));
    assert!(reclaim(&world, &client, A).is_ok());
    drop(request);
    world.pass(LEASE);
    world.state.reap();
    assert!(!world.state.in_grace());
    assert_eq!(reclaim(&world, &client, B), Err(Status::NoGrace));
    // The client that did not return has no record any more.
    assert_eq!(world.stable.list().len(), 1);
}

#[test]
fn grace_goes_on_while_somebody_reclaims() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    assert!(world.open(&client, "o", A, RW, NONE).is_ok());
    let world = world.restarted();
    let client = world.v41_reclaiming("a").client(&world);
    let key = |node| NodeKey { export: 0, node };
    world.pass(LEASE - Duration::from_secs(1));
    for second in 0..LEASE.as_secs() {
        assert!(reclaim(&world, &client, key(second)).is_ok(), "{second}");
        world.pass(Duration::from_secs(1));
    }
    assert!(reclaim(&world, &client, A).is_ok());
    world.pass(Duration::from_secs(1));
    assert_eq!(reclaim(&world, &client, B), Err(Status::NoGrace));
}

#[test]
fn rfc7530_9_6_3_4_a_second_restart_in_grace_loses_nothing() {
    let world = World::new();
    assert!(
        world
            .open(&world.v41("a").client(&world), "o", A, R, NONE)
            .is_ok()
    );
    let world = world.restarted().restarted();
    let client = world.v41_reclaiming("a").client(&world);
    assert!(reclaim(&world, &client, A).is_ok());
}

#[test]
fn rfc8881_8_4_2_1_reclaims_do_not_conflict() {
    let world = World::new();
    for name in ["a", "b"] {
        assert!(
            world
                .open(&world.v41(name).client(&world), "o", A, RW, NONE)
                .is_ok()
        );
    }
    let world = world.restarted();
    let [one, two] = ["a", "b"].map(|name| world.v41_reclaiming(name).client(&world));
    let denying = OpenArgs {
        reclaim: true,
        ..ask("o", A, RW, RW)
    };
    let opening = world.state.open(&one, denying).expect("may");
    assert!(opening.commit(Arc::new("file")).is_ok());
    assert_eq!(reclaim(&world, &two, A), Err(Status::ReclaimConflict));
}

#[test]
fn rfc7530_9_1_11_nobody_confirms_a_reclaim() {
    let world = World::new();
    super::owners::confirmed_open(&world, &world.v40("a"), "o", RW);
    let world = world.restarted();
    let client = world.v40("a");
    let request = super::owners::start_open(&world, &client, "o", 7);
    let asked = OpenArgs {
        reclaim: true,
        ..ask("o", A, RW, NONE)
    };
    let opening = world.state.open(&client, asked).expect("may");
    let opened = opening.commit(Arc::new("file")).expect("opened");
    assert!(!opened.confirm);
    drop(request);
    assert!(
        world
            .state
            .io(Some(&client), &opened.stateid, A, RW)
            .is_ok()
    );
}

#[test]
fn who_never_comes_back_keeps_others_waiting_for_a_lease_and_once() {
    let world = World::new();
    let gone = world.v41("gone").client(&world);
    assert!(world.open(&gone, "o", A, RW, RW).is_ok());
    let world = world.restarted();
    world.pass(LEASE - Duration::from_secs(1));
    world.state.reap();
    let client = world.v41("new").client(&world);
    assert_eq!(world.open(&client, "o", A, RW, NONE), Err(Status::Grace));
    world.pass(Duration::from_secs(1));
    world.state.reap();
    // Its state is free, and only clients that came since may reclaim.
    assert!(world.open(&client, "o", A, RW, NONE).is_ok());
    assert_eq!(
        *world.stable.list(),
        *std::slice::from_ref(&client.0.record)
    );
}

#[test]
fn xnfs_11_while_clients_of_v3_reclaim_nobody_gets_another_lock() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = world.open(&client, "o", A, RW, NONE).expect("opened");
    let lock = || {
        let locker = Locker::New {
            open: &open,
            owner: b"l",
            seqid: 0,
        };
        let kind = vfs::lock::LockKind::Exclusive;
        world.state.lock(&client, locker, A, kind, false).err()
    };
    world.state.extend_lock_grace(Duration::from_secs(10));
    world.state.extend_lock_grace(Duration::from_secs(1));
    world.pass(Duration::from_secs(9));
    assert_eq!(lock(), Some(Status::Grace));
    assert!(world.state.locks_in_grace() && !world.state.in_grace());
    assert!(world.open(&client, "o", B, RW, NONE).is_ok());
    world.pass(Duration::from_secs(1));
    assert_eq!(lock(), None);
}

#[test]
fn a_client_without_a_record_opens_files_only_if_no_other_server_may_take_over() {
    for (is_required, expected) in [(false, None), (true, Some(Status::Delay))] {
        let stable = Arc::new(Faulty::new(is_required));
        let world = World::boot(2, Limits::default(), stable);
        let client = world.v41("a").client(&world);
        assert_eq!(world.open(&client, "o", A, RW, RW).err(), expected);
        assert_eq!(world.state.is_held(A), !is_required);
    }
}

#[test]
fn rfc8881_8_4_2_1_grace_ends_when_those_that_did_not_return_have_no_record() {
    let stable = Arc::new(Faulty::new(true));
    let record = b"one that does not return";
    assert_eq!(stable.records.put(record), Ok(()));
    let world = World::boot(2, Limits::default(), stable.clone());
    let client = world.v41("a").client(&world);
    world.pass(LEASE);
    assert_eq!(world.open(&client, "o", A, R, NONE), Err(Status::Grace));
    stable.fails.store(false, Ordering::SeqCst);
    assert!(!world.state.in_grace());
    assert!(stable.list().is_empty());
    assert!(world.open(&client, "o", A, R, NONE).is_ok());
}
