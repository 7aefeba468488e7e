//! Renames: renameat2(2).

use std::thread;

use vfs::{Device, Errno, Kind, RenameFlags, Support};

use crate::context::{NOT_EMPTY, R, RW, TestContext, ok, refused, refused_as};
use crate::needs;

/// A renamed node is the same node.
pub fn a_renamed_node_stays_itself(test: &TestContext) {
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    let file = ok(root.file("old", b"content"));
    ok(root.rename("old", &dir, "new"));
    refused(root.lookup("old"), Errno::ENOENT);
    let found = ok(dir.lookup("new"));
    assert_eq!(found.id(), file.id());
    assert_eq!(ok(file.content()), b"content");
}

/// An open file remains usable after a rename.
pub fn an_open_file_survives_rename(test: &TestContext) {
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    let (node, file) = ok(root.create("old", RW, 0o644));
    ok(root.rename("old", &dir, "new"));
    ok(file.write_all(0, b"after"));
    assert_eq!(ok(ok(dir.lookup("new")).content()), b"after");
    assert_eq!(node.attr().size, 5);
}

/// An existing file is replaced.
pub fn rename_replaces_a_file(test: &TestContext) {
    let root = test.root();
    let new = ok(root.file("a", b"new"));
    let old = ok(root.file("b", b"old"));
    let open = ok(old.open(R));
    ok(root.rename("a", &root, "b"));
    assert_eq!(ok(root.names()), [b"b"]);
    assert_eq!(ok(root.lookup("b")).id(), new.id());
    needs!(test.profile.open_unlinked, "nodes that outlast their name");
    assert_eq!(ok(open.read_all()), b"old");
    assert_eq!(open.attr().nlink, 0);
}

/// An existing symbolic link itself is replaced.
pub fn rename_replaces_a_symlink_itself(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b"file"));
    ok(root.file("target", b"target"));
    ok(root.symlink("link", b"target"));
    ok(root.rename("file", &root, "link"));
    assert_eq!(ok(root.lookup("link")).kind(), Kind::File);
    assert_eq!(ok(ok(root.lookup("target")).content()), b"target");
}

/// Renaming a file to itself, or to another of its hard links, does nothing.
pub fn rename_between_links_does_nothing(test: &TestContext) {
    let root = test.root();
    let file = ok(root.file("a", b""));
    ok(root.link("b", &file));
    ok(root.rename("a", &root, "b"));
    assert_eq!(ok(root.names()), [b"a", b"b"]);
    assert_eq!(file.attr().nlink, 2);
    ok(root.rename("a", &root, "a"));
    ok(root.mkdir("dir", 0o755));
    ok(root.rename("dir", &root, "dir"));
    assert_eq!(ok(root.names()).len(), 3);
}

/// Renaming a missing name fails with `ENOENT`.
pub fn renaming_nothing_is_enoent(test: &TestContext) {
    let root = test.root();
    refused(root.rename("missing", &root, "x"), Errno::ENOENT);
    ok(root.file("there", b""));
    refused(root.rename("missing", &root, "there"), Errno::ENOENT);
}

/// Files replace files, directories replace empty directories.
pub fn kinds_do_not_replace_each_other(test: &TestContext) {
    let root = test.root();
    ok(root.file("file", b""));
    ok(root.mkdir("dir", 0o755));
    let full = ok(root.mkdir("full", 0o755));
    ok(full.file("child", b""));
    refused(root.rename("file", &root, "dir"), Errno::EISDIR);
    refused(root.rename("dir", &root, "file"), Errno::ENOTDIR);
    refused_as(root.rename("dir", &root, "full"), NOT_EMPTY);
    refused(root.rename("file", &root, "full"), Errno::EISDIR);
    assert_eq!(ok(root.names()).len(), 3);
}

/// An empty directory is replaced.
pub fn a_directory_replaces_an_empty_one(test: &TestContext) {
    let root = test.root();
    let a = ok(root.mkdir("a", 0o755));
    ok(a.file("child", b""));
    ok(root.mkdir("b", 0o755));
    ok(root.rename("a", &root, "b"));
    assert_eq!(ok(root.names()), [b"b"]);
    assert_eq!(ok(ok(root.lookup("b")).names()), [b"child"]);
    needs!(test.profile.dir_links, "directories that count links");
    assert_eq!(root.attr().nlink, 3);
}

