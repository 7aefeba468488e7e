//! The quota counts what du(1) would, refuses no more than it must, and holds under concurrent
//! changes.

use std::sync::{Arc, Mutex};
use std::thread;

use layers::disk_quota::DiskLimits;
use layers::{DiskQuota, Layer, forward, stack};
use memory::Memory;
use vfs::{
    AllocateMode, Call, Caller, CopyMode, Cx, Entry, Errno, File, FileSystem, Mode, Name, NewNode,
    Node, OpenFlags, RenameFlags, SetAttr, XattrFlags,
};
use vfs_testkit::{TestPayload, clock};

const MODE: Mode = Mode::without_umask(0o755);
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const KIB: u64 = 1 << 10;

static ROOT: Caller = Caller::ROOT;
static CALL: Call = Call::detached();

fn cx() -> Cx<'static> {
    Cx::new(&ROOT, &CALL)
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

/// A tree with a quota.
struct Limited {
    below: Arc<dyn FileSystem>,
    quota: Arc<DiskQuota>,
    root: Arc<dyn Node>,
}

impl Limited {
    fn over(below: Arc<dyn FileSystem>, limits: DiskLimits) -> Limited {
        let quota = Arc::new(DiskQuota::new(&*below, limits).expect("counted"));
        let fs = stack(below.clone(), quota.clone());
        let root = fs.root(&cx()).expect("a root");
        Limited { below, quota, root }
    }

    fn with_bytes(bytes: u64) -> Limited {
        let limits = DiskLimits {
            bytes: Some(bytes),
            inodes: None,
        };
        Limited::over(Memory::new(clock()), limits)
    }

    fn create(&self, file: &str) -> vfs::Result<Arc<dyn File>> {
        let made = self.root.create(&cx(), name(file), RW, MODE);
        made.map(|(_, file)| file)
    }

    fn make(&self, dir: &str) -> vfs::Result<Entry> {
        self.root.make(&cx(), name(dir), NewNode::Directory, MODE)
    }

    /// Checks that the usage is that of a new count.
    fn check(&self) {
        let counted = DiskQuota::new(&*self.below, DiskLimits::default()).expect("counted");
        assert_eq!(self.quota.used(), counted.used());
    }
}

fn write(file: &dyn File, offset: u64, len: u64) -> vfs::Result<u64> {
    let data = vec![7; len as usize];
    let written = file.write(&cx(), offset, &mut TestPayload::new(&data))?;
    Ok(written as u64)
}

#[test]
fn a_write_beyond_the_limit_is_refused_without_effect() {
    let tree = Limited::with_bytes(64 * KIB);
    let file = tree.create("f").expect("created");
    let used = tree.quota.used().bytes;
    assert_eq!(write(&*file, 0, 48 * KIB), Ok(48 * KIB));
    assert_eq!(tree.quota.used().bytes - used, 48 * KIB);
    assert_eq!(write(&*file, 48 * KIB, 48 * KIB), Err(Errno::EDQUOT));
    let attr = file.attr(&cx(), vfs::AttrMask::STAT).expect("attributes");
    assert_eq!(attr.size, 48 * KIB);
    // Space that the file has may be written again.
    assert_eq!(write(&*file, 0, 48 * KIB), Ok(48 * KIB));
    tree.check();
}

#[test]
fn a_hole_takes_space_when_it_is_written() {
    let tree = Limited::with_bytes(64 * KIB);
    let file = tree.create("f").expect("created");
    let size = SetAttr {
        size: Some(1 << 30),
        ..SetAttr::default()
    };
    file.setattr(&cx(), &size).expect("a hole");
    assert_eq!(write(&*file, 512 << 20, 32 * KIB), Ok(32 * KIB));
    assert_eq!(write(&*file, 0, 64 * KIB), Err(Errno::EDQUOT));
    tree.check();
    let rest = 64 * KIB - tree.quota.used().bytes;
    assert_eq!(write(&*file, 0, rest), Ok(rest));
    // The quota is used up, but this range has space.
    assert_eq!(write(&*file, 512 << 20, 32 * KIB), Ok(32 * KIB));
    assert_eq!(write(&*file, 100 << 20, 1), Err(Errno::EDQUOT));
    tree.check();
}

