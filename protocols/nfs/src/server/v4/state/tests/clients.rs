//! Client names and IDs.

use super::*;

fn callback(ident: u32) -> CallbackClient {
    CallbackClient {
        ident,
        ..CallbackClient::default()
    }
}

#[test]
fn rfc7530_16_33_5_case_1_a_callback_is_changed() {
    let world = World::new();
    let client = world.v40("a");
    let asked = SetClientId {
        callback: callback(5),
        ..set_client_id("a", 1, "root")
    };
    let (id, confirm) = world.state.set_client_id(asked).expect("the same");
    assert_eq!(id, client.id());
    assert_eq!(world.state.callback(&client), Some(callback(0)));
    assert_eq!(
        world.state.set_client_id_confirm(id, confirm, b"root"),
        Ok(())
    );
    assert_eq!(world.state.callback(&client), Some(callback(5)));
    // A retransmission.
    assert_eq!(
        world.state.set_client_id_confirm(id, confirm, b"root"),
        Ok(())
    );
    assert_eq!(
        world.state.set_client_id_confirm(id, [0; 8], b"root"),
        Err(Status::StaleClientid)
    );
}

#[test]
fn rfc7530_16_33_5_case_2_and_3_a_restarted_client_loses_what_it_had() {
    let world = World::new();
    let client = world.v40("a");
    let request = super::owners::start_open(&world, &client, "o", 1);
    let opened = world.open(&client, "o", A, R, W);
    assert!(opened.is_ok());
    drop(request);
    let first = world
        .state
        .set_client_id(set_client_id("a", 2, "root"))
        .expect("new");
    let (id, confirm) = world
        .state
        .set_client_id(set_client_id("a", 2, "root"))
        .expect("new");
    assert!(id != client.id() && id != first.0);
    // It keeps its state until the new client is confirmed.
    assert!(world.state.client(client.id()).is_ok());
    assert_eq!(
        world.state.set_client_id_confirm(first.0, first.1, b"root"),
        Err(Status::StaleClientid)
    );
    assert_eq!(
        world.state.set_client_id_confirm(id, confirm, b"root"),
        Ok(())
    );
    assert_eq!(world.state.client(client.id()).err(), Some(Status::Expired));
    assert_eq!(
        world.gone.lock().pop().map(|gone| gone.files.len()),
        Some(1)
    );
    assert_eq!(world.state.shares.len(), 0);
}

#[test]
fn rfc7530_16_33_5_another_principal_is_refused_if_there_is_state() {
    let world = World::new();
    let client = world.v40("a");
    // Without state, the name is free: case 3 of RFC 7530 with another principal.
    assert!(
        world
            .state
            .set_client_id(set_client_id("a", 1, "eve"))
            .is_ok()
    );
    let request = super::owners::start_open(&world, &client, "o", 1);
    assert!(world.open(&client, "o", A, R, NONE).is_ok());
    drop(request);
    assert_eq!(
        world.state.set_client_id(set_client_id("a", 1, "eve")),
        Err(SetClientIdError::InUse(callback(0)))
    );
}

#[test]
fn rfc7530_16_34_5_only_the_principal_confirms() {
    let world = World::new();
    let (id, confirm) = world
        .state
        .set_client_id(set_client_id("a", 1, "root"))
        .expect("new");
    assert_eq!(world.state.client(id).err(), Some(Status::StaleClientid));
    assert_eq!(
        world.state.set_client_id_confirm(id, confirm, b"eve"),
        Err(Status::ClidInuse)
    );
    assert_eq!(
        world.state.set_client_id_confirm(id + 1, confirm, b"root"),
        Err(Status::StaleClientid)
    );
    assert_eq!(
        world.state.set_client_id_confirm(id, confirm, b"root"),
        Ok(())
    );
}

#[test]
fn rfc7530_16_29_renew() {
    let world = World::new();
    let client = world.v40("a");
    assert_eq!(world.state.renew(client.id()), Ok(()));
    assert_eq!(world.state.renew(0), Err(Status::StaleClientid));
    assert_eq!(
        world.state.renew(client.id() + 1),
        Err(Status::StaleClientid)
    );
    assert_eq!(
        world.state.renew(world.v41("b").client),
        Err(Status::StaleClientid)
    );
    let id = client.id();
    assert_eq!(
        world.restarted().state.renew(id),
        Err(Status::StaleClientid)
    );
}

