//! Leases, and the operations that break them.

use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use hostdir::{HostDir, Options};
use vfs::{
    BreakCallback, Call, Caller, Cx, Errno, File, FileSystem as _, Lease, LeaseKind, Name, Node,
    OpenFlags, Patience, Result, SetAttr,
};

/// A directory on the host with a file, and its export.
struct World {
    directory: tempfile::TempDir,
    export: Arc<HostDir>,
}

impl World {
    fn new() -> World {
        let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
        std::fs::write(directory.path().join("f"), "old").expect("written");
        let export = HostDir::open(directory.path(), Options::default()).expect("exported");
        World { directory, export }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("f")
    }

    fn open(&self, flags: OpenFlags) -> Arc<dyn File> {
        self.node().open(&cx(), flags).expect("opens")
    }

    fn node(&self) -> Arc<dyn Node> {
        let name = Name::new(b"f").expect("a name");
        let root = self.export.root(&cx()).expect("a root");
        root.lookup(&cx(), name).expect("it is there").node
    }
}

fn cx() -> Cx<'static> {
    static CALL: Call = Call::detached();
    Cx::new(&Caller::ROOT, &CALL)
}

fn brief() -> Cx<'static> {
    Cx {
        patience: Patience::Brief,
        ..cx()
    }
}

fn lease(file: &Arc<dyn File>, kind: LeaseKind) -> (Result<Box<dyn Lease>>, Receiver<()>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let broken: BreakCallback = Arc::new(move || {
        let _ = tell.lock().expect("no panic holds it").send(());
    });
    (file.lease(&cx(), kind, &broken), told)
}

#[test]
fn a_program_that_writes_waits_until_the_lease_is_back() {
    let world = World::new();
    let file = world.open(OpenFlags::READ);
    let (lease, told) = lease(&file, LeaseKind::Read);
    let lease = lease.expect("nobody writes");
    std::fs::read(world.path()).expect("readers share it");
    let path = world.path();
    let writer = std::thread::spawn(move || std::fs::write(path, "new"));
    told.recv().expect("told");
    assert!(lease.is_broken());
    assert_eq!(std::fs::read(world.path()).expect("read"), b"old");
    drop(lease);
    writer.join().expect("no panic").expect("written");
    assert_eq!(std::fs::read(world.path()).expect("read"), b"new");
}

#[test]
fn a_file_that_is_written_has_no_lease() {
    let world = World::new();
    let _writer = std::fs::OpenOptions::new()
        .append(true)
        .open(world.path())
        .expect("opens");
    let file = world.open(OpenFlags::READ);
    assert_eq!(
        lease(&file, LeaseKind::Read).0.map(drop),
        Err(Errno::EAGAIN)
    );
    let file = world.open(OpenFlags::READ | OpenFlags::WRITE);
    assert_eq!(
        lease(&file, LeaseKind::Write).0.map(drop),
        Err(Errno::EAGAIN)
    );
}

#[test]
fn readers_break_the_lease_of_a_writer() {
    let world = World::new();
    let file = world.open(OpenFlags::READ | OpenFlags::WRITE);
    let (lease, told) = lease(&file, LeaseKind::Write);
    let lease = lease.expect("nobody else has it open");
    let again = world.node().open(&brief(), OpenFlags::READ);
    assert_eq!(again.map(drop), Err(Errno::WOULD_BLOCK));
    told.recv().expect("told");
    drop(lease);
    world.open(OpenFlags::READ);
}

#[test]
fn programs_that_change_a_name_or_attributes_are_told_of() {
    let changes: [fn(&std::path::Path) -> std::io::Result<()>; 5] = [
        |path| std::fs::rename(path, path.with_file_name("g")),
        |path| std::fs::remove_file(path),
        |path| std::fs::hard_link(path, path.with_file_name("g")),
        |path| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(path, mode)
        },
        |path| {
            let other = path.with_file_name("other");
            std::fs::write(&other, "other")?;
            std::fs::rename(other, path)
        },
    ];
    for change in changes {
        let world = World::new();
        let file = world.open(OpenFlags::READ);
        let (lease, told) = lease(&file, LeaseKind::Read);
        let lease = lease.expect("nobody writes");
        change(&world.path()).expect("changed");
        told.recv().expect("told");
        assert!(lease.is_broken());
    }
}

#[test]
fn what_comes_by_the_export_and_changes_attributes_waits() {
    let world = World::new();
    let file = world.open(OpenFlags::READ);
    let (lease, told) = lease(&file, LeaseKind::Read);
    let lease = lease.expect("nobody writes");
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    let node = world.node();
    assert_eq!(node.setattr(&brief(), &set), Err(Errno::WOULD_BLOCK));
    told.recv().expect("told");
    let name = Name::new(b"f").expect("a name");
    let root = world.export.root(&cx()).expect("a root");
    let removed = root.unlink(&brief(), name, false);
    assert_eq!(removed, Err(Errno::WOULD_BLOCK));
    drop(lease);
    node.setattr(&brief(), &set).expect("nobody has a lease");
    root.unlink(&brief(), name, false).expect("removed");
}

#[test]
fn an_open_file_has_one_lease_and_another_after_it() {
    let world = World::new();
    let file = world.open(OpenFlags::READ);
    let (first, _) = lease(&file, LeaseKind::Read);
    let first = first.expect("nobody writes");
    assert_eq!(
        lease(&file, LeaseKind::Read).0.map(drop),
        Err(Errno::EAGAIN)
    );
    let second = world.open(OpenFlags::READ);
    let (second, told) = lease(&second, LeaseKind::Read);
    drop(first);
    let _third = lease(&file, LeaseKind::Read).0.expect("it is free again");
    let opened = world.node().open(&brief(), OpenFlags::WRITE);
    assert_eq!(opened.map(drop), Err(Errno::WOULD_BLOCK));
    told.recv().expect("told");
    assert!(second.expect("readers share it").is_broken());
}

#[test]
fn locks_break_no_lease_and_outlive_it() {
    use vfs::lock::{HostLock, LockFamily};
    for (kind, flags, lock) in [
        (LeaseKind::Read, OpenFlags::READ, HostLock::Shared),
        (
            LeaseKind::Write,
            OpenFlags::READ | OpenFlags::WRITE,
            HostLock::Exclusive,
        ),
    ] {
        let world = World::new();
        let file = world.open(flags);
        let lease = lease(&file, kind).0.expect("nobody else has it open");
        let node = world.node();
        let set =
            |start, state| node.host_lock(&brief(), LockFamily::Posix.range(start, start), state);
        assert_eq!(set(0, lock), Ok(()));
        assert!(!lease.is_broken());
        drop(lease);
        // Once writing is possible, the mirror is writable too.
        assert_eq!(set(1, HostLock::Exclusive), Ok(()));
        let outside = std::fs::File::options()
            .read(true)
            .write(true)
            .open(world.path())
            .expect("opens");
        for at in [0, 1] {
            let taken = sys::lock::set(outside.as_fd(), at, at, sys::lock::Kind::Exclusive);
            assert_eq!(taken, Err(rustix::io::Errno::AGAIN), "{kind:?} {at}");
        }
        assert_eq!(set(0, HostLock::Unlocked), Ok(()));
        assert_eq!(set(1, HostLock::Unlocked), Ok(()));
        sys::lock::set(outside.as_fd(), 0, 1, sys::lock::Kind::Exclusive).expect("free");
    }
}
