//! Misbehaving clients: each gets the protocol's error, and other clients are not affected.

use std::sync::Arc;

use layers::Bundle;
use memory::Memory;
use vfs::memory::MemoryBudget;
use vfs::{Export, Time};
use vfs_testkit::clock;
use wire::Session as _;

use super::*;
use crate::v4::attr::{Bitmap, number as n};
use crate::v4::op::{Close, Create, CreateWhat, Read, Write};
use crate::v4::reply::Created;
use crate::v4::types::{Data, Stable};

/// Returns a CREATE of a directory `name` in the root.
fn mkdir(name: &[u8]) -> Op<'_> {
    Op::Create(Create {
        what: CreateWhat::Directory,
        name,
        attributes: Attributes::default(),
    })
}

/// Creates and opens a file `name` in the root as `client`. Returns its handle and its stateid.
fn file(client: &Client41, name: &[u8]) -> (Vec<u8>, StateId) {
    let how = OpenHow::Create(CreateHow::Guarded(Attributes::default()));
    let open = client.open(BOTH, how, Claim::Null(name));
    let made = client.send(&[Op::Putrootfh, open, Op::Getfh]).done();
    let () = made.ok();
    let Opened { state, .. } = made.ok();
    let handle: &[u8] = made.ok();
    (handle.to_vec(), state)
}

#[test]
fn rfc8881_15_1_a_compound_of_thousands_is_refused_before_it_begins() {
    const MANY: usize = 4000;
    let world = World::new();
    let net = world.net(0);
    let mut ops = vec![Op::Putrootfh, mkdir(b"made")];
    ops.resize(MANY, Op::Getfh);
    let refused = net.send(&ops);
    assert_eq!((refused.status, refused.count), (Status::Resource, 0));
    let client = Client41::new(&world, b"client");
    let refused = client.net.again(&client.message(&ops, false));
    assert_eq!(refused.status, Status::TooManyOps);
    // Its SEQUENCE was not run either.
    client.sequence.set(client.sequence.get() - 1);
    let there = client.send(&[Op::Putrootfh, Op::Lookup(b"made")]);
    assert_eq!(there.status, Status::Noent);
    // A compound that announces thousands of operations and has none.
    for count in [MANY as u32, u32::MAX] {
        let refused = net.again(&net.message_of(count, &[]));
        assert_eq!((refused.status, refused.count), (Status::Resource, 0));
    }
}

#[test]
fn rfc8881_18_46_wrong_slots_and_numbers_do_nothing() {
    let world = World::new();
    let client = Client41::new(&world, b"client");
    let send = |session, slot, sequence| {
        let sequence = Op::Sequence(Sequence {
            session,
            sequence,
            slot,
            highest_slot: 0,
            cache_this: false,
        });
        client
            .net
            .send(&[sequence, Op::Putrootfh, mkdir(b"made")])
            .status
    };
    let next = client.sequence.get() + 1;
    for slot in [1, 99, u32::MAX] {
        assert_eq!(send(client.session, slot, next), Status::Badslot, "{slot}");
    }
    for sequence in [next + 1, next + 1000, next.wrapping_sub(3), u32::MAX] {
        assert_eq!(
            send(client.session, 0, sequence),
            Status::SeqMisordered,
            "{sequence}"
        );
    }
    for at in 0..16 {
        let mut forged = client.session;
        forged[at] ^= 0x80;
        assert_eq!(send(forged, 0, next), Status::Badsession, "{at}");
    }
    let there = client.send(&[Op::Putrootfh, Op::Lookup(b"made")]);
    assert_eq!(there.status, Status::Noent);
}

#[test]
fn rfc8881_2_10_6_1_3_a_number_used_again_does_nothing_new() {
    let world = World::new();
    let client = Client41::new(&world, b"client");
    let message = client.message(&[Op::Putrootfh, mkdir(b"first")], true);
    let first = client.net.again(&message).done();
    client.sequence.set(client.sequence.get() - 1);
    let other = client.message(&[Op::Putrootfh, Op::Remove(b"first")], true);
    let answer = client.net.again(&other);
    assert!(
        answer.status == Status::SeqFalseRetry || answer.len() == first.len(),
        "{answer:?}"
    );
    client.send(&[Op::Putrootfh, Op::Lookup(b"first")]).done();
}