#[test]
fn rfc8881_18_35_4_case_1_2_and_4() {
    let world = World::new();
    let first = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("case 1");
    assert!(!first.confirmed);
    let again = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("case 4");
    assert!(!again.confirmed && again.client != first.client);
    assert_eq!(
        world.state.create_session(&create_session(first, 1)),
        Err(Status::StaleClientid)
    );
    assert!(
        world
            .state
            .create_session(&create_session(again, 1))
            .is_ok()
    );
    let known = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("case 2");
    assert!(known.confirmed && known.client == again.client);
    assert_eq!(known.sequence, again.sequence + 1);
}

#[test]
fn rfc8881_18_35_4_case_3_another_principal() {
    let world = World::new();
    let peer = world.v41("a");
    let client = peer.client(&world);
    let opened = world.open(&client, "o", A, R, NONE).expect("opened");
    let eve = exchange_id("a", 1, "eve");
    assert_eq!(world.state.exchange_id(&eve), Err(Status::ClidInuse));
    assert!(world.state.close(&client, &opened, A).is_ok());
    let other = world
        .state
        .exchange_id(&eve)
        .expect("there is nothing to lose");
    assert!(other.client != peer.client);
    assert_eq!(
        world.state.sequence(peer.sequence(), &ROOT).err(),
        Some(Status::Badsession)
    );
}

#[test]
fn rfc8881_18_35_4_case_5_a_restarted_client_loses_what_it_had() {
    let world = World::new();
    let peer = world.v41("a");
    assert!(world.open(&peer.client(&world), "o", A, R, W).is_ok());
    let known = world
        .state
        .exchange_id(&exchange_id("a", 2, "root"))
        .expect("case 5");
    assert!(!known.confirmed);
    let client = peer.client(&world);
    assert!(world.open(&client, "o", A, R, W).is_ok());
    assert!(
        world
            .state
            .create_session(&create_session(known, 1))
            .is_ok()
    );
    assert_eq!(
        world.state.sequence(peer.sequence(), &ROOT).err(),
        Some(Status::Badsession)
    );
    assert_eq!(world.open(&client, "o", A, R, W), Err(Status::Expired));
    assert_eq!(world.state.shares.len(), 0);
}

#[test]
fn rfc8881_18_35_4_case_6_to_9_updates() {
    let world = World::new();
    let update = |verifier, principal| ExchangeId {
        update: true,
        ..exchange_id("a", verifier, principal)
    };
    assert_eq!(
        world.state.exchange_id(&update(1, "root")),
        Err(Status::Noent)
    );
    let peer = world.v41("a");
    let known = world.state.exchange_id(&update(1, "root")).expect("case 6");
    assert!(known.confirmed && known.client == peer.client);
    assert_eq!(
        world.state.exchange_id(&update(2, "root")),
        Err(Status::NotSame)
    );
    assert_eq!(
        world.state.exchange_id(&update(1, "eve")),
        Err(Status::Perm)
    );
}

#[test]
fn rfc8881_18_50_a_client_id_is_destroyed_when_nothing_is_left() {
    let world = World::new();
    let peer = world.v41("a");
    assert_eq!(
        world.state.destroy_client_id(peer.client, &ROOT),
        Err(Status::ClientidBusy)
    );
    assert_eq!(
        world.state.destroy_session(&peer.session, (7, &ROOT), None),
        Ok(())
    );
    assert_eq!(world.state.destroy_client_id(peer.client, &ROOT), Ok(()));
    assert_eq!(
        world.state.destroy_client_id(peer.client, &ROOT),
        Err(Status::StaleClientid)
    );
    assert_eq!(
        world.state.destroy_client_id(world.v40("a").id(), &ROOT),
        Err(Status::StaleClientid)
    );
}

#[test]
fn clients_are_bounded_and_make_room_for_others_when_they_may() {
    let world = World::with(Limits {
        clients: 2,
        ..Limits::default()
    });
    let first = world.v41("a");
    assert!(world.open(&first.client(&world), "o", A, R, NONE).is_ok());
    let unconfirmed = world
        .state
        .exchange_id(&exchange_id("b", 1, "root"))
        .expect("room");
    let third = world.v41("c");
    assert_eq!(
        world.state.create_session(&create_session(unconfirmed, 1)),
        Err(Status::StaleClientid)
    );
    assert_eq!(
        world.state.exchange_id(&exchange_id("d", 1, "root")),
        Err(Status::Delay)
    );
    assert_eq!(
        world.state.set_client_id(set_client_id("d", 1, "root")),
        Err(SetClientIdError::Status(Status::Resource))
    );
    world.pass(LEASE / 2);
    third.client(&world);
    world.pass(LEASE);
    third.client(&world);
    world.v41("d");
    third.client(&world);
    assert_eq!(
        world.state.sequence(first.sequence(), &ROOT).err(),
        Some(Status::Badsession)
    );
}

