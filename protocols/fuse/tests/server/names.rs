//! Names and nodes: look up, forget, make, link, rename, remove.

use fuse::Request as R;
use fuse::layout::*;
use fuse::message::{Rest, Text};
use fuse::numbers::ROOT_ID;
use fuse::server::Options;
use vfs::Errno;

use crate::net::{Net, create, entry, lookup, server};

fn text(name: &str) -> Text<'_> {
    Text(name.as_bytes())
}

fn unlink(name: &str) -> R<'_> {
    R::Unlink { name: text(name) }
}

fn rename2<'a>(name: &'a str, newdir: u64, newname: &'a str, flags: u32) -> R<'a> {
    R::Rename2 {
        args: Rename2In { newdir, flags },
        name: text(name),
        newname: text(newname),
    }
}

#[test]
fn look_ups_are_counted_and_forgotten() {
    let net = Net::new();
    let dir = net.mkdir(ROOT_ID, "d");
    assert_ne!(dir.nodeid, ROOT_ID);
    assert_eq!(dir.attr.mode, 0o40755);
    let again = net.lookup(ROOT_ID, "d");
    assert_eq!(
        (again.nodeid, again.generation),
        (dir.nodeid, dir.generation)
    );
    net.forget(dir.nodeid, 1);
    net.getattr(dir.nodeid);
    net.forget(dir.nodeid, 1);
    let args = GetattrIn::default();
    assert_eq!(net.err(dir.nodeid, &R::Getattr { args }), Errno::ESTALE);
    // More than the look-up count, and a node that was never looked up.
    net.lookup(ROOT_ID, "d");
    net.forget(dir.nodeid, u64::MAX);
    net.forget(999, 1);
    assert_eq!(net.err(dir.nodeid, &lookup("x")), Errno::ESTALE);
    // The root stays.
    net.forget(ROOT_ID, u64::MAX);
    net.getattr(ROOT_ID);
}

#[test]
fn many_are_forgotten_at_once() {
    let net = Net::new();
    let ids = ["a", "b"].map(|name| net.mkdir(ROOT_ID, name).nodeid);
    let mut forgets = Vec::new();
    for nodeid in ids {
        forgets.extend(ForgetOne { nodeid, nlookup: 1 }.encode());
    }
    let forget = |count| R::BatchForget {
        args: BatchForgetIn { count },
        forgets: Rest(&forgets),
    };
    net.tell(0, &forget(1));
    assert_eq!(net.err(ids[0], &lookup("x")), Errno::ESTALE);
    assert_eq!(net.err(ids[1], &lookup("x")), Errno::ENOENT);
    net.tell(0, &forget(u32::MAX));
    assert_eq!(net.err(ids[1], &lookup("x")), Errno::ESTALE);
}

#[test]
fn the_dots_can_be_looked_up() {
    let net = Net::new();
    let dir = net.mkdir(ROOT_ID, "d");
    assert_eq!(net.lookup(dir.nodeid, ".").nodeid, dir.nodeid);
    let root = net.lookup(dir.nodeid, "..");
    assert_eq!((root.nodeid, root.generation), (ROOT_ID, 0));
    assert_eq!(net.lookup(ROOT_ID, "..").nodeid, ROOT_ID);
}

#[test]
fn everything_is_made() {
    let net = Net::new();
    let symlink = R::Symlink {
        name: text("l"),
        target: text("to/where"),
    };
    let link = entry(&net.ok(ROOT_ID, &symlink));
    assert_eq!(link.attr.mode & 0o170000, 0o120000);
    assert_eq!(net.ok(link.nodeid, &R::Readlink {}), b"to/where");
    let mknod = |name, mode, rdev| R::Mknod {
        args: MknodIn {
            mode,
            rdev,
            umask: 0,
        },
        name: text(name),
    };
    let fifo = entry(&net.ok(ROOT_ID, &mknod("p", 0o010640, 0)));
    assert_eq!(fifo.attr.mode, 0o010640);
    let device = entry(&net.ok(ROOT_ID, &mknod("c", 0o020600, 0x10_0823)));
    assert_eq!((device.attr.mode, device.attr.rdev), (0o020600, 0x10_0823));
    assert_eq!(net.err(ROOT_ID, &mknod("x", 0o040000, 0)), Errno::EPERM);
    assert_eq!(net.err(ROOT_ID, &mknod("x", 0o120000, 0)), Errno::EINVAL);
    assert_eq!(net.err(ROOT_ID, &symlink), Errno::EEXIST);
    assert_eq!(net.err(fifo.nodeid, &create("x", 2)), Errno::ENOTDIR);
}

