//! Directories: names, links, renames, reading.

use std::collections::HashSet;

use hostdir::Options;
use vfs::{AttrMask, Errno, File, Mode, NewNode, OpenFlags, ReaddirMode, RenameFlags};

use crate::fixture::{Fixture, List, create, failed, fixed, list, name, root};

#[test]
fn every_entry_comes_once_however_it_is_read() {
    let fixture = Fixture::fixed();
    let names: HashSet<String> = (0..5000).map(|n| format!("file-with-a-name-{n}")).collect();
    fixture.outside(|dir| {
        for name in &names {
            std::fs::write(dir.join(name), "").expect("writes");
        }
    });
    let file = fixture.root.open(&root(), OpenFlags::READ).expect("opens");
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let mut some = List(Vec::new(), 37);
        file.readdir(&root(), cookie, ReaddirMode::Names, &mut some)
            .expect("reads");
        let Some(last) = some.0.last() else { break };
        cookie = last.2;
        seen.extend(some.0);
    }
    assert_eq!(seen.len(), 5000);
    let set = |entries: &[crate::fixture::Listed]| -> HashSet<String> {
        entries.iter().map(|entry| entry.0.clone()).collect()
    };
    assert_eq!(set(&seen), names);
    let cookies: HashSet<u64> = seen.iter().map(|entry| entry.2).collect();
    assert!(cookies.len() == 5000 && !cookies.contains(&0));
    // From the middle, back and forth, in this open directory and in another.
    let other = fixture.root.open(&root(), OpenFlags::READ).expect("opens");
    for at in [4000, 10, 2500, 11, 4999] {
        for dir in [&file, &other] {
            let mut rest = List(Vec::new(), 20);
            dir.readdir(&root(), seen[at].2, ReaddirMode::Names, &mut rest)
                .expect("reads");
            assert_eq!(set(&rest.0), set(&seen[at + 1..][..rest.0.len()]));
            assert_eq!(rest.0.len(), 20.min(4999 - at));
        }
    }
    let mut again = List(Vec::new(), usize::MAX);
    file.readdir(&root(), 0, ReaddirMode::Names, &mut again)
        .expect("reads");
    assert_eq!(again.0.len(), 5000);
}

#[test]
fn numbers_and_nodes_of_entries_are_those_of_lookups() {
    let fixture = Fixture::fixed();
    create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    fixture
        .root
        .make(
            &root(),
            name("d"),
            NewNode::Directory,
            Mode::without_umask(0o700),
        )
        .expect("makes");
    for plus in [ReaddirMode::Names, ReaddirMode::Entries] {
        let entries = list(&root(), &*fixture.root, plus).expect("lists");
        assert_eq!(entries.len(), 2);
        for (name, id, _, entry) in entries {
            let found = fixture.lookup(&name).expect("there");
            assert_eq!(found.node.id(), id);
            assert_eq!(entry.is_some(), plus == ReaddirMode::Entries);
            assert!(entry.is_none_or(|entry| entry.attr == found.attr));
        }
    }
}

