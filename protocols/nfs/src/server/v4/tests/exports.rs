//! Access control (RFC 8881 sections 2.6, 5.8.1.19 and 18.13): exports with lists of clients, as in
//! exports(5).

use std::sync::Arc;

use layers::{Admission, Bundle, stack};
use memory::Memory;
use vfs::{Export, Time};
use vfs_testkit::clock;

use super::*;
use crate::v4::attr::{Bitmap, number as n};
use crate::v4::op::{Create, CreateWhat, Read, Readdir, Write};
use crate::v4::types::{Data, Stable};

/// Returns a server of `a`, which some clients may use, and of `b`, which all may use.
fn world() -> World {
    let lists = "10.0.0.1(rw,no_root_squash) 10.0.0.2(ro,no_root_squash) 10.0.0.3(rw)";
    let lists: Admission = lists.parse().expect("a list");
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
    // A connection without an address counts as a local one of this program.
    world
        .net(0)
        .send(&at(handle, Op::Getattr(Bitmap::of(&[1]))))
        .done();
}

#[test]
fn rfc8881_2_10_8_a_stateid_is_worth_what_the_connections_address_is() {
    let world = world();
    let client = Client41::by(world.net_from(1, "10.0.0.1"), b"client", CHANNEL, 0);
    client.send(&[Op::ReclaimComplete(false)]).done();
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
        // The same client, from another address of its own.
        by.send(&[exchange_id(b"client")]).done();
        for (op, expected) in [(read(state), reads), (write(state), writes)] {
            let message = client.message(&at(handle, op), false);
            assert_eq!(by.again(&message).status, expected, "{addr}");
        }
    }
    let reader = world.net_from(0, "10.0.0.2");
    let refused = reader.send(&at(handle, write(StateId::ANONYMOUS)));
    assert_eq!(refused.status, Status::Rofs);
}

#[test]
fn rfc8881_7_3_a_single_export_with_a_name_is_at_the_root_and_at_its_name() {
    let tree = Memory::new(clock());
    let world = World::named("share", tree);
    let net = world.net(0);
    let handle = |ops: &[Op<'_>]| {
        let found = net.send(&[ops, &[Op::Getfh]].concat()).done();
        for _ in ops {
            let () = found.ok();
        }
        let handle: &[u8] = found.ok();
        handle.to_vec()
    };
    let identity = |handle: &[u8]| {
        let got = net.send(&at(handle, Op::Getattr(Bitmap::of(&[n::FSID, n::FILEID]))));
        let got = got.done();
        let () = got.ok();
        let attributes: Attributes<'_> = got.ok();
        (attributes.fsid, attributes.fileid)
    };
    let make = Op::Create(Create {
        what: CreateWhat::Directory,
        name: b"dir",
        attributes: Attributes::default(),
    });
    net.send(&[Op::Putrootfh, make]).done();
    let root = handle(&[Op::Putrootfh]);
    let share = handle(&[Op::Putrootfh, Op::Lookup(b"share")]);
    // Linux treats a directory below itself with the same handle as a loop, and moves a directory
    // that it finds in two places: the tree at the name must be a separate file system.
    assert_ne!(root, share);
    let dir = handle(&[Op::Putrootfh, Op::Lookup(b"dir")]);
    let again = handle(&[Op::Putfh(&share), Op::Lookup(b"dir")]);
    assert_ne!(again, dir);
    for (one, other) in [(&root, &share), (&dir, &again)] {
        let [one, other] = [one, other].map(|handle| identity(handle));
        assert_eq!((one.1, one.0 == other.0), (other.1, false));
    }
    assert_eq!(identity(&share).0, identity(&again).0);
    assert_eq!(handle(&[Op::Putfh(&again), Op::LookupParent]), share);
    assert_eq!(handle(&[Op::Putfh(&share), Op::LookupParent]), root);
    let list = Op::Readdir(Readdir {
        cookie: 0,
        verifier: [0; 8],
        dir_count: 4096,
        max_count: 4096,
        attributes: Bitmap::of(&[n::FSID, n::FILEHANDLE]),
    });
    let listed = net.send(&at(&share, list)).done();
    let is_listed = |handle: &Vec<u8>| listed.bytes.windows(handle.len()).any(|w| w == handle);
    assert_eq!([&again, &dir].map(is_listed), [true, false]);
    // A file that is removed in one tree is gone from both.
    let link = Op::Create(Create {
        what: CreateWhat::Link(b"dir"),
        name: b"link",
        attributes: Attributes::default(),
    });
    net.send(&at(&share, link)).done();
    let links = [&root, &share].map(|tree| handle(&[Op::Putfh(tree), Op::Lookup(b"link")]));
    net.send(&at(&root, Op::Remove(b"link"))).done();
    for link in links {
        let got = net.send(&at(&link, Op::Getattr(Bitmap::of(&[n::FILEID]))));
        assert_eq!(got.status, Status::Stale);
    }
    net.send(&[Op::Putrootfh, Op::Secinfo(b"share")]).done();
    for no_such in [
        [Op::Putfh(&share), Op::Lookup(b"share")],
        [Op::Putfh(&dir), Op::Lookup(b"share")],
        [Op::Putrootfh, Op::Lookup(b"other")],
        [Op::Putrootfh, Op::Lookup(b"sharE")],
    ] {
        assert_eq!(net.send(&no_such).status, Status::Noent, "{no_such:?}");
    }
    // An entry of that name takes precedence.
    let real = Op::Create(Create {
        what: CreateWhat::Directory,
        name: b"share",
        attributes: Attributes::default(),
    });
    net.send(&[Op::Putrootfh, real]).done();
    assert_ne!(handle(&[Op::Putrootfh, Op::Lookup(b"share")]), share);
}
