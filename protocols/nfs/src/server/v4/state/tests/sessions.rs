//! Sessions and their connections.

use super::*;

#[test]
fn rfc8881_18_36_create_session_is_numbered() {
    let world = World::new();
    let known = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("new");
    let ask = |sequence| CreateSession {
        sequence,
        ..create_session(known, 1)
    };
    let wrong = known.sequence.wrapping_add(1);
    assert_eq!(
        world.state.create_session(&ask(wrong)),
        Err(Status::SeqMisordered)
    );
    let created = world
        .state
        .create_session(&ask(known.sequence))
        .expect("created");
    assert_eq!(
        world.state.create_session(&ask(known.sequence)),
        Ok(created)
    );
    let second = world
        .state
        .create_session(&ask(known.sequence + 1))
        .expect("created");
    assert_ne!(second.session, created.session);
    assert_eq!(
        world.state.create_session(&ask(known.sequence)),
        Err(Status::SeqMisordered)
    );
    // Other users of a confirmed client may also create sessions.
    let eve = |sequence| CreateSession {
        by: by("eve"),
        ..ask(sequence)
    };
    assert!(world.state.create_session(&eve(known.sequence + 2)).is_ok());
    let unconfirmed = world
        .state
        .exchange_id(&exchange_id("b", 1, "root"))
        .expect("new");
    let eve = CreateSession {
        client: unconfirmed.client,
        ..eve(unconfirmed.sequence)
    };
    for _ in 0..2 {
        assert_eq!(world.state.create_session(&eve), Err(Status::ClidInuse));
    }
    world.pass(LEASE + Duration::from_secs(1));
    let late = create_session(unconfirmed, 1);
    assert_eq!(
        world.state.create_session(&late),
        Err(Status::StaleClientid)
    );
}

#[test]
fn rfc8881_18_36_3_a_session_is_never_more_than_was_asked() {
    let world = World::new();
    let known = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("new");
    let ask = create_session(known, 1);
    let asked = ask.fore;
    let created = world.state.create_session(&ask).expect("created");
    assert_eq!(created.fore, asked);
    let fore = |change: fn(&mut Channel), sequence| {
        let mut ask = CreateSession {
            sequence,
            ..create_session(known, 1)
        };
        change(&mut ask.fore);
        world.state.create_session(&ask).map(|created| created.fore)
    };
    let next = known.sequence + 1;
    let no_slots = fore(|fore| fore.max_requests = 0, next);
    assert_eq!(no_slots, Err(Status::Inval));
    // A failed request does not consume the sequence number.
    let small = fore(|fore| fore.max_response = 100, next);
    assert_eq!(small, Err(Status::Toosmall));
    let mut small = CreateSession {
        sequence: next,
        ..create_session(known, 1)
    };
    small.back.max_operations = 1;
    assert_eq!(world.state.create_session(&small), Err(Status::Toosmall));
    let huge = fore(
        |fore| {
            *fore = Channel {
                max_request: u32::MAX,
                max_response: u32::MAX,
                max_cached: u32::MAX,
                max_operations: u32::MAX,
                max_requests: u32::MAX,
            }
        },
        next,
    );
    let (huge, limits) = (huge.expect("less"), Limits::default());
    assert_eq!(huge.max_requests, limits.slots);
    assert_eq!(huge.max_cached, limits.max_cached);
}

#[test]
fn sessions_of_a_client_are_bounded() {
    let world = World::with(Limits {
        sessions: 2,
        ..Limits::default()
    });
    let known = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("new");
    let create = |more| {
        let sequence = known.sequence + more;
        let ask = CreateSession {
            sequence,
            ..create_session(known, 1)
        };
        world.state.create_session(&ask).map(|_| ())
    };
    assert_eq!(
        [create(0), create(1), create(2)],
        [Ok(()), Ok(()), Err(Status::Nospc)]
    );
}

#[test]
fn rfc8881_2_10_6_1_3_a_replay_is_the_same_reply() {
    let world = World::new();
    let peer = world.v41("a");
    let again = peer.sequence();
    let request = peer.request(&world);
    assert_eq!(
        world.state.sequence(again, &ROOT).err(),
        Some(Status::Delay)
    );
    let reply: Arc<[u8]> = Arc::from(*b"the reply");
    request.finish(Some(reply.clone()));
    match world.state.sequence(again, &ROOT) {
        Ok(Started::Replay(replayed)) => assert!(Arc::ptr_eq(&replayed, &reply)),
        _ => panic!("no replay"),
    }
    let other = Sequence { digest: 1, ..again };
    assert_eq!(
        world.state.sequence(other, &ROOT).err(),
        Some(Status::SeqFalseRetry)
    );
    let none = Sequence {
        session: [0; 16],
        ..again
    };
    assert_eq!(
        world.state.sequence(none, &ROOT).err(),
        Some(Status::Badsession)
    );
    let beyond = Sequence { slot: 8, ..again };
    assert_eq!(
        world.state.sequence(beyond, &ROOT).err(),
        Some(Status::Badslot)
    );
}

