//! Files that are removed, or replaced by a rename, while they are open: the client keeps them
//! under a hidden name until the last close. Over barge's own server and over Ganesha.

use std::any::Any;
use std::sync::Arc;

use remote::nfs::Options;
use vfs::{Caller, Errno, FileSystem, OpenFlags};
use vfs_testkit::context::{R, RW, TestNode, ok, refused, run};
use vfs_testkit::wait_until;

use super::{ganesha, net::Served};

const VERSIONS: [(u32, u32); 4] = [(3, 0), (4, 0), (4, 1), (4, 2)];

/// Calls `check` with the root of an empty directory, over each version and server.
fn each(check: impl Fn(&TestNode)) {
    for version in VERSIONS {
        for server in [ours, ganesha::mounted] {
            let Some((fs, _server)) = server(version) else {
                continue;
            };
            eprintln!("{version:?}");
            check(&root(&fs));
        }
    }
}

fn ours(version: (u32, u32)) -> Option<(Arc<dyn FileSystem>, Box<dyn Any>)> {
    let served = Served::new();
    let fs = served.mount(Options {
        version: Some(version),
        ..Options::default()
    });
    Some((fs, Box::new(served)))
}

fn root(fs: &Arc<dyn FileSystem>) -> TestNode {
    let caller = Caller::ROOT;
    let node = ok(run(&caller, |cx| fs.root(cx)));
    TestNode { node, caller }
}

/// Returns all names of a directory, with the hidden ones.
fn names(dir: &TestNode) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = ok(dir.list()).into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

/// Waits until a directory has these names.
#[track_caller]
fn wait_for_names(dir: &TestNode, expected: &[&[u8]]) {
    wait_until(&format!("the names {expected:?}"), || {
        names(dir) == expected
    });
}

#[test]
fn an_open_file_that_is_removed_is_lost_at_the_last_close_only() {
    each(|root| {
        let (_, one) = ok(root.create("file", RW, 0o644));
        ok(one.write_all(0, b"before"));
        // By another node object.
        let other = ok(ok(root.lookup("file")).open(RW));
        ok(root.unlink("file"));
        refused(root.lookup("file"), Errno::ENOENT);
        ok(one.write_all(6, b" and after"));
        drop(one);
        assert_eq!(ok(other.read_all()), b"before and after");
        assert_eq!(other.attr().nlink, 0);
        let hidden = names(root);
        assert!(hidden.len() == 1 && hidden[0].starts_with(b".nfs"));
        drop(other);
        wait_for_names(root, &[]);
    });
}

#[test]
fn an_open_file_that_a_rename_replaces_is_lost_at_the_last_close_only() {
    each(|root| {
        ok(root.file("old", b"old"));
        ok(root.file("new", b"new"));
        let dir = ok(root.mkdir("dir", 0o755));
        let open = ok(ok(root.lookup("old")).open(R));
        ok(root.rename("new", root, "old"));
        assert_eq!(ok(ok(root.lookup("old")).content()), b"new");
        assert_eq!(ok(open.read_all()), b"old");
        assert_eq!(open.attr().nlink, 0);
        drop(open);
        wait_for_names(root, &[b"dir", b"old"]);
        // A rename that fails replaces nothing.
        let open = ok(ok(root.lookup("old")).open(R));
        assert!(root.rename("dir", root, "old").is_err());
        assert!(root.rename("missing", root, "old").is_err());
        assert_eq!(names(root), [&b"dir"[..], b"old"]);
        assert_eq!(open.attr().nlink, 1);
        // From another directory.
        ok(dir.file("newer", b"newer"));
        ok(dir.rename("newer", root, "old"));
        assert_eq!(ok(open.read_all()), b"new");
        drop(open);
        wait_for_names(root, &[b"dir", b"old"]);
    });
}

#[test]
fn an_open_file_with_another_name_needs_no_hidden_one() {
    each(|root| {
        let file = ok(root.file("a", b"content"));
        ok(root.link("b", &file));
        let open = ok(file.open(R));
        // Both are names of the file already.
        ok(root.rename("a", root, "b"));
        assert_eq!(names(root), [b"a", b"b"]);
        ok(root.unlink("a"));
        assert_eq!(names(root), [b"b"]);
        assert_eq!(
            (ok(open.read_all()), open.attr().nlink),
            (b"content".into(), 1)
        );
        ok(root.rename("b", root, "b"));
        ok(root.unlink("b"));
        assert_eq!(
            (ok(open.read_all()), open.attr().nlink),
            (b"content".into(), 0)
        );
        drop(open);
        wait_for_names(root, &[]);
    });
}

#[test]
fn two_names_of_an_open_file_that_are_removed_at_a_time_do_not_lose_it() {
    let (fs, _server) = ours((3, 0)).expect("mounted");
    let root = &root(&fs);
    for _ in 0..100 {
        let file = ok(root.file("a", b"content"));
        ok(root.link("b", &file));
        let open = ok(file.open(R));
        std::thread::scope(|scope| {
            for name in ["a", "b"] {
                scope.spawn(move || ok(root.unlink(name)));
            }
        });
        assert_eq!(ok(open.read_all()), b"content");
        drop(open);
        wait_for_names(root, &[]);
    }
}

#[test]
fn the_directory_of_a_hidden_file_is_not_empty_until_the_last_close() {
    each(|root| {
        let dir = ok(root.mkdir("dir", 0o755));
        let (_, open) = ok(dir.create("file", RW, 0o644));
        ok(dir.unlink("file"));
        refused(root.rmdir("dir"), Errno::ENOTEMPTY);
        let hidden = String::from_utf8(names(&dir).remove(0)).expect("text");
        refused(dir.unlink(&hidden), Errno::EBUSY);
        refused(dir.rename(&hidden, &dir, "file"), Errno::EBUSY);
        // The removal waits for a close that is on its way.
        std::thread::scope(|scope| {
            scope.spawn(move || drop(open));
            ok(root.rmdir("dir"));
        });
        wait_for_names(root, &[]);
    });
}

#[test]
fn a_hidden_file_is_removed_before_the_mount_ends() {
    let served = Served::new();
    let mount = || {
        served.mount(Options {
            version: Some((3, 0)),
            ..Options::default()
        })
    };
    let fs = mount();
    let (_, open) = ok(root(&fs).create("file", OpenFlags::WRITE, 0o644));
    ok(root(&fs).unlink("file"));
    drop((open, fs));
    assert!(names(&root(&mount())).is_empty());
}
