//! The cache directory: damage, faults, lack of space, a process killed at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use layers::fault::{Fault, FaultKind, Trigger};
use layers::{Layer, forward, stack};
use parking_lot::{Condvar, Mutex};
use vfs::attr::SetTime;
use vfs::{Cx, Errno, File, Mode, Name, NewNode, NodeId, Op, RenameFlags, Result, SetAttr, Time};
use vfs_testkit::context::pattern;

use crate::common::{RW, open, with};
use crate::{Bed, LEN, cut, listed, put, read, rest, unlink, write};

/// Damages the copy in a directory.
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
                let target = NewNode::Symlink(b"/etc/passwd");
                let name = Name::new(name.as_bytes())?;
                bed.dir
                    .root(cx)?
                    .make(cx, name, target, Mode::without_umask(0o777))
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
        // The process that noticed it by its contents has not cached it again.
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
            root.rename(cx, from, &*root, to, RenameFlags::EXCHANGE)
        });
        let mount = bed.mount();
        assert_eq!(
            (mount.read("f"), mount.read("g")),
            (b"one".to_vec(), b"two".to_vec())
        );
        drop(mount);
        // Cached again for the next test.
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
            mtime: Some(SetTime::At(Time { sec, nsec: 0 })),
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
            fault.add(op, Trigger::Always, FaultKind::Fail(errno));
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
    fault.add(Op::Write, Trigger::Always, FaultKind::Fail(Errno::ENOSPC));
    read("d");
    fault.clear();
    read("d");
    assert_eq!(bed.names().len(), 2 * 2, "others have gone for it");
    bed.reads();
    read("d");
    assert_eq!(bed.reads(), 0);
}

#[test]
fn the_bound_is_the_old_one_again_once_the_disk_has_space() {
    let bed = Bed::new();
    let contents = pattern(100_000, 7);
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        bed.file(name, &contents);
    }
    let fault = Arc::new(Fault::new(1, Arc::new(|| Duration::ZERO)));
    let mount = bed.mount_with(stack(bed.dir.clone(), fault.clone()), [7; 32]);
    let read = |name| {
        assert!(mount.read(name) == contents);
        mount.kept.wait();
    };
    names[..3].iter().for_each(|name| read(name));
    fault.add(Op::Write, Trigger::Always, FaultKind::Fail(Errno::ENOSPC));
    read("d");
    fault.clear();
    let until = Instant::now() + Duration::from_secs(20);
    while bed.names().len() < 2 * names.len() {
        assert!(Instant::now() < until, "{} files", bed.names().len());
        names.iter().for_each(|name| read(name));
    }
}

/// Methods of a layer that passes every operation on nodes and files, except locks, to its method
/// `run`.
macro_rules! forward_run {
    () => {
        forward! { capabilities id above root resolve sync host_lock host_lock_holder }

        forward! { with run: all but root resolve sync host_lock host_lock_holder }
    };
}

/// Fails all operations from some point on, as if the process had been killed.
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
    forward_run!();
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

/// Blocks writes until it is released.
#[derive(Default)]
struct Busy(Mutex<bool>, Condvar);

impl Busy {
    fn run<T>(&self, op: Op, _: NodeId, _: &Cx<'_>, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut goes_on = self.0.lock();
        let waits = |goes_on: &mut bool| op == Op::Write && !*goes_on;
        self.1.wait_while(&mut goes_on, waits);
        drop(goes_on);
        run()
    }

    fn go_on(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }
}

impl Layer for Busy {
    forward_run!();
}

#[test]
fn all_files_that_are_read_while_the_disk_is_busy_are_kept() {
    let bed = Bed::new();
    let names: Vec<_> = (0..500).map(|number| number.to_string()).collect();
    names
        .iter()
        .for_each(|name| bed.file(name, &pattern(1000, 3)));
    let busy = Arc::new(Busy::default());
    let mount = bed.mount_with(stack(bed.dir.clone(), busy.clone()), [7; 32]);
    let read = || {
        names
            .iter()
            .for_each(|name| assert!(mount.read(name) == pattern(1000, 3)))
    };
    read();
    busy.go_on();
    mount.kept.wait();
    bed.reads();
    read();
    assert_eq!(bed.reads(), 0);
}
