//! Creating nodes.

use vfs::{Device, Errno, Kind, Mode, NewNode, OpenFlags, Support};

use crate::context::{R, RW, TestContext, W, ok, refused};
use crate::needs;

/// A new file is empty, has one link and the requested permissions.
pub fn a_new_file_is_as_asked_for(test: &TestContext) {
    let root = test.root();
    let (node, file) = ok(root.create("file", RW, 0o640));
    let attr = node.attr();
    assert_eq!(attr.kind, Kind::File);
    assert_eq!((attr.mode, attr.size, attr.nlink), (0o640, 0, 1));
    assert_eq!(file.attr().id, node.id());
    assert_eq!(ok(root.lookup("file")).id(), node.id());
}

/// Without `EXCL`, an existing file is opened unchanged.
pub fn create_opens_what_is_there(test: &TestContext) {
    let root = test.root();
    let old = ok(root.file("file", b"content"));
    ok(old.chmod(0o600));
    let (node, file) = ok(root.create("file", RW, 0o777));
    assert_eq!(node.id(), old.id());
    assert_eq!(node.attr().mode, 0o600);
    assert_eq!(ok(file.read_all()), b"content");
}

/// With `EXCL`, every existing name is refused.
pub fn create_excl_insists_on_a_new_file(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b"content"));
    ok(root.mkdir("dir", 0o755));
    ok(root.symlink("dangling", b"nowhere"));
    for name in ["file", "dir", "dangling"] {
        refused(
            root.create(name, RW | OpenFlags::EXCL, 0o644),
            Errno::EEXIST,
        );
    }
    assert_eq!(ok(ok(root.lookup("file")).content()), b"content");
}

/// `TRUNC` truncates an existing file.
pub fn create_trunc_cuts(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b"content"));
    let (node, _file) = ok(root.create("file", W | OpenFlags::TRUNC, 0o644));
    assert_eq!(node.attr().size, 0);
}

/// `create` on a directory fails with `EISDIR`.
pub fn create_on_a_directory_is_eisdir(test: &TestContext) {
    let root = test.root();
    ok(root.mkdir("dir", 0o755));
    refused(root.create("dir", RW, 0o644), Errno::EISDIR);
    refused(root.create("dir", R, 0o644), Errno::EISDIR);
}

/// Symbolic links are followed by the client.
pub fn create_on_a_symlink_is_eloop(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b""));
    ok(root.symlink("link", b"file"));
    refused(root.create("link", RW, 0o644), Errno::ELOOP);
    refused(ok(root.lookup("link")).open(R), Errno::ELOOP);
}

/// Only directories have children.
pub fn making_in_a_file_is_enotdir(test: &TestContext) {
    let file = ok(test.root().file("file", b""));
    refused(file.create("child", RW, 0o644), Errno::ENOTDIR);
    refused(file.mkdir("child", 0o755), Errno::ENOTDIR);
    refused(file.symlink("child", b"x"), Errno::ENOTDIR);
    refused(file.link("child", &file), Errno::ENOTDIR);
}

/// The creator of a file has it open as requested, whatever its mode.
pub fn a_new_file_is_open_whatever_its_mode(test: &TestContext) {
    let caller = test.profile.caller.clone();
    let dir = test.world_writable_dir();
    for caller in [caller, vfs::Caller::new(1000, 1000)] {
        let name = format!("locked-{}", caller.uid);
        let (_node, file) = ok(dir.as_caller(&caller).create(&name, RW, 0o000));
        ok(file.write_all(0, b"written"));
        assert_eq!(ok(file.read_all()), b"written");
        if !test.profile.identity {
            break;
        }
    }
}

/// A new directory has two links and adds one to its parent.
pub fn a_new_directory_links_its_parent(test: &TestContext) {
    let root = test.root();
    let before = root.attr().nlink;
    let dir = ok(root.mkdir("dir", 0o750));
    assert_eq!(dir.kind(), Kind::Directory);
    assert_eq!(dir.attr().mode, 0o750);
    assert!(ok(dir.names()).is_empty());
    needs!(test.profile.dir_links, "directories that count links");
    assert_eq!(dir.attr().nlink, 2);
    assert_eq!(root.attr().nlink, before + 1);
    ok(root.rmdir("dir"));
    assert_eq!(root.attr().nlink, before);
}

/// Creating a node at an existing name fails with `EEXIST`.
pub fn making_what_is_there_is_eexist(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b"kept"));
    ok(root.mkdir("dir", 0o755));
    ok(root.symlink("link", b"nowhere"));
    for name in ["file", "dir", "link"] {
        refused(root.mkdir(name, 0o755), Errno::EEXIST);
        refused(root.symlink(name, b"x"), Errno::EEXIST);
        refused(
            root.make(name, NewNode::File, Mode::without_umask(0o644)),
            Errno::EEXIST,
        );
        refused(
            root.make(name, NewNode::Fifo, Mode::without_umask(0o644)),
            Errno::EEXIST,
        );
    }
    assert_eq!(ok(ok(root.lookup("file")).content()), b"kept");
}

/// `make` creates regular files, too.
pub fn a_file_can_be_made_without_opening(test: &TestContext) {
    let root = test.root();
    let node = ok(root.make("file", NewNode::File, Mode::without_umask(0o604)));
    assert_eq!((node.kind(), node.attr().mode), (Kind::File, 0o604));
    ok(ok(node.open(RW)).write_all(0, b"data"));
    assert_eq!(node.attr().size, 4);
}