#[test]
fn an_append_is_counted_at_the_end_of_the_file() {
    let tree = Limited::with_bytes(64 * KIB);
    let flags = RW | OpenFlags::APPEND;
    let made = tree.root.create(&cx(), name("f"), flags, MODE);
    let (entry, file) = made.expect("created");
    assert_eq!(write(&*file, 0, 32 * KIB), Ok(32 * KIB));
    assert_eq!(write(&*file, 0, 40 * KIB), Err(Errno::EDQUOT));
    let again = entry.node.open(&cx(), flags).expect("opened");
    assert_eq!(write(&*again, 0, 40 * KIB), Err(Errno::EDQUOT));
    tree.check();
}

#[test]
fn a_removed_file_counts_until_it_is_closed() {
    let tree = Limited::with_bytes(64 * KIB);
    let empty = tree.quota.used();
    let file = tree.create("f").expect("created");
    write(&*file, 0, 48 * KIB).expect("written");
    tree.root.unlink(&cx(), name("f"), false).expect("removed");
    let other = tree.create("g").expect("created");
    assert_eq!(write(&*other, 0, 32 * KIB), Err(Errno::EDQUOT));
    // It still takes and returns space.
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    file.setattr(&cx(), &size(16 * KIB)).expect("truncated");
    assert_eq!(write(&*other, 0, 32 * KIB), Ok(32 * KIB));
    drop(file);
    assert_eq!(write(&*other, 32 * KIB, 16 * KIB), Ok(16 * KIB));
    tree.root.unlink(&cx(), name("g"), false).expect("removed");
    drop(other);
    assert_eq!(tree.quota.used(), empty);
    tree.check();
}

#[test]
fn a_file_that_is_replaced_returns_its_space() {
    let tree = Limited::with_bytes(64 * KIB);
    for round in 0..8 {
        let file = tree.create("new").expect("created");
        assert_eq!(write(&*file, 0, 24 * KIB), Ok(24 * KIB), "round {round}");
        let flags = RenameFlags::empty();
        let renamed = (tree.root).rename(&cx(), name("new"), &*tree.root, name("f"), flags);
        renamed.expect("renamed");
    }
    tree.check();
}

#[test]
fn another_name_takes_no_space_and_keeps_it() {
    let tree = Limited::with_bytes(64 * KIB);
    let file = tree.create("f").expect("created");
    write(&*file, 0, 32 * KIB).expect("written");
    drop(file);
    let used = tree.quota.used();
    let node = tree.root.lookup(&cx(), name("f")).expect("found").node;
    tree.root.link(&cx(), name("g"), &*node).expect("linked");
    tree.check();
    tree.root.unlink(&cx(), name("f"), false).expect("removed");
    assert_eq!(tree.quota.used(), used);
    tree.check();
}

#[test]
fn the_number_of_files_is_limited() {
    let limits = DiskLimits {
        bytes: None,
        inodes: Some(4),
    };
    let tree = Limited::over(Memory::new(clock()), limits);
    tree.make("a").expect("the second");
    tree.create("b").expect("the third");
    let target = NewNode::Symlink(b"to");
    let made = tree.root.make(&cx(), name("c"), target, MODE);
    made.expect("the fourth");
    assert_eq!(tree.make("d").err(), Some(Errno::EDQUOT));
    assert_eq!(tree.create("e").err(), Some(Errno::EDQUOT));
    let temporary = tree.root.tmpfile(&cx(), RW, MODE);
    assert_eq!(temporary.err(), Some(Errno::EDQUOT));
    // A file that exists needs no room.
    let file = tree.create("b").expect("opened");
    assert_eq!(write(&*file, 0, 100), Ok(100));
    assert_eq!(
        (tree
            .root
            .create(&cx(), name("b"), RW | OpenFlags::EXCL, MODE))
        .err(),
        Some(Errno::EDQUOT)
    );
    tree.root.unlink(&cx(), name("a"), true).expect("removed");
    tree.make("d").expect("there is room");
    tree.check();
}

