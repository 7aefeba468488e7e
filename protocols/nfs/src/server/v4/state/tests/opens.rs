//! Opens and share reservations.

use super::*;

#[test]
fn rfc8881_9_7_share_reservations() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let other = world.v41("b").client(&world);
    let combinations = || {
        let shares = [NONE, R, W, RW];
        [R, W, RW]
            .into_iter()
            .flat_map(move |access| shares.map(|deny| (access, deny)))
    };
    for (access, deny) in combinations() {
        for (second, denied) in combinations() {
            let opened = world.open(&client, "o", A, access, deny).expect("first");
            let conflicts = access.intersects(denied) || second.intersects(deny);
            for (who, owner) in [(&other, "o"), (&client, "p")] {
                let tried = world.open(who, owner, A, second, denied);
                match tried {
                    Ok(tried) => {
                        assert!(!conflicts);
                        assert!(world.state.close(who, &tried, A).is_ok());
                    }
                    Err(status) => assert!(conflicts && status == Status::ShareDenied),
                }
            }
            let elsewhere = world.open(&other, "o", B, second, denied).expect("other");
            assert!(world.state.close(&other, &elsewhere, B).is_ok());
            assert!(world.state.close(&client, &opened, A).is_ok());
        }
    }
    assert_eq!(world.state.shares.len(), 0);
    assert_eq!(world.open(&client, "o", A, NONE, NONE), Err(Status::Inval));
}

#[test]
fn rfc8881_18_16_an_open_of_the_same_owner_is_an_upgrade() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let other = world.v41("b").client(&world);
    let open = |access, deny, file| {
        let opening = world
            .state
            .open(&client, ask("o", A, access, deny))
            .expect("may");
        let held = opening.held().cloned();
        let opened = opening.commit(held.clone().unwrap_or(Arc::new(file)));
        (opened.expect("opened").stateid, held.is_some())
    };
    let (first, _) = open(R, NONE, "reader");
    assert_eq!(first.seqid, 1);
    let (second, held) = open(W, NONE, "writer");
    assert!(!held);
    assert_eq!((second.seqid, second.other), (2, first.other));
    assert!(open(R, NONE, "none").1);
    let file = |access| {
        world
            .state
            .io(Some(&client), &StateId { seqid: 0, ..first }, A, access)
    };
    assert_eq!(file(R).map(|file| *file), Ok("reader"));
    assert_eq!(file(W).map(|file| *file), Ok("writer"));
    assert_eq!(world.open(&other, "o", A, R, W), Err(Status::ShareDenied));
    // RFC 8881 section 8.2.2.
    assert_eq!(
        world.state.io(Some(&client), &first, A, R).err(),
        Some(Status::OldStateid)
    );
    let ahead = StateId { seqid: 9, ..first };
    assert_eq!(
        world.state.io(Some(&client), &ahead, A, R).err(),
        Some(Status::BadStateid)
    );
    assert_eq!(
        world
            .state
            .io(Some(&client), &StateId { seqid: 0, ..first }, B, R)
            .err(),
        Some(Status::BadStateid)
    );
}

#[test]
fn rfc8881_18_18_a_downgrade_is_to_what_was_opened() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = |access, deny| world.open(&client, "o", A, access, deny).expect("opened");
    open(R, NONE);
    let now = open(RW, NONE);
    let downgrade = |access, deny| {
        let stateid = StateId { seqid: 0, ..now };
        world
            .state
            .open_downgrade(&client, &stateid, A, access, deny)
    };
    let refused = Err(Status::Inval);
    assert_eq!(downgrade(R, W), refused);
    assert_eq!(downgrade(W, NONE), refused);
    assert_eq!(downgrade(NONE, NONE), refused);
    assert_eq!(downgrade(RW, W), refused);
    assert_eq!(downgrade(RW, NONE).map(|stateid| stateid.seqid), Ok(3));
    assert!(world.open(&client, "p", A, W, NONE).is_ok());
    assert!(downgrade(R, NONE).is_ok());
    // The open had that combination before, but not since the downgrade.
    assert_eq!(downgrade(RW, NONE), refused);
    let stateid = StateId { seqid: 0, ..now };
    assert_eq!(
        world.state.io(Some(&client), &stateid, A, W).err(),
        Some(Status::Openmode)
    );
    assert!(world.state.io(Some(&client), &stateid, A, R).is_ok());
    let closed: usize = world.gone.lock().iter().map(|gone| gone.files.len()).sum();
    assert_eq!(closed, 1, "the one for both");
}

