//! Reading and changing attributes.

use vfs::{Errno, OpenFlags, SetAttr, SetTime, Support, Time};

use crate::context::{R, RW, TestContext, ok, pattern, refused, refused_as};
use crate::needs;

/// chmod(2) sets all twelve bits.
pub fn chmod_sets_permissions(test: &TestContext) {
    let root = test.root();
    let file = ok(root.file("file", b""));
    for mode in [0o000, 0o777, 0o4755, 0o2755, 0o1644, 0o640] {
        assert_eq!(ok(file.chmod(mode)).mode, mode, "{mode:o}");
        assert_eq!(ok(root.lookup("file")).attr().mode, mode);
    }
    let dir = ok(root.mkdir("dir", 0o700));
    assert_eq!(ok(dir.chmod(0o1777)).mode, 0o1777);
    assert_eq!(ok(file.open(R)).attr().mode, 0o640);
}

/// The attributes that a change returns are those that a later request returns.
pub fn setattr_answers_the_new_attributes(test: &TestContext) {
    let file = ok(test.root().file("file", b"12345678"));
    let set = SetAttr {
        mode: Some(0o600),
        size: Some(3),
        ..SetAttr::default()
    };
    let returned = ok(file.set(set));
    let found = file.attr();
    assert_eq!((returned.mode, returned.size), (0o600, 3));
    assert_eq!((found.mode, found.size), (0o600, 3));
    assert_eq!(
        (returned.mtime, returned.ctime, returned.change),
        (found.mtime, found.ctime, found.change)
    );
}

/// An open file's attributes are its node's.
pub fn open_files_have_the_nodes_attributes(test: &TestContext) {
    let (node, file) = ok(test.root().create("file", RW, 0o644));
    ok(file.write_all(0, b"123"));
    assert_eq!(file.attr().size, 3);
    let set = SetAttr {
        mode: Some(0o604),
        ..SetAttr::default()
    };
    assert_eq!(ok(file.set(set)).mode, 0o604);
    assert_eq!(node.attr().mode, 0o604);
}

/// An empty change has no effect.
pub fn an_empty_change_changes_nothing(test: &TestContext) {
    let file = ok(test.root().file("file", b"123"));
    let before = file.attr();
    let returned = ok(file.set(SetAttr::default()));
    assert_eq!((returned.size, returned.mode), (3, before.mode));
    assert_eq!(file.attr().mtime, before.mtime);
}

/// Owner and group can be given away by the super-user, one at a time.
pub fn chown_changes_owner_and_group(test: &TestContext) {
    needs!(
        test.profile.root && test.caps.owners > Support::None,
        "owners"
    );
    let file = ok(test.root().file("file", b""));
    let attr = ok(file.chown(Some(1234), Some(5678)));
    assert_eq!((attr.uid, attr.gid), (1234, 5678));
    let attr = ok(file.chown(Some(4321), None));
    assert_eq!((attr.uid, attr.gid), (4321, 5678));
    let attr = ok(file.chown(None, Some(8765)));
    assert_eq!((attr.uid, attr.gid), (4321, 8765));
    let link = ok(test.root().symlink("link", b"file"));
    assert_eq!(ok(link.chown(Some(99), None)).uid, 99);
    assert_eq!(file.attr().uid, 4321, "a symbolic link is not followed");
}

/// chown(2) clears set-id bits of a program.
pub fn chown_takes_set_id_away(test: &TestContext) {
    needs!(
        test.profile.root && test.caps.owners > Support::None,
        "owners"
    );
    let file = ok(test.root().file("file", b""));
    ok(file.chmod(0o6755));
    assert_eq!(ok(file.chown(Some(1234), None)).mode, 0o755);
    let dir = ok(test.root().mkdir("dir", 0o755));
    ok(dir.chmod(0o2755));
    assert_eq!(ok(dir.chown(Some(1234), None)).mode, 0o2755);
}

/// Truncation shortens a file, or extends it with zeros.
pub fn truncate_cuts_and_extends(test: &TestContext) {
    let file = ok(test.root().file("file", b"0123456789"));
    assert_eq!(ok(file.truncate(4)).size, 4);
    assert_eq!(ok(file.content()), b"0123");
    assert_eq!(ok(file.truncate(8)).size, 8);
    assert_eq!(ok(file.content()), b"0123\0\0\0\0");
    assert_eq!(ok(file.truncate(0)).size, 0);
    assert_eq!(ok(file.content()), b"");
}

