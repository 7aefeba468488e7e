//! The contents that readers get, and the parts of them that are cached.

use std::sync::Arc;
use std::time::Duration;

use layers::disk_cache::identity;
use memory::Memory;
use vfs::lock::{HostLock, LockFamily};
use vfs::{AttrMask, Caller, CopyMode, File, FileSystem, Name, OpenFlags, SetAttr, Time};
use vfs_testkit::context::pattern;

use crate::common::{RW, create, open, with};
use crate::{Bed, LEN, READ, cut, listed, read, rest, write};

#[test]
fn what_was_read_is_not_read_of_the_source_again_over_restarts() {
    let bed = Bed::new();
    let contents = pattern(LEN, 1);
    bed.file("f", &contents);
    bed.file("small", b"few");
    bed.file("empty", b"");
    let first = bed.mount();
    assert!(first.read("f") == contents);
    assert_eq!(first.read("small"), b"few");
    assert_eq!(bed.reads(), LEN as u64 + 3);
    first.kept.wait();
    assert!(first.read("f") == contents);
    drop(first);
    for _ in 0..2 {
        let again = bed.mount();
        assert!(again.read("f") == contents);
        assert_eq!(again.read("small"), b"few");
        assert_eq!(again.read("empty"), b"");
        let file = again.open("f");
        assert_eq!(read(&*file, LEN as u64 - 3, 100), contents[LEN - 3..]);
        assert_eq!(read(&*file, LEN as u64, 100), b"");
        assert_eq!(read(&*file, u64::MAX, 100), b"");
    }
    assert_eq!(bed.reads(), 0);
    assert_eq!(bed.names().len(), 4, "two copies of two files each");
}

#[test]
fn holes_and_parts_in_any_order_make_a_copy() {
    let bed = Bed::new();
    let contents = pattern(LEN, 2);
    bed.file("f", &contents);
    // Less than may be queued: data that arrives while the disk is too slow is not cached.
    let sparse = create(&*bed.source, "sparse");
    cut(&*sparse, 24 << 20);
    write(&*sparse, 12 << 20, b"island");
    let mount = bed.mount();
    let file = mount.open("f");
    let half = LEN / 2;
    assert_eq!(read(&*file, half as u64, LEN), contents[half..]);
    assert_eq!(read(&*file, 100, half), contents[100..half + 100]);
    assert_eq!(read(&*file, 0, 200), contents[..200]);
    assert_eq!(mount.read("sparse").len(), 24 << 20);
    drop((file, mount));
    bed.reads();
    let again = bed.mount();
    assert!(again.read("f") == contents);
    let island = again.read("sparse");
    assert_eq!(&island[12 << 20..][..6], b"island");
    assert_eq!(island.iter().filter(|byte| **byte != 0).count(), 6);
    assert_eq!(bed.reads(), 0);
    let bytes: u64 = listed(&*bed.dir).iter().map(|(_, bytes)| bytes).sum();
    assert!(bytes < 8 << 20, "holes are holes: {bytes}");
}

#[test]
fn the_rest_is_fetched_of_what_is_half_there_and_of_what_is_opened_twice() {
    let bed = Bed::new();
    let contents = pattern(LEN, 3);
    for name in ["half", "twice", "once"] {
        bed.file(name, &contents);
    }
    let mount = bed.mount();
    read(&*mount.open("half"), 0, LEN / 2 + 1);
    read(&*mount.open("once"), 0, LEN / 2 - 1);
    read(&*mount.open("twice"), 5, 10);
    mount.kept.wait();
    assert_eq!(bed.reads(), (LEN + LEN / 2 - 1 + 10) as u64);
    let twice = mount.open("twice");
    read(&*twice, 5, 10);
    mount.kept.wait();
    bed.reads();
    drop((twice, mount));
    let again = bed.mount();
    assert!(again.read("half") == contents && again.read("twice") == contents);
    assert_eq!(bed.reads(), 0);
    assert!(again.read("once") == contents);
    assert_eq!(bed.reads(), LEN as u64);
}

#[test]
fn what_others_change_is_seen_by_who_opens_later() {
    let bed = Bed::new();
    bed.file("f", b"before");
    let mount = bed.mount();
    assert_eq!(mount.read("f"), b"before");
    mount.kept.wait();
    let held = mount.open("f");
    assert_eq!(read(&*held, 0, 2), b"be");
    bed.file("f", b"later!");
    assert_eq!(mount.read("f"), b"later!");
    mount.kept.wait();
    assert_eq!(bed.mount().read("f"), b"later!");
    bed.file("f", b"at last");
    assert_eq!(bed.mount().read("f"), b"at last");
}