#[test]
fn statfs_shows_the_limits() {
    let limits = DiskLimits {
        bytes: Some(1 << 20),
        inodes: Some(100),
    };
    let tree = Limited::over(Memory::new(clock()), limits);
    let file = tree.create("f").expect("created");
    write(&*file, 0, 256 * KIB).expect("written");
    let stat = tree.root.statfs(&cx()).expect("statistics");
    let size = u64::from(stat.bsize);
    assert_eq!(stat.blocks * size, 1 << 20);
    let used = tree.quota.used();
    assert_eq!(stat.bavail * size, (1 << 20) - used.bytes);
    assert_eq!((stat.files, stat.ffree), (100, 100 - used.inodes));
    // Limits below the usage show an empty, full tree.
    let limits = DiskLimits {
        bytes: Some(4096),
        inodes: Some(1),
    };
    let tree = Limited::over(tree.below, limits);
    let file = tree.create("f").expect("opened");
    let stat = tree.root.statfs(&cx()).expect("statistics");
    assert_eq!((stat.bavail, stat.ffree), (0, 0));
    assert_eq!(write(&*file, 256 * KIB, 1), Err(Errno::EDQUOT));
    tree.root.unlink(&cx(), name("f"), false).expect("removed");
}

#[test]
fn space_beyond_the_end_of_a_file_is_not_allocated() {
    let tree = Limited::with_bytes(1 << 20);
    let file = tree.create("f").expect("created");
    write(&*file, 0, 16 * KIB).expect("written");
    let used = tree.quota.used();
    let allocate = |how, len| file.allocate(&cx(), how, 8 * KIB, len);
    assert_eq!(
        allocate(AllocateMode::KeepSize, 64 * KIB),
        Err(Errno::EOPNOTSUPP)
    );
    allocate(AllocateMode::KeepSize, 8 * KIB).expect("within the file");
    allocate(AllocateMode::ZeroKeepSize, 64 * KIB).expect("zeroed");
    assert_eq!(tree.quota.used(), used);
    let extend = |len| file.allocate(&cx(), AllocateMode::Extend, 0, len);
    assert_eq!(extend(2 << 20), Err(Errno::EDQUOT));
    extend(512 * KIB).expect("there is room");
    tree.check();
}

#[test]
fn a_temporary_file_counts_and_may_get_a_name() {
    let tree = Limited::with_bytes(256 * KIB);
    let empty = tree.quota.used();
    for round in 0..3 {
        let (entry, file) = tree.root.tmpfile(&cx(), RW, MODE).expect("made");
        write(&*file, 0, 64 * KIB).expect("written");
        assert_eq!(tree.quota.used().inodes, empty.inodes + 1);
        if round == 1 {
            let linked = tree.root.link(&cx(), name("f"), &*entry.node);
            linked.expect("linked");
            let used = tree.quota.used();
            drop((entry, file));
            assert_eq!(tree.quota.used(), used);
            tree.check();
            tree.root.unlink(&cx(), name("f"), false).expect("removed");
        } else {
            drop((entry, file));
        }
        assert_eq!(tree.quota.used(), empty, "round {round}");
    }
    tree.check();
}

type Action = Box<dyn FnOnce() + Send>;

/// A layer that runs an action when a lookup has found an object, and before that has a node: every
/// lookup makes another one.
#[derive(Default)]
struct Between {
    action: Arc<Mutex<Option<Action>>>,
}

impl Layer for Between {
    fn lookup(&self, inner: &dyn Node, cx: &Cx<'_>, name: Name<'_>) -> vfs::Result<Entry> {
        let entry = inner.lookup(cx, name)?;
        let action = self.action.lock().expect("locked").take();
        if let Some(action) = action {
            action();
        }
        Ok(entry)
    }

    forward! { capabilities id above }

    forward! { all but lookup }
}

#[test]
fn a_file_that_is_removed_while_another_client_looks_it_up_counts_until_that_releases_it() {
    let between = Between::default();
    let action = between.action.clone();
    let limits = DiskLimits {
        bytes: Some(256 * KIB),
        inodes: None,
    };
    let tree = Limited::over(stack(Memory::new(clock()), between), limits);
    let empty = tree.quota.used();
    let file = tree.create("f").expect("created");
    write(&*file, 0, 64 * KIB).expect("written");
    drop(file);
    let used = tree.quota.used();
    let (root, quota) = (tree.root.clone(), tree.quota.clone());
    *action.lock().expect("locked") = Some(Box::new(move || {
        root.unlink(&cx(), name("f"), false).expect("removed");
        assert_eq!(
            quota.used(),
            empty,
            "the node that is to be returned is unknown"
        );
    }));
    let entry = tree.root.lookup(&cx(), name("f")).expect("found before");
    assert_eq!(tree.quota.used(), used);
    let file = entry.node.open(&cx(), RW).expect("opened");
    write(&*file, 64 * KIB, 64 * KIB).expect("written");
    assert_eq!(tree.quota.used().bytes, used.bytes + 64 * KIB);
    assert_eq!(write(&*file, 128 * KIB, 256 * KIB), Err(Errno::EDQUOT));
    drop((entry, file));
    assert_eq!(tree.quota.used(), empty);
    tree.check();
}