#[test]
fn a_turn_dropped_has_not_been() {
    let world = World::new();
    let peer = world.v41("a");
    drop(peer.request(&world));
    let request = peer.request(&world);
    assert_eq!(
        (request.highest_slot(), request.target_highest_slot()),
        (7, 7)
    );
    assert_eq!(request.status_flags(), 0);
    peer.done(request);
    peer.client(&world);
}

#[test]
fn rfc8881_18_37_a_session_is_destroyed_by_a_connection_of_its_own() {
    let world = World::new();
    let (peer, other) = (world.v41("a"), world.v41("b"));
    let state = &world.state;
    assert_eq!(
        state.destroy_session(&peer.session, (8, &ROOT), None),
        Err(Status::ConnNotBoundToSession)
    );
    let request = peer.request(&world);
    assert_eq!(
        state.destroy_session(&peer.session, (7, &ROOT), None),
        Err(Status::Delay)
    );
    let others = other.request(&world);
    assert_eq!(
        state.destroy_session(&peer.session, (7, &ROOT), Some(&others)),
        Err(Status::Delay)
    );
    assert_eq!(
        state.destroy_session(&peer.session, (7, &ROOT), Some(&request)),
        Ok(())
    );
    request.finish(None);
    assert_eq!(
        state.destroy_session(&peer.session, (7, &ROOT), None),
        Err(Status::Badsession)
    );
    assert_eq!(
        state.sequence(peer.sequence(), &ROOT).err(),
        Some(Status::Badsession)
    );
    assert_eq!(state.sessions_of(7), [other.session]);
}

#[test]
fn rfc8881_2_10_5_trunking_several_connections_carry_a_session() {
    let world = World::new();
    let peer = world.v41("a");
    let by = |slot, connection| Sequence {
        slot,
        seqid: 1,
        highest_slot: slot,
        connection,
        ..peer.sequence()
    };
    let one = world.state.sequence(by(1, 20), &ROOT);
    let two = world.state.sequence(by(2, 21), &ROOT);
    assert!(matches!(
        (one, two),
        (Ok(Started::New(_)), Ok(Started::New(_)))
    ));
    assert_eq!(world.state.sessions_of(20), [peer.session]);
    world.state.disconnected(20);
    assert!(world.state.sessions_of(20).is_empty());
    assert_eq!(world.state.sessions_of(21), [peer.session]);
    // A second session of the same client.
    let known = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("known");
    let second = world
        .state
        .create_session(&create_session(known, 21))
        .expect("created");
    assert_eq!(world.state.sessions_of(21), [peer.session, second.session]);
}

#[test]
fn rfc8881_18_34_and_18_46_3_a_backchannel_that_is_missed() {
    let world = World::new();
    let known = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("new");
    let ask = CreateSession {
        backchannel: true,
        ..create_session(known, 7)
    };
    let created = world.state.create_session(&ask).expect("created");
    assert!(created.backchannel);
    let peer = Peer {
        client: known.client,
        session: created.session,
        seqid: AtomicU64::new(0),
    };
    let flags = |connection| {
        let started = world.state.sequence(
            Sequence {
                connection,
                ..peer.sequence()
            },
            &ROOT,
        );
        let Ok(Started::New(request)) = started else {
            panic!("not served");
        };
        let flags = request.status_flags();
        peer.done(request);
        flags
    };
    assert_eq!(flags(7), 0);
    let newest = || {
        let session = world.state.sessions.get(&peer.session);
        session.expect("it lives").newest_back()
    };
    assert_eq!(newest(), Some(7));
    world.state.disconnected(7);
    let down = status_flags::CB_PATH_DOWN | status_flags::CB_PATH_DOWN_SESSION;
    assert_eq!(flags(8), down);
    // Another session's backchannel suffices for the client, but not for this session.
    let other = world.state.create_session(&CreateSession {
        sequence: known.sequence + 1,
        connection: 9,
        ..ask
    });
    assert!(other.is_ok());
    assert_eq!(flags(8), status_flags::CB_PATH_DOWN_SESSION);
    let bound = world
        .state
        .bind_connection(&peer.session, (8, &ROOT), Direction::Both);
    assert_eq!(bound, Ok((Direction::Both, peer.client)));
    assert_eq!(flags(8), 0);
    assert_eq!(newest(), Some(8));
    assert_eq!(
        world
            .state
            .bind_connection(&[0; 16], (8, &ROOT), Direction::Fore),
        Err(Status::Badsession)
    );
}