#[test]
fn who_is_told_of_a_change_reads_the_source() {
    let bed = Bed::new();
    bed.file("f", b"before");
    assert_eq!(bed.mount().read("f"), b"before");
    let name = Name::new(b"f").expect("a name");
    /// Provides new attributes of a file, or a lock.
    type Tell = fn(&dyn FileSystem, &dyn File, Name<'_>);
    let told: [Tell; 4] = [
        |_, file, _| assert!(with(|cx| file.attr(cx, AttrMask::STAT)).size > 0),
        |fs, _, name| drop(with(|cx| fs.root(cx)?.lookup(cx, name))),
        |fs, _, _| drop(listed(fs)),
        |fs, _, name| {
            let (start, end) = (0, u64::MAX >> 1);
            with(|cx| {
                let node = fs.root(cx)?.lookup(cx, name)?.node;
                node.host_lock(cx, LockFamily::Posix.range(start, end), HostLock::Shared)
            });
        },
    ];
    for (turn, told) in told.into_iter().enumerate() {
        let mount = bed.mount();
        let file = mount.open("f");
        let before = rest(&*file, 100);
        let now = format!("after {turn} changes");
        bed.file("f", now.as_bytes());
        assert_eq!(read(&*file, 0, 100)[..4], before[..4], "nobody has told it");
        told(&*mount.fs, &*file, name);
        assert_eq!(rest(&*file, 100), now.as_bytes());
        drop(file);
        assert_eq!(mount.read("f"), now.as_bytes());
    }
}

#[test]
fn what_is_changed_here_is_void_before() {
    let bed = Bed::new();
    let change: [fn(&dyn FileSystem); 4] = [
        |fs| write(&*open(fs, "f", RW), 1, b"X"),
        |fs| drop(open(fs, "f", RW | OpenFlags::TRUNC)),
        |fs| {
            let set = SetAttr {
                size: Some(3),
                ..SetAttr::default()
            };
            with(|cx| {
                let node = fs.root(cx)?.lookup(cx, Name::new(b"f")?)?.node;
                node.setattr(cx, &set)
            });
        },
        |fs| {
            let (from, to) = (open(fs, "other", READ), open(fs, "f", RW));
            let how = CopyMode::Any;
            assert_eq!(with(|cx| from.copy(cx, 0, &*to, 2, 3, how)), 3);
        },
    ];
    bed.file("other", b"other");
    for (turn, change) in change.into_iter().enumerate() {
        bed.file("f", b"contents");
        let mount = bed.mount();
        mount.read("f");
        mount.kept.wait();
        let reader = mount.open("f");
        assert_eq!(read(&*reader, 0, 100), b"contents");
        bed.reads();
        change(&*mount.fs);
        let below = rest(&*open(&*bed.source, "f", READ), 100);
        assert_ne!(below, b"contents");
        assert_eq!(rest(&*reader, 100), below, "{turn}");
        assert!(!bed.names().iter().any(|name| name.ends_with(".sums")));
        drop(reader);
        assert_eq!(mount.read("f"), below);
        drop(mount);
        bed.reads();
        assert_eq!(bed.mount().read("f"), below);
        assert_eq!(bed.reads(), 0, "{turn}: it is kept again");
    }
}

#[test]
fn what_somebody_writes_is_not_kept_meanwhile() {
    let bed = Bed::new();
    bed.file("f", b"contents");
    let mount = bed.mount();
    let writer = open(&*mount.fs, "f", RW);
    let reader = mount.open("f");
    assert_eq!(rest(&*reader, 100), b"contents");
    mount.kept.wait();
    write(&*writer, 0, b"C");
    assert_eq!(rest(&*reader, 100), b"Contents");
    mount.kept.wait();
    assert_eq!(bed.names(), [""; 0]);
}

#[test]
fn what_has_just_changed_is_not_kept_yet() {
    let mut bed = Bed::new();
    bed.file("f", b"contents");
    let file = open(&*bed.source, "f", READ);
    let ctime = with(|cx| file.attr(cx, AttrMask::STAT)).ctime;
    let changed = Duration::new(ctime.sec as u64, ctime.nsec);
    for (later, kept) in [(0, 0), (9, 0), (10, 2)] {
        bed.now = changed + Duration::from_secs(later);
        assert_eq!(bed.mount().read("f"), b"contents");
        assert_eq!(bed.names().len(), kept);
    }
}

#[test]
fn sources_do_not_share() {
    let bed = Bed::new();
    bed.file("f", b"contents");
    let mount = |source| bed.mount_with(bed.dir.clone(), source);
    mount([1; 32]).read("f");
    bed.reads();
    mount([2; 32]).read("f");
    assert_eq!(bed.reads(), 8);
    mount([1; 32]).read("f");
    assert_eq!(bed.reads(), 0);
    let known_by = |fs: &dyn FileSystem, name| identity(fs, name, &Caller::ROOT).expect("a root");
    let known = known_by(&*bed.source, "9p://one");
    assert_eq!(known_by(&*bed.source, "9p://one"), known);
    assert_ne!(known_by(&*bed.source, "9p://two"), known);
    // Another tree at the same place.
    let later = Memory::new(Arc::new(|| Time { sec: 77, nsec: 7 }));
    assert_ne!(known_by(&*later, "9p://one"), known);
}
