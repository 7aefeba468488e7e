//! OPEN (RFC 7530 section 16.16, RFC 8881 section 18.16).

use super::*;
use crate::v4::attr::{Bitmap, SetTime, number as n};
use crate::v4::op::Exclusive41;
use crate::v4::reply::{Delegation, WhyNone};

#[test]
fn rfc8881_18_16_3_who_wants_no_delegation_is_told_that_he_got_none_for_that() {
    const WANT_NO_DELEG: u32 = 0x400;
    let client = Client41::new(&World::new(), b"client");
    for (access, want) in [
        (READ, Delegation::None),
        (
            READ | WANT_NO_DELEG,
            Delegation::NoneBecause(WhyNone::NotWanted),
        ),
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

#[test]
fn rfc7530_16_16_5_an_exclusive_create_is_told_by_its_verifier() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let create = |owner, verifier| {
        let how = OpenHow::Create(CreateHow::Exclusive(verifier));
        let open = client.opening(owner, 1, b"file", BOTH, how);
        client.net.send(&[Op::Putrootfh, open])
    };
    // Another owner stands for a retransmission after the server has forgotten the first one's
    // seqid.
    for owner in [b"one", b"two"] {
        let made = create(owner, [0xfe; 8]).done();
        let () = made.ok();
        let opened: Opened<'_> = made.ok();
        // The client must set the times, in which the verifier is stored.
        assert!(opened.set.has(n::TIME_ACCESS_SET) && opened.set.has(n::TIME_MODIFY_SET));
    }
    assert_eq!(create(b"six", [1; 8]).status, Status::Exist);
    let how = OpenHow::Create(CreateHow::Guarded(Attributes::default()));
    let guarded = client.opening(b"ten", 1, b"file", BOTH, how);
    let refused = client.net.send(&[Op::Putrootfh, guarded]);
    assert_eq!(refused.status, Status::Exist);
}

#[test]
fn rfc8881_18_16_3_an_exclusive_create_with_attributes_keeps_its_verifier_where_no_attribute_is() {
    let client = Client41::new(&World::new(), b"client");
    let create = |attributes| {
        let how = OpenHow::Create(CreateHow::Exclusive41(Exclusive41 {
            verifier: [3; 8],
            attributes,
        }));
        client.send(&[
            Op::Putrootfh,
            client.open(BOTH, how, Claim::Null(b"file")),
            Op::Getattr(Bitmap::of(&[n::MODE, n::SUPPATTR_EXCLCREAT])),
        ])
    };
    let times = Attributes {
        set_modified: Some(SetTime::Server),
        ..Attributes::default()
    };
    assert_eq!(create(times).status, Status::Inval);
    let mode = Attributes {
        mode: Some(0o640),
        ..Attributes::default()
    };
    for _ in 0..2 {
        let made = create(mode.clone()).done();
        let () = made.ok();
        let opened: Opened<'_> = made.ok();
        let attributes: Attributes<'_> = made.ok();
        assert_eq!(attributes.mode, Some(0o640));
        let takes = attributes.supported_exclusive.expect("asked for");
        assert!(opened.set.has(n::MODE) && takes.has(n::MODE));
        for time in [n::TIME_ACCESS_SET, n::TIME_MODIFY_SET] {
            assert!(opened.set.has(time) && !takes.has(time));
        }
    }
}

#[test]
fn rfc7530_16_18_5_a_failed_open_of_an_owner_that_is_not_confirmed_is_not_answered_again() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    client.create(b"other", b"file");
    let open = |name| {
        let open = client.open(b"owner", 1, name, READ);
        client.net.send(&[Op::Putrootfh, open])
    };
    assert_eq!(open(b"missing").status, Status::Noent);
    // The seqid is that of the failed OPEN, as from libnfs after a symbolic link.
    open(b"file").done();
    // A retransmission gets the cached reply.
    let how = OpenHow::Create(CreateHow::Guarded(Attributes::default()));
    let guarded = client.opening(b"new", 1, b"made", BOTH, how);
    let message = client.net.message(&[Op::Putrootfh, guarded]);
    let made = client.net.again(&message).done();
    assert_eq!(client.net.again(&message), made);
}

