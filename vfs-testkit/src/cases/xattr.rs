//! Extended attributes: xattr(7).

use vfs::{Errno, Support, XattrFlags};

use crate::context::{TestContext, TestNode, ok, refused, refused_as};
use crate::needs;

const SET: XattrFlags = XattrFlags::empty();

fn file(test: &TestContext) -> TestNode {
    ok(test.root().file("file", b""))
}

/// Attributes are read, listed and removed.
pub fn what_was_set_is_there(test: &TestContext) {
    needs!(test.caps.xattr > Support::None, "extended attributes");
    let file = file(test);
    assert!(user_names(&file).is_empty());
    ok(file.set_xattr(b"user.a", b"one", SET));
    ok(file.set_xattr(b"user.b", b"\0\xff bytes", SET));
    ok(file.set_xattr(b"user.empty", b"", SET));
    assert_eq!(ok(file.xattr(b"user.a")), b"one");
    assert_eq!(ok(file.xattr(b"user.b")), b"\0\xff bytes");
    assert_eq!(ok(file.xattr(b"user.empty")), b"");
    assert_eq!(
        user_names(&file),
        [&b"user.a"[..], b"user.b", b"user.empty"]
    );
    ok(file.remove_xattr(b"user.b"));
    assert_eq!(user_names(&file), [&b"user.a"[..], b"user.empty"]);
    refused(file.xattr(b"user.b"), Errno::ENODATA);
}

/// Returns the names in `user.`: a security module of the host may add others.
fn user_names(node: &TestNode) -> Vec<Vec<u8>> {
    let mut names = ok(node.xattrs());
    names.retain(|name| name.starts_with(b"user."));
    names
}

/// The value of an attribute is replaced by a longer or shorter one.
pub fn values_are_replaced(test: &TestContext) {
    needs!(test.caps.xattr > Support::None, "extended attributes");
    let file = file(test);
    for value in [&b"first"[..], b"a longer value", b"x"] {
        ok(file.set_xattr(b"user.a", value, SET));
        assert_eq!(ok(file.xattr(b"user.a")), value);
    }
}

/// Flags require a new or an existing attribute.
pub fn flags_insist(test: &TestContext) {
    needs!(test.caps.xattr > Support::None, "extended attributes");
    let file = file(test);
    refused(
        file.set_xattr(b"user.a", b"x", XattrFlags::REPLACE),
        Errno::ENODATA,
    );
    ok(file.set_xattr(b"user.a", b"one", XattrFlags::CREATE));
    refused(
        file.set_xattr(b"user.a", b"x", XattrFlags::CREATE),
        Errno::EEXIST,
    );
    ok(file.set_xattr(b"user.a", b"two", XattrFlags::REPLACE));
    assert_eq!(ok(file.xattr(b"user.a")), b"two");
}

/// Reading or removing a missing attribute fails with `ENODATA`.
pub fn a_missing_attribute_is_enodata(test: &TestContext) {
    needs!(test.caps.xattr > Support::None, "extended attributes");
    let file = file(test);
    refused(file.xattr(b"user.missing"), Errno::ENODATA);
    refused(file.remove_xattr(b"user.missing"), Errno::ENODATA);
}

/// The length of names and values is limited.
pub fn names_and_values_have_bounds(test: &TestContext) {
    needs!(test.caps.xattr > Support::None, "extended attributes");
    let file = file(test);
    let long = |len: usize| [&b"user."[..], &vec![b'n'; len - 5]].concat();
    ok(file.set_xattr(&long(255), b"x", SET));
    refused(file.set_xattr(&long(256), b"x", SET), Errno::ERANGE);
    ok(file.set_xattr(b"user.large", &[7; 2000], SET));
    assert_eq!(ok(file.xattr(b"user.large")), [7; 2000]);
    refused(
        file.set_xattr(b"user.a", &vec![0; 65_537], SET),
        Errno::E2BIG,
    );
}

/// Unknown namespaces are refused, and so is a namespace without a name.
pub fn unknown_namespaces_are_refused(test: &TestContext) {
    needs!(test.caps.xattr > Support::None, "extended attributes");
    let file = file(test);
    refused(file.set_xattr(b"nonsense.a", b"x", SET), Errno::EOPNOTSUPP);
    refused(file.set_xattr(b"noname", b"x", SET), Errno::EOPNOTSUPP);
    refused(file.set_xattr(b"user.", b"x", SET), Errno::EINVAL);
    refused(file.set_xattr(b"", b"x", SET), Errno::ERANGE);
}

/// Directories have `user.` attributes, too; links and pipes have none.
pub fn only_files_and_directories_have_user_attributes(test: &TestContext) {
    needs!(test.caps.xattr > Support::None, "extended attributes");
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    ok(dir.set_xattr(b"user.a", b"x", SET));
    assert_eq!(ok(dir.xattr(b"user.a")), b"x");
    let link = ok(root.symlink("link", b"dir"));
    let fifo = ok(root.make("fifo", vfs::NewNode::Fifo, vfs::Mode::without_umask(0o600)));
    for node in [link, fifo] {
        refused(node.set_xattr(b"user.a", b"x", SET), Errno::EPERM);
        refused_as(node.xattr(b"user.a"), &[Errno::ENODATA, Errno::EPERM]);
    }
}

/// Setting and removing change the node.
pub fn setting_changes_the_node(test: &TestContext) {
    needs!(
        test.caps.xattr > Support::None && test.caps.change > Support::None,
        "both"
    );
    let file = file(test);
    let first = file.attr();
    test.wait_for_clock();
    ok(file.set_xattr(b"user.a", b"x", SET));
    let second = file.attr();
    assert_ne!(second.change, first.change);
    assert_eq!(second.mtime, first.mtime);
    test.wait_for_clock();
    ok(file.remove_xattr(b"user.a"));
    assert_ne!(file.attr().change, second.change);
}

/// Attributes belong to the node, not to the name.
pub fn attributes_stay_with_the_node(test: &TestContext) {
    needs!(test.caps.xattr > Support::None, "extended attributes");
    let root = test.root();
    let node = file(test);
    ok(node.set_xattr(b"user.a", b"x", SET));
    ok(root.rename("file", &root, "moved"));
    ok(root.link("linked", &node));
    assert_eq!(ok(ok(root.lookup("linked")).xattr(b"user.a")), b"x");
    refused(ok(root.file("file", b"")).xattr(b"user.a"), Errno::ENODATA);
}

/// Without support, all operations fail with `EOPNOTSUPP`.
pub fn none_is_said_plainly(test: &TestContext) {
    needs!(test.caps.xattr == Support::None, "no extended attributes");
    let file = file(test);
    refused(file.set_xattr(b"user.a", b"x", SET), Errno::EOPNOTSUPP);
    refused(file.xattr(b"user.a"), Errno::EOPNOTSUPP);
}
