//! ACLs (RFC 8881 section 6), over a scripted source.

use std::sync::Arc;

use vfs::{Access, Acl, AclEntry, AclSubject, Capabilities, Errno, Support};
use vfs_testkit::script::{Answer, Script};

use super::*;
use crate::v4::acl::NodeAcls;
use crate::v4::attr::{Ace, Bitmap, Who, number as n};
use crate::v4::op::{Create, CreateWhat, Setattr};
use crate::v4::reply::Created;

fn script() -> Arc<Script> {
    let script = Script::new();
    script.set_capabilities(Capabilities {
        acl: Support::Native,
        ..Capabilities::default()
    });
    script
}

/// Returns an ACL that a mode cannot express.
fn acl() -> Acl {
    let entry = |whose, may| AclEntry {
        subject: whose,
        permissions: may,
    };
    Acl(vec![
        entry(AclSubject::Owner, Access::all()),
        entry(AclSubject::User(7), Access::READ),
        entry(AclSubject::OwningGroup, Access::READ),
        entry(AclSubject::Mask, Access::READ),
        entry(AclSubject::Others, Access::empty()),
    ])
}

fn set(attributes: Attributes<'_>) -> Op<'_> {
    Op::Setattr(Setattr {
        state: StateId::ANONYMOUS,
        attributes,
    })
}

fn with(acl: &[Ace<'static>]) -> Attributes<'static> {
    Attributes {
        acl: Some(acl.to_vec()),
        ..Attributes::default()
    }
}

/// Returns the ACLs that were set and removed.
fn changes(script: &Script) -> Vec<String> {
    let calls = script.take_calls().into_iter();
    let changes = calls.filter(|call| [vfs::Op::SetXattr, vfs::Op::RemoveXattr].contains(&call.op));
    changes.map(|call| call.arguments).collect()
}

fn setting(name: &[u8], acl: &Acl) -> String {
    let (name, value) = (name.escape_ascii(), acl.value());
    format!("{name} {} XattrFlags(0x0)", value.escape_ascii())
}

#[test]
fn rfc8881_6_2_1_a_directory_tells_its_acls_as_one() {
    let script = script();
    let default = Acl::of_mode(0o750);
    script
        .next(vfs::Op::Xattr, Answer::Bytes(acl().value()))
        .next(vfs::Op::Xattr, Answer::Bytes(default.value()));
    let net = World::over(script).net(0);
    let want = Bitmap::of(&[n::ACL, n::ACLSUPPORT]);
    let reply = net.send(&[Op::Putrootfh, Op::Getattr(want)]).done();
    let () = reply.ok();
    let got: Attributes<'_> = reply.ok();
    let acls = NodeAcls {
        access: acl(),
        default: Some(default),
    };
    assert_eq!(got.acl, Some(acls.to_v4(true)));
    assert_eq!(got.acl_support, Some(3));
}

#[test]
fn what_has_no_acl_but_its_mode_tells_that() {
    let script = script();
    script.always(vfs::Op::Xattr, Answer::Fail(Errno::ENODATA));
    let net = World::over(script).net(0);
    let want = Bitmap::of(&[n::ACL]);
    let reply = net.send(&[Op::Putrootfh, Op::Getattr(want)]).done();
    let () = reply.ok();
    let got: Attributes<'_> = reply.ok();
    let acls = NodeAcls {
        access: Acl::of_mode(0o755),
        default: None,
    };
    assert_eq!(got.acl, Some(acls.to_v4(true)));
    let verify = Op::Verify(got.clone());
    net.send(&[Op::Putrootfh, verify]).done();
}

#[test]
fn a_node_without_acls_leaves_the_attribute_out() {
    let script = script();
    script.always(vfs::Op::Xattr, Answer::Fail(Errno::EOPNOTSUPP));
    let net = World::over(script).net(0);
    let want = Bitmap::of(&[n::TYPE, n::ACL]);
    let reply = net.send(&[Op::Putrootfh, Op::Getattr(want)]).done();
    let () = reply.ok();
    let got: Attributes<'_> = reply.ok();
    assert_eq!(got.set(), Bitmap::of(&[n::TYPE]));
}

#[test]
fn rfc8881_6_4_1_2_a_new_acl_replaces_all_there_was() {
    let script = script();
    let net = World::over(script.clone()).net(0);
    let acls = NodeAcls {
        access: acl(),
        default: None,
    };
    let reply = net.send(&[Op::Putrootfh, set(with(&acls.to_v4(true)))]);
    let reply = reply.done();
    let () = reply.ok();
    assert_eq!(reply.ok::<Bitmap>(), Bitmap::of(&[n::ACL]));
    let want = [
        setting(vfs::acl::ACCESS, &acl()),
        "system.posix_acl_default".into(),
    ];
    assert_eq!(changes(&script), want);
}

#[test]
fn rfc8881_6_4_1_3_a_mode_comes_first_and_stays_if_the_acl_fails() {
    let script = script();
    script.next(vfs::Op::SetXattr, Answer::Fail(Errno::ENOSPC));
    let net = World::over(script.clone()).net(0);
    let acls = NodeAcls {
        access: acl(),
        default: None,
    };
    let both = Attributes {
        mode: Some(0o700),
        ..with(&acls.to_v4(true))
    };
    let refused = net.send(&[Op::Putrootfh, set(both)]);
    let () = refused.ok();
    let want = (Status::Nospc, Bitmap::of(&[n::MODE]));
    assert_eq!(refused.refused(), want);
}

#[test]
fn what_is_made_gets_the_acl_that_it_is_to_have() {
    let script = script();
    let net = World::over(script.clone()).net(0);
    let acls = NodeAcls {
        access: acl(),
        default: Some(acl()),
    };
    let create = Op::Create(Create {
        what: CreateWhat::Directory,
        name: b"made",
        attributes: with(&acls.to_v4(true)),
    });
    script.next(vfs::Op::Make, Answer::Node(5, vfs::Kind::Directory));
    let reply = net.send(&[Op::Putrootfh, create]).done();
    let () = reply.ok();
    let Created { set, .. } = reply.ok();
    assert_eq!(set, Bitmap::of(&[n::ACL]));
    let want = [
        setting(vfs::acl::ACCESS, &acl()),
        setting(vfs::acl::DEFAULT, &acl()),
    ];
    assert_eq!(changes(&script), want);
}

#[test]
fn rfc8881_6_2_1_a_source_without_acls_does_not_support_them() {
    let net = World::new().net(0);
    let want = Bitmap::of(&[n::SUPPORTED, n::ACLSUPPORT, n::ACL]);
    let reply = net.send(&[Op::Putrootfh, Op::Getattr(want)]).done();
    let () = reply.ok();
    let got: Attributes<'_> = reply.ok();
    assert_eq!((got.acl, got.acl_support), (None, Some(0)));
    assert!(!got.supported.expect("asked for").has(n::ACL));
    let anyone = Ace {
        kind: 0,
        flag: 0,
        mask: 1,
        who: Who::Name(b"EVERYONE@"),
    };
    let refused = net.send(&[Op::Putrootfh, set(with(&[anyone]))]);
    assert_eq!(refused.status, Status::Attrnotsupp);
}
