//! Removing names.

use vfs::{Errno, ReaddirMode, Support};

use crate::context::{NOT_EMPTY, R, RW, TestContext, ok, refused, refused_as};
use crate::needs;

/// A removed name is missing, and can be reused.
pub fn what_was_removed_is_gone(test: &TestContext) {
    let root = test.root();
    let old = ok(root.file("file", b"old"));
    ok(root.unlink("file"));
    refused(root.lookup("file"), Errno::ENOENT);
    assert!(ok(root.names()).is_empty());
    ok(root.file("file", b"new"));
    assert_eq!(ok(ok(root.lookup("file")).content()), b"new");
    drop(old);
}

/// Removing a missing name fails with `ENOENT`.
pub fn removing_nothing_is_enoent(test: &TestContext) {
    let root = test.root();
    refused(root.unlink("missing"), Errno::ENOENT);
    refused(root.rmdir("missing"), Errno::ENOENT);
}

/// unlink(2) is not for directories.
pub fn unlinking_a_directory_is_eisdir(test: &TestContext) {
    let root = test.root();
    ok(root.mkdir("dir", 0o755));
    refused(root.unlink("dir"), Errno::EISDIR);
    ok(root.lookup("dir"));
}

/// rmdir(2) is for directories only, not for symbolic links to them.
pub fn rmdir_of_anything_else_is_enotdir(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b""));
    ok(root.mkdir("dir", 0o755));
    ok(root.symlink("link", b"dir"));
    refused(root.rmdir("file"), Errno::ENOTDIR);
    refused(root.rmdir("link"), Errno::ENOTDIR);
}

/// Only empty directories can be removed.
pub fn rmdir_needs_an_empty_directory(test: &TestContext) {
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    ok(dir.file("file", b""));
    refused_as(root.rmdir("dir"), NOT_EMPTY);
    ok(dir.unlink("file"));
    ok(root.rmdir("dir"));
    refused(root.lookup("dir"), Errno::ENOENT);
}

/// Removing a name in a file fails with `ENOTDIR`.
pub fn removing_below_a_file_is_enotdir(test: &TestContext) {
    let file = ok(test.root().file("file", b""));
    refused(file.unlink("child"), Errno::ENOTDIR);
    refused(file.rmdir("child"), Errno::ENOTDIR);
}

/// Removing a symbolic link does not remove its target.
pub fn links_are_removed_not_their_targets(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b"kept"));
    ok(root.symlink("link", b"file"));
    ok(root.unlink("link"));
    assert_eq!(ok(ok(root.lookup("file")).content()), b"kept");
}

/// Removing a name changes the directory and the node.
pub fn removing_changes_directory_and_node(test: &TestContext) {
    needs!(test.caps.change > Support::None, "a change counter");
    let root = test.root();
    let file = ok(root.file("a", b""));
    ok(root.link("b", &file));
    test.wait_for_clock();
    let (dir_before, file_before) = (root.attr().change, file.attr().change);
    ok(root.unlink("a"));
    assert_ne!(root.attr().change, dir_before);
    assert_ne!(file.attr().change, file_before);
    assert_eq!(file.attr().nlink, 1);
}

/// A removed directory is empty, and refuses new names.
pub fn a_removed_directory_takes_nothing(test: &TestContext) {
    needs!(test.profile.open_unlinked, "nodes that outlast their name");
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    let open = ok(dir.open(R));
    ok(root.rmdir("dir"));
    refused(dir.lookup("child"), Errno::ENOENT);
    refused(dir.mkdir("child", 0o755), Errno::ENOENT);
    refused(dir.create("child", RW, 0o644), Errno::ENOENT);
    let file = ok(root.file("file", b""));
    refused(dir.link("child", &file), Errno::ENOENT);
    refused(root.rename("file", &dir, "child"), Errno::ENOENT);
    // On Linux, the kernel itself reports that the directory is dead.
    match open.readdir(0, ReaddirMode::Names, 100) {
        Ok(entries) => assert!(entries.is_empty()),
        Err(errno) => assert_eq!(errno, Errno::ENOENT),
    }
}
