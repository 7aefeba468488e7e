//! State of a server that cannot be stored for a while, because the disk is full.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use vfs::Errno;
use vfs::lock::HostLock;
use vfs_testkit::{ReplyBuffer, wait_until};

use crate::failover::Locker;
use crate::restart::free_port;
use crate::served::{BARGE, ServerProcess};
use crate::small_disk::SmallDisk;
use crate::status::{http, probe};

/// Fills the file system of `file`.
fn fill(file: &Path) {
    let mut file = File::create(file).expect("made");
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![7; size]).is_ok() {}
    }
}

/// Serves `share` with the option `record`, whose file is on a disk that is full for a while, and
/// calls `work` all the time. Its lines are of `subject`, and each call causes more of them than
/// the server buffers. Returns the file.
fn record_on_a_full_disk(
    record: &str,
    subject: &str,
    share: &Path,
    mut work: impl FnMut(&dyn vfs::Node),
) -> String {
    let mkfs = ["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0"];
    let disk = SmallDisk::new(&mkfs, 8 << 20);
    let dir = tempfile::tempdir().expect("a directory");
    let log = tempfile::NamedTempFile::new().expect("a file");
    let socket = dir.path().join("socket");
    let recorded = disk.path().join("recorded");
    let mut command = Command::new(BARGE);
    command.args(["serve", "--9p", &format!("unix:{}", socket.display())]);
    command.arg(record).arg(&recorded).arg(share);
    command.stderr(log.reopen().expect("opened"));
    let served = ServerProcess::run(command);
    let link = transports::dial(&transports::Addr::Unix(socket)).expect("connected");
    let fs = remote::ninep::Remote9p::connect(link, Default::default()).expect("attached");
    let root = with_cx(|cx| vfs::FileSystem::root(&*fs, cx)).expect("a root");
    let lines = || fs::read_to_string(log.path()).expect("read");
    let [lost, again] = ["not recorded for now", "recorded again"];
    let filler = disk.path().join("filler");
    fill(&filler);
    wait_until("lines are lost", || {
        work(&*root);
        lines().contains(&format!("{subject} are {lost}"))
    });
    work(&*root);
    fs::remove_file(&filler).expect("removed");
    wait_until("lines are recorded again", || {
        work(&*root);
        lines().contains(&format!("{subject} are {again}"))
    });
    for line in [lost, again] {
        assert_eq!(lines().matches(line).count(), 1, "{line} in {}", lines());
    }
    drop((root, fs));
    assert!(served.stop().success());
    fs::read_to_string(&recorded).expect("read")
}

fn with_cx<T>(run: impl FnOnce(&vfs::Cx<'_>) -> T) -> T {
    let (call, caller) = (vfs::Call::detached(), vfs::Caller::ROOT);
    run(&vfs::Cx::new(&caller, &call))
}

#[test]
fn calls_are_recorded_again_once_the_disk_has_space() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut number = 0;
    let recorded = record_on_a_full_disk("--record-calls", "calls", dir.path(), |root| {
        for _ in 0..3000 {
            let name = format!("a missing file with a long name, number {number}");
            number += 1;
            let name = vfs::Name::new(name.as_bytes()).expect("a name");
            let found = with_cx(|cx| root.lookup(cx, name));
            assert_eq!(found.err(), Some(Errno::ENOENT));
        }
    });
    for line in recorded.lines() {
        let parsed = serde_json::from_str::<serde_json::Value>(line);
        assert!(parsed.is_ok(), "{line}");
    }
    let last = format!("number {}\"", number - 1);
    assert!(recorded.contains(&last), "the last call is not there");
}

#[test]
fn a_trace_goes_on_once_the_disk_has_space() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = File::create(dir.path().join("f")).expect("made");
    file.set_len(1 << 40).expect("large");
    let name = vfs::Name::new(b"f").expect("a name");
    let mut offset = 0;
    let recorded = record_on_a_full_disk("--record-trace", "accesses", dir.path(), |root| {
        with_cx(|cx| {
            let node = root.lookup(cx, name).expect("there").node;
            let file = node.open(cx, vfs::OpenFlags::READ).expect("opened");
            for _ in 0..3000 {
                // No two ranges touch.
                offset += 2;
                let mut byte = ReplyBuffer::new(1);
                assert_eq!(file.read(cx, offset, 1, &mut byte), Ok(1));
            }
        });
    });
    let trace = pack::trace::Trace::parse(recorded.as_bytes());
    trace.expect("whole lines");
    let last = format!("{offset} 1 f\n");
    assert!(recorded.ends_with(&last), "the last access is not there");
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
