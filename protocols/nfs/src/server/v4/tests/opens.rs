//! OPEN (RFC 7530 section 16.16, RFC 8881 section 18.16).

use super::*;
use crate::v4::reply::Delegation;

#[test]
fn rfc8881_18_16_3_who_wants_no_delegation_is_told_that_he_got_none_for_that() {
    const WANT_NO_DELEG: u32 = 0x400;
    let client = Client41::new(&World::new(), b"client");
    for (access, want) in [
        (READ, Delegation::None),
        (READ | WANT_NO_DELEG, Delegation::NoneBecause(0)),
    ] {
        let how = OpenHow::Create(CreateHow::Unchecked(Attributes::default()));
        let open = client.open(access, how, Claim::Null(b"file"));
        let reply = client.send(&[Op::Putrootfh, open]).done();
        let () = reply.ok();
        let opened: Opened<'_> = reply.ok();
        assert_eq!(opened.delegation, want);
    }
}

#[test]
fn rfc7530_16_16_6_what_is_no_file_is_not_opened() {
    use crate::v4::op::{Create, CreateWhat};
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let later = Client41::new(&world, b"client");
    let other = Status::Symlink;
    let cases = [
        (CreateWhat::Directory, Status::Isdir, Status::Isdir),
        (CreateWhat::Link(b"x"), Status::Symlink, Status::Symlink),
        (CreateWhat::Fifo, other, Status::WrongType),
        (CreateWhat::Socket, other, Status::WrongType),
    ];
    for (seqid, (what, of_4_0, of_4_1)) in (1..).zip(cases) {
        let make = Op::Create(Create {
            what,
            name: b"it",
            attributes: Attributes::default(),
        });
        client.net.send(&[Op::Putrootfh, make]).done();
        let open = client.open(b"owner", seqid, b"it", READ);
        let refused = client.net.send(&[Op::Putrootfh, open]);
        assert_eq!(refused.status, of_4_0);
        let open = later.open(READ, OpenHow::NoCreate, Claim::Null(b"it"));
        assert_eq!(later.send(&[Op::Putrootfh, open]).status, of_4_1);
        client.net.send(&[Op::Putrootfh, Op::Remove(b"it")]).done();
    }
}

#[test]
fn rfc7530_16_16_4_who_may_not_open_a_file_is_told_that_before_who_denies_it() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    client.create(b"owner", b"file");
    let other = Client41::new(&world, b"other");
    let denying = Op::Open(Open {
        seqid: 0,
        access: READ,
        deny: WRITE,
        owner: Owner {
            client: 0,
            name: b"owner",
        },
        how: OpenHow::NoCreate,
        claim: Claim::Null(b"file"),
    });
    let refused = other.send(&[Op::Putrootfh, denying.clone()]);
    assert_eq!(refused.status, Status::ShareDenied);
    let mode = Op::Setattr(crate::v4::op::Setattr {
        state: StateId::ANONYMOUS,
        attributes: Attributes {
            mode: Some(0o600),
            ..Attributes::default()
        },
    });
    client
        .net
        .send(&[Op::Putrootfh, Op::Lookup(b"file"), mode])
        .done();
    other.net.uid.set(1000);
    let refused = other.send(&[Op::Putrootfh, denying]);
    assert_eq!(refused.status, Status::Access);
}
