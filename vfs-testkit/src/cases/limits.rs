//! Limits: long names, odd names, deep trees, large directories.

use vfs::{Errno, Name, ReaddirMode};

use crate::context::{R, RW, TestContext, ok, refused};
use crate::needs;

/// A name may have 255 bytes, all of which are significant.
pub fn names_of_255_bytes(test: &TestContext) {
    let root = test.root();
    let a = vec![b'a'; 255];
    let mut b = a.clone();
    b[254] = b'b';
    ok(root.file(&a, b"a"));
    ok(root.mkdir(&b, 0o755));
    assert_eq!(ok(ok(root.lookup(&a)).content()), b"a");
    assert_eq!(ok(root.names()), [a.clone(), b.clone()]);
    ok(root.rename(&a, &ok(root.lookup(&b)), &a));
    refused(root.lookup(&a), Errno::ENOENT);
    refused(Name::new(&[b'a'; 256]), Errno::ENAMETOOLONG);
}

/// A name may be any bytes but `/` and NUL.
pub fn names_of_any_bytes(test: &TestContext) {
    needs!(test.profile.any_bytes, "names that are not UTF-8");
    let root = test.root();
    let every: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').collect();
    let mut expected: Vec<Vec<u8>> = [
        &b"\xff\xfe"[..],
        b"\xc3\x28",
        b"new\nline",
        b"-dash",
        b" space ",
        b"...",
        b"\x01",
        b"\\",
        b"back\\slash",
        &every,
    ]
    .iter()
    .map(|name| name.to_vec())
    .collect();
    for name in &expected {
        ok(root.file(name, name));
    }
    for name in &expected {
        assert_eq!(ok(ok(root.lookup(name)).content()), *name);
    }
    expected.sort();
    assert_eq!(ok(root.names()), expected);
    for name in &expected {
        ok(root.unlink(name));
    }
    assert!(ok(root.names()).is_empty());
}

/// A deep tree can be traversed down and up.
pub fn a_deep_tree(test: &TestContext) {
    let root = test.root();
    const DEPTH: usize = 300;
    let mut dir = root.clone();
    for _ in 0..DEPTH {
        dir = ok(dir.mkdir("d", 0o755));
    }
    ok(dir.file("bottom", b"here"));
    let mut at = root.clone();
    for _ in 0..DEPTH {
        at = ok(at.lookup("d"));
    }
    assert_eq!(at.id(), dir.id());
    assert_eq!(ok(ok(at.lookup("bottom")).content()), b"here");
    for _ in 0..DEPTH {
        at = ok(at.parent());
    }
    assert_eq!(at.id(), root.id());
}

/// A large directory is listed completely, continued at any cookie, and emptied.
pub fn a_large_directory(test: &TestContext) {
    let dir = ok(test.root().mkdir("dir", 0o755));
    const COUNT: usize = 3000;
    for i in 0..COUNT {
        let name = format!("a-name-of-some-length-{i}");
        ok(dir.make(&name, vfs::NewNode::File, vfs::Mode::without_umask(0o644)));
    }
    let open = ok(dir.open(R));
    let all = ok(open.readdir_all(ReaddirMode::Names, 100));
    assert_eq!(all.len(), COUNT);
    for i in (0..COUNT).step_by(97) {
        let next = ok(open.readdir(all[i].cookie, ReaddirMode::Entries, 1));
        let expected = all.get(i + 1).map(|entry| &entry.name);
        assert_eq!(next.first().map(|entry| &entry.name), expected);
    }
    for entry in &all {
        ok(dir.unlink(&entry.name));
    }
    assert!(ok(open.readdir(0, ReaddirMode::Names, 1)).is_empty());
}

/// A sparse file may be far larger than its allocated space.
pub fn a_huge_sparse_file(test: &TestContext) {
    needs!(test.caps.holes > vfs::Support::None, "holes");
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    const FAR: u64 = 1 << 40;
    ok(file.write_all(FAR, b"far"));
    assert_eq!(node.attr().size, FAR + 3);
    assert_eq!(ok(file.read(FAR - 2, 10)), b"\0\0far");
    assert_eq!(ok(file.read(FAR / 2, 3)), b"\0\0\0");
    assert!(node.attr().blocks < 1 << 20);
}
