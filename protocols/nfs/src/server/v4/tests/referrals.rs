//! Absent file systems (RFC 8881 sections 11.4 and 11.16).

use std::sync::Arc;

use layers::Bundle;
use memory::Memory;
use vfs::{Export, Time};
use vfs_testkit::clock;

use super::*;
use crate::server::{Listed, Locations, Options};
use crate::v4::attr::{Bitmap, FsLocation, FsLocations, number as n};
use crate::v4::op::{Readdir, Rename};

/// Returns a server of `here`, and of `there`, which is on other hosts.
fn world() -> World {
    let members = ["here", "there"].map(|name| Arc::new(Export::new(name, Memory::new(clock()))));
    let bundle = Bundle::new(&members, Time { sec: 1, nsec: 0 }).expect("a tree");
    let referral = Locations {
        name: "there".into(),
        locations: vec!["/srv/a@one+10.0.0.2".parse().expect("a location")],
    };
    World::with(bundle, |options: &mut Options| {
        options.referrals = vec![referral]
    })
}

fn locations() -> FsLocations<'static> {
    FsLocations {
        root: vec![b"there"],
        locations: vec![FsLocation {
            servers: vec![b"one", b"10.0.0.2"],
            path: vec![b"srv", b"a"],
        }],
    }
}

#[test]
fn rfc8881_11_4_what_is_elsewhere_says_where_and_nothing_else() {
    let world = world();
    for minor in [0, 1] {
        let client = (minor == 1).then(|| Client41::new(&world, b"client"));
        let net = world.net(0);
        let send = |ops: &[Op<'_>]| match &client {
            Some(client) => client.send(ops),
            None => net.send(ops),
        };
        let there = |op: Op<'static>| send(&[Op::Putrootfh, Op::Lookup(b"there"), op]);
        let rename = Rename {
            from: b"a",
            to: b"b",
        };
        for op in [
            Op::Getfh,
            Op::Lookup(b"x"),
            Op::Access(1),
            Op::Readlink,
            Op::Savefh,
            Op::Remove(b"x"),
            Op::Rename(rename),
            Op::Getattr(Bitmap::of(&[n::TYPE, n::FSID])),
        ] {
            assert_eq!(there(op.clone()).status, Status::Moved, "{op:?}");
        }
        let want = [
            n::TYPE,
            n::SIZE,
            n::FSID,
            n::FS_LOCATIONS,
            n::RDATTR_ERROR,
            n::MOUNTED_ON_FILEID,
        ];
        let told = there(Op::Getattr(Bitmap::of(&want))).done();
        let ((), ()) = (told.ok(), told.ok());
        let told: Attributes<'_> = told.ok();
        assert_eq!(told.locations, Some(locations()));
        assert_eq!(told.read_error, Some(Status::Moved as u32));
        assert!(told.fsid.is_some() && told.mounted_on.is_some());
        assert_eq!((told.kind, told.size), (None, None));

        let here = send(&[
            Op::Putrootfh,
            Op::Lookup(b"here"),
            Op::Getattr(Bitmap::of(&want)),
        ])
        .done();
        let ((), ()) = (here.ok(), here.ok());
        let here: Attributes<'_> = here.ok();
        assert_eq!(here.locations, Some(FsLocations::default()));
        assert!(here.kind.is_some() && here.fsid != told.fsid);
        there(Op::LookupParent).done();
    }
}

#[test]
fn rfc8881_11_5_replicas_are_those_of_the_file_system_of_the_object() {
    let members = ["one", "two"].map(|name| {
        let tree = Memory::new(clock());
        Arc::new(Export::new(name, tree))
    });
    let bundle = Bundle::new(&members, Time { sec: 1, nsec: 0 }).expect("a tree");
    let replicas: Vec<_> = ["/a@h1+h2", "/b@h3"]
        .map(|text| text.parse().expect("a location"))
        .into();
    let listed = |replicas| Listed {
        path: "/one".into(),
        clients: Vec::new(),
        replicas,
    };
    let world = World::with(bundle, |options: &mut Options| {
        options.listed = vec![listed(replicas.clone())];
    });
    let net = world.net(0);
    let told = |ops: &[Op<'_>]| {
        let get = [Op::Getattr(Bitmap::of(&[n::FS_LOCATIONS]))];
        let reply = net.send(&[ops, &get].concat()).done();
        ops.iter().for_each(|_| reply.ok());
        let told: Attributes<'_> = reply.ok();
        let locations = told.locations.expect("requested").locations;
        locations.len()
    };
    let one = [Op::Putrootfh, Op::Lookup(b"one")];
    assert_eq!(told(&one), 2);
    assert_eq!(told(&[Op::Putrootfh, Op::Lookup(b"two")]), 0);
    assert_eq!(told(&[Op::Putrootfh]), 0);
    // A reload changes them.
    world.server.set_exports(vec![listed(Vec::new())]);
    assert_eq!(told(&one), 0);
}

#[test]
fn rfc8881_11_4_2_a_listing_tells_of_it_to_who_knows() {
    let world = world();
    let net = world.net(0);
    let list = |attributes: &[u32]| {
        net.send(&[
            Op::Putrootfh,
            Op::Readdir(Readdir {
                cookie: 0,
                verifier: [0; 8],
                dir_count: 4096,
                max_count: 4096,
                attributes: Bitmap::of(attributes),
            }),
        ])
    };
    assert_eq!(list(&[n::SIZE]).status, Status::Moved);
    assert_eq!(list(&[n::SIZE, n::RDATTR_ERROR]).status, Status::Ok);
    assert_eq!(list(&[n::SIZE, n::FS_LOCATIONS]).status, Status::Ok);
    assert_eq!(list(&[n::FILEID]).status, Status::Ok);
}