/// A directory cannot move into itself or below.
pub fn no_directory_moves_into_itself(test: &TestContext) {
    let root = test.root();
    let a = ok(root.mkdir("a", 0o755));
    let b = ok(a.mkdir("b", 0o755));
    let c = ok(b.mkdir("c", 0o755));
    for inside in [&a, &b, &c] {
        refused(root.rename("a", inside, "x"), Errno::EINVAL);
    }
    refused(a.rename("b", &c, "x"), Errno::EINVAL);
    assert_eq!(
        ok(ok(ok(root.lookup("a")).lookup("b")).lookup("c")).id(),
        c.id()
    );
}

/// No directory is replaced by one of its descendants.
pub fn nothing_replaces_its_own_ancestor(test: &TestContext) {
    let root = test.root();
    let a = ok(root.mkdir("a", 0o755));
    let b = ok(a.mkdir("b", 0o755));
    ok(b.mkdir("c", 0o755));
    ok(b.file("f", b""));
    refused_as(b.rename("c", &root, "a"), NOT_EMPTY);
    refused_as(a.rename("b", &root, "a"), NOT_EMPTY);
    refused_as(b.rename("f", &root, "a"), NOT_EMPTY);
}

/// The link counts of both directories change when a directory moves.
pub fn links_follow_a_moved_directory(test: &TestContext) {
    needs!(test.profile.dir_links, "directories that count links");
    let root = test.root();
    let a = ok(root.mkdir("a", 0o755));
    let b = ok(root.mkdir("b", 0o755));
    ok(a.mkdir("child", 0o755));
    assert_eq!((a.attr().nlink, b.attr().nlink), (3, 2));
    ok(a.rename("child", &b, "child"));
    assert_eq!((a.attr().nlink, b.attr().nlink), (2, 3));
    ok(b.rename("child", &b, "renamed"));
    assert_eq!(b.attr().nlink, 3);
}

/// Only directories can be source or target of a rename.
pub fn renaming_in_a_file_is_enotdir(test: &TestContext) {
    let root = test.root();
    let file = ok(root.file("file", b""));
    ok(root.file("other", b""));
    refused(file.rename("x", &root, "y"), Errno::ENOTDIR);
    refused(root.rename("other", &file, "y"), Errno::ENOTDIR);
}

/// Renaming changes both directories and the node.
pub fn renaming_changes_all_concerned(test: &TestContext) {
    needs!(test.caps.change > Support::None, "a change counter");
    let root = test.root();
    let a = ok(root.mkdir("a", 0o755));
    let b = ok(root.mkdir("b", 0o755));
    ok(a.file("file", b""));
    test.wait_for_clock();
    let before = (a.attr().change, b.attr().change);
    ok(a.rename("file", &b, "file"));
    assert_ne!(a.attr().change, before.0);
    assert_ne!(b.attr().change, before.1);
}

/// `NOREPLACE` refuses an existing target.
pub fn noreplace_replaces_nothing(test: &TestContext) {
    needs!(test.profile.rename_flags, "flags of rename");
    let root = test.root();
    ok(root.file("a", b"a"));
    ok(root.file("b", b"b"));
    let flags = RenameFlags::NOREPLACE;
    refused(root.rename_with("a", &root, "b", flags), Errno::EEXIST);
    refused(root.rename_with("a", &root, "a", flags), Errno::EEXIST);
    ok(root.rename_with("a", &root, "c", flags));
    assert_eq!(ok(ok(root.lookup("b")).content()), b"b");
    assert_eq!(ok(ok(root.lookup("c")).content()), b"a");
}

