//! Hard links.

use vfs::{Errno, Support};

use crate::context::{RW, TestContext, TestNode, ok, refused};
use crate::{Script, needs};

/// A hard link is another name of the same file.
pub fn two_names_one_file(test: &TestContext) {
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    let file = ok(root.file("a", b"content"));
    let link = ok(dir.link("b", &file));
    assert_eq!(link.id(), file.id());
    assert_eq!(link.attr().nlink, 2);
    ok(ok(link.open(RW)).write_all(0, b"CON"));
    assert_eq!(ok(file.content()), b"CONtent");
}

/// A file exists as long as one of its names.
pub fn a_file_lasts_as_long_as_a_name(test: &TestContext) {
    let root = test.root();
    let file = ok(root.file("a", b"content"));
    ok(root.link("b", &file));
    ok(root.unlink("a"));
    assert_eq!(file.attr().nlink, 1);
    assert_eq!(ok(ok(root.lookup("b")).content()), b"content");
}

/// Directories cannot be linked.
pub fn linking_a_directory_is_eperm(test: &TestContext) {
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    refused(root.link("other", &dir), Errno::EPERM);
    refused(root.lookup("other"), Errno::ENOENT);
}

/// An existing name is not replaced.
pub fn linking_over_a_name_is_eexist(test: &TestContext) {
    let root = test.root();
    let a = ok(root.file("a", b"a"));
    ok(root.file("b", b"b"));
    refused(root.link("b", &a), Errno::EEXIST);
    refused(root.link("a", &a), Errno::EEXIST);
    assert_eq!(a.attr().nlink, 1);
}

/// Symbolic links can be hard-linked, too.
pub fn a_symlink_itself_is_linked(test: &TestContext) {
    let root = test.root();
    let link = ok(root.symlink("link", b"nowhere"));
    let other = ok(root.link("other", &link));
    assert_eq!(ok(other.readlink()), b"nowhere");
    assert_eq!(link.attr().nlink, 2);
}

/// Nodes of another file system are refused.
pub fn linking_or_moving_to_another_file_system_is_exdev(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b""));
    let foreign = |id, kind| TestNode {
        node: Script::new().node(id, kind),
        caller: root.caller.clone(),
    };
    let file = foreign(2, vfs::Kind::File);
    refused(root.link("link", &file), Errno::EXDEV);
    let dir = foreign(1, vfs::Kind::Directory);
    refused(root.rename("file", &dir, "moved"), Errno::EXDEV);
}

/// Linking changes the file.
pub fn linking_changes_the_file(test: &TestContext) {
    needs!(test.caps.change > Support::None, "a change counter");
    let root = test.root();
    let file = ok(root.file("a", b""));
    let before = file.attr();
    test.wait_for_clock();
    ok(root.link("b", &file));
    let after = file.attr();
    assert_ne!(after.change, before.change);
    assert_eq!(after.mtime, before.mtime);
}

/// A file without a name cannot be linked again.
pub fn linking_an_unlinked_file_is_enoent(test: &TestContext) {
    needs!(test.profile.open_unlinked, "nodes that outlast their name");
    let root = test.root();
    let (node, _open) = ok(root.create("file", RW, 0o644));
    ok(root.unlink("file"));
    refused(root.link("again", &node), Errno::ENOENT);
}

/// A file may have many names.
pub fn many_links(test: &TestContext) {
    let root = test.root();
    let file = ok(root.file("link-0", b""));
    for i in 1..200 {
        ok(root.link(&format!("link-{i}"), &file));
    }
    assert_eq!(file.attr().nlink, 200);
    for i in 0..199 {
        ok(root.unlink(&format!("link-{i}")));
    }
    assert_eq!(ok(root.lookup("link-199")).attr().nlink, 1);
}
