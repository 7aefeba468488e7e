//! Security contexts of new files, and file capabilities, as the client's kernel handles them.

use std::sync::Arc;

use fuse::Request as R;
use fuse::layout::*;
use fuse::message::{Rest, SetxattrIn, Text};
use fuse::numbers::{InitFlags, ROOT_ID};
use fuse::server::{Options, Server};
use layers::Pokes;
use layers::poke::{AGENT_UIDS, Poke};
use memory::Memory;
use vfs::{Call, Caller, Cx, Errno, Export, Result};
use vfs_testkit::clock;

use crate::net::{FORM, Net, OFFERED, create, entry, init, lookup, server};

const SELINUX: &str = "security.selinux";

fn labelling() -> Options {
    Options {
        security_label: true,
        tmpfile: true,
        ..Options::default()
    }
}

/// Sends a request followed by a security context.
fn labelled(net: &Net, request: &R<'_>, name: &str, value: &[u8]) -> Result<Vec<u8>> {
    let header = fuse::Header {
        unique: 1000,
        nodeid: ROOT_ID,
        uid: net.uid,
        gid: net.uid,
        ..Default::default()
    };
    let mut message = Vec::new();
    request.encode(FORM, header, &mut message);
    let mut context = (value.len() as u32).to_le_bytes().to_vec();
    context.extend([0; 4]);
    context.extend(name.bytes().chain([0]));
    context.extend(value);
    context.resize(context.len().next_multiple_of(8), 0);
    message.extend((context.len() as u32 + 8).to_le_bytes());
    message.extend(1u32.to_le_bytes());
    message.extend(&context);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_le_bytes());
    message[36] = (context.len() / 8 + 1) as u8;
    net.exchange(&message)
}

fn label(net: &Net, nodeid: u64) -> Result<Vec<u8>> {
    let args = GetxattrIn { size: 99 };
    let name = Text(SELINUX.as_bytes());
    net.rpc(nodeid, &R::Getxattr { args, name })
}

fn name(name: &str) -> Text<'_> {
    Text(name.as_bytes())
}

fn mkdir(called: &str) -> R<'_> {
    R::Mkdir {
        args: MkdirIn {
            mode: 0o755,
            umask: 0,
        },
        name: name(called),
    }
}

fn tmpfile() -> R<'static> {
    R::Tmpfile {
        args: CreateIn {
            flags: 2,
            mode: 0o100600,
            ..CreateIn::default()
        },
        name: name(""),
    }
}

#[test]
fn what_is_made_has_its_label_from_the_start() {
    let net = Net::on(&server(labelling()));
    let fifo = R::Mknod {
        args: MknodIn {
            mode: 0o10600,
            ..MknodIn::default()
        },
        name: name("fifo"),
    };
    let symlink = R::Symlink {
        name: name("link"),
        target: name("elsewhere"),
    };
    let file = create("file", 0o102);
    for request in [&mkdir("dir"), &fifo, &symlink, &file, &tmpfile()] {
        let made = labelled(&net, request, SELINUX, b"a:b:c").expect("made");
        let made = entry(&made[..EntryOut::SIZE]);
        let now = net.getattr(made.nodeid);
        assert_eq!(label(&net, made.nodeid), Ok(b"a:b:c".into()), "{request:?}");
        assert_eq!(
            (made.attr.ctime, made.attr.ctimensec),
            (now.ctime, now.ctimensec),
            "{request:?}: as labelled"
        );
    }
}

#[test]
fn the_kernel_labels_what_anyone_makes() {
    let mut net = Net::on(&server(labelling()));
    let args = SetattrIn {
        valid: 1,
        mode: 0o777,
        ..SetattrIn::default()
    };
    net.ok(ROOT_ID, &R::Setattr { args });
    net.uid = 1000;
    let made = labelled(&net, &mkdir("dir"), SELINUX, b"x").expect("made");
    assert_eq!(entry(&made).attr.uid, 1000);
    assert_eq!(label(&net, entry(&made).nodeid), Ok(b"x".into()));
}