#[test]
fn a_directory_that_rests_is_listed_as_it_is_whatever_was_kept_of_it() {
    let fixture = Fixture::fixed();
    let dirs = |dir: &std::path::Path| (dir.join("rests"), dir.join("moves"));
    let file = |number: usize| format!("file-{number:05}");
    fixture.outside(|dir| {
        for dir in [dirs(dir).0, dirs(dir).1] {
            std::fs::create_dir(&dir).expect("made");
            (0..5000).for_each(|n| drop(std::fs::File::create(dir.join(file(n))).expect("made")));
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(3100));
    let [rests, moves] = ["rests", "moves"].map(|name| fixture.lookup(name).expect("there").node);
    let names = |node: &dyn vfs::Node| -> Vec<String> {
        let listed = list(&root(), node, ReaddirMode::Names).expect("lists");
        listed.into_iter().map(|entry| entry.0).collect()
    };
    let all: Vec<_> = (0..5000).map(file).collect();
    for _ in 0..3 {
        assert_eq!(names(&*rests), all);
        assert_eq!(names(&*moves), all);
    }

    // In pieces, from any cookie on, and past the end after an entry was added there.
    let open = rests.open(&root(), OpenFlags::READ).expect("opens");
    let mut seen = Vec::new();
    let mut cookie = 0;
    loop {
        let mut some = List(Vec::new(), 700);
        open.readdir(&root(), cookie, ReaddirMode::Names, &mut some)
            .expect("reads");
        let Some(last) = some.0.last() else { break };
        cookie = last.2;
        seen.extend(some.0.into_iter().map(|entry| (entry.0, entry.2)));
    }
    let again = rests.open(&root(), OpenFlags::READ).expect("opens");
    let mut rest = List(Vec::new(), usize::MAX);
    again
        .readdir(&root(), seen[3000].1, ReaddirMode::Names, &mut rest)
        .expect("reads");
    assert!(
        rest.0
            .iter()
            .map(|entry| &entry.0)
            .eq(seen[3001..].iter().map(|entry| &entry.0))
    );
    seen.sort();
    assert!(seen.iter().map(|entry| &entry.0).eq(&all));

    // Changes are visible at once.
    for round in 0..3 {
        fixture.outside(|dir| {
            let moves = dirs(dir).1;
            std::fs::remove_file(moves.join(file(round))).expect("removed");
            std::fs::rename(
                moves.join(file(4999 - round)),
                moves.join(format!("new-{round}")),
            )
            .expect("renamed");
        });
        let mut now: Vec<_> = (round + 1..4999 - round).map(file).collect();
        now.extend((0..=round).map(|n| format!("new-{n}")));
        assert_eq!(names(&*moves), now);
    }
    assert_eq!(names(&*rests), all);
}

/// Checks that a directory whose first read was at the end is listed from the start. A client's
/// last READDIR is such a read if the server had closed the directory meanwhile.
pub(crate) fn check_first_read_at_end(fixture: &Fixture) {
    // So many that the last entry is not `.` or `..`, which are anywhere in a listing of ext4.
    let mut wanted: Vec<_> = (0..200).map(|number| number.to_string()).collect();
    wanted.sort();
    fixture.outside(|dir| {
        for name in &wanted {
            std::fs::write(dir.join(name), "").expect("writes");
        }
    });
    let open = || fixture.root.open(&root(), OpenFlags::READ).expect("opens");
    let list = |dir: &dyn File, cookie| {
        let mut some = List(Vec::new(), usize::MAX);
        dir.readdir(&root(), cookie, ReaddirMode::Names, &mut some)
            .expect("reads");
        some.0
    };
    let end = list(&*open(), 0).last().expect("an entry").2;
    let dir = open();
    assert!(list(&*dir, end).is_empty());
    let mut names: Vec<_> = list(&*dir, 0).into_iter().map(|entry| entry.0).collect();
    names.sort();
    assert_eq!(names, wanted);
}

#[test]
fn a_directory_that_was_first_read_at_its_end_has_entries() {
    check_first_read_at_end(&Fixture::fixed());
}

#[test]
fn a_removed_directory_has_no_entries() {
    let fixture = Fixture::fixed();
    let dir = fixture
        .root
        .make(
            &root(),
            name("d"),
            NewNode::Directory,
            Mode::without_umask(0o700),
        )
        .expect("makes");
    let file = dir.node.open(&root(), OpenFlags::READ).expect("opens");
    fixture
        .root
        .unlink(&root(), name("d"), true)
        .expect("removes");
    let mut all = List(Vec::new(), 10);
    file.readdir(&root(), 0, ReaddirMode::Names, &mut all)
        .expect("reads");
    assert!(all.0.is_empty());
    assert_eq!(
        failed(create(&root(), &*dir.node, "f", 0o600)),
        Errno::ENOENT
    );
}

#[test]
fn names_are_made_removed_and_renamed_as_on_the_host() {
    let fixture = Fixture::fixed();
    let root_dir = &fixture.root;
    let dir = |n: &str| {
        root_dir.make(
            &root(),
            name(n),
            NewNode::Directory,
            Mode::without_umask(0o700),
        )
    };
    let (a, b) = (dir("a").expect("makes"), dir("b").expect("makes"));
    assert_eq!(failed(dir("a")), Errno::EEXIST);
    let (file, _) = create(&root(), &*a.node, "f", 0o600).expect("creates");
    let rename = |to: &str, flags| a.node.rename(&root(), name("f"), &*b.node, name(to), flags);
    assert_eq!(
        failed(root_dir.unlink(&root(), name("a"), true)),
        Errno::ENOTEMPTY
    );
    assert_eq!(
        failed(root_dir.unlink(&root(), name("a"), false)),
        Errno::EISDIR
    );
    assert_eq!(
        failed(a.node.unlink(&root(), name("f"), true)),
        Errno::ENOTDIR
    );
    rename("g", RenameFlags::empty()).expect("renames");
    assert_eq!(
        fixture.lookup("b/g").map(|entry| entry.node.id()),
        Ok(file.node.id())
    );
    let (other, _) = create(&root(), &*a.node, "f", 0o600).expect("creates");
    assert_eq!(failed(rename("g", RenameFlags::NOREPLACE)), Errno::EEXIST);
    rename("g", RenameFlags::EXCHANGE).expect("swaps");
    assert_eq!(
        fixture.lookup("b/g").map(|entry| entry.node.id()),
        Ok(other.node.id())
    );
    assert_eq!(
        fixture.lookup("a/f").map(|entry| entry.node.id()),
        Ok(file.node.id())
    );
    let link = root_dir
        .link(&root(), name("l"), &*file.node)
        .expect("links");
    assert_eq!((link.node.id(), link.attr.nlink), (file.node.id(), 2));
    let symlink = root_dir
        .make(
            &root(),
            name("s"),
            NewNode::Symlink(b"nowhere"),
            Mode::without_umask(0o777),
        )
        .expect("makes");
    let hard = root_dir
        .link(&root(), name("s2"), &*symlink.node)
        .expect("links the link itself");
    assert_eq!(hard.node.id(), symlink.node.id());
    let foreign = Fixture::fixed();
    assert_eq!(
        failed(foreign.root.link(&root(), name("l"), &*file.node)),
        Errno::EXDEV
    );
}

#[test]
fn the_umask_counts_unless_a_default_acl_decides() {
    let fixture = Fixture::fixed();
    let mode = Mode {
        bits: 0o777,
        umask: 0o027,
    };
    let dir = fixture
        .root
        .make(&root(), name("d"), NewNode::Directory, mode)
        .expect("makes");
    assert_eq!(dir.attr.mode, 0o750);
    // Version 2; user, group and others may all do everything.
    let mut acl = 2u32.to_le_bytes().to_vec();
    for tag in [1u16, 4, 32] {
        acl.extend([tag.to_le_bytes(), 7u16.to_le_bytes()].concat());
        acl.extend(u32::MAX.to_le_bytes());
    }
    match dir.node.set_xattr(
        &root(),
        b"system.posix_acl_default",
        &acl,
        vfs::XattrFlags::empty(),
    ) {
        Err(Errno::EOPNOTSUPP) => return eprintln!("skipped: no ACLs here"),
        set => set.expect("sets"),
    }
    let made = dir
        .node
        .make(&root(), name("f"), NewNode::File, mode)
        .expect("makes");
    assert_eq!(made.attr.mode, 0o777);
    let flags = OpenFlags::WRITE | OpenFlags::EXCL;
    let (made, _) = dir
        .node
        .create(&root(), name("g"), flags, mode)
        .expect("creates");
    assert_eq!(made.attr.mode, 0o777);
}

/// In threads with a umask of their own: a test must not change that of the process.
#[test]
fn threads_that_serve_clear_their_own_umask_and_those_of_a_program_keep_it() {
    let (server, program) = (
        Fixture::fixed(),
        Fixture::new(Options {
            keep_umask: true,
            ..fixed()
        }),
    );
    let made = |fixture: &Fixture| {
        let all = Mode::without_umask(0o777);
        let made = fixture
            .root
            .make(&root(), name("d"), NewNode::Directory, all);
        (made.expect("makes").attr.mode, sys::umask::current())
    };
    let in_thread = |check: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| scope.spawn(check).join().expect("no panic"));
    };
    in_thread(&|| {
        sys::umask::clear_own().expect("permitted");
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        assert_eq!(made(&program), (0o700, Some(0o077)));
        in_thread(&|| assert_eq!(made(&server), (0o777, Some(0))));
        assert_eq!(sys::umask::current(), Some(0o077));
    });
}

#[test]
fn the_root_is_above_itself_and_nothing_is_above_it() {
    let fixture = Fixture::fixed();
    let dir = fixture
        .root
        .make(
            &root(),
            name("d"),
            NewNode::Directory,
            Mode::without_umask(0o700),
        )
        .expect("makes");
    let above = |node: &dyn vfs::Node| node.parent(&root()).map(|entry| entry.node.id());
    assert_eq!(above(&*dir.node), Ok(fixture.root.id()));
    assert_eq!(above(&*fixture.root), Ok(fixture.root.id()));
    let elsewhere = fixture.outside(|root| {
        let elsewhere = tempfile::tempdir_in(root.parent().expect("not /")).expect("a directory");
        std::fs::rename(root.join("d"), elsewhere.path().join("d")).expect("moves out");
        elsewhere
    });
    assert_eq!(above(&*dir.node), Err(Errno::ESTALE));
    assert!(dir.node.attr(&root(), AttrMask::STAT).is_ok());
    fixture.outside(|_| drop(elsewhere));
}
