//! Several mounts of one NFSv4 server on one host, each of which is a client of its own: none loses
//! its opens and locks because of another.
//!
//! There are 2 mounts for each version, or `MOUNTS` in the environment. They work for 5 s, or for
//! `LEASES` leases of 10 s, while fio verifies data on each mount.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use vfs_testkit::{count_under_locks, wait_until};

use crate::mount::{Mounted, may_mount};
use crate::restart::free_port;
use crate::served::{BARGE, ServerProcess, has};

/// The lease time of the server, the shortest one.
const LEASE: Duration = Duration::from_secs(10);

/// The time without `LEASES`: a client that has another one's name ends its state at once.
const TIME: Duration = Duration::from_secs(5);

/// Returns the number that a variable of the environment has.
fn number(name: &str) -> Option<u32> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// Serves `share` over NFS at `port`.
fn serve(share: &Path, port: u16) -> ServerProcess {
    let lease = LEASE.as_secs().to_string();
    let mut command = Command::new(BARGE);
    command.arg("serve").arg(share);
    command.args(["--nfs", &format!("tcp:127.0.0.1:{port}")]);
    command.args(["--nfs-lease", &lease, "--nfs-state-dir"]);
    command.arg(share.with_file_name("state"));
    ServerProcess::run(command)
}

/// Starts fio on a mount.
fn verified(at: &Path, own: u32, time: Duration) -> std::process::Child {
    let mut fio = Command::new("fio");
    fio.arg(format!("--directory={}", at.display()));
    fio.arg(format!("--name=fio-{own}"));
    // It leaves a file with its state there.
    fio.current_dir(at.parent().expect("not the root"));
    fio.arg(format!("--runtime={}", time.as_secs()));
    fio.args(["--time_based", "--rw=randrw", "--bs=16k", "--size=4m"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--fsync=16"]);
    fio.args(["--thinktime=5ms", "--ioengine=psync"]);
    fio.stdout(Stdio::piped()).spawn().expect("starts")
}

fn keep_their_state(version: &str) {
    if !may_mount() {
        return;
    }
    let (mounts, leases) = (number("MOUNTS").unwrap_or(2), number("LEASES"));
    let dir = tempfile::tempdir().expect("a directory");
    let share = dir.path().join("share");
    fs::create_dir(&share).expect("made");
    let port = free_port();
    let server = serve(&share, port);
    let url = format!("nfs://127.0.0.1:{port}/?vers={version}");
    let places: Vec<PathBuf> = (0..mounts)
        .map(|number| {
            let at = dir.path().join(format!("at-{number}"));
            fs::create_dir(&at).expect("made");
            at
        })
        .collect();
    let held: Vec<_> = places
        .iter()
        .map(|at| Mounted::new(&[&url, "-o", "cache=none"], at))
        .collect();
    let time = leases.map_or(TIME, |leases| LEASE * leases);
    let verifies = leases.is_some() && has("fio");
    let fio: Vec<_> = places
        .iter()
        .zip(0..)
        .filter(|_| verifies)
        .map(|(at, own)| verified(at, own, time))
        .collect();
    let rounds = count_under_locks(&places, &share, time);
    for child in fio {
        let output = child.wait_with_output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
    }
    println!("v{version}: {mounts} mounts counted to {rounds}");
    drop((held, server));
}

#[test]
fn two_mounts_over_v40_do_not_end_each_others_state() {
    keep_their_state("4.0");
}

#[test]
fn two_mounts_over_v41_do_not_end_each_others_state() {
    keep_their_state("4.1");
}

#[test]
fn two_mounts_over_v42_do_not_end_each_others_state() {
    keep_their_state("4.2");
}

/// A mount that is killed leaves its locks, and the next one at its place ends them at once: the
/// server's lease is long.
#[test]
fn the_next_mount_after_a_kill_does_not_wait_for_the_old_locks() {
    if !may_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    for version in ["4.0", "4.1", "4.2"] {
        let dir = tempfile::tempdir().expect("a directory");
        let [share, at] = ["share", "at"].map(|name| dir.path().join(name));
        for made in [&share, &at] {
            fs::create_dir(made).expect("made");
        }
        let port = free_port();
        let server = {
            let mut command = Command::new(BARGE);
            command.arg("serve").arg(&share);
            command.args(["--nfs", &format!("tcp:127.0.0.1:{port}")]);
            command.args(["--nfs-lease", "300", "--nfs-state-dir"]);
            command.arg(dir.path().join("state"));
            ServerProcess::run(command)
        };
        let url = format!("nfs://127.0.0.1:{port}/?vers={version}");
        let first = Mounted::new(&[&url, "-o", "cache=none"], &at);
        let file = File::create(at.join("file")).expect("made");
        file.lock().expect("locked");
        first.kill();
        first.ended();
        drop(file);
        let there = File::options().write(true).open(share.join("file"));
        let there = there.expect("opened");
        // The server has it as a lock of a range on its host.
        let take = || fcntl_lock(&there, FlockOperation::NonBlockingLockExclusive);
        assert!(take().is_err(), "v{version}: the server keeps the lock");
        let unmounted = Command::new("umount").arg("-l").arg(&at).status();
        assert!(unmounted.expect("runs").success());
        let next = Mounted::new(&[&url, "-o", "cache=none"], &at);
        wait_until("the lock has gone", || take().is_ok());
        drop((next, server));
    }
}
