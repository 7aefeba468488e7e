//! Nodes of files that have no fid, because they were listed only, or it was given up.

use memory::Memory;
use remote::ninep::{Options, Retry};
use vfs::{Caller, Errno, FileSystem, OpenFlags, ReaddirMode, Result};
use vfs_testkit::context::{ok, run};
use vfs_testkit::{ListedEntry, TestNode};

use crate::net::Served;
use crate::reconnecting::Place;

const R: OpenFlags = OpenFlags::READ;

fn root(fs: &dyn FileSystem) -> TestNode {
    let who = Caller::ROOT;
    let node = ok(run(&who, |cx| fs.root(cx)));
    TestNode { node, caller: who }
}

fn listed(dir: &TestNode, most: usize) -> Vec<ListedEntry> {
    ok(ok(dir.open(R)).readdir(0, ReaddirMode::Entries, most))
}

/// The node of `name` in a listing.
fn of(dir: &TestNode, name: &str) -> TestNode {
    let entries = listed(dir, usize::MAX);
    let kept = entries
        .iter()
        .find(|kept| kept.name == name.as_bytes())
        .expect("listed");
    let node = kept.entry.as_ref().expect("with its node").node.clone();
    let who = dir.caller.clone();
    TestNode { node, caller: who }
}

fn attr(node: &TestNode) -> Result<u32> {
    run(&node.caller, |cx| node.node.attr(cx, vfs::AttrMask::STAT)).map(|attr| attr.nlink)
}

/// A tree in memory, as seen by its client and by its server.
struct Both {
    ours: TestNode,
    theirs: TestNode,
    _served: Served,
}

fn both() -> Both {
    let fs = Memory::new(vfs_testkit::clock());
    let served = Served::of(fs.clone());
    Both {
        theirs: root(&*fs),
        ours: root(&*served.connect(Options::default())),
        _served: served,
    }
}

#[test]
fn as_many_files_as_there_are_take_no_fid_of_the_server() {
    let fs = Memory::new(vfs_testkit::clock());
    let theirs = root(&*fs);
    for at in 0..2000 {
        ok(theirs.file(&format!("f{at}"), b"1"));
    }
    let served = Served::narrow(fs, 512);
    let ours = root(&*served.connect(Options::default()));
    let entries = listed(&ours, usize::MAX);
    assert_eq!(entries.len(), 2000);
    for kept in &entries {
        let entry = kept.entry.as_ref().expect("its node");
        assert_eq!(entry.attr.size, 1);
    }
    for kept in entries.iter().step_by(100) {
        let node = kept.entry.as_ref().expect("its node").node.clone();
        let caller = Caller::ROOT;
        assert_eq!(TestNode { node, caller }.content(), Ok(b"1".to_vec()));
    }
}

#[test]
fn no_more_is_looked_up_than_there_is_room_for() {
    let fs = Memory::new(vfs_testkit::clock());
    let theirs = root(&*fs);
    for at in 0..100 {
        ok(theirs.file(&format!("f{at}"), b""));
    }
    // One fid for the root, one for the listing and five for entries.
    let served = Served::narrow(fs, 8);
    let ours = root(&*served.connect(Options::default()));
    assert_eq!(listed(&ours, 5).len(), 5);
}

#[test]
fn a_listed_file_is_found_by_the_name_that_it_was_given_here() {
    let Both { ours, theirs, .. } = &both();
    let (one, two) = (ok(ours.mkdir("one", 0o755)), ok(ours.mkdir("two", 0o755)));
    ok(ok(theirs.lookup("one")).file("f", b"hello"));
    let file = of(&one, "f");
    ok(one.rename("f", &one, "g"));
    ok(one.rename("g", &two, "h"));
    ok(ours.rename("two", &one, "three"));
    assert_eq!(attr(&file), Ok(1));
    assert_eq!(file.content(), Ok(b"hello".to_vec()));
    // With a fid, it is found wherever other clients have moved it.
    ok(ok(ok(theirs.lookup("one")).lookup("three")).rename("h", theirs, "i"));
    assert_eq!(attr(&file), Ok(1));
}

