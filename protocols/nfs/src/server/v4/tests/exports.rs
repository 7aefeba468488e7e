//! Who is let in (RFC 8881 sections 2.6, 5.8.1.19 and 18.13): exports with lists of clients, as exports(5) has them.

use std::sync::Arc;

use layers::{Bundle, Clients, stack};
use memory::Memory;
use vfs::{Export, Time};
use vfs_testkit::clock;

use super::*;
use crate::v4::attr::Bitmap;
use crate::v4::op::{Read, Write};
use crate::v4::types::{Data, Stable};

/// `a`, which some are let into, and `b`, which everybody is.
fn world() -> World {
    let lists = "10.0.0.1(rw,no_root_squash) 10.0.0.2(ro,no_root_squash) 10.0.0.3(rw)";
    let lists: Clients = lists.parse().expect("a list");
    let a = stack(Memory::new(clock()), lists);
    let members = [("a", a), ("b", Memory::new(clock()) as _)];
    let members = members.map(|(name, fs)| Arc::new(Export::new(name, fs)));
    World::over(Bundle::new(&members, Time { sec: 1, nsec: 0 }).expect("a tree"))
}

fn at<'a>(handle: &'a [u8], op: Op<'a>) -> [Op<'a>; 2] {
    [Op::Putfh(handle), op]
}

#[test]
fn rfc8881_7_who_is_not_listed_finds_no_way_in() {
    let world = world();
    let listed = world.net_from(0, "10.0.0.1");
    let found = listed
        .send(&[Op::Putrootfh, Op::Lookup(b"a"), Op::Getfh])
        .done();
    let ((), ()) = (found.ok(), found.ok());
    let handle: &[u8] = found.ok();
    let stranger = world.net_from(0, "10.0.0.9");
    for op in [Op::Lookup(b"a"), Op::Secinfo(b"a")] {
        let refused = stranger.send(&[Op::Putrootfh, op]);
        assert_eq!((refused.status, refused.count), (Status::Access, 2));
    }
    stranger.send(&[Op::Putrootfh, Op::Lookup(b"b")]).done();
    for op in [
        Op::Getattr(Bitmap::of(&[1])),
        Op::Lookup(b"x"),
        Op::LookupParent,
        Op::Access(1),
    ] {
        let refused = stranger.send(&at(handle, op.clone()));
        assert_eq!(refused.status, Status::Access, "{op:?}");
    }
    // On a connection that came from nowhere, as what this program does of its own.
    world
        .net(0)
        .send(&at(handle, Op::Getattr(Bitmap::of(&[1]))))
        .done();
}

#[test]
fn rfc8881_2_10_8_a_stateid_is_worth_what_the_connections_address_is() {
    let world = world();
    let mut client = Client41::new(&world, b"client");
    client.net = world.net_from(1, "10.0.0.1");
    let attributes = Attributes {
        mode: Some(0o600),
        ..Attributes::default()
    };
    let how = OpenHow::Create(CreateHow::Guarded(attributes));
    let open = client.open(BOTH, how, Claim::Null(b"secret"));
    let made = client
        .send(&[Op::Putrootfh, Op::Lookup(b"a"), open, Op::Getfh])
        .done();
    let ((), ()) = (made.ok(), made.ok());
    let Opened { state, .. } = made.ok();
    let handle: &[u8] = made.ok();
    let write = |state| {
        Op::Write(Write {
            state,
            offset: 0,
            stable: Stable::File,
            data: Data(b"data"),
        })
    };
    let read = |state| {
        Op::Read(Read {
            state,
            offset: 0,
            count: 4,
        })
    };
    client.send(&at(handle, write(state))).done();
    for (addr, reads, writes) in [
        ("10.0.0.1", Status::Ok, Status::Ok),
        ("10.0.0.2", Status::Ok, Status::Access),
        ("10.0.0.3", Status::Access, Status::Access),
        ("10.0.0.9", Status::Access, Status::Access),
    ] {
        let by = world.net_from(1, addr);
        for (op, expected) in [(read(state), reads), (write(state), writes)] {
            let message = client.message(&at(handle, op), false);
            assert_eq!(by.again(&message).status, expected, "{addr}");
        }
    }
    let reader = world.net_from(0, "10.0.0.2");
    let refused = reader.send(&at(handle, write(StateId::ANONYMOUS)));
    assert_eq!(refused.status, Status::Rofs);
}
