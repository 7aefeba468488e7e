//! Look-ups, and attributes of what is found.

use vfs::{Access, Errno, Kind};

use crate::context::{TestContext, ok, refused};
use crate::needs;

/// The root is a directory with a number, and its own parent.
pub fn the_root_is_its_own_parent(test: &TestContext) {
    let root = test.root();
    assert_eq!(root.kind(), Kind::Directory);
    assert_ne!(root.id(), 0);
    assert_eq!(root.attr().id, root.id());
    assert_eq!(ok(root.parent()).id(), root.id());
}

/// The root has the same number each time.
pub fn the_root_stays_the_same(test: &TestContext) {
    assert_eq!(test.root().id(), test.root().id());
}

/// A look-up of a missing name fails with `ENOENT`.
pub fn a_missing_name_is_enoent(test: &TestContext) {
    let root = test.root();
    refused(root.lookup("missing"), Errno::ENOENT);
    let dir = ok(root.mkdir("dir", 0o755));
    refused(dir.lookup("missing"), Errno::ENOENT);
}

/// Only directories have children.
pub fn below_a_file_is_enotdir(test: &TestContext) {
    let file = ok(test.root().file("file", b""));
    refused(file.lookup("child"), Errno::ENOTDIR);
    let link = ok(test.root().symlink("link", b"."));
    refused(link.lookup("child"), Errno::ENOTDIR);
}

/// A symbolic link is found, not followed.
pub fn a_symlink_is_not_followed(test: &TestContext) {
    let root = test.root();
    ok(root.mkdir("dir", 0o755));
    ok(root.symlink("link", b"dir"));
    assert_eq!(ok(root.lookup("link")).kind(), Kind::Symlink);
}

/// A node has the same number however it is reached, distinct from all others.
pub fn numbers_tell_nodes_apart(test: &TestContext) {
    let root = test.root();
    let a = ok(root.file("a", b""));
    let b = ok(root.file("b", b""));
    let dir = ok(root.mkdir("dir", 0o755));
    assert_eq!(ok(root.lookup("a")).id(), a.id());
    assert_eq!(ok(root.lookup("a")).attr().id, a.id());
    let mut ids = vec![root.id(), a.id(), b.id(), dir.id()];
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4);
    assert!(!ids.contains(&0));
}

/// The attributes in the result of a look-up are those of the node.
pub fn an_entry_has_the_nodes_attributes(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b"12345"));
    let caller = root.caller.clone();
    let entry = ok(crate::run(&caller, |cx| {
        root.node.lookup(cx, ok(vfs::Name::new(b"file")))
    }));
    let attr = ok(root.lookup("file")).attr();
    assert_eq!(entry.attr.size, 5);
    assert_eq!(
        (
            entry.attr.mode,
            entry.attr.nlink,
            entry.attr.uid,
            entry.attr.gid
        ),
        (attr.mode, attr.nlink, attr.uid, attr.gid)
    );
    assert_eq!(
        (entry.attr.mtime, entry.attr.ctime, entry.attr.change),
        (attr.mtime, attr.ctime, attr.change)
    );
}

/// A directory has its parent.
pub fn a_directory_knows_its_parent(test: &TestContext) {
    let root = test.root();
    let a = ok(root.mkdir("a", 0o755));
    let b = ok(a.mkdir("b", 0o755));
    assert_eq!(ok(b.parent()).id(), a.id());
    assert_eq!(ok(a.parent()).id(), root.id());
}

/// After a move, a directory has its new parent.
pub fn the_parent_follows_a_rename(test: &TestContext) {
    let root = test.root();
    let a = ok(root.mkdir("a", 0o755));
    let b = ok(root.mkdir("b", 0o755));
    let child = ok(a.mkdir("child", 0o755));
    ok(a.rename("child", &b, "moved"));
    assert_eq!(ok(child.parent()).id(), b.id());
    assert_eq!(ok(b.lookup("moved")).id(), child.id());
}

/// Only directories have a parent.
pub fn the_parent_of_a_file_is_enotdir(test: &TestContext) {
    let file = ok(test.root().file("file", b""));
    refused(file.parent(), Errno::ENOTDIR);
}

/// Names differ by bytes, case included.
pub fn names_differ_by_case(test: &TestContext) {
    let root = test.root();
    let lower = ok(root.file("name", b"lower"));
    let upper = ok(root.file("NAME", b"upper"));
    assert_ne!(lower.id(), upper.id());
    assert_eq!(ok(root.lookup("NAME")).id(), upper.id());
    refused(root.lookup("Name"), Errno::ENOENT);
}

/// The owner of a directory may do everything with it.
pub fn the_owner_may_do_everything(test: &TestContext) {
    let dir = ok(test.root().mkdir("dir", 0o700));
    let all = Access::READ | Access::WRITE | Access::EXEC;
    assert_eq!(ok(dir.access(all)), all);
    assert_eq!(ok(dir.access(Access::READ)), Access::READ);
}

/// The figures of statfs are consistent.
pub fn statfs_makes_sense(test: &TestContext) {
    let figures = ok(test.root().statfs());
    assert!(figures.bsize > 0);
    assert!(figures.blocks >= figures.bfree && figures.bfree >= figures.bavail);
    assert!(figures.files >= figures.ffree);
    assert!(figures.namelen >= 255, "{}", figures.namelen);
    let file = ok(test.root().file("file", b""));
    assert_eq!(ok(file.statfs()).bsize, figures.bsize);
}

/// A sync of the file system succeeds.
pub fn the_file_system_syncs(test: &TestContext) {
    needs!(!test.caps.read_only, "a file system to write to");
    ok(test.root().file("file", b"data"));
    ok(crate::run(&test.profile.caller, |cx| test.fs.sync(cx)));
}
