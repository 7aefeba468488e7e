//! Security labels (RFC 7862 section 12.2.4), over a scripted source.

use std::sync::Arc;

use layers::Pokes;
use layers::poke::{AGENT_UIDS, Poke};
use vfs::{Call, Caller, Capabilities, Cx, Errno, Support};
use vfs_testkit::script::{Answer, Script};

use super::*;
use crate::v4::attr::{Bitmap, SecLabel, number as n};
use crate::v4::op::{Create, CreateWhat, Setattr};
use crate::v4::reply::Created;

const LABEL: &[u8] = b"system_u:object_r:etc_t:s0\0";

/// Returns a source and a v4.2 client.
fn scene(asked_for: bool) -> (Arc<Script>, World, Client41) {
    let script = Script::new();
    script.set_capabilities(Capabilities {
        xattr: Support::Native,
        ..Capabilities::default()
    });
    let world = World::with(script.clone(), |options| {
        options.security_labels = asked_for
    });
    let mut client = Client41::new(&world, b"client");
    client.net.minor = 2;
    script.take_calls();
    (script, world, client)
}

fn with(format: u32, label: &[u8]) -> Attributes<'_> {
    Attributes {
        label: Some(SecLabel {
            format,
            policy: 0,
            label,
        }),
        ..Attributes::default()
    }
}