#[test]
fn a_listed_file_outlives_the_name_that_is_taken_from_it_here() {
    let Both { ours, theirs, .. } = &both();
    for name in ["f", "g", "h"] {
        ok(theirs.file(name, name.as_bytes()));
    }
    let (f, g) = (of(ours, "f"), of(ours, "g"));
    ok(ours.unlink("f"));
    assert_eq!(attr(&f), Ok(0));
    // Another file takes its name.
    ok(ours.rename("h", ours, "g"));
    assert_eq!(attr(&g), Ok(0));
    assert_eq!(ok(ours.lookup("g")).content(), Ok(b"h".to_vec()));
}

#[test]
fn a_listed_file_whose_name_others_have_taken_is_stale() {
    let Both { ours, theirs, .. } = &both();
    for name in ["removed", "replaced", "moved"] {
        ok(theirs.file(name, b""));
    }
    let [removed, replaced, moved] = ["removed", "replaced", "moved"].map(|name| of(ours, name));
    ok(theirs.unlink("removed"));
    ok(theirs.unlink("replaced"));
    ok(theirs.file("replaced", b""));
    ok(theirs.rename("moved", theirs, "there"));
    for node in [&removed, &replaced, &moved] {
        assert_eq!(attr(node), Err(Errno::ESTALE));
        assert_eq!(node.open(R).err(), Some(Errno::ESTALE));
    }
    assert_eq!(attr(&ok(ours.lookup("there"))), Ok(1));
    assert_eq!(attr(&of(ours, "there")), Ok(1));
}

#[test]
fn a_file_that_has_a_fid_is_listed_with_one() {
    let Both { ours, theirs, .. } = &both();
    for name in ["looked up", "opened"] {
        ok(theirs.file(name, b""));
    }
    let looked_up = ok(ours.lookup("looked up"));
    let opened = of(ours, "opened");
    let file = ok(opened.open(R));
    let again = ["looked up", "opened"].map(|name| of(ours, name));
    for name in ["looked up", "opened"] {
        ok(theirs.unlink(name));
    }
    for node in &again {
        assert_eq!(attr(node), Ok(0));
    }
    drop((looked_up, opened, file, again));
}

#[test]
fn names_of_one_file_are_listed_and_removed_one_by_one() {
    let Both { ours, theirs, .. } = &both();
    let file = ok(theirs.file("a", b""));
    ok(theirs.link("b", &file));
    let (a, b) = (of(ours, "a"), of(ours, "b"));
    assert_eq!(a.id(), b.id());
    ok(ours.unlink("b"));
    assert_eq!((attr(&a), attr(&b)), (Ok(1), Ok(1)));
}

/// Nodes that were looked up one by one, far more than a server has fids.
fn looked_up(dir: &TestNode, count: usize) -> Vec<TestNode> {
    (0..count)
        .map(|at| ok(dir.lookup(&format!("f{at}"))))
        .collect()
}

#[test]
fn a_walk_over_many_files_does_not_use_up_the_fids_of_the_server() {
    let fs = Memory::new(vfs_testkit::clock());
    let theirs = root(&*fs);
    for at in 0..1000 {
        ok(theirs.file(&format!("f{at}"), b"1"));
        ok(theirs.mkdir(&format!("d{at}"), 0o755));
    }
    let served = Served::narrow(fs, 64);
    let ours = root(&*served.connect(Options::default()));
    let nodes = looked_up(&ours, 1000);
    let dirs: Vec<_> = (0..1000)
        .map(|at| ok(ours.lookup(&format!("d{at}"))))
        .collect();
    // Every request that takes a fid finds one, and every node is found again.
    ok(ours.file("new", b"hello"));
    ok(ours.mkdir("made", 0o755));
    for (at, node) in nodes.iter().enumerate() {
        assert_eq!(attr(node), Ok(1), "f{at}");
    }
    for dir in &dirs {
        ok(dir.file("in it", b""));
        assert_eq!(listed(dir, usize::MAX).len(), 1);
    }
    assert_eq!(nodes[3].content(), Ok(b"1".to_vec()));
    assert_eq!(listed(&ours, usize::MAX).len(), 2002);
}