/// `EXCHANGE` swaps two names of any kind.
pub fn exchange_swaps(test: &TestContext) {
    needs!(test.profile.rename_flags, "flags of rename");
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    let sub = ok(dir.mkdir("sub", 0o755));
    ok(sub.file("inside", b""));
    let file = ok(root.file("file", b"file"));
    let flags = RenameFlags::EXCHANGE;
    ok(root.rename_with("file", &dir, "sub", flags));
    assert_eq!(ok(root.lookup("file")).id(), sub.id());
    assert_eq!(ok(dir.lookup("sub")).id(), file.id());
    assert_eq!(ok(sub.parent()).id(), root.id());
    refused(
        root.rename_with("file", &root, "missing", flags),
        Errno::ENOENT,
    );
    refused(
        root.rename_with("missing", &root, "file", flags),
        Errno::ENOENT,
    );
    needs!(test.profile.dir_links, "directories that count links");
    assert_eq!((dir.attr().nlink, root.attr().nlink), (2, 4));
}

/// `EXCHANGE` cannot form a loop, and excludes other flags.
pub fn exchange_makes_no_loop(test: &TestContext) {
    needs!(test.profile.rename_flags, "flags of rename");
    let root = test.root();
    let a = ok(root.mkdir("a", 0o755));
    let b = ok(a.mkdir("b", 0o755));
    ok(b.mkdir("c", 0o755));
    let flags = RenameFlags::EXCHANGE;
    refused(root.rename_with("a", &a, "b", flags), Errno::EINVAL);
    refused(b.rename_with("c", &root, "a", flags), Errno::EINVAL);
    for more in [RenameFlags::NOREPLACE, RenameFlags::WHITEOUT] {
        refused(root.rename_with("a", &a, "b", flags | more), Errno::EINVAL);
    }
}

/// `WHITEOUT` leaves a whiteout at the old name.
pub fn whiteout_is_left_behind(test: &TestContext) {
    let able = test.profile.rename_flags && test.profile.root && test.caps.devices > Support::None;
    needs!(able, "whiteouts");
    let root = test.root();
    let file = ok(root.file("file", b""));
    let left = root.rename_with("file", &root, "moved", RenameFlags::WHITEOUT);
    if left == Err(Errno::EINVAL) {
        eprintln!("skipped: the file system below has no whiteouts");
        return;
    }
    ok(left);
    let whiteout = ok(root.lookup("file"));
    assert_eq!(whiteout.kind(), Kind::CharDevice);
    assert_eq!(whiteout.attr().rdev, Device::default());
    assert_eq!(ok(root.lookup("moved")).id(), file.id());
}

/// Many concurrent moves neither deadlock nor form a loop nor lose anything.
pub fn moves_at_a_time_make_no_loop(test: &TestContext) {
    let root = test.root();
    const DIRS: usize = 5;
    for i in 0..DIRS {
        ok(root.mkdir(&format!("d{i}"), 0o755));
    }
    let nodes: Vec<_> = (0..DIRS)
        .map(|i| ok(root.lookup(&format!("d{i}"))))
        .collect();
    thread::scope(|scope| {
        for seed in 0..4u64 {
            let (root, nodes) = (&root, &nodes);
            scope.spawn(move || {
                let mut random = crate::context::Random::new(seed);
                for _ in 0..300 {
                    let what = random.below(DIRS as u64) as usize;
                    let to = &nodes[random.below(DIRS as u64) as usize];
                    let Ok(from) = nodes[what].parent() else {
                        continue;
                    };
                    let name = format!("d{what}");
                    let to = if random.below(3) == 0 { root } else { to };
                    match from.rename(&name, to, &name) {
                        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
                        Err(errno) if NOT_EMPTY.contains(&errno) => {}
                        Err(errno) => panic!("{errno:?}"),
                    }
                }
            });
        }
    });
    let mut found = 0;
    let mut below = vec![root];
    while let Some(dir) = below.pop() {
        for name in ok(dir.names()) {
            found += 1;
            assert!(found <= DIRS, "a directory is in two places");
            let child = ok(dir.lookup(&name));
            assert_eq!(ok(child.parent()).id(), dir.id());
            below.push(child);
        }
    }
    assert_eq!(found, DIRS, "directories were lost");
}