#[test]
fn rfc7530_9_1_3_2_a_program_that_may_only_be_executed_can_be_read() {
    use crate::v4::op::{Close, Read, Write};
    use crate::v4::types::{Data, Stable};
    let world = World::new();
    for minor in 0..=2 {
        let name = format!("program-{minor}");
        let name = name.as_bytes();
        let owner = Client40::new(&world, format!("owner-{minor}").as_bytes());
        let (handle, state) = owner.create(b"owner", name);
        let write = Op::Write(Write {
            state,
            offset: 0,
            stable: Stable::File,
            data: Data(b"#!/bin/true"),
        });
        owner.net.send(&[Op::Putfh(&handle), write]).done();
        let close = Op::Close(Close { seqid: 3, state });
        owner.net.send(&[Op::Putfh(&handle), close]).done();
        let chmod = |mode| {
            let set = Op::Setattr(crate::v4::op::Setattr {
                state: StateId::ANONYMOUS,
                attributes: Attributes {
                    mode: Some(mode),
                    ..Attributes::default()
                },
            });
            owner.net.send(&[Op::Putfh(&handle), set]).done();
        };
        let read = |state| {
            Op::Read(Read {
                state,
                offset: 0,
                count: 100,
            })
        };
        chmod(0o711);
        let (opened, user) = match minor {
            0 => {
                let user = Client40::new(&world, b"user");
                user.net.uid.set(1000);
                let open = user.open(b"user", 1, name, READ);
                let opened = user.net.send(&[Op::Putrootfh, open]).done();
                let () = opened.ok();
                let Opened { state, .. } = opened.ok();
                let confirm = Op::OpenConfirm(OpenConfirm { state, seqid: 2 });
                let confirmed = user.net.send(&[Op::Putfh(&handle), confirm]).done();
                let () = confirmed.ok();
                (confirmed.ok(), Err(user))
            }
            minor => {
                let user = format!("user-{minor}");
                let user = Client41::by(world.net(minor), user.as_bytes(), CHANNEL, 0);
                user.send(&[Op::ReclaimComplete(false)]).done();
                user.net.uid.set(1000);
                let open = user.open(READ, OpenHow::NoCreate, Claim::Null(name));
                let opened = user.send(&[Op::Putrootfh, open]).done();
                let () = opened.ok();
                let Opened { state, .. } = opened.ok();
                (state, Ok(user))
            }
        };
        let send = |ops: &[Op<'_>]| match &user {
            Ok(user) => user.send(ops),
            Err(user) => user.net.send(ops),
        };
        let net = match &user {
            Ok(user) => &user.net,
            Err(user) => &user.net,
        };
        send(&[Op::Putfh(&handle), read(opened)]).done();
        // Another user, with the first user's stateid.
        net.uid.set(1001);
        send(&[Op::Putfh(&handle), read(opened)]).done();
        send(&[Op::Putfh(&handle), read(StateId::ANONYMOUS)]).done();
        let write = Op::Write(Write {
            state: StateId::ANONYMOUS,
            offset: 0,
            stable: Stable::File,
            data: Data(b"x"),
        });
        assert_eq!(send(&[Op::Putfh(&handle), write]).status, Status::Access);
        chmod(0o700);
        assert_eq!(
            send(&[Op::Putfh(&handle), read(opened)]).status,
            Status::Access
        );
    }
}

#[test]
fn rfc8881_15_1_2_7_a_file_that_the_host_removed_is_stale_unless_it_is_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::on_host(directory.path(), |_| {});
    let client = Client41::new(&world, b"client");
    for is_open in [false, true] {
        std::fs::write(directory.path().join("file"), b"contents").expect("written");
        let how = || OpenHow::NoCreate;
        let look_up = [Op::Putrootfh, Op::Lookup(b"file"), Op::Getfh];
        let reply = client.send(&look_up).done();
        let ((), ()) = (reply.ok(), reply.ok());
        let handle: Vec<u8> = reply.ok::<&[u8]>().to_vec();
        if is_open {
            let open = client.open(READ, how(), Claim::Handle);
            client.send(&[Op::Putfh(&handle), open]).done();
        }
        std::fs::remove_file(directory.path().join("file")).expect("removed");
        let expected = if is_open { Status::Ok } else { Status::Stale };
        let links = Op::Getattr(Bitmap::of(&[n::NUMLINKS]));
        for op in [client.open(READ, how(), Claim::Handle), links] {
            let reply = client.send(&[Op::Putfh(&handle), op.clone()]);
            assert_eq!(reply.status, expected, "{op:?}");
        }
    }
}
