//! Concurrent requests.

use std::sync::atomic::AtomicUsize;

use super::*;

#[test]
fn each_request_is_served_once_whoever_sends_it_again() {
    const CLIENTS: usize = 4;
    const SLOTS: u32 = 8;
    const ROUNDS: u32 = 200;
    let world = World::new();
    let peers: Vec<Peer> = (0..CLIENTS).map(|n| world.v41(&n.to_string())).collect();
    let served = AtomicUsize::new(0);
    // Two threads per client, each sending every request of every slot.
    std::thread::scope(|scope| {
        for (number, peer) in peers.iter().enumerate() {
            for thread in 0..2 {
                let (world, served) = (&world, &served);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        for slot in 1..SLOTS {
                            round_trip(world, peer, number, slot, round, thread, served);
                        }
                    }
                });
            }
        }
    });
    let all = CLIENTS * (SLOTS as usize - 1) * ROUNDS as usize;
    assert_eq!(served.load(Ordering::SeqCst), all);
    assert_eq!(world.state.shares.len(), 0);
}

#[test]
fn clients_that_come_go_and_expire_at_once_leave_nothing() {
    const THREADS: u8 = 4;
    const ROUNDS: u8 = 100;
    let world = World::new();
    let file: File = Arc::new("file");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, file) = (&world, &file);
            // Two threads are boots of the same client.
            let name = (thread / 2).to_string();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    come_and_go(world, file, &name, round.wrapping_mul(THREADS) + thread);
                    world.pass(LEASE / 3);
                    world.state.reap();
                }
            });
        }
    });
    world.pass(LEASE * 2);
    for client in world.state.clients.all() {
        let number = client.lock_client;
        assert!(world.state.revoke_expired_holder(number));
    }
    world.pass(LEASE * 2);
    world.state.reap();
    world.gone.lock().clear();
    assert_eq!(Arc::strong_count(&file), 1);
    assert!(world.state.clients.all().is_empty());
    assert!(world.state.sessions.all().is_empty());
    assert!(world.state.connections.lock().is_empty());
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
}

/// Runs the life of a client, as far as concurrent clients allow.
fn come_and_go(world: &World, file: &File, name: &str, boot: u8) -> Option<()> {
    let state = &world.state;
    let known = state.exchange_id(&exchange_id(name, boot, "root")).ok()?;
    let connection = boot.into();
    let created = state
        .create_session(&create_session(known, connection))
        .ok()?;
    let request = Sequence {
        session: created.session,
        slot: 0,
        seqid: 1,
        highest_slot: 0,
        cache_this: false,
        connection,
        digest: 0,
    };
    let Ok(Started::New(request)) = state.sequence(request, &ROOT) else {
        return None;
    };
    let client = request.client();
    let _ = state.reclaim_complete(&client);
    let opening = state.open(&client, ask("o", A, RW, W)).ok()?;
    let open = opening.commit(file.clone()).ok()?.stateid;
    let _ = world.lock(&client, &open, "l", (0, 9));
    let _ = state.io(Some(&client), &open, A, R);
    request.finish(None);
    state.disconnected(connection);
    boot.is_multiple_of(3).then_some(())?;
    state.close(&client, &open, A).ok()?;
    Some(())
}

/// Sends a request until it gets a reply.
fn round_trip(
    world: &World,
    peer: &Peer,
    number: usize,
    slot: u32,
    seqid: u32,
    connection: u64,
    served: &AtomicUsize,
) {
    let request = Sequence {
        slot,
        seqid,
        highest_slot: slot,
        connection,
        ..peer.sequence()
    };
    let expected: Arc<[u8]> = format!("{number} {slot} {seqid}").into_bytes().into();
    loop {
        match world.state.sequence(request, &ROOT) {
            Ok(Started::New(request)) => {
                let client = request.client();
                let owner = slot.to_string();
                let open = world.open(&client, &owner, A, RW, NONE).expect("opened");
                assert!(world.state.io(Some(&client), &open, A, R).is_ok());
                assert!(world.lock(&client, &open, &owner, (0, 9)).is_ok());
                assert!(world.state.close(&client, &open, A).is_ok());
                served.fetch_add(1, Ordering::SeqCst);
                request.finish(Some(expected));
                return;
            }
            Ok(Started::Replay(reply)) => {
                assert_eq!(reply, expected);
                return;
            }
            // The other thread's request is in progress, or it has already continued.
            Err(Status::Delay) => std::thread::yield_now(),
            Err(Status::SeqMisordered) => return,
            Err(status) => panic!("{status:?}"),
        }
    }
}
