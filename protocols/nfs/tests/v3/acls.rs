//! The NFS_ACL program, over a source with scripted results.

use std::sync::Arc;

use nfs::portmap::{Mapping, TCP};
use nfs::v3::*;
use vfs::{Access, Acl, AclEntry, AclSubject, Capabilities, Errno, Op, Support};
use vfs_testkit::script::{Answer, Script};

use crate::net::{Host, NFS_ACL, Net, PORTMAP, whole};

fn script() -> Arc<Script> {
    let script = Script::new();
    script.set_capabilities(Capabilities {
        acl: Support::Native,
        ..Capabilities::default()
    });
    script
}

fn net(script: &Arc<Script>) -> Net {
    Net::on(&Host::over(script.clone()))
}

fn get(net: &Net, object: Handle, mask: u32) -> Outcome<GetAclOk, Option<Attributes>> {
    let args = GetAclArgs { object, mask };
    whole(net.call((NFS_ACL, 3, 1), &args).expect("results"))
}

type Set = Outcome<Option<Attributes>, Option<Attributes>>;

fn set(net: &Net, mask: u32, access: AclList, default: AclList) -> Set {
    let args = SetAclArgs {
        object: net.root(),
        mask,
        access,
        default,
    };
    whole(net.call((NFS_ACL, 3, 2), &args).expect("results"))
}

/// Returns an ACL with a named group that may read.
fn list(flag: u32) -> AclList {
    let items = [(1, 0, 7), (4, 0, 5), (8, 9, 4), (0x10, 0, 5), (0x20, 0, 5)];
    AclList {
        count: items.len() as u32,
        entries: items
            .map(|(tag, id, may)| AclItem {
                tag: tag | flag,
                id,
                permissions: may,
            })
            .to_vec(),
    }
}

fn acl() -> Acl {
    let mut acl = Acl::of_mode(0o755);
    let entry = |whose, may| AclEntry {
        subject: whose,
        permissions: may,
    };
    acl.0.insert(2, entry(AclSubject::Group(9), Access::READ));
    acl.0
        .insert(3, entry(AclSubject::Mask, Access::READ | Access::EXEC));
    acl
}

#[test]
fn getacl_tells_what_is_asked_for() {
    let script = script();
    let net = net(&script);
    script
        .next(Op::Xattr, Answer::Fail(Errno::ENODATA))
        .next(Op::Xattr, Answer::Bytes(acl().value()));
    let mask = acl_mask::ACCESS | acl_mask::DEFAULT_COUNT;
    let Outcome::Done(got) = get(&net, net.root(), mask) else {
        panic!("it is done");
    };
    assert_eq!(got.mask, mask);
    assert_eq!(got.access.acl(), Some(Some(Acl::of_mode(0o755))));
    assert_eq!((got.default.count, got.default.entries.len()), (5, 0));
    script.next(Op::Xattr, Answer::Fail(Errno::ENODATA));
    let Outcome::Done(got) = get(&net, net.root(), acl_mask::DEFAULT) else {
        panic!("it is done");
    };
    assert_eq!((got.access, got.default), Default::default());
    script.next(Op::Xattr, Answer::Fail(Errno::EOPNOTSUPP));
    for (mask, want) in [(16, Status::Inval), (1, Status::Notsupp)] {
        let refused = get(&net, net.root(), mask);
        assert!(
            matches!(refused, Outcome::Failed(status, Some(_)) if status == want),
            "{refused:?}"
        );
    }
}

#[test]
fn setacl_sets_what_is_given_and_leaves_the_rest() {
    let script = script();
    let net = net(&script);
    let changes = || {
        let calls = script.take_calls().into_iter();
        let calls = calls.filter(|call| [Op::SetXattr, Op::RemoveXattr].contains(&call.op));
        calls.map(|call| call.arguments).collect::<Vec<_>>()
    };
    let value = acl().value();
    let setting = |name| format!("{name} {} XattrFlags(0x0)", value.escape_ascii());
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    let none = AclList::default;

    assert!(matches!(
        set(&net, 1, list(0), none()),
        Outcome::Done(Some(_))
    ));
    assert_eq!(changes(), [setting(access)]);
    let both = set(&net, 5, list(0), list(AclItem::DEFAULT));
    assert!(matches!(both, Outcome::Done(Some(_))));
    assert_eq!(changes(), [setting(access), setting(default)]);
    assert!(matches!(
        set(&net, 4, none(), none()),
        Outcome::Done(Some(_))
    ));
    assert_eq!(changes(), [default]);
    let mut bad = list(0);
    bad.entries[1].permissions = 8;
    let refused = set(&net, 1, bad, none());
    assert!(matches!(refused, Outcome::Failed(Status::Inval, Some(_))));
    assert_eq!(changes(), [""; 0]);
}

#[test]
fn a_source_without_acls_has_no_such_program() {
    let net = Net::new();
    assert_eq!(net.call((NFS_ACL, 3, 0), &()), Err(1));
    let net = Net::on(&Host::over(script()));
    assert_eq!(net.call((NFS_ACL, 3, 0), &()), Ok(&b""[..]));
    assert_eq!(net.call((NFS_ACL, 2, 0), &()), Err(1));
    assert_eq!(net.call((NFS_ACL, 3, 3), &()), Err(3));
    let asked = Mapping {
        program: NFS_ACL,
        version: 3,
        protocol: TCP,
        port: 0,
    };
    let port: u32 = whole(net.call((PORTMAP, 2, 3), &asked).expect("results"));
    assert_eq!(port, 2049, "and the portmapper knows where");
}