#[test]
fn rfc8881_18_18_a_downgrade_denies_less() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = |access, deny| world.open(&client, "o", A, access, deny).expect("opened");
    open(W, NONE);
    let now = open(W, R);
    let downgrade = |deny| {
        let stateid = StateId { seqid: 0, ..now };
        world.state.open_downgrade(&client, &stateid, A, W, deny)
    };
    let read = || world.open(&client, "p", A, R, NONE);
    assert_eq!(downgrade(R).map(|stateid| stateid.seqid), Ok(3));
    assert_eq!(read(), Err(Status::ShareDenied));
    assert_eq!(downgrade(NONE).map(|stateid| stateid.seqid), Ok(4));
    assert!(read().is_ok());
    assert_eq!(downgrade(R), Err(Status::Inval));
}

#[test]
fn rfc7530_9_9_what_an_owner_denies_he_denies_himself() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let open = |access, deny| world.open(&client, "o", A, access, deny);
    assert!(open(RW, R).is_ok());
    assert_eq!(open(R, NONE), Err(Status::ShareDenied));
    assert!(open(W, NONE).is_ok());
    assert_eq!(open(W, W), Err(Status::ShareDenied));
}

#[test]
fn rfc8881_18_2_a_closed_stateid_is_bad() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let opened = world.open(&client, "o", A, R, R).expect("opened");
    let closed = world.state.close(&client, &opened, A).expect("closed");
    assert_eq!(special(&closed), Some(Special::Invalid));
    assert_eq!(
        world.state.close(&client, &opened, A),
        Err(Status::BadStateid)
    );
    assert_eq!(
        world.state.test_stateid(&client, &opened),
        Status::BadStateid
    );
    assert_eq!(
        world.gone.lock().pop().map(|gone| gone.files.len()),
        Some(1)
    );
    let again = world.open(&client, "o", A, R, R).expect("opened");
    assert_ne!(again.other, opened.other);
}

#[test]
fn an_open_dropped_has_not_been() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let other = world.v41("b").client(&world);
    let opening = world.state.open(&client, ask("o", A, R, W)).expect("may");
    assert_eq!(
        world.open(&other, "o", A, W, NONE),
        Err(Status::ShareDenied)
    );
    drop(opening);
    assert!(world.open(&other, "o", A, W, NONE).is_ok());
    assert_eq!(world.state.shares.len(), 1);
}

#[test]
fn two_opens_at_a_time_of_one_owner_come_to_one() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let one = world
        .state
        .open(&client, ask("o", A, R, NONE))
        .expect("may");
    let two = world
        .state
        .open(&client, ask("o", A, W, NONE))
        .expect("may");
    let two = two.commit(Arc::new("writer")).expect("opened").stateid;
    let one = one.commit(Arc::new("reader")).expect("opened").stateid;
    assert_eq!((one.other, two.seqid, one.seqid), (two.other, 1, 2));
    assert_eq!(world.state.shares.len(), 1);
    assert!(world.state.close(&client, &one, A).is_ok());
    assert_eq!(world.state.shares.len(), 0);
}

