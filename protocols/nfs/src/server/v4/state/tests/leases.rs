//! Expiry and courtesy.

use super::*;

#[test]
fn rfc8881_8_3_an_expired_client_keeps_what_nobody_wants() {
    let world = World::new();
    let peer = world.v41("a");
    let client = peer.client(&world);
    let open = world.open(&client, "o", A, R, W).expect("opened");
    let old = world.v40("b");
    let kept = super::owners::confirmed_open(&world, &old, "o", R);
    world.pass(LEASE * 3);
    world.state.reap();
    let request = peer.request(&world);
    assert_eq!(request.status_flags(), 0);
    assert!(world.state.io(Some(&request.client()), &open, A, R).is_ok());
    assert!(world.state.io(None, &kept, A, R).is_ok());
}

#[test]
fn rfc8881_8_4_3_an_expired_client_loses_all_to_whoever_wants_it() {
    let world = World::new();
    let (peer, other) = (world.v41("a"), world.v41("b"));
    let client = peer.client(&world);
    let open = world.open(&client, "o", A, RW, W).expect("opened");
    let locked = world.lock(&client, &open, "l", (0, 9)).expect("locked");
    world.pass(LEASE + Duration::from_secs(1));
    let wanting = other.client(&world);
    assert!(world.open(&wanting, "o", A, W, NONE).is_ok());
    assert_eq!(world.unlocked(), [(A.node, b"l".to_vec())]);
    let request = peer.request(&world);
    let (client, revoked) = (request.client(), status_flags::EXPIRED_ALL_STATE_REVOKED);
    assert_eq!(request.status_flags(), revoked);
    for stateid in [&open, &locked] {
        assert_eq!(world.state.test_stateid(&client, stateid), Status::Expired);
        assert_eq!(
            world.state.io(Some(&client), stateid, A, R).err(),
            Some(Status::Expired)
        );
    }
    assert_eq!(world.state.close(&client, &open, A), Err(Status::Expired));
    // It may not reclaim its lost state.
    assert_eq!(world.stable.list().len(), 1);
    assert!(world.open(&client, "o", B, R, NONE).is_ok());
    assert_eq!(world.stable.list().len(), 1);
    assert_eq!(world.state.free_stateid(&client, &open), Ok(()));
    assert_eq!(request.status_flags(), revoked);
    assert_eq!(world.state.free_stateid(&client, &locked), Ok(()));
    assert_eq!(request.status_flags(), 0);
    assert!(world.open(&client, "o", B, W, NONE).is_ok());
    assert_eq!(world.stable.list().len(), 2);
}

#[test]
fn rfc7530_9_6_an_expired_client_of_v40_is_forgotten_when_in_the_way() {
    let world = World::new();
    let client = world.v40("a");
    let open = super::owners::confirmed_open(&world, &client, "o", RW);
    assert!(world.lock(&client, &open, "l", (0, 9)).is_ok());
    let number = client.lock_owner(b"l").client;
    assert!(!world.state.revoke_expired_holder(number));
    world.pass(LEASE + Duration::from_secs(1));
    assert!(!world.state.revoke_expired_holder(number + 100));
    assert!(world.state.revoke_expired_holder(number));
    assert_eq!(world.unlocked(), [(A.node, b"l".to_vec())]);
    assert_eq!(world.state.renew(client.id()), Err(Status::Expired));
    assert_eq!(
        world.state.io(None, &open, A, R).err(),
        Some(Status::Expired)
    );
    assert_eq!(
        world.state.start_on_stateid(&open, 3).err(),
        Some(Status::Expired)
    );
    assert!(world.stable.list().is_empty());
    assert!(!world.state.revoke_expired_holder(number));
}

#[test]
fn a_client_whose_request_is_served_does_not_expire() {
    let world = World::new();
    let (peer, other) = (world.v41("a"), world.v41("b"));
    let request = peer.request(&world);
    assert!(world.open(&request.client(), "o", A, R, W).is_ok());
    world.pass(LEASE * 2);
    let wanting = other.client(&world);
    assert_eq!(
        world.open(&wanting, "o", A, W, NONE),
        Err(Status::ShareDenied)
    );
    peer.done(request);
    assert!(world.open(&wanting, "o", A, W, NONE).is_ok());
}

#[test]
fn anonymous_io_ends_courtesy() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    assert!(world.open(&client, "o", A, R, W).is_ok());
    world.pass(LEASE + Duration::from_secs(1));
    assert_eq!(world.state.anonymous(A, W), Ok(()));
}

#[test]
fn what_was_never_of_use_is_reaped() {
    let world = World::new();
    let limits = Limits::default();
    world
        .state
        .exchange_id(&exchange_id("unconfirmed", 1, "root"))
        .expect("new");
    world.v41("idle");
    let holder = world.v41("holder");
    assert!(world.open(&holder.client(&world), "o", A, R, NONE).is_ok());
    world.v40("idle");
    assert_eq!(world.state.clients.all().len(), 4);
    world.pass(LEASE + Duration::from_secs(1));
    world.state.reap();
    assert_eq!(world.state.clients.all().len(), 1);
    world.pass(LEASE * limits.courtesy);
    world.state.reap();
    assert!(world.state.clients.all().is_empty());
    let quotas = &world.state.quotas;
    let used = [
        &quotas.clients,
        &quotas.slots,
        &quotas.cached_bytes,
        &quotas.state_bytes,
    ];
    assert_eq!(used.map(|quota| quota.in_use()), [0; 4]);
    assert_eq!(world.state.shares.len(), 0);
    assert!(world.stable.list().is_empty());
    assert!(world.state.sessions.all().is_empty());
    assert!(world.state.connections.lock().is_empty());
}

#[test]
fn states_that_were_revoked_take_room_until_they_are_freed() {
    let world = World::new();
    let (holder, other) = (world.v41("a"), world.v41("b"));
    let client = holder.client(&world);
    let open = |owner: &str, deny| world.open(&client, owner, A, R, deny).expect("opened");
    let mut opened: Vec<_> = (0..99)
        .map(|owner| open(&owner.to_string(), NONE))
        .collect();
    opened.push(open("denies", W));
    world.pass(LEASE + Duration::from_secs(1));
    let held = || world.state.quotas.state_bytes.in_use();
    let before = held();
    assert!(world.open(&other.client(&world), "o", A, W, NONE).is_ok());
    let revoked = 100 * super::super::client_state::REVOKED_BYTES;
    let after = held();
    assert!((revoked..before).contains(&after), "{after} bytes");
    let client = holder.client(&world);
    for stateid in &opened {
        assert_eq!(world.state.free_stateid(&client, stateid), Ok(()));
    }
    assert_eq!(held(), after - revoked);
}