#[test]
fn rfc8881_8_2_4_a_stateid_is_its_clients_alone() {
    let world = World::new();
    let [owner, thief] = [&b"owner"[..], b"thief"].map(|name| Client41::new(&world, name));
    let (handle, state) = file(&owner, b"file");
    let (own, own_state) = file(&thief, b"own");
    let read = |state| {
        Op::Read(Read {
            state,
            offset: 0,
            count: 4,
        })
    };
    let write = |state| {
        Op::Write(Write {
            state,
            offset: 0,
            stable: Stable::File,
            data: Data(b"x"),
        })
    };
    let close = |state| Op::Close(Close { seqid: 0, state });
    for op in [read(state), write(state), close(state)] {
        for handle in [&handle, &own] {
            let refused = thief.send(&[Op::Putfh(handle), op.clone()]);
            assert_eq!(refused.status, Status::BadStateid, "{op:?}");
        }
    }
    // The thief's own stateid, with another file; and forged ones.
    for forged in 0..12 {
        let mut state = own_state;
        state.other[forged] ^= 0x80;
        let refused = thief.send(&[Op::Putfh(&own), read(state)]).status;
        let expected = [Status::BadStateid, Status::StaleStateid];
        assert!(expected.contains(&refused), "{forged}: {refused:?}");
    }
    let refused = thief.send(&[Op::Putfh(&handle), write(own_state)]);
    assert_eq!(refused.status, Status::BadStateid);
    owner
        .send(&[Op::Putfh(&handle), write(state), close(state)])
        .done();
}

#[test]
fn rfc8881_4_2_3_handles_that_nobody_was_given_lead_nowhere() {
    let members = ["a", "b"].map(|name| Arc::new(Export::new(name, Memory::new(clock()))));
    let made = Time { sec: 1, nsec: 0 };
    let world = World::over(Bundle::new(&members, made).expect("a tree"));
    let net = world.net(0);
    let handles = [&b"a"[..], b"b"].map(|name| {
        let found = net.send(&[Op::Putrootfh, Op::Lookup(name), mkdir(b"dir"), Op::Getfh]);
        let found = found.done();
        let ((), ()) = (found.ok(), found.ok());
        let _: Created = found.ok();
        let handle: &[u8] = found.ok();
        handle.to_vec()
    });
    let get = |handle: &[u8]| {
        let get = Op::Getattr(Bitmap::of(&[n::TYPE]));
        net.send(&[Op::Putfh(handle), get]).status
    };
    assert_eq!(get(&handles[0]), Status::Ok);
    let bad = |handle: &[u8]| {
        let status = get(handle);
        [Status::Stale, Status::Badhandle, Status::Badxdr].contains(&status)
    };
    for len in 0..handles[0].len() {
        assert!(bad(&handles[0][..len]), "{len}");
    }
    assert!(bad(&[&handles[0][..], &[0; 8]].concat()));
    assert!(bad(&[0xff; 128]) && bad(&[0; 64]));
    // The format and the location of one handle, and the rest of the other.
    const PLACE: usize = 1 + 8;
    for (one, other) in [(0, 1), (1, 0)] {
        let mixed = [&handles[one][..PLACE], &handles[other][PLACE..]].concat();
        assert!(bad(&mixed), "{one}");
    }
    // A handle of another server.
    let other = Client41::new(&World::new(), b"client");
    let refused = other.send(&[Op::Putfh(&handles[0])]).status;
    assert!(
        [Status::Stale, Status::Badhandle].contains(&refused),
        "{refused:?}"
    );
}

/// Returns a v4.0 client with a file of 1 MiB, the file's handle and the stateid of its open.
fn client_with_a_mebibyte(world: &World) -> (Client40, Vec<u8>, StateId) {
    let client = Client40::new(world, b"client");
    let (handle, state) = client.create(b"owner", b"file");
    let write = Op::Write(Write {
        state,
        offset: 0,
        stable: Stable::File,
        data: Data(&[1; 1 << 20]),
    });
    client.net.send(&[Op::Putfh(&handle), write]).done();
    (client, handle, state)
}

#[test]
fn rfc7530_a_compound_of_v4_0_has_a_bounded_reply() {
    let world = World::new();
    let (client, handle, state) = client_with_a_mebibyte(&world);
    let read = Op::Read(Read {
        state,
        offset: 0,
        count: 1 << 20,
    });
    let whole = client.net.send(&[Op::Putfh(&handle), read.clone()]).done();
    assert!(whole.len() > 1 << 20);
    let mut ops = vec![Op::Putfh(&handle)];
    ops.resize(200, read);
    let reply = client.net.send(&ops);
    assert_eq!(reply.status, Status::Resource);
    assert!(reply.len() <= (1 << 20) + (64 << 10), "{}", reply.len());
}

