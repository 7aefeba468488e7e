//! Many threads at once.

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

/// Sends until it is answered.
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
        match world.state.sequence(request) {
            Ok(Begun::New(turn)) => {
                let client = turn.client();
                let owner = slot.to_string();
                let open = world.open(&client, &owner, A, RW, NONE).expect("opened");
                assert!(world.state.io(Some(&client), &open, A, R).is_ok());
                assert!(world.lock(&client, &open, &owner, (0, 9)).is_ok());
                assert!(world.state.close(&client, &open, A).is_ok());
                served.fetch_add(1, Ordering::SeqCst);
                turn.finish(Some(expected));
                return;
            }
            Ok(Begun::Replay(reply)) => {
                assert_eq!(reply, expected);
                return;
            }
            // The other thread is at it, or is further.
            Err(Status::Delay) => std::thread::yield_now(),
            Err(Status::SeqMisordered) => return,
            Err(status) => panic!("{status:?}"),
        }
    }
}
