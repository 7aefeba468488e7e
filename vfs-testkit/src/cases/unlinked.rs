//! Nodes without a name that are still in use.

use vfs::{Errno, SetAttr};

use crate::context::{R, RW, TestContext, ok, pattern, refused};
use crate::needs;

/// An open file without a name can be read, written and truncated.
pub fn an_open_file_outlasts_its_name(test: &TestContext) {
    needs!(test.profile.open_unlinked, "nodes that outlast their name");
    let root = test.root();
    let (_node, file) = ok(root.create("file", RW, 0o644));
    let data = pattern(100_000, 1);
    ok(file.write_all(0, &data));
    ok(root.unlink("file"));
    refused(root.lookup("file"), Errno::ENOENT);
    assert_eq!(ok(file.read_all()), data);
    ok(file.write_all(100_000, b"more"));
    assert_eq!(file.attr().size, 100_004);
    let set = SetAttr {
        size: Some(10),
        ..SetAttr::default()
    };
    ok(file.set(set));
    assert_eq!(ok(file.read_all()), data[..10]);
    assert_eq!(file.attr().nlink, 0);
}

/// A node without a name has attributes and can be opened.
pub fn a_node_outlasts_its_name(test: &TestContext) {
    needs!(test.profile.open_unlinked, "nodes that outlast their name");
    let root = test.root();
    let node = ok(root.file("file", b"content"));
    ok(root.unlink("file"));
    assert_eq!(node.attr().nlink, 0);
    assert_eq!(ok(node.content()), b"content");
    assert_eq!(ok(node.chmod(0o600)).mode, 0o600);
    let file = ok(node.open(RW));
    ok(file.write_all(0, b"CON"));
    assert_eq!(ok(node.content()), b"CONtent");
}

/// A new file of the same name is another file.
pub fn a_name_used_again_is_another_file(test: &TestContext) {
    needs!(test.profile.open_unlinked, "nodes that outlast their name");
    let root = test.root();
    let old = ok(root.file("file", b"old"));
    ok(root.unlink("file"));
    let new = ok(root.file("file", b"new"));
    assert_ne!(old.id(), new.id());
    assert_eq!(ok(old.content()), b"old");
    assert_eq!(ok(new.content()), b"new");
}

/// A removed directory has no names, also after its own is reused.
pub fn a_removed_directory_is_left_alone(test: &TestContext) {
    needs!(test.profile.open_unlinked, "nodes that outlast their name");
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    let open = ok(dir.open(R));
    ok(root.rmdir("dir"));
    assert_eq!(open.attr().id, dir.id());
    let fresh = ok(root.mkdir("dir", 0o755));
    assert_ne!(fresh.id(), dir.id());
    ok(fresh.file("child", b""));
    refused(dir.lookup("child"), Errno::ENOENT);
}

/// A symbolic link without a name still has a target.
pub fn a_symlink_outlasts_its_name(test: &TestContext) {
    needs!(test.profile.open_unlinked, "nodes that outlast their name");
    let root = test.root();
    let link = ok(root.symlink("link", b"target"));
    ok(root.unlink("link"));
    assert_eq!(ok(link.readlink()), b"target");
}