#[test]
fn connections_of_a_session_are_bounded_and_backchannels_stay() {
    let world = World::with(Limits {
        connections: 3,
        ..Limits::default()
    });
    let peer = world.v41("a");
    let bind = |connection, direction| {
        world
            .state
            .bind_connection(&peer.session, (connection, &ROOT), direction)
    };
    assert!(bind(1, Direction::Back).is_ok());
    for connection in 10..20 {
        assert!(bind(connection, Direction::Fore).is_ok());
    }
    assert_eq!(world.state.connections.lock().len(), 3);
    let backs = || {
        let client = world.state.clients.get(&peer.client).expect("known");
        client.backchannels.load(Ordering::SeqCst)
    };
    assert_eq!(backs(), 1);
    for connection in 20..30 {
        assert!(bind(connection, Direction::Both).is_ok());
    }
    assert_eq!(backs(), 3);
}

/// Returns `principal` at another address.
fn from_elsewhere(principal: &str) -> Requester<'_> {
    Requester {
        peer: host(9),
        ..by(principal)
    }
}

#[test]
fn rfc8881_2_10_8_3_a_session_is_not_to_be_had_from_elsewhere() {
    let world = World::new();
    let peer = world.v41("a");
    let state = &world.state;
    let thief = from_elsewhere("root");
    let by_another = |connection| Sequence {
        connection,
        ..peer.sequence()
    };
    let none = Some(Status::Badsession);
    assert_eq!(state.sequence(by_another(20), &thief).err(), none);
    let bound = state.bind_connection(&peer.session, (20, &thief), Direction::Both);
    assert_eq!(bound.err(), none);
    let destroyed = state.destroy_session(&peer.session, (20, &thief), None);
    assert_eq!(destroyed.err(), none);
    let more = CreateSession {
        by: thief,
        sequence: 2,
        ..create_session(known(&world, &peer), 20)
    };
    assert_eq!(state.create_session(&more), Err(Status::StaleClientid));
    assert_eq!(
        state.destroy_client_id(peer.client, &thief),
        Err(Status::StaleClientid)
    );
    assert!(state.sessions_of(20).is_empty());
    peer.client(&world);
    // Several connections from the client's address, of any user (nconnect).
    let user = by("user");
    for connection in 30..34 {
        let request = state.sequence(by_another(connection), &user);
        let Ok(Started::New(request)) = request else {
            panic!("not served");
        };
        peer.done(request);
    }
}

/// Repeats EXCHANGE_ID and returns its result.
fn known(world: &World, peer: &Peer) -> ExchangedId {
    let known = world.state.exchange_id(&exchange_id("a", 1, "root"));
    let known = known.expect("known");
    assert_eq!((known.client, known.confirmed), (peer.client, true));
    known
}

#[test]
fn rfc8881_2_10_5_trunking_a_client_that_says_the_same_from_elsewhere_is_itself() {
    let world = World::new();
    let peer = world.v41("a");
    let state = &world.state;
    let elsewhere = from_elsewhere("root");
    let request = Sequence {
        connection: 20,
        ..peer.sequence()
    };
    assert!(state.sequence(request, &elsewhere).is_err());
    let again = ExchangeId {
        by: elsewhere,
        ..exchange_id("a", 1, "root")
    };
    let known = state.exchange_id(&again).expect("known");
    assert_eq!((known.client, known.confirmed), (peer.client, true));
    assert!(state.sequence(request, &elsewhere).is_ok());
    // An authenticated principal may use any address.
    let proved = Requester {
        peer: host(10),
        authenticated: true,
        ..ROOT
    };
    let bound = state.bind_connection(&peer.session, (21, &proved), Direction::Both);
    assert!(bound.is_ok());
}

