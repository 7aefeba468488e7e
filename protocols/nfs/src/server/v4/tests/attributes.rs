//! Attributes (RFC 7530 sections 5, 16.1, 16.24, 16.32 to 16.35; RFC 8881 section 5).

use wire::Xdr as _;

use super::*;
use crate::v4::attr::{Bitmap, Who, number as n};
use crate::v4::op::{Create, CreateWhat, Readdir, Setattr};
use crate::v4::reply::Accessible;

/// The encoded attribute `archive`, set.
const ARCHIVE: [u8; 16] = [0, 0, 0, 1, 0, 0, 0x40, 0, 0, 0, 0, 4, 0, 0, 0, 1];

fn set(attributes: Attributes<'_>) -> Op<'_> {
    Op::Setattr(Setattr {
        state: StateId::ANONYMOUS,
        attributes,
    })
}

#[test]
fn rfc7530_5_6_attributes_that_nobody_has_are_not_supported() {
    const PUTROOTFH: [u8; 4] = [0, 0, 0, 24];
    let net = World::new().net(0);
    let number = |number: u32, before: &[u8]| {
        let op = [&PUTROOTFH, &number.to_be_bytes(), before, &ARCHIVE[..]].concat();
        net.again(&net.message_of(2, &op))
    };
    for verify in [17, 37] {
        assert_eq!(number(verify, &[]).status, Status::Attrnotsupp);
    }
    let mut directory = Vec::new();
    CreateWhat::Directory.put(&mut directory);
    b"name".as_slice().put(&mut directory);
    assert_eq!(number(6, &directory).status, Status::Attrnotsupp);
    let refused = number(34, &[0; 16]);
    let () = refused.ok();
    let none = (Status::Attrnotsupp, Bitmap::default());
    assert_eq!(refused.refused(), none);
}

#[test]
fn rfc7530_16_32_setattr_tells_what_it_has_set_even_if_it_cannot_be_read() {
    let net = World::new().net(0);
    let mut bytes = Vec::new();
    Op::Putrootfh.put(&mut bytes);
    // The mode bit without a value.
    let setattr: [u32; 9] = [34, 0, 0, 0, 0, 2, 0, 2, 0];
    setattr.iter().for_each(|number| number.put(&mut bytes));
    let refused = net.again(&net.message_of(2, &bytes));
    let () = refused.ok();
    assert_eq!(refused.refused(), (Status::Badxdr, Bitmap::default()));
}

#[test]
fn rfc7530_16_32_5_setattr_of_what_is_too_long_or_of_nobody() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let (handle, _) = client.create(b"owner", b"file");
    for (attributes, want) in [
        (
            Attributes {
                size: Some(u64::MAX),
                ..Attributes::default()
            },
            Status::Fbig,
        ),
        (
            Attributes {
                owner: Some(Who::Name(b"")),
                ..Attributes::default()
            },
            Status::Inval,
        ),
        (
            Attributes {
                group: Some(Who::Name(b"")),
                ..Attributes::default()
            },
            Status::Inval,
        ),
        (
            Attributes {
                group: Some(Who::Name(b"wheel")),
                ..Attributes::default()
            },
            Status::Badowner,
        ),
        (
            Attributes {
                fileid: Some(7),
                ..Attributes::default()
            },
            Status::Inval,
        ),
    ] {
        let refused = client.net.send(&[Op::Putfh(&handle), set(attributes)]);
        assert_eq!(refused.status, want);
    }
}

#[test]
fn rfc9754_4_what_open_takes_is_told_by_4_2() {
    for minor in [1, 2] {
        let mut client = Client41::new(&World::new(), b"client");
        client.net.minor = minor;
        let asked = Bitmap::of(&[n::OPEN_ARGUMENTS]);
        let reply = client.send(&[Op::Putrootfh, Op::Getattr(asked)]).done();
        let () = reply.ok();
        let got: Attributes<'_> = reply.ok();
        let wants = got.open_arguments.map(|takes| takes.share_access_want);
        let any_or_none = Bitmap::of(&[3, 4]);
        assert_eq!(wants, (minor == 2).then_some(any_or_none));
        let verify = Op::Verify(got);
        client.send(&[Op::Putrootfh, verify]).done();
    }
}

#[test]
fn rfc8881_5_8_the_limits_of_names_and_links_are_the_file_system_s() {
    let net = World::new().net(0);
    let asked = Bitmap::of(&[n::MAXLINK, n::MAXNAME]);
    let reply = net.send(&[Op::Putrootfh, Op::Getattr(asked)]).done();
    let () = reply.ok();
    let got: Attributes<'_> = reply.ok();
    // The memory source reports itself as tmpfs.
    assert_eq!((got.max_link, got.max_name), (Some(u32::MAX), Some(255)));
}

#[test]
fn the_mode_of_a_link_is_whatever_it_is() {
    let net = World::new().net(0);
    let link = Op::Create(Create {
        what: CreateWhat::Link(b"target"),
        name: b"link",
        attributes: Attributes::default(),
    });
    let mode = Attributes {
        mode: Some(0o700),
        ..Attributes::default()
    };
    net.send(&[Op::Putrootfh, link, set(mode)]).done();
}

#[test]
fn rfc7530_16_24_4_a_listing_has_nothing_that_can_only_be_set() {
    let net = World::new().net(0);
    let readdir = Op::Readdir(Readdir {
        cookie: 0,
        verifier: [0; 8],
        dir_count: 512,
        max_count: 4096,
        attributes: Bitmap::of(&[n::TIME_MODIFY_SET]),
    });
    let refused = net.send(&[Op::Putrootfh, readdir]);
    assert_eq!(refused.status, Status::Inval);
}

#[test]
fn rfc7530_16_1_access_tells_only_what_makes_sense() {
    let world = World::new();
    let client = Client40::new(&world, b"client");
    let (handle, _) = client.create(b"owner", b"file");
    for (whose, want) in [(Op::Putrootfh, 0x1f), (Op::Putfh(&handle), 0x2d)] {
        let reply = client.net.send(&[whose, Op::Access(!0)]).done();
        let () = reply.ok();
        let Accessible { supported, .. } = reply.ok();
        assert_eq!(supported, want);
    }
}
