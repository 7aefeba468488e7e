//! Locks, as barge's clients and other processes on the host see them.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use sys::lock::{Holder, Kind};
use vfs::lock::{HostLock, Lock, LockFamily, LockKind, LockTable, Owner};
use vfs::{Errno, FileSystem};

use crate::fixture::{Fixture, create, root};

fn owner(client: u64) -> Owner {
    Owner {
        client,
        id: Arc::from(*b"o"),
        pid: 7,
    }
}

fn lock(space: LockFamily, start: u64, end: u64, kind: LockKind, client: u64) -> Lock {
    Lock {
        family: space,
        start,
        end,
        kind,
        owner: owner(client),
    }
}

fn outsider(fixture: &Fixture) -> File {
    fixture.outside(|dir| {
        File::options()
            .read(true)
            .write(true)
            .open(dir.join("f"))
            .expect("opens")
    })
}

#[test]
fn an_outsider_sees_what_clients_hold_together() {
    let fixture = Fixture::fixed();
    let (entry, _file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let (node, table, out) = (&*entry.node, LockTable::default(), outsider(&fixture));
    let shared = |start, end, client| lock(LockFamily::Posix, start, end, LockKind::Shared, client);
    table
        .lock(&root(), node, shared(0, 9, 1), false)
        .expect("free");
    table
        .lock(&root(), node, shared(5, 14, 2), false)
        .expect("shared");
    let seen = |start, end| sys::lock::holder(out.as_fd(), start, end, Kind::Exclusive);
    assert!(matches!(
        seen(14, 14),
        Ok(Some(Holder {
            kind: Kind::Shared,
            ..
        }))
    ));
    assert_eq!(seen(15, u64::MAX), Ok(None));
    table
        .unlock(&root(), node, LockFamily::Posix, 0, 9, &owner(1))
        .expect("unlocks");
    assert_eq!(seen(0, 4), Ok(None));
    assert!(seen(5, 5).is_ok_and(|holder| holder.is_some()));
    table.release(&root(), node, |_| true);
    assert_eq!(seen(0, u64::MAX), Ok(None));
}

#[test]
fn an_outsider_is_in_the_way_and_told() {
    let fixture = Fixture::fixed();
    let (entry, _file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let (node, table, out) = (&*entry.node, LockTable::default(), outsider(&fixture));
    sys::lock::set(out.as_fd(), 10, 19, Kind::Exclusive).expect("free");
    let wanted = lock(LockFamily::Posix, 0, u64::MAX, LockKind::Exclusive, 1);
    assert_eq!(
        table.lock(&root(), node, wanted.clone(), false),
        Err(Errno::EAGAIN)
    );
    let holder = table
        .holder(&root(), node, &wanted)
        .expect("asks")
        .expect("held");
    assert_eq!(
        (holder.start, holder.end, holder.kind),
        (10, 19, LockKind::Exclusive)
    );
    sys::lock::set(out.as_fd(), 0, u64::MAX, Kind::Unlocked).expect("unlocks");
    table
        .lock(&root(), node, wanted.clone(), false)
        .expect("free");
    assert_eq!(
        sys::lock::set(out.as_fd(), 3, 3, Kind::Shared),
        Err(rustix::io::Errno::AGAIN)
    );
    // No process can lock beyond the largest offset.
    let far = lock(
        LockFamily::Posix,
        u64::MAX - 1,
        u64::MAX,
        LockKind::Exclusive,
        2,
    );
    table.release(&root(), node, |_| true);
    table
        .lock(&root(), node, far, false)
        .expect("nobody can be in the way");
}

#[test]
fn whole_files_are_locked_apart() {
    let fixture = Fixture::fixed();
    let (entry, _file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let (node, out) = (&*entry.node, outsider(&fixture));
    let all = |state| node.host_lock(&root(), LockFamily::Flock.range(0, u64::MAX), state);
    all(HostLock::Shared).expect("free");
    assert!(out.try_lock_shared().is_ok());
    // Another process prevents the upgrade, and the lock that was held stays held.
    assert_eq!(all(HostLock::Exclusive), Err(Errno::EAGAIN));
    out.unlock().expect("unlocks");
    assert!(out.try_lock().is_err());
    all(HostLock::Exclusive).expect("free");
    assert!(out.try_lock_shared().is_err());
    all(HostLock::Unlocked).expect("unlocks");
    assert!(out.try_lock().is_ok());
    let whole = lock(LockFamily::Flock, 0, u64::MAX, LockKind::Shared, 1);
    let holder = LockTable::default().holder(&root(), node, &whole);
    let holder = holder.expect("asks").map(|lock| lock.kind);
    assert_eq!(holder, Some(LockKind::Exclusive));
}

#[test]
fn nothing_stays_open_when_nothing_is_held() {
    let fixture = Fixture::fixed();
    let (entry, file) = create(&root(), &*fixture.root, "f", 0o600).expect("creates");
    let table = LockTable::default();
    let before = fixture.fs.open_descriptors();
    for space in [LockFamily::Posix, LockFamily::Flock] {
        let all = lock(space, 0, u64::MAX, LockKind::Exclusive, 1);
        table.lock(&root(), &*entry.node, all, false).expect("free");
    }
    assert_eq!(fixture.fs.open_descriptors(), before + 2);
    table.release(&root(), &*entry.node, |_| true);
    assert_eq!(fixture.fs.open_descriptors(), before);
    drop((entry, file));
    assert_eq!(fixture.fs.open_descriptors(), before - 1);
    assert!(fixture.fs.capabilities().host_locks == vfs::Support::Native);
}

#[test]
fn what_cannot_be_written_is_locked_as_read() {
    let fixture = Fixture::fixed();
    fixture.outside(|dir| {
        vfs_testkit::copy_program("/bin/sleep", dir.join("f"));
    });
    let mut running = fixture.outside(|dir| {
        std::process::Command::new(dir.join("f"))
            .arg("60")
            .spawn()
            .expect("runs")
    });
    let entry = fixture.lookup("f").expect("there");
    let table = LockTable::default();
    let all = lock(LockFamily::Posix, 0, u64::MAX, LockKind::Exclusive, 1);
    table.lock(&root(), &*entry.node, all, false).expect("free");
    let out = fixture.outside(|dir| File::open(dir.join("f")).expect("opens"));
    let holder = sys::lock::holder(out.as_fd(), 0, 0, Kind::Exclusive);
    assert!(matches!(
        holder,
        Ok(Some(Holder {
            kind: Kind::Shared,
            ..
        }))
    ));
    running.kill().and_then(|()| running.wait()).expect("ends");
}
