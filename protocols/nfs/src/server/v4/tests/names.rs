//! Creation, lookup and removal of names (RFC 7530 sections 16.4, 16.13, 16.26; RFC 8881 sections
//! 18.4, 18.14).

use super::*;
use crate::v4::op::{Create, CreateWhat};

fn make<'a>(what: CreateWhat<'a>, name: &'a [u8]) -> Op<'a> {
    Op::Create(Create {
        what,
        name,
        attributes: Attributes::default(),
    })
}

#[test]
fn rfc7530_3_1_1_what_v4_0_sends_again_is_not_done_again() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let mkdir = make(CreateWhat::Directory, b"dir");
    let message = client
        .net
        .message(&[Op::Putrootfh, mkdir.clone(), Op::Getfh]);
    let made = client.net.again(&message).done();
    // Over another connection, as from a client that has lost one.
    assert_eq!(world.net(0).again(&message), made);
    let again = client.net.send(&[Op::Putrootfh, mkdir]);
    assert_eq!(again.status, Status::Exist);

    let message = client.net.message(&[Op::Putrootfh, Op::Remove(b"dir")]);
    let removed = client.net.again(&message).done();
    assert_eq!(client.net.again(&message), removed);
}

#[test]
fn rfc8881_18_14_lookupp_tells_a_link_from_other_things() {
    let world = World::new();
    let client = Client41::new(&world, b"client");
    let link = make(CreateWhat::Link(b"target"), b"link");
    let refused = client.send(&[Op::Putrootfh, link, Op::LookupParent]);
    assert_eq!((refused.status, refused.count), (Status::Symlink, 4));
    let fifo = make(CreateWhat::Fifo, b"fifo");
    let refused = client.send(&[Op::Putrootfh, fifo, Op::LookupParent]);
    assert_eq!((refused.status, refused.count), (Status::Notdir, 4));
    let refused = client.send(&[Op::Putrootfh, Op::LookupParent]);
    assert_eq!(refused.status, Status::Noent);
}

#[test]
fn rfc7530_16_4_create_makes_no_files() {
    let net = World::new().net(0);
    for what in [
        CreateWhat::Regular,
        CreateWhat::AttributeDirectory,
        CreateWhat::NamedAttribute,
    ] {
        let refused = net.send(&[Op::Putrootfh, make(what, b"file")]);
        assert_eq!(refused.status, Status::Badtype);
    }
}