#[test]
fn what_is_there_keeps_its_label() {
    let net = Net::on(&server(labelling()));
    labelled(&net, &create("file", 0o102), SELINUX, b"first").expect("made");
    let again = labelled(&net, &create("file", 0o102), SELINUX, b"second").expect("opened");
    let again = entry(&again[..EntryOut::SIZE]);
    assert_eq!(label(&net, again.nodeid), Ok(b"first".into()));
    let only = create("file", 0o302);
    assert_eq!(labelled(&net, &only, SELINUX, b"x"), Err(Errno::EEXIST));
    labelled(&net, &mkdir("dir"), SELINUX, b"x").expect("made");
    let onto = labelled(&net, &create("dir", 0o102), SELINUX, b"x");
    assert_eq!(onto, Err(Errno::EISDIR));
}

#[test]
fn what_an_agent_makes_again_keeps_its_label() {
    let pokes = Pokes::new([7; 16]);
    let tree = layers::stack(Memory::new(clock()), pokes.clone());
    let root = tree.root(&Cx::new(&Caller::ROOT, &Call::detached()));
    let root = root.expect("a root").id();
    let mut net = Net::on(&Server::new(Arc::new(Export::new("", tree)), labelling()));
    let made = labelled(&net, &mkdir("dir"), SELINUX, b"first").expect("made");
    let agent = pokes.add(AGENT_UIDS.start, Vec::new()).expect("room");
    agent.announce(Poke::Create {
        dir: root,
        name: b"dir".to_vec(),
        stand_in: None,
    });
    net.uid = agent.uid();
    let again = labelled(&net, &mkdir("dir"), SELINUX, b"second").expect("made again");
    assert_eq!(entry(&again).nodeid, entry(&made).nodeid);
    net.uid = 0;
    assert_eq!(label(&net, entry(&made).nodeid), Ok(b"first".into()));
    // The next node is a new one.
    let made = labelled(&net, &mkdir("next"), SELINUX, b"next").expect("made");
    assert_eq!(label(&net, entry(&made).nodeid), Ok(b"next".into()));
}

#[test]
fn what_cannot_be_labelled_is_not_made() {
    let net = Net::on(&server(labelling()));
    for request in [&create("name", 0o102), &mkdir("name"), &tmpfile()] {
        let made = labelled(&net, request, "nonsense.x", b"x");
        assert_eq!(made, Err(Errno::EOPNOTSUPP), "{request:?}");
        assert_eq!(net.err(ROOT_ID, &lookup("name")), Errno::ENOENT);
    }
}

#[test]
fn labels_are_granted_where_they_are_asked_for_and_can_be_told_apart() {
    let granted = |options: Options, minor, offered| -> Result<bool> {
        let net = Net::silent(&server(options));
        let answer = net.rpc(ROOT_ID, &init(7, minor, offered))?;
        let out = InitOut::decode(&answer).expect("an answer");
        Ok(out.flags2 & 1 != 0)
    };
    assert_eq!(granted(Options::default(), 45, OFFERED), Ok(false));
    assert_eq!(granted(labelling(), 45, OFFERED), Ok(true));
    assert_eq!(granted(labelling(), 38, OFFERED), Ok(true));
    assert_eq!(granted(labelling(), 37, OFFERED), Ok(false));
    let without = OFFERED - InitFlags::SECURITY_CTX;
    assert_eq!(granted(labelling(), 45, without), Ok(false));
    let insisting = Options {
        required: InitFlags::SECURITY_CTX,
        ..labelling()
    };
    assert_eq!(granted(insisting.clone(), 45, OFFERED), Ok(true));
    assert_eq!(granted(insisting, 45, without), Err(Errno::EPROTO));

    let net = Net::on(&server(Options::default()));
    let made = labelled(&net, &mkdir("dir"), SELINUX, b"x").expect("made");
    assert_eq!(label(&net, entry(&made).nodeid), Err(Errno::ENODATA));
}

/// Linux does so before any process's write (`fs/inode.c`, `file_remove_privs`).
#[test]
fn the_kernel_takes_file_capabilities_away_whoever_writes() {
    let mut net = Net::new();
    let (file, _) = net.create(ROOT_ID, "file");
    for label in ["security.capability", SELINUX] {
        let set = R::Setxattr {
            args: SetxattrIn {
                size: 1,
                ..SetxattrIn::default()
            },
            name: name(label),
            value: Rest(b"x"),
        };
        net.ok(file.nodeid, &set);
    }
    net.uid = 1000;
    let remove = |label| R::Removexattr { name: name(label) };
    net.ok(file.nodeid, &remove("security.capability"));
    assert_eq!(net.err(file.nodeid, &remove(SELINUX)), Errno::EPERM);
}