/// Truncated data does not reappear after an extension, also in the middle of a block.
pub fn what_was_cut_off_does_not_come_back(test: &TestContext) {
    let file = ok(test.root().file("file", &pattern(10_000, 1)));
    ok(file.truncate(5000));
    ok(file.truncate(10_000));
    let content = ok(file.content());
    assert_eq!(content[..5000], pattern(10_000, 1)[..5000]);
    assert!(content[5000..].iter().all(|byte| *byte == 0));
}

/// Only regular files can be truncated.
pub fn only_files_are_truncated(test: &TestContext) {
    let root = test.root();
    let dir = ok(root.mkdir("dir", 0o755));
    refused(dir.truncate(0), Errno::EISDIR);
    let fifo = ok(root.make("fifo", vfs::NewNode::Fifo, vfs::Mode::without_umask(0o600)));
    refused(fifo.truncate(0), Errno::EINVAL);
}

/// An open file can be truncated if it is open for writing.
pub fn ftruncate_needs_a_file_open_for_writing(test: &TestContext) {
    let root = test.root();
    let node = ok(root.file("file", b"123456"));
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    refused(ok(node.open(R)).set(size(1)), Errno::EINVAL);
    let file = ok(node.open(RW));
    assert_eq!(ok(file.set(size(2))).size, 2);
    ok(node.chmod(0o000));
    assert_eq!(ok(file.set(size(9))).size, 9);
}

/// No file is larger than the maximum of `off_t`.
pub fn a_size_beyond_bounds_is_refused(test: &TestContext) {
    let file = ok(test.root().file("file", b""));
    refused_as(file.truncate(1 << 63), &[Errno::EFBIG, Errno::EINVAL]);
    refused_as(file.truncate(u64::MAX), &[Errno::EFBIG, Errno::EINVAL]);
    assert_eq!(file.attr().size, 0);
}

/// Times are set exactly, each independently.
pub fn times_are_set_exactly(test: &TestContext) {
    needs!(test.profile.time_step > 0, "times that can be set");
    let file = ok(test.root().file("file", b""));
    let nsec = 123_456_789 / test.profile.time_step * test.profile.time_step;
    let at = |sec| Time {
        sec,
        nsec: nsec % 1_000_000_000,
    };
    let set = SetAttr {
        atime: Some(SetTime::At(at(1_000_000_000))),
        mtime: Some(SetTime::At(at(1_100_000_000))),
        ..SetAttr::default()
    };
    let attr = ok(file.set(set));
    assert_eq!(
        (attr.atime, attr.mtime),
        (at(1_000_000_000), at(1_100_000_000))
    );
    let set = SetAttr {
        atime: Some(SetTime::At(at(4_000_000_000))),
        ..SetAttr::default()
    };
    let attr = ok(file.set(set));
    assert_eq!(
        (attr.atime, attr.mtime),
        (at(4_000_000_000), at(1_100_000_000))
    );
    let set = SetAttr {
        mtime: Some(SetTime::At(at(5))),
        ..SetAttr::default()
    };
    ok(file.set(set));
    let attr = ok(test.root().lookup("file")).attr();
    assert_eq!((attr.atime, attr.mtime), (at(4_000_000_000), at(5)));
}

/// `Now` sets the time of the source's own clock, and leaves the other time unchanged.
pub fn now_is_the_sources_clock(test: &TestContext) {
    needs!(test.profile.time_step > 0, "times that can be set");
    let file = ok(test.root().file("file", b""));
    let born = file.attr().mtime;
    let old = SetTime::At(Time { sec: 1, nsec: 0 });
    let set = SetAttr {
        atime: Some(old),
        mtime: Some(old),
        ..SetAttr::default()
    };
    ok(file.set(set));
    let set = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let attr = ok(file.set(set));
    assert!(attr.mtime >= born);
    assert_eq!(attr.atime, Time { sec: 1, nsec: 0 });
}

/// Times of symbolic links and directories can be set.
pub fn times_of_other_kinds_are_set(test: &TestContext) {
    needs!(test.profile.time_step > 0, "times that can be set");
    let root = test.root();
    let time = Time { sec: 77, nsec: 0 };
    for node in [ok(root.symlink("link", b"x")), ok(root.mkdir("dir", 0o755))] {
        let set = SetAttr {
            mtime: Some(SetTime::At(time)),
            ..SetAttr::default()
        };
        assert_eq!(ok(node.set(set)).mtime, time);
    }
}