#[test]
fn a_host_of_the_same_name_is_another_client() {
    let world = World::new();
    let peer = world.v41("a");
    assert!(world.open(&peer.client(&world), "o", A, R, NONE).is_ok());
    let other = ExchangeId {
        by: from_elsewhere("root"),
        ..exchange_id("a", 2, "root")
    };
    for _ in 0..2 {
        let known = world.state.exchange_id(&other).expect("another");
        assert_ne!(known.client, peer.client);
        let created = CreateSession {
            by: other.by,
            ..create_session(known, 20)
        };
        assert!(world.state.create_session(&created).is_ok());
    }
    // The first client has lost nothing.
    assert!(world.open(&peer.client(&world), "o", B, R, NONE).is_ok());
    let set = |verifier, by| SetClientId {
        by,
        ..set_client_id("old", verifier, "root")
    };
    let old = world.v40("old");
    let (id, confirm) = world
        .state
        .set_client_id(set(2, from_elsewhere("root")))
        .expect("another");
    assert_ne!(id, old.id());
    let confirmed = world.state.set_client_id_confirm(id, confirm, b"root");
    assert_eq!(confirmed, Ok(()));
    assert!(world.state.client(old.id()).is_ok());
    assert!(!world.state.is_client(old.id(), &from_elsewhere("root")));
}

#[test]
fn session_ids_do_not_follow_from_one_another() {
    let world = World::new();
    let ids: Vec<SessionId> = (0..64).map(|n| world.v41(&n.to_string()).session).collect();
    for pair in ids.windows(2) {
        let differ = |(a, b): (&u8, &u8)| (a ^ b).count_ones();
        let differ: u32 = pair[0].iter().zip(&pair[1]).map(differ).sum();
        // About 64 of 128 bits.
        assert!((20..108).contains(&differ), "{pair:?}");
    }
}

/// Creates a client of `peer` with a session of as many slots as Linux asks for, over a connection
/// of its own. Returns the number of slots.
fn mount(world: &World, number: u64, peer: &Account) -> Result<u32, Status> {
    let by = Requester { peer, ..ROOT };
    let owner = format!("mount {number}");
    let known = world.state.exchange_id(&ExchangeId {
        by,
        ..exchange_id(&owner, 1, "root")
    })?;
    let mut ask = CreateSession {
        by,
        ..create_session(known, number)
    };
    ask.fore.max_requests = 64;
    let created = world.state.create_session(&ask)?;
    Ok(created.fore.max_requests)
}

#[test]
fn rfc8881_18_36_3_a_thousand_mounts_from_one_address_have_a_session_each() {
    let world = World::new();
    let slots: Vec<_> = (0..1000)
        .map(|number| mount(&world, number, host(1)).expect("a session"))
        .collect();
    assert_eq!((slots[0], slots[191]), (64, 64));
    assert!(slots[399] >= 4, "{}", slots[399]);
    assert!(slots.iter().all(|&slots| slots >= 1));
    assert_eq!(mount(&world, 1000, host(2)), Ok(64));
}

#[test]
fn sessions_whose_connections_have_gone_leave_their_slots_to_others() {
    let world = World::new();
    for number in 0..2048 {
        mount(&world, number, host(1)).expect("a session");
    }
    // The table of the peer's clients is full, and all of them are connected.
    assert_eq!(mount(&world, 3000, host(1)), Err(Status::Delay));
    for number in 0..1900 {
        world.state.disconnected(number);
    }
    world.pass(Duration::from_secs(5));
    // They might connect again at once.
    assert_eq!(mount(&world, 3000, host(1)), Err(Status::Delay));
    world.pass(Duration::from_secs(5));
    for number in 3000..3100 {
        assert_eq!(mount(&world, number, host(1)), Ok(64));
    }
}

#[test]
fn clients_with_state_or_connections_are_not_removed_for_a_new_one() {
    let world = World::with(Limits {
        clients_of_a_peer: 4,
        ..Limits::default()
    });
    let (opener, connected) = (world.v41("opener"), world.v41("connected"));
    let open = world.open(&opener.client(&world), "o", A, R, NONE);
    open.expect("opened");
    let idle = world.v41("idle");
    world.state.disconnected(7);
    world.pass(Duration::from_secs(10));
    connected.client(&world);
    // Two more, of which the second one replaces the idle one.
    let by = ROOT.peer;
    assert!(mount(&world, 100, by).is_ok());
    assert!(mount(&world, 101, by).is_ok());
    let gone = world.state.sequence(idle.sequence(), &ROOT);
    assert_eq!(gone.err(), Some(Status::Badsession));
    opener.client(&world);
    connected.client(&world);
}

#[test]
fn a_client_that_lost_its_connections_creates_sessions_instead_of_the_old_ones() {
    let world = World::with(Limits {
        sessions: 2,
        ..Limits::default()
    });
    let known = world
        .state
        .exchange_id(&exchange_id("a", 1, "root"))
        .expect("new");
    for more in 0..10 {
        let ask = CreateSession {
            sequence: known.sequence + more,
            ..create_session(known, u64::from(more))
        };
        assert!(world.state.create_session(&ask).is_ok(), "{more}");
        world.state.disconnected(u64::from(more));
    }
}