#[test]
fn hard_links_are_one_node() {
    let net = Net::new();
    let (file, _) = net.create(ROOT_ID, "a");
    let link = R::Link {
        args: LinkIn {
            oldnodeid: file.nodeid,
        },
        name: text("b"),
    };
    let linked = entry(&net.ok(ROOT_ID, &link));
    assert_eq!((linked.nodeid, linked.attr.nlink), (file.nodeid, 2));
    assert_eq!(net.lookup(ROOT_ID, "b").nodeid, file.nodeid);
    // Three look-ups so far.
    net.forget(file.nodeid, 2);
    net.getattr(file.nodeid);
    net.forget(file.nodeid, 1);
    assert_eq!(net.err(ROOT_ID, &link), Errno::ESTALE);
}

#[test]
fn names_move_and_go() {
    let net = Net::new();
    let dir = net.mkdir(ROOT_ID, "d");
    net.create(ROOT_ID, "a");
    let rename = R::Rename {
        args: RenameIn { newdir: dir.nodeid },
        name: text("a"),
        newname: text("b"),
    };
    net.ok(ROOT_ID, &rename);
    assert_eq!(net.err(ROOT_ID, &lookup("a")), Errno::ENOENT);
    net.create(ROOT_ID, "a");
    let over = |flags| rename2("a", dir.nodeid, "b", flags);
    assert_eq!(net.err(ROOT_ID, &over(1)), Errno::EEXIST);
    assert_eq!(net.err(ROOT_ID, &over(0x80)), Errno::EINVAL);
    net.ok(ROOT_ID, &over(2));
    assert_eq!(net.err(ROOT_ID, &rename2("d", 999, "e", 0)), Errno::ESTALE);
    assert_eq!(
        net.err(ROOT_ID, &rename2("..", ROOT_ID, "e", 0)),
        Errno::EINVAL
    );
    let rmdir = R::Rmdir { name: text("d") };
    assert_eq!(net.err(ROOT_ID, &rmdir), Errno::ENOTEMPTY);
    assert_eq!(net.err(ROOT_ID, &unlink("d")), Errno::EISDIR);
    net.ok(dir.nodeid, &unlink("b"));
    net.ok(ROOT_ID, &rmdir);
    assert_eq!(net.err(ROOT_ID, &unlink(".")), Errno::EINVAL);
}

#[test]
fn names_are_checked() {
    let net = Net::new();
    let long = "a".repeat(256);
    for (name, errno) in [
        ("", Errno::ENOENT),
        ("a/b", Errno::EACCES),
        (&long, Errno::ENAMETOOLONG),
    ] {
        assert_eq!(net.err(ROOT_ID, &lookup(name)), errno);
        assert_eq!(net.err(ROOT_ID, &create(name, 2)), errno);
    }
}

#[test]
fn a_full_table_of_nodes_makes_nothing() {
    let net = Net::on(&server(Options {
        max_nodes: 2,
        ..Options::default()
    }));
    let dir = net.mkdir(ROOT_ID, "d");
    assert_eq!(net.err(ROOT_ID, &create("a", 2)), Errno::ENFILE);
    net.forget(dir.nodeid, 1);
    assert_eq!(net.err(ROOT_ID, &lookup("a")), Errno::ENOENT);
    net.create(ROOT_ID, "a");
    assert_eq!(net.err(ROOT_ID, &lookup("d")), Errno::ENFILE);
}

#[test]
fn the_caller_owns_what_it_makes() {
    let mut net = Net::new();
    let args = SetattrIn {
        valid: 1,
        mode: 0o777,
        ..SetattrIn::default()
    };
    net.ok(ROOT_ID, &R::Setattr { args });
    net.uid = 1000;
    let (file, _) = net.create(ROOT_ID, "a");
    assert_eq!((file.attr.uid, file.attr.gid), (1000, 1000));
}