/// Each change increments the change counter: no two states have the same one.
pub fn every_change_counts(test: &TestContext) {
    needs!(test.caps.change > Support::None, "a change counter");
    let root = test.root();
    let (node, file) = ok(root.create("file", RW, 0o644));
    let mut seen = vec![node.attr().change];
    let mut changed = |what: &str| {
        let change = node.attr().change;
        assert!(!seen.contains(&change), "{what} did not count");
        seen.push(change);
    };
    test.wait_for_clock();
    ok(file.write(0, b"a"));
    changed("write");
    test.wait_for_clock();
    ok(file.write(0, b"b"));
    changed("overwrite");
    test.wait_for_clock();
    ok(node.chmod(0o600));
    changed("chmod");
    test.wait_for_clock();
    ok(node.truncate(100));
    changed("truncate");
    test.wait_for_clock();
    ok(root.link("other", &node));
    changed("link");
    test.wait_for_clock();
    ok(root.unlink("other"));
    changed("unlink");
    let set = SetAttr {
        ctime: true,
        ..SetAttr::default()
    };
    test.wait_for_clock();
    ok(node.set(set));
    changed("asking for a change");
}

/// Reading does not change the change counter.
pub fn reading_does_not_count_as_change(test: &TestContext) {
    let root = test.root();
    let node = ok(root.file("file", b"data"));
    let (change, dir_change) = (node.attr().change, root.attr().change);
    ok(node.content());
    ok(root.names());
    ok(node.open(R));
    assert_eq!(node.attr().change, change);
    assert_eq!(root.attr().change, dir_change);
}

/// Writing updates mtime and ctime.
pub fn writing_moves_mtime(test: &TestContext) {
    needs!(test.profile.time_step > 0, "times that can be set");
    let node = ok(test.root().file("file", b"data"));
    let old = Time { sec: 1000, nsec: 0 };
    let set = SetAttr {
        mtime: Some(SetTime::At(old)),
        ..SetAttr::default()
    };
    ok(node.set(set));
    ok(ok(node.open(RW)).write(0, b"x"));
    assert_ne!(node.attr().mtime, old);
    ok(node.set(set));
    ok(node.truncate(2));
    assert_ne!(node.attr().mtime, old);
    ok(node.set(set));
    ok(node.open(RW | OpenFlags::TRUNC));
    assert_ne!(node.attr().mtime, old);
    ok(node.set(set));
    ok(node.chmod(0o600));
    assert_eq!(node.attr().mtime, old, "chmod is no change of contents");
}

/// Reading updates an atime older than mtime.
pub fn reading_moves_atime(test: &TestContext) {
    needs!(
        test.profile.time_step > 0 && test.profile.atime,
        "an atime that moves"
    );
    let node = ok(test.root().file("file", b"data"));
    let old = Time { sec: 1000, nsec: 0 };
    let set = SetAttr {
        atime: Some(SetTime::At(old)),
        ..SetAttr::default()
    };
    ok(node.set(set));
    ok(ok(node.open(R | OpenFlags::NOATIME)).read(0, 4));
    assert_eq!(node.attr().atime, old);
    ok(ok(node.open(R)).read(0, 4));
    assert_ne!(node.attr().atime, old);
}

/// A change that kills privileges clears set-id bits.
pub fn kill_priv_takes_set_id_away(test: &TestContext) {
    let node = ok(test.root().file("file", b"data"));
    ok(node.chmod(0o6755));
    let set = SetAttr {
        size: Some(1),
        kill_priv: true,
        ..SetAttr::default()
    };
    let attr = ok(node.set(set));
    assert_eq!((attr.size, attr.mode), (1, 0o755));
}

/// Space used grows with contents.
pub fn blocks_follow_contents(test: &TestContext) {
    let node = ok(test.root().file("file", &pattern(1 << 20, 3)));
    ok(ok(node.open(RW)).fsync(false));
    let blocks = node.attr().blocks;
    assert!(blocks >= 2048, "1 MiB takes {blocks} blocks of 512 bytes");
    ok(node.truncate(0));
    assert!(node.attr().blocks < 2048);
}
