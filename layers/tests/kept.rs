//! What is kept on a disk: contents of the version that is there, over restarts, within the bound, whatever becomes of the directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Data, Passing, RW, create, open, with};
use layers::fault::{Fault, What, When};
use layers::kept::{self, Kept, Options};
use layers::{Layer, Opened, forward, stack};
use memory::Memory;
use vfs::lock::{HostLock, Space};
use vfs::{
    Caller, Capabilities, Cx, DirEntry, DirSink, Errno, File, FileSystem, Make, Mode, Name, NodeId,
    Op, OpenFlags, Plus, Result, SetAttr, Sink, Want,
};
use vfs_testkit::bed::{Random, pattern};
use vfs_testkit::{Bytes, Room, clock};

mod common;

const READ: OpenFlags = OpenFlags::READ;

/// Counts bytes that are read of the source.
#[derive(Default)]
struct Counting(AtomicU64);

impl Passing for Counting {
    fn read(
        &self,
        inner: Opened<'_>,
        cx: &Cx<'_>,
        at: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let read = inner.read(cx, at, len, sink)?;
        self.0.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A source, and a directory of copies.
struct Bed {
    source: Arc<dyn FileSystem>,
    reads: Arc<Counting>,
    dir: Arc<dyn FileSystem>,
    size: u64,
    now: Duration,
}

/// A mount: dropped, it has written what came.
struct Mount {
    fs: Arc<dyn FileSystem>,
    kept: Arc<Kept>,
}

impl Bed {
    fn new() -> Bed {
        Bed {
            source: Memory::new(clock()),
            reads: Arc::default(),
            dir: Memory::new(clock()),
            size: 1 << 30,
            // Long behind all that changes.
            now: Duration::from_secs(1 << 40),
        }
    }

    /// Makes the file `name` with `contents`, or writes them over it.
    fn file(&self, name: &str, contents: &[u8]) {
        put(&*self.source, name, contents);
    }

    fn mount(&self) -> Mount {
        self.mount_with(self.dir.clone(), [7; 32])
    }

    fn mount_with(&self, dir: Arc<dyn FileSystem>, source: [u8; 32]) -> Mount {
        let now = self.now;
        let kept = Kept::new(Options {
            dir,
            size: self.size,
            source,
            process: 1,
            now: Arc::new(move || now),
        });
        let kept = Arc::new(kept.expect("threads"));
        let below = stack(self.source.clone(), Data(self.reads.clone()));
        Mount {
            fs: stack(below, kept.clone()),
            kept,
        }
    }

    /// Bytes that were read of the source since this was asked.
    fn reads(&self) -> u64 {
        self.reads.0.swap(0, Ordering::Relaxed)
    }

    /// The names in the directory.
    fn names(&self) -> Vec<String> {
        names(&*self.dir)
    }

    /// The one file of the directory whose name ends so.
    fn kept(&self, end: &str) -> String {
        let mut names = self.names().into_iter().filter(|name| name.ends_with(end));
        let name = names.next().expect("a copy");
        assert_eq!(names.next(), None);
        name
    }
}

fn put(fs: &dyn FileSystem, name: &str, contents: &[u8]) {
    let file = create(fs, name);
    cut(&*file, 0);
    write(&*file, 0, contents);
}

fn write(file: &dyn File, at: u64, data: &[u8]) {
    assert_eq!(
        with(|cx| file.write(cx, at, &mut Bytes::new(data))),
        data.len()
    );
}

fn cut(file: &dyn File, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    with(|cx| file.setattr(cx, &set));
}

fn read(file: &dyn File, at: u64, len: usize) -> Vec<u8> {
    let mut room = Room::new(len);
    with(|cx| file.read(cx, at, len, &mut room));
    room.into_data()
}

/// Reads an open file to its end, `step` bytes at a time.
fn rest(file: &dyn File, step: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let part = read(file, all.len() as u64, step);
        if part.is_empty() {
            return all;
        }
        all.extend(part);
    }
}

impl Mount {
    fn open(&self, name: &str) -> Arc<dyn File> {
        open(&*self.fs, name, READ)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        rest(&*self.open(name), 300_000)
    }
}

#[derive(Default)]
struct Names(Vec<(String, u64)>, u64);

impl DirSink for Names {
    fn entry(&mut self, entry: DirEntry<'_>) -> bool {
        let bytes = entry.entry.map_or(0, |entry| entry.attr.blocks * 512);
        let name = String::from_utf8_lossy(entry.name).into_owned();
        self.0.push((name, bytes));
        self.1 = entry.cookie;
        true
    }
}

fn listed(fs: &dyn FileSystem) -> Vec<(String, u64)> {
    let mut names = Names::default();
    with(|cx| {
        let dir = fs.root(cx)?.open(cx, READ)?;
        dir.readdir(cx, 0, Plus::Entries, &mut names)
    });
    names.0
}

fn names(fs: &dyn FileSystem) -> Vec<String> {
    listed(fs).into_iter().map(|(name, _)| name).collect()
}

fn unlink(fs: &dyn FileSystem, name: &str) {
    with(|cx| {
        let name = Name::new(name.as_bytes())?;
        fs.root(cx)?.unlink(cx, name, false)
    });
}

const LEN: usize = 3 << 20 | 5;

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
    let sparse = create(&*bed.source, "sparse");
    cut(&*sparse, 40 << 20);
    write(&*sparse, 20 << 20, b"island");
    let mount = bed.mount();
    let file = mount.open("f");
    let half = LEN / 2;
    assert_eq!(read(&*file, half as u64, LEN), contents[half..]);
    assert_eq!(read(&*file, 100, half), contents[100..half + 100]);
    assert_eq!(read(&*file, 0, 200), contents[..200]);
    assert_eq!(mount.read("sparse").len(), 40 << 20);
    drop((file, mount));
    bed.reads();
    let again = bed.mount();
    assert!(again.read("f") == contents);
    let island = again.read("sparse");
    assert_eq!(&island[20 << 20..][..6], b"island");
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
    /// Brings somebody's attributes by, or a lock.
    type Tell = fn(&dyn FileSystem, &dyn File, Name<'_>);
    let told: [Tell; 4] = [
        |_, file, _| assert!(with(|cx| file.attr(cx, Want::STAT)).size > 0),
        |fs, _, name| drop(with(|cx| fs.root(cx)?.lookup(cx, name))),
        |fs, _, _| drop(listed(fs)),
        |fs, _, name| {
            let (start, end) = (0, u64::MAX >> 1);
            with(|cx| {
                let node = fs.root(cx)?.lookup(cx, name)?.node;
                node.host_lock(cx, Space::Posix, start, end, HostLock::Shared)
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
            let how = vfs::CopyHow::Any;
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
    let ctime = with(|cx| file.attr(cx, Want::STAT)).ctime;
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
    let identity =
        |fs: &dyn FileSystem, name| kept::identity(fs, name, &Caller::ROOT).expect("a root");
    let known = identity(&*bed.source, "9p://one");
    assert_eq!(identity(&*bed.source, "9p://one"), known);
    assert_ne!(identity(&*bed.source, "9p://two"), known);
    // Another tree at the same place.
    let later = Memory::new(Arc::new(|| vfs::Time { sec: 77, nsec: 7 }));
    assert_ne!(identity(&*later, "9p://one"), known);
}

/// Does something to the copy that is in a directory.
type Damage = fn(&Bed);

fn damage(bed: &Bed, end: &str, act: impl FnOnce(&dyn File)) {
    act(&*open(&*bed.dir, &bed.kept(end), RW));
}

#[test]
fn a_copy_that_was_changed_or_cut_is_noticed_and_made_anew() {
    let contents = pattern(LEN, 4);
    let damages: &[Damage] = &[
        |bed| damage(bed, ".data", |file| write(file, 2 << 20, b"?!")),
        |bed| damage(bed, ".data", |file| write(file, LEN as u64 - 1, b"\xee")),
        |bed| damage(bed, ".data", |file| cut(file, LEN as u64 - 1)),
        |bed| damage(bed, ".data", |file| cut(file, LEN as u64 + 1)),
        |bed| {
            damage(bed, ".data", |file| {
                cut(file, 1 << 20);
                cut(file, LEN as u64);
            });
        },
        |bed| damage(bed, ".sums", |file| write(file, 130, b"\xee")),
        |bed| damage(bed, ".sums", |file| cut(file, 100)),
        |bed| damage(bed, ".sums", |file| cut(file, 1 << 40)),
        |bed| unlink(&*bed.dir, &bed.kept(".data")),
        |bed| unlink(&*bed.dir, &bed.kept(".sums")),
        |bed| {
            let name = bed.kept(".data");
            unlink(&*bed.dir, &name);
            with(|cx| {
                let target = Make::Symlink(b"/etc/passwd");
                let name = Name::new(name.as_bytes())?;
                bed.dir
                    .root(cx)?
                    .make(cx, name, target, Mode::exactly(0o777))
            });
        },
    ];
    for (turn, damage) in damages.iter().enumerate() {
        let bed = Bed::new();
        bed.file("f", &contents);
        bed.mount().read("f");
        damage(&bed);
        bed.reads();
        assert!(bed.mount().read("f") == contents, "{turn}");
        assert!(bed.reads() > 0, "{turn}");
        // Whoever noticed it by its contents has not kept it again.
        bed.mount().read("f");
        bed.reads();
        assert!(bed.mount().read("f") == contents, "{turn}");
        assert_eq!(bed.reads(), 0, "{turn}: made anew");
    }
}

#[test]
fn a_copy_that_is_cut_while_it_is_read_is_read_on_from_the_source() {
    let bed = Bed::new();
    let contents = pattern(LEN, 5);
    bed.file("f", &contents);
    bed.mount().read("f");
    let mount = bed.mount();
    let file = mount.open("f");
    assert!(rest(&*file, 1 << 20) == contents, "all of it is verified");
    damage(&bed, ".data", |file| cut(file, 1000));
    assert_eq!(read(&*file, 500, 1000), contents[500..1500]);
    assert!(rest(&*file, 1 << 20) == contents);
}

#[test]
fn contents_of_another_copy_are_not_believed() {
    let bed = Bed::new();
    bed.file("f", b"one");
    bed.file("g", b"two");
    let mount = bed.mount();
    mount.read("f");
    mount.kept.wait();
    let first = bed.names();
    mount.read("g");
    drop(mount);
    let end = |name: &&String, end: &str| name.ends_with(end);
    for kind in [".data", ".sums"] {
        let all = bed.names();
        let mine = first.iter().find(|name| end(name, kind)).expect("kept");
        let other = all
            .iter()
            .find(|name| end(name, kind) && *name != mine)
            .expect("kept");
        with(|cx| {
            let root = bed.dir.root(cx)?;
            let (from, to) = (Name::new(mine.as_bytes())?, Name::new(other.as_bytes())?);
            root.rename(cx, from, &*root, to, vfs::RenameFlags::EXCHANGE)
        });
        let mount = bed.mount();
        assert_eq!(
            (mount.read("f"), mount.read("g")),
            (b"one".to_vec(), b"two".to_vec())
        );
        drop(mount);
        // Made anew, for the next.
        let mount = bed.mount();
        mount.read("f");
        mount.read("g");
    }
}

#[test]
fn names_that_are_no_copies_stay() {
    let mut bed = Bed::new();
    bed.size = 100_000;
    let foreign = [
        "precious.data",
        "0123456789abcdef0123456789abcdeg.data",
        "0123456789abcdef0123456789abcdef.dat",
    ];
    for name in foreign {
        put(&*bed.dir, name, &pattern(50_000, 1));
    }
    for name in ["a", "b", "c", "d"] {
        bed.file(name, &pattern(40_000, 2));
        bed.mount().read(name);
    }
    let names = bed.names();
    assert!(
        foreign
            .iter()
            .all(|name| names.iter().any(|there| there == name))
    );
    assert!(names.len() > foreign.len());
}

#[test]
fn the_bound_holds_and_what_was_used_least_lately_goes() {
    let mut bed = Bed::new();
    bed.size = 1_000_000;
    bed.file("used", &pattern(50_000, 9));
    bed.file("large", &pattern(500_001, 8));
    bed.mount().read("used");
    for number in 0..60 {
        let (name, contents) = (format!("f{number}"), pattern(50_000, number));
        bed.file(&name, &contents);
        let mount = bed.mount();
        assert!(mount.read(&name) == contents);
        mount.read("used");
        mount.read("large");
        drop(mount);
        let bytes: u64 = listed(&*bed.dir).iter().map(|(_, bytes)| bytes).sum();
        assert!(bytes <= bed.size, "{bytes}");
    }
    let kept = bed.names().len() / 2;
    assert!((10..20).contains(&kept), "{kept}");
    bed.reads();
    bed.mount().read("used");
    bed.mount().read("f59");
    assert_eq!(bed.reads(), 0);
    bed.mount().read("f0");
    assert_eq!(bed.reads(), 50_000);
}

#[test]
fn what_a_process_left_unfinished_goes_in_an_hour() {
    let mut bed = Bed::new();
    bed.size = 200_000;
    let part = "0123456789abcdef0123456789abcdef.00000000000000020.part";
    let fresh = "0123456789abcdef0123456789abcdef.00000000000000030.part";
    let aged = |name, sec| {
        put(&*bed.dir, name, &pattern(10_000, 1));
        let set = SetAttr {
            mtime: Some(vfs::attr::SetTime::At(vfs::Time { sec, nsec: 0 })),
            ..SetAttr::default()
        };
        let file = open(&*bed.dir, name, RW);
        with(|cx| file.setattr(cx, &set));
    };
    aged(part, 1_000_000);
    aged(fresh, 1_003_000);
    aged("0123456789abcdef0123456789abcdee.data", 1_004_000);
    bed.file("f", b"contents");
    bed.mount().read("f");
    let names = bed.names();
    assert!(!names.iter().any(|name| name == part), "{names:?}");
    assert!(names.iter().any(|name| name == fresh), "{names:?}");
}

#[test]
fn nothing_that_fails_in_the_directory_is_an_error_of_who_reads() {
    let contents = pattern(LEN, 6);
    let ops = [
        Op::Create,
        Op::Write,
        Op::Rename,
        Op::Lookup,
        Op::Open,
        Op::Read,
        Op::FileAttr,
        Op::Setattr,
        Op::FileSetattr,
        Op::Fsync,
        Op::Readdir,
        Op::Unlink,
    ];
    for op in ops {
        for errno in [Errno::EIO, Errno::ENOSPC, Errno::ESTALE] {
            let bed = Bed::new();
            bed.file("f", &contents);
            bed.file("g", &contents);
            bed.mount().read("f");
            let fault = Arc::new(Fault::new(1, Arc::new(|| Duration::ZERO)));
            fault.add(op, When::Always, What::Fail(errno));
            let mount = bed.mount_with(stack(bed.dir.clone(), fault.clone()), [7; 32]);
            for name in ["f", "g", "f", "g"] {
                assert!(mount.read(name) == contents, "{op} {errno:?}");
                mount.kept.wait();
            }
            fault.clear();
            drop(mount);
            let again = bed.mount();
            assert!(
                again.read("f") == contents && again.read("g") == contents,
                "{op}"
            );
        }
    }
}

#[test]
fn a_full_disk_makes_the_bound_what_there_is() {
    let bed = Bed::new();
    let contents = pattern(100_000, 7);
    for name in ["a", "b", "c", "d"] {
        bed.file(name, &contents);
    }
    let fault = Arc::new(Fault::new(1, Arc::new(|| Duration::ZERO)));
    let mount = bed.mount_with(stack(bed.dir.clone(), fault.clone()), [7; 32]);
    let read = |name| {
        assert!(mount.read(name) == contents);
        mount.kept.wait();
    };
    ["a", "b", "c"].into_iter().for_each(read);
    fault.add(Op::Write, When::Always, What::Fail(Errno::ENOSPC));
    read("d");
    fault.clear();
    read("d");
    assert_eq!(bed.names().len(), 2 * 2, "others have gone for it");
    bed.reads();
    read("d");
    assert_eq!(bed.reads(), 0);
}

/// From some operation on nothing is done any more: the process was killed there.
struct Killed(AtomicU64);

impl Killed {
    fn run<T>(&self, _: Op, _: NodeId, _: &Cx<'_>, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let left = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        match left {
            Ok(_) => run(),
            Err(_) => Err(Errno::EIO),
        }
    }
}

impl Layer for Killed {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    forward! { id above root resolve sync host_lock host_lock_holder }

    forward! { with run:
        handle attr setattr access statfs open readlink lookup parent create make tmpfile link
        unlink rename xattr xattrs set_xattr remove_xattr
        file_attr file_setattr read write readdir fsync flush allocate seek extents copy lease
    }
}

#[test]
fn killed_between_any_two_steps_a_copy_is_whole_or_not_there() {
    let (old, contents) = (pattern(LEN, 8), pattern(LEN, 9));
    let mut steps = 0;
    loop {
        let bed = Bed::new();
        bed.file("f", &old);
        bed.mount().read("f");
        bed.file("f", &contents);
        let killed = Arc::new(Killed(AtomicU64::new(steps)));
        let mount = bed.mount_with(stack(bed.dir.clone(), killed.clone()), [7; 32]);
        assert!(mount.read("f") == contents);
        drop(mount);
        bed.reads();
        assert!(bed.mount().read("f") == contents, "killed behind {steps}");
        let reads = bed.reads();
        assert!([0, LEN as u64].contains(&reads), "{reads}");
        if killed.0.load(Ordering::SeqCst) > 0 {
            assert_eq!(reads, 0, "it was not killed");
            break;
        }
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
}

/// A file that a model changes: each version is one byte over and over, and of another size.
const FILES: usize = 3;

fn version(number: u64) -> Vec<u8> {
    vec![number as u8; 1 + (number * 37_123 % 200_000) as usize]
}

/// What was read at `at` has to be of a version from `since` on, up to the newest.
fn check(read: &[u8], at: u64, len: usize, since: u64, newest: u64) {
    let fits = (since..=newest).any(|number| {
        let whole = version(number);
        let from = (at as usize).min(whole.len());
        let to = (from + len).min(whole.len());
        read == &whole[from..to]
    });
    assert!(
        fits,
        "{} bytes at {at} of a version before {since}",
        read.len()
    );
}

#[test]
fn mounts_that_share_a_directory_never_show_what_was_before_the_open() {
    for seed in 0..24 {
        let mut bed = Bed::new();
        bed.size = 700_000;
        let mut random = Random::new(seed);
        let fault = Arc::new(Fault::new(seed, Arc::new(|| Duration::ZERO)));
        for (op, errno) in [(None, Errno::EIO), (Some(Op::Write), Errno::ENOSPC)] {
            fault.add(op, When::Chance(0.02), What::Fail(errno));
        }
        let dir = stack(bed.dir.clone(), fault.clone());
        let mount = || loop {
            // The root may fail, too.
            let now = bed.now;
            let options = Options {
                dir: dir.clone(),
                size: bed.size,
                source: [7; 32],
                process: random_process(),
                now: Arc::new(move || now),
            };
            if let Ok(kept) = Kept::new(options) {
                let kept = Arc::new(kept);
                let fs = stack(bed.source.clone(), kept.clone());
                return Mount { fs, kept };
            }
        };
        let mut mounts: Vec<_> = (0..3).map(|_| mount()).collect();
        let mut newest = [0; FILES];
        for file in 0..FILES {
            bed.file(&file.to_string(), &version(0));
        }
        let mut opens: Vec<(Arc<dyn File>, usize, u64)> = Vec::new();
        for _ in 0..600 {
            let file = random.below(FILES as u64) as usize;
            let at = random.below(mounts.len() as u64) as usize;
            let name = file.to_string();
            match random.below(20) {
                0 => {
                    newest[file] += 1;
                    bed.file(&name, &version(newest[file]));
                }
                1 => {
                    // Those who have it open see it, here.
                    newest[file] += 1;
                    put(&*mounts[at].fs, &name, &version(newest[file]));
                }
                2 => mounts[at] = mount(),
                3..=8 => opens.push((mounts[at].open(&name), file, newest[file])),
                9..=10 => mounts[at].kept.wait(),
                11..=13 if !opens.is_empty() => {
                    opens.swap_remove(random.below(opens.len() as u64) as usize);
                }
                _ if !opens.is_empty() => {
                    let one = random.below(opens.len() as u64) as usize;
                    let (open, file, since) = &opens[one];
                    let from = random.below(3) * random.below(100_000);
                    let len = 1 + random.below(200_000) as usize;
                    let read = read(&**open, from, len);
                    check(&read, from, len, *since, newest[*file]);
                }
                _ => {}
            }
        }
    }
}

/// As unlike as processes' are.
fn random_process() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn readers_at_the_same_time_read_what_is_there() {
    let bed = Bed::new();
    let contents = pattern(LEN, 10);
    bed.file("f", &contents);
    for _ in 0..3 {
        let mounts = [bed.mount(), bed.mount()];
        std::thread::scope(|scope| {
            for reader in 0..4 {
                let (mount, contents) = (&mounts[reader % 2], &contents);
                scope.spawn(move || {
                    let file = mount.open("f");
                    assert!(rest(&*file, 10_000 + 70_000 * reader) == *contents);
                });
            }
        });
    }
    bed.reads();
    assert!(bed.mount().read("f") == contents);
    assert_eq!(bed.reads(), 0);
}
