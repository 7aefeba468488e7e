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