/// The umask clears bits.
pub fn the_umask_applies(test: &TestContext) {
    let root = test.root();
    let mode = Mode {
        bits: 0o777,
        umask: 0o027,
    };
    let dir = ok(root.make("dir", NewNode::Directory, mode));
    assert_eq!(dir.attr().mode, 0o750);
    let mode = Mode {
        bits: 0o666,
        umask: 0o022,
    };
    let file = ok(root.make("file", NewNode::File, mode));
    assert_eq!(file.attr().mode, 0o644);
}

/// Only the given umask is applied.
pub fn no_umask_of_the_server_applies(test: &TestContext) {
    let root = test.root();
    let (file, _open) = ok(root.create("file", RW, 0o666));
    assert_eq!(file.attr().mode, 0o666);
    assert_eq!(ok(root.mkdir("dir", 0o777)).attr().mode, 0o777);
    let fifo = ok(root.make("fifo", NewNode::Fifo, Mode::without_umask(0o622)));
    assert_eq!(fifo.attr().mode, 0o622);
}

/// Special bits are kept where Linux keeps them.
pub fn special_bits_of_new_nodes(test: &TestContext) {
    let root = test.root();
    let (file, _open) = ok(root.create("file", RW, 0o4711));
    assert_eq!(file.attr().mode, 0o4711);
    assert_eq!(ok(root.mkdir("dir", 0o1777)).attr().mode, 0o1777);
}

/// A symbolic link has its target, the size of the target, and all permissions.
pub fn a_symlink_keeps_its_target(test: &TestContext) {
    let root = test.root();
    for (name, target) in [
        ("relative", &b"a/b"[..]),
        ("absolute", b"/x/../y"),
        ("dot", b"."),
        ("long", &[b't'; 1000]),
    ] {
        let link = ok(root.symlink(name, target));
        assert_eq!(ok(link.readlink()), target);
        let attr = link.attr();
        assert_eq!(attr.kind, Kind::Symlink);
        assert_eq!((attr.size, attr.mode), (target.len() as u64, 0o777));
    }
}

/// An empty target is invalid.
pub fn an_empty_symlink_is_enoent(test: &TestContext) {
    refused(test.root().symlink("link", b""), Errno::ENOENT);
}

/// Only symbolic links have a target.
pub fn readlink_of_a_file_is_einval(test: &TestContext) {
    let root = test.root();
    refused(ok(root.file("file", b"")).readlink(), Errno::EINVAL);
    refused(root.readlink(), Errno::EINVAL);
}

/// Pipes and sockets can be created; opening them is up to the client.
pub fn pipes_and_sockets_cannot_be_opened(test: &TestContext) {
    let root = test.root();
    for (name, what, kind) in [
        ("fifo", NewNode::Fifo, Kind::Fifo),
        ("socket", NewNode::Socket, Kind::Socket),
    ] {
        let node = ok(root.make(name, what, Mode::without_umask(0o600)));
        assert_eq!(node.kind(), kind);
        assert_eq!(ok(root.lookup(name)).attr().mode, 0o600);
        refused(node.open(RW), Errno::ENXIO);
        refused(root.create(name, RW, 0o600), Errno::ENXIO);
    }
}

/// A device node has its number and cannot be opened here.
pub fn devices_keep_their_number(test: &TestContext) {
    needs!(
        test.caps.devices > Support::None && test.profile.root,
        "device nodes"
    );
    let root = test.root();
    let device = Device {
        major: 10,
        minor: 300,
    };
    for (name, what, kind) in [
        ("char", NewNode::CharDevice(device), Kind::CharDevice),
        ("block", NewNode::BlockDevice(device), Kind::BlockDevice),
    ] {
        let node = ok(root.make(name, what, Mode::without_umask(0o600)));
        assert_eq!((node.kind(), node.attr().rdev), (kind, device));
        refused(node.open(R), Errno::ENXIO);
    }
}

/// A file without a name has no links and is in no listing, but can be used and linked.
pub fn a_tmpfile_can_be_given_a_name(test: &TestContext) {
    needs!(test.caps.tmpfile > Support::None, "files without a name");
    let root = test.root();
    let (node, file) = ok(root.tmpfile(RW, 0o600));
    assert_eq!(node.attr().nlink, 0);
    assert!(ok(root.names()).is_empty());
    ok(file.write_all(0, b"content"));
    assert_eq!(ok(file.read_all()), b"content");
    ok(root.link("named", &node));
    assert_eq!(node.attr().nlink, 1);
    assert_eq!(ok(ok(root.lookup("named")).content()), b"content");
}

/// A file created with `EXCL` cannot be linked, and one that is not opened for writing is refused.
pub fn an_exclusive_tmpfile_gets_no_name(test: &TestContext) {
    needs!(test.caps.tmpfile > Support::None, "files without a name");
    let root = test.root();
    let (node, _file) = ok(root.tmpfile(RW | OpenFlags::EXCL, 0o600));
    refused(root.link("named", &node), Errno::ENOENT);
    refused(root.tmpfile(R, 0o600), Errno::EINVAL);
}

/// Creating a node changes the directory.
pub fn making_changes_the_directory(test: &TestContext) {
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    let mut change = dir.attr().change;
    let mut changed = |what: &str| {
        let now = dir.attr().change;
        assert_ne!(now, change, "{what} did not change the directory");
        change = now;
    };
    needs!(test.caps.change > Support::None, "a change counter");
    test.wait_for_clock();
    ok(dir.file("file", b""));
    changed("create");
    test.wait_for_clock();
    ok(dir.mkdir("sub", 0o755));
    changed("mkdir");
    test.wait_for_clock();
    ok(dir.symlink("link", b"x"));
    changed("symlink");
    test.wait_for_clock();
    ok(dir.link("hard", &ok(dir.lookup("file"))));
    changed("link");
}
