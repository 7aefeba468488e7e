//! Links in the tree and on the way to it are never followed.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;

use stdfs::StdFs;
use vfs::{Caller, Errno, FileSystem, OpenFlags};
use vfs_testkit::context::{RW, TestNode, ok, refused};
use vfs_testkit::run;

#[test]
fn a_directory_that_becomes_a_link_leads_nowhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
    fs::create_dir_all(tree.join("sub")).expect("made");
    fs::create_dir(&outside).expect("made");
    for file in [tree.join("sub/file"), outside.join("file")] {
        fs::write(file, "text").expect("written");
    }
    let served = StdFs::open(&tree).expect("opened");
    let caller = Caller {
        uid: sys::process::user(),
        gid: sys::process::group(),
        groups: vfs::Groups::Unknown,
    };
    let root = TestNode {
        node: ok(run(&caller, |cx| served.root(cx))),
        caller: caller.clone(),
    };
    let sub = ok(root.lookup("sub"));
    let file = ok(sub.lookup("file"));
    assert_eq!(ok(file.content()), b"text");
    fs::rename(tree.join("sub"), tree.join("moved")).expect("renamed");
    symlink(&outside, tree.join("sub")).expect("linked");
    refused(file.open(OpenFlags::READ), Errno::ENOENT);
    refused(sub.lookup("file"), Errno::ENOENT);
    refused(sub.create("new", RW, 0o644), Errno::ENOENT);
    refused(sub.mkdir("new", 0o755), Errno::ENOENT);
    refused(sub.unlink("file"), Errno::ENOENT);
    let moved = ok(root.lookup("moved"));
    refused(moved.rename("file", &sub, "stolen"), Errno::ENOENT);
    let names = fs::read_dir(&outside).expect("listed").count();
    assert_eq!(names, 1, "the directory outside has changed");
}