#[test]
fn an_open_of_a_client_that_went_is_undone() {
    let world = World::new();
    let peer = world.v41("a");
    let client = peer.client(&world);
    let opening = world.state.open(&client, ask("o", A, R, W)).expect("may");
    assert_eq!(
        world.state.destroy_session(&peer.session, (7, &ROOT), None),
        Ok(())
    );
    assert_eq!(world.state.destroy_client_id(peer.client, &ROOT), Ok(()));
    let file: File = Arc::new("file");
    assert_eq!(opening.commit(file.clone()), Err(Status::Expired));
    assert_eq!(Arc::strong_count(&file), 1);
    assert_eq!(world.state.shares.len(), 0);
    assert!(world.stable.list().is_empty());
}

#[test]
fn rfc8881_9_1_3_anonymous_io_is_denied_too() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let opened = world.open(&client, "o", A, R, W).expect("opened");
    assert_eq!(world.state.anonymous(A, W), Err(Status::Locked));
    assert_eq!(world.state.anonymous(A, R), Ok(()));
    assert_eq!(world.state.anonymous(B, W), Ok(()));
    assert!(world.state.close(&client, &opened, A).is_ok());
    assert_eq!(world.state.anonymous(A, W), Ok(()));
}

#[test]
fn opens_of_all_clients_are_bounded_and_expired_ones_make_room() {
    let world = World::with(Limits {
        all_opens: 2,
        ..Limits::default()
    });
    let first = world.v41("a").client(&world);
    assert!(world.open(&first, "o", A, R, NONE).is_ok());
    assert!(world.open(&first, "o", A, W, NONE).is_ok());
    assert!(world.open(&first, "o", B, W, NONE).is_ok());
    let second = world.v41("b");
    let client = second.client(&world);
    assert_eq!(world.open(&client, "o", A, R, NONE), Err(Status::Nospc));
    world.pass(LEASE + Duration::from_secs(1));
    let client = second.client(&world);
    assert!(world.open(&client, "o", A, R, NONE).is_ok());
    assert_eq!(world.state.shares.len(), 1);
}

#[test]
fn opens_of_a_client_are_bounded() {
    let world = World::with(Limits {
        opens: 2,
        ..Limits::default()
    });
    let later = world.v41("a").client(&world);
    let key = |node| NodeKey { export: 0, node };
    assert!(world.open(&later, "o", key(1), R, NONE).is_ok());
    let early = world
        .state
        .open(&later, ask("o", key(2), R, NONE))
        .expect("may");
    assert!(world.open(&later, "o", key(3), R, NONE).is_ok());
    assert_eq!(early.commit(Arc::new("file")), Err(Status::Nospc));
    assert_eq!(world.open(&later, "o", key(2), R, NONE), Err(Status::Nospc));
    assert!(world.open(&later, "o", key(1), W, NONE).is_ok());
    let first = world.v40("a");
    let started = [1, 2, 3].map(|number: u8| world.state.start_open(first.id(), &[number], 1));
    assert_eq!(started[2].as_ref().err(), Some(&Status::Resource));
}

#[test]
fn an_open_examines_no_more_reservations_of_a_file_however_many_there_are() {
    let world = World::new();
    let client = world.v41("a").client(&world);
    let owners: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
    let open = |owner: &str, access| {
        let opened = world.open(&client, owner, A, access, NONE);
        opened.expect("opened")
    };
    let opened: Vec<_> = owners
        .iter()
        .map(|owner| (open(owner, R), open(owner, RW)).1)
        .collect();
    open("reader", R);
    assert_eq!(world.state.shares.len(), 2001);
    // One for each combination of access and deny modes.
    assert_eq!(world.state.shares.examined(A), 2);
    // The conflicting open is found among them, and not after it is closed.
    let other = world.v41("b").client(&world);
    let deny_write = || world.open(&other, "o", A, R, W);
    assert_eq!(deny_write(), Err(Status::ShareDenied));
    for stateid in &opened {
        assert!(world.state.close(&client, stateid, A).is_ok());
    }
    assert!(deny_write().is_ok());
    assert_eq!(world.state.shares.len(), 2);
}