/// A small generator of numbers, so that a run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// Makes a random change in one of two directories.
fn change(dirs: [&dyn Node; 2], random: &mut Random) -> vfs::Result<()> {
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut any = || name(names[random.below(6) as usize]);
    let (one, other) = (any(), any());
    let mut any = || dirs[random.below(2) as usize];
    let (dir, into) = (any(), any());
    let at = random.below(16) * 6000;
    let len = random.below(3) * 9000;
    match random.below(14) {
        0..=2 => {
            let flags = [RW, RW | OpenFlags::APPEND, RW | OpenFlags::TRUNC];
            let flags = flags[random.below(3) as usize];
            let (_, file) = dir.create(&cx(), one, flags, MODE)?;
            write(&*file, at, len)?;
        }
        3 => drop(dir.make(&cx(), one, NewNode::Directory, MODE)?),
        4 | 5 => dir.unlink(&cx(), one, false)?,
        6 => dir.unlink(&cx(), one, true)?,
        7 => dir.rename(&cx(), one, into, other, RenameFlags::empty())?,
        8 => dir.rename(&cx(), one, into, other, RenameFlags::EXCHANGE)?,
        9 => drop(dir.link(&cx(), other, &*dir.lookup(&cx(), one)?.node)?),
        10 => {
            let size = SetAttr {
                size: Some(at),
                ..SetAttr::default()
            };
            dir.lookup(&cx(), one)?.node.setattr(&cx(), &size)?;
        }
        11 => {
            let file = dir.lookup(&cx(), one)?.node.open(&cx(), RW)?;
            let how = [
                AllocateMode::Extend,
                AllocateMode::Punch,
                AllocateMode::KeepSize,
            ];
            file.allocate(&cx(), how[random.below(3) as usize], at, len + 1)?;
        }
        12 => {
            let file = dir.lookup(&cx(), one)?.node.open(&cx(), OpenFlags::READ)?;
            let to = into.lookup(&cx(), other)?.node.open(&cx(), RW)?;
            file.copy(&cx(), 0, &*to, at, len + 1, CopyMode::Any)?;
        }
        _ => {
            let node = dir.lookup(&cx(), one)?.node;
            let value = vec![1; (len / 6) as usize];
            node.set_xattr(&cx(), b"user.test", &value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn agrees_after_changes(below: Arc<dyn FileSystem>, seed: u64) {
    let limits = DiskLimits {
        bytes: Some(400 * KIB),
        inodes: Some(10),
    };
    let tree = Limited::over(below, limits);
    let dir = tree.make("dir").expect("made");
    let mut random = Random(seed);
    let mut full = 0;
    for _ in 0..200 {
        thread::scope(|scope| {
            for _ in 0..2 {
                let mut own = Random(random.below(1 << 30));
                let dirs = [&*tree.root, &*dir.node];
                scope.spawn(move || {
                    for _ in 0..4 {
                        // Errors are part of it.
                        let _ = change(dirs, &mut own);
                    }
                });
            }
        });
        let used = tree.quota.used();
        full += u64::from(used.inodes == 10);
        assert!(used.inodes <= 10, "{used:?}");
        tree.check();
    }
    assert!(full > 0, "the limit was not reached");
}

/// Returns the seeds of a run: `SEEDS` of them, 4 by default.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("SEEDS").map(|text| text.parse().expect("a number"));
    0..count.unwrap_or(4)
}

#[test]
fn the_usage_agrees_with_a_count_after_concurrent_changes_in_memory() {
    for seed in seeds() {
        agrees_after_changes(Memory::new(clock()), seed);
    }
}

#[test]
fn the_usage_agrees_with_a_count_after_concurrent_changes_of_a_directory() {
    for seed in seeds() {
        // tmpfs allocates no space later.
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let below = hostdir::HostDir::open(dir.path(), hostdir::Options::default());
        agrees_after_changes(below.expect("a source"), seed);
    }
}
