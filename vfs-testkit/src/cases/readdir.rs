//! Listing directories: no entry twice or missing, wherever a listing stops and whatever changes.

use std::collections::{BTreeSet, HashSet};

use vfs::{Errno, ReaddirMode};

use crate::context::{ListedEntry, R, TestContext, TestNode, ok, refused};
use crate::needs;

fn filled(test: &TestContext, count: usize) -> (TestNode, BTreeSet<Vec<u8>>) {
    let dir = ok(test.root().mkdir("dir", 0o755));
    let mut names = BTreeSet::new();
    for i in 0..count {
        let name = format!("entry-{i:05}");
        ok(dir.make(&name, vfs::NewNode::File, vfs::Mode::without_umask(0o644)));
        names.insert(name.into_bytes());
    }
    (dir, names)
}

fn names(entries: &[ListedEntry]) -> BTreeSet<Vec<u8>> {
    let names: BTreeSet<_> = entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names.len(), entries.len(), "a name came twice");
    names
}

/// A new directory is empty: protocols add the dot entries.
pub fn an_empty_directory_has_no_entries(test: &TestContext) {
    let dir = ok(test.root().mkdir("dir", 0o755));
    assert!(ok(dir.list()).is_empty());
}

/// Entries have the numbers and kinds of their nodes.
pub fn entries_tell_numbers_and_kinds(test: &TestContext) {
    let dir = ok(test.root().mkdir("dir", 0o755));
    ok(dir.file("file", b""));
    ok(dir.mkdir("sub", 0o755));
    ok(dir.symlink("link", b"x"));
    ok(dir.make("fifo", vfs::NewNode::Fifo, vfs::Mode::without_umask(0o600)));
    let entries = ok(dir.list());
    assert_eq!(entries.len(), 4);
    for entry in entries {
        let node = ok(dir.lookup(&entry.name));
        assert_eq!(entry.id, node.id());
        assert!(entry.kind.is_none_or(|kind| kind == node.kind()));
        assert!(entry.entry.is_none());
    }
}

/// Entries may come with the result of a look-up.
pub fn entries_may_come_with_attributes(test: &TestContext) {
    let dir = ok(test.root().mkdir("dir", 0o755));
    ok(dir.file("file", b"12345"));
    ok(dir.mkdir("sub", 0o750));
    let entries = ok(ok(dir.open(R)).readdir_all(ReaddirMode::Entries, usize::MAX));
    assert_eq!(entries.len(), 2);
    for listed in entries {
        let found = ok(dir.lookup(&listed.name));
        let entry = listed.entry.expect("nothing vanished");
        assert_eq!((entry.node.id(), entry.attr.id), (found.id(), found.id()));
        assert_eq!(entry.attr.mode, found.attr().mode);
        assert_eq!(entry.attr.size, found.attr().size);
        assert_eq!(entry.node.kind(), found.kind());
    }
}

/// Every entry has a cookie of its own.
pub fn cookies_are_unique(test: &TestContext) {
    let (dir, _) = filled(test, 100);
    let cookies: HashSet<u64> = ok(dir.list()).iter().map(|entry| entry.cookie).collect();
    assert_eq!(cookies.len(), 100);
    assert!(!cookies.contains(&0));
}

/// A listing can be continued after any cookie.
pub fn a_listing_goes_on_behind_any_cookie(test: &TestContext) {
    let (dir, _) = filled(test, 60);
    let open = ok(dir.open(R));
    let all = ok(open.readdir(0, ReaddirMode::Names, usize::MAX));
    for (i, entry) in all.iter().enumerate() {
        let rest = ok(open.readdir(entry.cookie, ReaddirMode::Names, usize::MAX));
        let expected: Vec<_> = all[i + 1..].iter().map(|entry| &entry.name).collect();
        let got: Vec<_> = rest.iter().map(|entry| &entry.name).collect();
        assert_eq!(got, expected, "behind entry {i}");
    }
    let again = ok(open.readdir(0, ReaddirMode::Names, usize::MAX));
    assert_eq!(names(&again), names(&all));
}

/// A listing in pieces of any size is complete.
pub fn pieces_of_any_size_are_complete(test: &TestContext) {
    let (dir, expected) = filled(test, 150);
    for most in [1, 2, 7, 64, 149, 150, 151] {
        let open = ok(dir.open(R));
        assert_eq!(
            names(&ok(open.readdir_all(ReaddirMode::Names, most))),
            expected
        );
        assert_eq!(
            names(&ok(open.readdir_all(ReaddirMode::Entries, most))),
            expected
        );
    }
}

/// A sink that is full loses no entries.
pub fn a_full_sink_loses_nothing(test: &TestContext) {
    let (dir, expected) = filled(test, 3);
    let open = ok(dir.open(R));
    assert!(ok(open.readdir(0, ReaddirMode::Names, 0)).is_empty());
    assert_eq!(
        names(&ok(open.readdir(0, ReaddirMode::Names, 10))),
        expected
    );
}

/// Removing listed entries neither hides nor repeats the others.
pub fn removing_what_was_told_hides_nothing(test: &TestContext) {
    let (dir, mut left) = filled(test, 300);
    let open = ok(dir.open(R));
    let mut cookie = 0;
    loop {
        let some = ok(open.readdir(cookie, ReaddirMode::Names, 7));
        let Some(last) = some.last() else { break };
        cookie = last.cookie;
        for entry in some {
            assert!(left.remove(&entry.name), "told twice, or never there");
            ok(dir.unlink(&entry.name));
        }
    }
    assert!(left.is_empty(), "{} were never told", left.len());
    ok(test.root().rmdir("dir"));
}

