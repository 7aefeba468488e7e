//! Sessions and what they are bound to.

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
    // Whoever confirmed it, others of the same client may make sessions.
    let eve = |sequence| CreateSession {
        principal: b"eve",
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
    // What failed does not count.
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
    let turn = peer.turn(&world);
    assert_eq!(world.state.sequence(again).err(), Some(Status::Delay));
    let reply: Arc<[u8]> = Arc::from(*b"the reply");
    turn.finish(Some(reply.clone()));
    match world.state.sequence(again) {
        Ok(Begun::Replay(replayed)) => assert!(Arc::ptr_eq(&replayed, &reply)),
        _ => panic!("no replay"),
    }
    let other = Sequence { digest: 1, ..again };
    assert_eq!(
        world.state.sequence(other).err(),
        Some(Status::SeqFalseRetry)
    );
    let none = Sequence {
        session: [0; 16],
        ..again
    };
    assert_eq!(world.state.sequence(none).err(), Some(Status::Badsession));
    let beyond = Sequence { slot: 8, ..again };
    assert_eq!(world.state.sequence(beyond).err(), Some(Status::Badslot));
}

#[test]
fn a_turn_dropped_has_not_been() {
    let world = World::new();
    let peer = world.v41("a");
    drop(peer.turn(&world));
    let turn = peer.turn(&world);
    assert_eq!((turn.highest_slot(), turn.target_highest_slot()), (7, 7));
    assert_eq!(turn.status_flags(), 0);
    peer.done(turn);
    peer.client(&world);
}

#[test]
fn rfc8881_18_37_a_session_is_destroyed_by_a_connection_of_its_own() {
    let world = World::new();
    let (peer, other) = (world.v41("a"), world.v41("b"));
    let state = &world.state;
    assert_eq!(
        state.destroy_session(&peer.session, 8, None),
        Err(Status::ConnNotBoundToSession)
    );
    let turn = peer.turn(&world);
    assert_eq!(
        state.destroy_session(&peer.session, 7, None),
        Err(Status::Delay)
    );
    let others = other.turn(&world);
    assert_eq!(
        state.destroy_session(&peer.session, 7, Some(&others)),
        Err(Status::Delay)
    );
    assert_eq!(state.destroy_session(&peer.session, 7, Some(&turn)), Ok(()));
    turn.finish(None);
    assert_eq!(
        state.destroy_session(&peer.session, 7, None),
        Err(Status::Badsession)
    );
    assert_eq!(
        state.sequence(peer.sequence()).err(),
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
    let one = world.state.sequence(by(1, 20));
    let two = world.state.sequence(by(2, 21));
    assert!(matches!((one, two), (Ok(Begun::New(_)), Ok(Begun::New(_)))));
    assert_eq!(world.state.sessions_of(20), [peer.session]);
    world.state.disconnected(20);
    assert!(world.state.sessions_of(20).is_empty());
    assert_eq!(world.state.sessions_of(21), [peer.session]);
    // A second session of the same client's.
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
        let begun = world.state.sequence(Sequence {
            connection,
            ..peer.sequence()
        });
        let Ok(Begun::New(turn)) = begun else {
            panic!("not served");
        };
        let flags = turn.status_flags();
        peer.done(turn);
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
    // Another session's will do for the client, but not for this session.
    let other = world.state.create_session(&CreateSession {
        sequence: known.sequence + 1,
        connection: 9,
        ..ask
    });
    assert!(other.is_ok());
    assert_eq!(flags(8), status_flags::CB_PATH_DOWN_SESSION);
    let bound = world
        .state
        .bind_connection(&peer.session, 8, Direction::Both);
    assert_eq!(bound, Ok((Direction::Both, peer.client)));
    assert_eq!(flags(8), 0);
    assert_eq!(newest(), Some(8));
    assert_eq!(
        world.state.bind_connection(&[0; 16], 8, Direction::Fore),
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
            .bind_connection(&peer.session, connection, direction)
    };
    assert!(bind(1, Direction::Back).is_ok());
    for connection in 10..20 {
        assert!(bind(connection, Direction::Fore).is_ok());
    }
    assert_eq!(lock(&world.state.connections).len(), 3);
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