#[test]
fn opens_and_replies_are_part_of_the_memory_budget_and_leave_room_for_others() {
    let world = World::new();
    let budget = MemoryBudget::new(1 << 20);
    let client = |name: &'static [u8], addr| {
        let net = world.net(1).reserving(addr, &budget);
        let client = Client41::by(net, name, CHANNEL, 0);
        client.send(&[Op::ReclaimComplete(false)]).done();
        client
    };
    let (greedy, other) = (client(b"greedy", "10.0.0.1"), client(b"other", "10.0.0.2"));
    let open = |client: &Client41, number: u32| {
        let name = number.to_string();
        let how = OpenHow::Create(CreateHow::Unchecked(Attributes::default()));
        let open = client.open(BOTH, how, Claim::Null(name.as_bytes()));
        client.send(&[Op::Putrootfh, open]).status
    };
    let refused = (0..5000).map(|number| open(&greedy, number));
    let refused = refused.into_iter().find(|status| *status != Status::Ok);
    assert_eq!(refused, Some(Status::Nospc));
    let most = budget.limit() / 4;
    assert!((most / 2..most + (32 << 10)).contains(&budget.state_bytes()));
    for number in 0..20 {
        assert_eq!(open(&other, number), Status::Ok);
    }
    // Modifying requests are served, but their replies are not cached.
    let message = greedy.message(&[Op::Putrootfh, mkdir(b"made")], true);
    greedy.net.again(&message).done();
    let again = greedy.net.again(&message);
    assert_eq!(again.status, Status::RetryUncachedRep);
    greedy.send(&[Op::Putrootfh, Op::Lookup(b"made")]).done();
    let held = world.server.held_bytes();
    assert!(budget.state_bytes() >= held.state + held.replies);
}

#[test]
fn the_reply_to_a_write_is_small_and_to_a_read_as_long_as_it_asks() {
    let world = World::new();
    let client = Client41::new(&world, b"client");
    let (handle, state) = file(&client, b"file");
    let data = vec![1; 1 << 20];
    let (stable, offset) = (Stable::File, 0);
    let write = Op::Write(Write {
        state,
        offset,
        stable,
        data: Data(&data),
    });
    let read = |count| {
        Op::Read(Read {
            state,
            offset,
            count,
        })
    };
    let bound = |ops: &[Op<'_>], large| {
        let message = client.message(&[&[Op::Putfh(&handle)], ops].concat(), false);
        world.server.session().reply_bound(&message, large)
    };
    let (small, large) = (..16 << 10, 64 << 10);
    let get = Op::Getattr(Bitmap::of(&[n::TYPE, n::SIZE]));
    assert!(small.contains(&bound(&[write.clone(), get], large)));
    assert!(small.contains(&bound(&[Op::Remove(b"file")], large)));
    let half = bound(&[read(1 << 19)], large);
    assert!((1 << 19..(1 << 19) + (16 << 10)).contains(&half), "{half}");
    let two = bound(&[read(1 << 19), read(1 << 19)], large);
    assert!((1 << 20..(1 << 20) + (16 << 10)).contains(&two), "{two}");
    // No more than the maximum size of a reply, and zero if that is below `large`.
    let most = (1 << 20) + (64 << 10);
    assert_eq!(bound(&[read(u32::MAX), write.clone()], large), most);
    assert_eq!(bound(&[read(u32::MAX)], most + 1), 0);
    // An unreadable call may be anything.
    let unreadable = world.server.session().reply_bound(&[0x80, 0, 0, 0], large);
    assert_eq!(unreadable, most);
}

#[test]
fn replies_that_are_kept_are_short_and_go_after_a_while() {
    let world = World::new();
    let (client, handle, _) = client_with_a_mebibyte(&world);
    let before = world.server.held_bytes().replies;
    let read = Op::Read(Read {
        state: StateId::ANONYMOUS,
        offset: 0,
        count: 1 << 20,
    });
    for number in 0..100 {
        let name = number.to_string();
        let ops = [
            Op::Putrootfh,
            mkdir(name.as_bytes()),
            Op::Putfh(&handle),
            read.clone(),
        ];
        client.net.send(&ops).done();
        let message = client.net.message(&[Op::Putrootfh, mkdir(b"again")]);
        let made = client.net.again(&message);
        assert_eq!(client.net.again(&message), made, "answered again");
    }
    let held = world.server.held_bytes().replies - before;
    assert!((1..100 << 10).contains(&held), "{held} bytes");
    world.pass(121);
    assert_eq!(world.server.held_bytes().replies, 0);
}