/// Removing the last listed entry, and others at random, hides none of the rest.
pub fn removing_here_and_there_hides_nothing(test: &TestContext) {
    let (dir, all) = filled(test, 200);
    let open = ok(dir.open(R));
    let mut removed = BTreeSet::new();
    let mut listed = BTreeSet::new();
    let mut cookie = 0;
    let mut random = crate::context::Random::new(11);
    loop {
        let some = ok(open.readdir(cookie, ReaddirMode::Names, 5));
        let Some(last) = some.last() else { break };
        cookie = last.cookie;
        let stopped_at = last.name.clone();
        for entry in some {
            assert!(listed.insert(entry.name), "told twice");
        }
        let pick = all.iter().nth(random.below(200) as usize).expect("within");
        for name in [stopped_at, pick.clone()] {
            if removed.insert(name.clone()) {
                ok(dir.unlink(&name));
            }
        }
    }
    for name in all.difference(&removed) {
        assert!(
            listed.contains(name),
            "{} was never told",
            name.escape_ascii()
        );
    }
}

/// Adding entries neither hides nor repeats the existing ones.
pub fn adding_hides_and_repeats_nothing(test: &TestContext) {
    let (dir, all) = filled(test, 100);
    let open = ok(dir.open(R));
    let mut listed = BTreeSet::new();
    let mut cookie = 0;
    for round in 0.. {
        let some = ok(open.readdir(cookie, ReaddirMode::Names, 9));
        let Some(last) = some.last() else { break };
        cookie = last.cookie;
        for entry in some {
            assert!(listed.insert(entry.name), "told twice");
        }
        if round < 20 {
            ok(dir.file(&format!("added-{round}"), b""));
        }
    }
    assert!(all.is_subset(&listed));
}

/// Replacing some names with others neither hides nor repeats the remaining ones.
pub fn replacing_hides_and_repeats_nothing(test: &TestContext) {
    let (dir, all) = filled(test, 100);
    let (stays, goes): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    let mut goes = goes.into_iter();
    let open = ok(dir.open(R));
    let mut listed = BTreeSet::new();
    let mut cookie = 0;
    loop {
        let some = ok(open.readdir(cookie, ReaddirMode::Names, 3));
        let Some(last) = some.last() else { break };
        cookie = last.cookie;
        for entry in some {
            assert!(listed.insert(entry.name), "told twice");
        }
        for (i, name) in goes.by_ref().take(2) {
            ok(dir.unlink(name));
            ok(dir.file(&format!("instead-{i}"), b""));
        }
    }
    for (_, name) in stays {
        assert!(
            listed.contains(name),
            "{} was never told",
            name.escape_ascii()
        );
    }
    assert_eq!(names(&ok(dir.list())).len(), 100);
}

/// Cookies are valid for another open of the directory, if the source promises that.
pub fn cookies_survive_another_opening(test: &TestContext) {
    needs!(test.caps.stable_cookies, "stable cookies");
    let (dir, _) = filled(test, 40);
    let all = ok(dir.list());
    for (i, entry) in all.iter().enumerate() {
        let open = ok(dir.open(R));
        let next = ok(open.readdir(entry.cookie, ReaddirMode::Names, 1));
        assert_eq!(
            next.first().map(|e| &e.name),
            all.get(i + 1).map(|e| &e.name)
        );
    }
}

/// A listing from the start shows the present entries.
pub fn a_new_start_sees_changes(test: &TestContext) {
    let (dir, mut expected) = filled(test, 5);
    let open = ok(dir.open(R));
    ok(open.readdir(0, ReaddirMode::Names, 3));
    ok(dir.file("new", b""));
    expected.insert(b"new".to_vec());
    ok(dir.unlink("entry-00000"));
    expected.remove(&b"entry-00000"[..]);
    assert_eq!(
        names(&ok(open.readdir(0, ReaddirMode::Names, 100))),
        expected
    );
}

/// A renamed entry is listed under its new name.
pub fn renaming_keeps_entries(test: &TestContext) {
    let (dir, _) = filled(test, 20);
    ok(dir.rename("entry-00003", &dir, "renamed"));
    ok(dir.rename("entry-00004", &dir, "entry-00005"));
    let now = names(&ok(dir.list()));
    assert_eq!(now.len(), 19);
    assert!(now.contains(&b"renamed"[..]) && now.contains(&b"entry-00005"[..]));
    assert!(!now.contains(&b"entry-00003"[..]) && !now.contains(&b"entry-00004"[..]));
}

/// Only directories are listed.
pub fn listing_a_file_is_enotdir(test: &TestContext) {
    let file = ok(ok(test.root().file("file", b"")).open(R));
    refused(file.readdir(0, ReaddirMode::Names, 10), Errno::ENOTDIR);
}

/// Concurrent listings, while entries are added and removed, include all that remain.
pub fn listings_at_a_time_see_what_stays(test: &TestContext) {
    let (dir, stays) = filled(test, 80);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..100 {
                let name = format!("comes-{}", round % 10);
                ok(dir.file(&name, b""));
                ok(dir.unlink(&name));
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let open = ok(dir.open(R));
                    let listed = ok(open.readdir_all(ReaddirMode::Entries, 13));
                    let listed: BTreeSet<_> = listed.into_iter().map(|entry| entry.name).collect();
                    assert!(stays.is_subset(&listed));
                }
            });
        }
    });
}