#[test]
fn rfc8881_8_2_5_nothing_leaks_between_clients() {
    let world = World::new();
    let (one, two) = (world.v41("a"), world.v41("b"));
    let (one, two) = (one.client(&world), two.client(&world));
    let opened = world.open(&one, "o", A, RW, NONE).expect("opened");
    let locked = world.lock(&one, &opened, "l", (0, 9)).expect("locked");
    let bad = Status::BadStateid;
    for stateid in [&opened, &locked] {
        assert_eq!(world.state.io(Some(&two), stateid, A, R).err(), Some(bad));
        assert_eq!(world.state.io(None, stateid, A, R).err(), Some(bad));
        assert_eq!(world.state.close(&two, stateid, A), Err(bad));
        assert_eq!(world.state.test_stateid(&two, stateid), bad);
        assert_eq!(world.state.free_stateid(&two, stateid), Err(bad));
        assert_eq!(world.state.unlock(&two, stateid, A).err(), Some(bad));
        assert_eq!(world.state.start_on_stateid(stateid, 1).err(), Some(bad));
    }
    assert_eq!(world.lock(&two, &opened, "l", (0, 9)), Err(bad));
    assert!(one.lock_owner(b"l") != two.lock_owner(b"l"));
    assert_eq!(
        world.state.client_of_lock(two.lock_owner(b"l").client),
        Some(two.id())
    );
}

/// Returns the superuser of the host with this number.
fn of_host(number: u8) -> Requester<'static> {
    Requester {
        peer: host(number),
        ..ROOT
    }
}

#[test]
fn clients_that_a_peer_never_confirms_keep_no_other_out() {
    let world = World::new();
    let exchange = |name: &str, by| {
        let ask = ExchangeId {
            by,
            ..exchange_id(name, 1, "root")
        };
        world.state.exchange_id(&ask)
    };
    let pending = exchange("pending", of_host(1)).expect("room");
    for number in 0..3_000 {
        let known = exchange(&number.to_string(), of_host(2));
        assert!(known.is_ok(), "those before make room: {known:?}");
    }
    let limits = Limits::default();
    assert!(world.state.clients.all().len() <= 1 + limits.clients_of_a_peer);
    let created = CreateSession {
        by: of_host(1),
        ..create_session(pending, 1)
    };
    assert!(world.state.create_session(&created).is_ok());
}

#[test]
fn clients_of_a_peer_are_bounded_and_so_is_what_they_hold() {
    let world = World::with(Limits {
        clients_of_a_peer: 2,
        state_bytes_of_a_peer: 40_000,
        ..Limits::default()
    });
    let client = |name: &str, by| {
        let ask = ExchangeId {
            by,
            ..exchange_id(name, 1, "root")
        };
        let known = world.state.exchange_id(&ask)?;
        let created = CreateSession {
            by,
            ..create_session(known, 7)
        };
        let session = world.state.create_session(&created)?.session;
        let peer = Peer {
            client: known.client,
            session,
            seqid: AtomicU64::new(0),
        };
        let client = peer.client(&world);
        let _ = world.state.reclaim_complete(&client);
        Ok::<_, Status>(client)
    };
    let greedy = client("a", of_host(1)).expect("room");
    assert!(client("b", of_host(1)).is_ok());
    assert_eq!(client("c", of_host(1)).err(), Some(Status::Delay));
    let other = client("c", of_host(2)).expect("room for others");
    let opens = |client, owner: &str, most: u64| {
        let opened = (0..most).map(|node| {
            let key = NodeKey { export: 0, node };
            world.open(client, &format!("{owner}{node}"), key, R, NONE)
        });
        opened.take_while(Result::is_ok).count() as u64
    };
    let opened = opens(&greedy, "o", 1000);
    assert!((5..30).contains(&opened), "{opened}");
    assert_eq!(opens(&other, "o", 5), 5);
    let (_, held) = world.state.held_bytes();
    assert!(held < 2 * 40_000, "{held}");
}

#[test]
fn clients_that_hold_nothing_make_room_for_others_of_their_peer() {
    let world = World::with(Limits {
        clients_of_a_peer: 3,
        ..Limits::default()
    });
    let busy = world.v40("busy");
    assert!(world.open(&busy, "o", A, R, NONE).is_ok());
    let session = world.v41("session");
    for number in 0..10 {
        world.v40(&number.to_string());
    }
    assert!(world.state.client(busy.id()).is_ok());
    session.client(&world);
}

#[test]
fn a_peer_may_have_two_thousand_clients_that_all_hold_a_file_open() {
    let world = World::with(Limits::default());
    for number in 0..2048 {
        let client = world.v40(&number.to_string());
        assert!(world.open(&client, "o", A, R, NONE).is_ok(), "{number}");
    }
}