#[test]
fn open_files_keep_their_fids() {
    let fs = Memory::new(vfs_testkit::clock());
    let theirs = root(&*fs);
    for at in 0..200 {
        ok(theirs.file(&format!("f{at}"), b"1"));
    }
    let served = Served::narrow(fs, 64);
    let ours = root(&*served.connect(Options::default()));
    let node = ok(ours.lookup("f0"));
    let file = ok(node.open(R));
    ok(theirs.unlink("f0"));
    let nodes: Vec<_> = (1..200)
        .map(|at| ok(ours.lookup(&format!("f{at}"))))
        .collect();
    assert_eq!(nodes.iter().map(attr).collect::<Vec<_>>(), [Ok(1); 199]);
    assert_eq!(attr(&node), Ok(0));
    assert_eq!(file.read(0, 9), Ok(b"1".to_vec()));
}

#[test]
fn a_directory_that_is_removed_here_keeps_its_fid() {
    let fs = Memory::new(vfs_testkit::clock());
    let theirs = root(&*fs);
    ok(theirs.mkdir("cwd", 0o755));
    for at in 0..200 {
        ok(theirs.file(&format!("f{at}"), b"1"));
    }
    let served = Served::narrow(fs, 64);
    let ours = root(&*served.connect(Options::default()));
    let cwd = ok(ours.lookup("cwd"));
    drop(looked_up(&ours, 200));
    ok(ours.rmdir("cwd"));
    let nodes = looked_up(&ours, 200);
    assert!(attr(&cwd).is_ok());
    assert_eq!(listed(&cwd, usize::MAX).len(), 0);
    drop(nodes);
    // Another one of that name is another object.
    ok(ours.mkdir("cwd", 0o755));
    assert!(attr(&cwd).is_ok());
}

#[test]
fn a_file_whose_fid_was_given_up_follows_renames_made_here_and_no_others() {
    let fs = Memory::new(vfs_testkit::clock());
    let theirs = root(&*fs);
    ok(ok(theirs.mkdir("dir", 0o755)).file("ours", b"hello"));
    ok(theirs.file("theirs", b""));
    for at in 0..200 {
        ok(theirs.file(&format!("f{at}"), b"1"));
    }
    let served = Served::narrow(fs, 64);
    let ours = root(&*served.connect(Options::default()));
    let dir = ok(ours.lookup("dir"));
    let (mine, other) = (ok(dir.lookup("ours")), ok(ours.lookup("theirs")));
    ok(dir.rename("ours", &ours, "moved"));
    ok(ours.rename("dir", &ours, "dir2"));
    ok(ours.rename("moved", &dir, "again"));
    let nodes = looked_up(&ours, 200);
    ok(theirs.rename("theirs", &theirs, "elsewhere"));
    ok(theirs.file("theirs", b"another"));
    assert_eq!(mine.content(), Ok(b"hello".to_vec()));
    assert_eq!(attr(&other), Err(Errno::ESTALE));
    assert_eq!(attr(&ok(ours.lookup("elsewhere"))), Ok(1));
    drop(nodes);
}

#[test]
fn listed_files_go_on_with_a_server_that_comes_again() {
    let place = Place::new();
    let fs = place.connect(Retry::Forever);
    let (ours, theirs) = (root(&*fs), root(&*place.fs));
    ok(ok(theirs.mkdir("d", 0o755)).file("f", b"hello"));
    ok(theirs.file("g", b""));
    let dir = ok(ours.lookup("d"));
    let (f, g) = (of(&dir, "f"), of(&ours, "g"));
    ok(ours.rename("d", &ours, "e"));
    place.again();
    assert_eq!(f.content(), Ok(b"hello".to_vec()));
    place.again();
    assert_eq!((attr(&f), attr(&g)), (Ok(1), Ok(1)));
}
