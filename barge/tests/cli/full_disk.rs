//! State of a server that cannot be stored for a while, because the disk is full.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use vfs::Errno;
use vfs::lock::HostLock;

use crate::failover::Locker;
use crate::restart::free_port;
use crate::served::{BARGE, ServerProcess, wait_until};
use crate::small_disk::SmallDisk;
use crate::status::{http, probe};

/// Fills the file system of `file`.
fn fill(file: &Path) {
    let mut file = File::create(file).expect("made");
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
}

#[test]
fn calls_are_recorded_again_once_the_disk_has_space() {
    let mkfs = ["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0"];
    let disk = SmallDisk::new(&mkfs, 8 << 20);
    let dir = tempfile::tempdir().expect("a directory");
    let log = tempfile::NamedTempFile::new().expect("a file");
    let socket = dir.path().join("socket");
    let calls = disk.path().join("calls");
    let mut command = Command::new(BARGE);
    command.args(["serve", "--9p", &format!("unix:{}", socket.display())]);
    command.arg("--record-calls").arg(&calls).arg(dir.path());
    command.stderr(log.reopen().expect("opened"));
    let served = ServerProcess::run(command);
    let link = transports::dial(&transports::Addr::Unix(socket)).expect("connected");
    let fs = remote::ninep::Remote9p::connect(link, Default::default()).expect("attached");
    let (call, caller) = (vfs::Call::detached(), vfs::Caller::ROOT);
    let cx = vfs::Cx::new(&caller, &call);
    let root = vfs::FileSystem::root(&*fs, &cx).expect("a root");
    let number = std::cell::Cell::new(0);
    // More than the server buffers.
    let look_up = || {
        for _ in 0..3000 {
            let name = format!("a missing file with a long name, number {}", number.get());
            number.set(number.get() + 1);
            let found = root.lookup(&cx, vfs::Name::new(name.as_bytes()).expect("a name"));
            assert_eq!(found.err(), Some(Errno::ENOENT));
        }
    };
    let lines = || fs::read_to_string(log.path()).expect("read");
    let filler = disk.path().join("filler");
    fill(&filler);
    wait_until("calls are lost", || {
        look_up();
        lines().contains("calls are not recorded for now")
    });
    look_up();
    fs::remove_file(&filler).expect("removed");
    wait_until("calls are recorded again", || {
        look_up();
        lines().contains("calls are recorded again")
    });
    for line in ["not recorded for now", "recorded again"] {
        assert_eq!(lines().matches(line).count(), 1, "{line} in {}", lines());
    }
    drop((root, fs));
    served.stop();
    let recorded = fs::read_to_string(&calls).expect("read");
    for line in recorded.lines() {
        let parsed = serde_json::from_str::<serde_json::Value>(line);
        assert!(parsed.is_ok(), "{line}");
    }
    let last = format!("number {}\"", number.get() - 1);
    assert!(recorded.contains(&last), "the last call is not there");
}

#[test]
fn records_of_nfs_clients_outlive_a_full_disk_and_the_restart_after_it() {
    let mkfs = ["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0"];
    let disk = SmallDisk::new(&mkfs, 8 << 20);
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("f"), "hello").expect("written");
    let (port, log) = (free_port(), tempfile::NamedTempFile::new().expect("a file"));
    let serve = || {
        let mut command = Command::new(BARGE);
        let addr = format!("tcp:127.0.0.1:{port}");
        command.args(["serve", "--nfs", &addr, "--nfs-lease", "10"]);
        command.args(["--http", "0", "--nfs-state-dir"]);
        command.arg(disk.path()).arg(dir.path());
        let log = File::options().append(true).open(log.path());
        command.stderr(log.expect("opened"));
        ServerProcess::run(command)
    };
    let served = serve();
    let is = |path: &str, status: &str| probe(&http(&served), path).0 == status;
    assert!(is("/readyz", "200"));
    let early = Locker::open(port, "4.2");
    assert_eq!(early.lock((0, 9), HostLock::Exclusive), Ok(()));
    let filler = disk.path().join("filler");
    fill(&filler);
    // Clients are served without a record. The first ones may still find room in the file.
    let mut late = Vec::new();
    while is("/readyz", "200") {
        assert!(late.len() < 200, "the file always finds room");
        late.push(Locker::open(port, "4.2"));
    }
    let last = Locker::open(port, "4.2");
    assert_eq!(last.lock((10, 19), HostLock::Exclusive), Ok(()));
    assert!(is("/healthz", "503") && is("/livez", "200"));
    let (_, body) = probe(&http(&served), "/healthz");
    assert!(body.contains("nfs-state: "), "{body}");

    fs::remove_file(&filler).expect("removed");
    wait_until("the state is stored again", || is("/readyz", "200"));
    assert!(is("/healthz", "200"));
    let lines = fs::read_to_string(log.path()).expect("read");
    for line in ["cannot be stored", "stored again"] {
        assert_eq!(lines.matches(line).count(), 1, "{line} in {lines}");
    }

    // Dropping kills it.
    drop(served);
    let _served = serve();
    for (client, range) in [(&early, (0, 9)), (&last, (10, 19))] {
        let new = Locker::open(port, "4.2");
        assert_eq!(client.lock((100, 100), HostLock::Unlocked), Ok(()));
        assert_eq!(new.lock(range, HostLock::Shared), Err(Errno::EAGAIN));
        assert_eq!(client.lock(range, HostLock::Unlocked), Ok(()));
        assert_eq!(new.lock(range, HostLock::Exclusive), Ok(()));
    }
}