fn set(attributes: Attributes<'_>) -> Op<'_> {
    Op::Setattr(Setattr {
        state: StateId::ANONYMOUS,
        attributes,
    })
}

/// Returns the attributes that were set at the source.
fn changes(script: &Script) -> Vec<String> {
    let calls = script.take_calls().into_iter();
    let changes = calls.filter(|call| call.op == vfs::Op::SetXattr);
    changes.map(|call| call.arguments).collect()
}

fn labelled() -> String {
    format!("security.selinux {} XattrFlags(0x0)", LABEL.escape_ascii())
}

#[test]
fn rfc7862_12_2_4_a_label_is_told_and_compared() {
    let (script, _world, client) = scene(true);
    script.always(vfs::Op::Xattr, Answer::Bytes(LABEL.to_vec()));
    let want = Bitmap::of(&[n::SUPPORTED, n::SUPPATTR_EXCLCREAT, n::SEC_LABEL]);
    let reply = client.send(&[Op::Putrootfh, Op::Getattr(want)]).done();
    let () = reply.ok();
    let got: Attributes<'_> = reply.ok();
    assert_eq!(got.label, with(0, LABEL).label);
    assert!(got.supported.expect("asked for").has(n::SEC_LABEL));
    assert!(
        got.supported_exclusive
            .expect("asked for")
            .has(n::SEC_LABEL)
    );
    let compare = |attributes| {
        let verify = Op::Verify(attributes);
        client.send(&[Op::Putrootfh, verify]).status
    };
    assert_eq!(compare(with(0, LABEL)), Status::Ok);
    assert_eq!(compare(with(0, b"another")), Status::NotSame);
}

#[test]
fn what_has_no_label_leaves_the_attribute_out() {
    for errno in [Errno::ENODATA, Errno::EOPNOTSUPP] {
        let (script, _world, client) = scene(true);
        script.always(vfs::Op::Xattr, Answer::Fail(errno));
        let want = Bitmap::of(&[n::TYPE, n::SEC_LABEL]);
        let reply = client.send(&[Op::Putrootfh, Op::Getattr(want)]).done();
        let () = reply.ok();
        let got: Attributes<'_> = reply.ok();
        assert_eq!(got.set(), Bitmap::of(&[n::TYPE]));
    }
}

#[test]
fn rfc7862_12_2_4_a_label_is_set() {
    let (script, _world, client) = scene(true);
    let reply = client.send(&[Op::Putrootfh, set(with(0, LABEL))]).done();
    let () = reply.ok();
    assert_eq!(reply.ok::<Bitmap>(), Bitmap::of(&[n::SEC_LABEL]));
    assert_eq!(changes(&script), [labelled()]);
    let refused = |attributes| client.send(&[Op::Putrootfh, set(attributes)]).status;
    assert_eq!(refused(with(1, LABEL)), Status::WrongLfs);
    assert_eq!(refused(with(0, &[b'a'; 2049])), Status::Badlabel);
    assert_eq!(refused(with(0, b"")), Status::Badlabel);
    client.net.uid.set(1000);
    assert_eq!(refused(with(0, LABEL)), Status::Perm);
    assert!(changes(&script).is_empty());
}

#[test]
fn a_mode_stays_if_the_label_fails() {
    let (script, _world, client) = scene(true);
    script.next(vfs::Op::SetXattr, Answer::Fail(Errno::ENOSPC));
    let both = Attributes {
        mode: Some(0o700),
        ..with(0, LABEL)
    };
    let refused = client.send(&[Op::Putrootfh, set(both)]);
    let () = refused.ok();
    let want = (Status::Nospc, Bitmap::of(&[n::MODE]));
    assert_eq!(refused.refused(), want);
}

#[test]
fn what_is_made_gets_the_label_that_it_is_to_have() {
    for (answer, want) in [
        (Answer::Done, Bitmap::of(&[n::SEC_LABEL])),
        (Answer::Fail(Errno::EPERM), Bitmap::default()),
    ] {
        let (script, _world, client) = scene(true);
        let create = Op::Create(Create {
            what: CreateWhat::Directory,
            name: b"made",
            attributes: with(0, LABEL),
        });
        script.next(vfs::Op::Make, Answer::Node(5, vfs::Kind::Directory));
        script.next(vfs::Op::SetXattr, answer);
        let reply = client.send(&[Op::Putrootfh, create]).done();
        let () = reply.ok();
        let Created { set, .. } = reply.ok();
        assert_eq!(set, want);
        assert_eq!(changes(&script), [labelled()]);
    }
}

#[test]
fn what_an_agent_makes_again_keeps_its_label() {
    let script = Script::new();
    script.set_capabilities(Capabilities {
        xattr: Support::Native,
        ..Capabilities::default()
    });
    let pokes = Pokes::new([7; 16]);
    let tree = layers::stack(script.clone(), pokes.clone());
    let root = tree.root(&Cx::new(&Caller::ROOT, &Call::detached()));
    let root = root.expect("a root").id();
    let world = World::with(tree, |options| options.security_labels = true);
    let mut client = Client41::new(&world, b"client");
    client.net.minor = 2;
    let agent = pokes.add(AGENT_UIDS.start, Vec::new()).expect("room");
    agent.announce(Poke::Create {
        dir: root,
        name: b"made".to_vec(),
        stand_in: None,
    });
    client.net.uid.set(agent.uid());
    script.take_calls();
    script.next(vfs::Op::Lookup, Answer::Node(5, vfs::Kind::Directory));
    let create = Op::Create(Create {
        what: CreateWhat::Directory,
        name: b"made",
        attributes: with(0, LABEL),
    });
    let reply = client.send(&[Op::Putrootfh, create]).done();
    let () = reply.ok();
    let Created { set, .. } = reply.ok();
    assert_eq!(set, Bitmap::default());
    assert!(changes(&script).is_empty() && agent.withdraw());
}

#[test]
fn labels_are_there_if_they_are_asked_for() {
    let (_script, _world, client) = scene(false);
    let want = Bitmap::of(&[n::SUPPORTED, n::SEC_LABEL]);
    let reply = client.send(&[Op::Putrootfh, Op::Getattr(want)]).done();
    let () = reply.ok();
    let got: Attributes<'_> = reply.ok();
    assert_eq!(got.label, None);
    assert!(!got.supported.expect("asked for").has(n::SEC_LABEL));
    let refused = client.send(&[Op::Putrootfh, set(with(0, LABEL))]);
    assert_eq!(refused.status, Status::Attrnotsupp);
}

#[test]
fn a_label_is_the_one_of_the_host() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let world = World::on_host(directory.path(), |options| options.security_labels = true);
    let mut client = Client41::new(&world, b"client");
    client.net.minor = 2;
    let told = || {
        let want = Bitmap::of(&[n::CHANGE, n::SEC_LABEL]);
        let reply = client.send(&[Op::Putrootfh, Op::Getattr(want)]).done();
        let () = reply.ok();
        let got: Attributes<'_> = reply.ok();
        (got.change, got.label.map(|told| told.label.to_vec()))
    };
    let (before, none) = told();
    assert_eq!(none, None);
    let reply = client.send(&[Op::Putrootfh, set(with(0, LABEL))]);
    if reply.status == Status::Perm {
        eprintln!("skipped: setting security.selinux takes root");
        return;
    }
    let (after, label) = told();
    assert_eq!(label.as_deref(), Some(LABEL));
    assert_ne!(before, after);
    let host = std::process::Command::new("getfattr")
        .args(["--only-values", "-n", "security.selinux"])
        .arg(directory.path())
        .output();
    assert_eq!(host.expect("attr is installed").stdout, LABEL);
}
