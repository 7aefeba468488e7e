//! Programs that lock files: the same results on each kind of mount as in a directory.

use std::path::Path;
use std::process::Command;

use crate::mount::{Mounted, may_mount};
use crate::served::{BARGE, ServerProcess, has, stdout_of};

/// Runs the programs in a directory, and returns what they print.
fn results(at: &Path) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/lock_jobs.py");
    let mut python = Command::new("python3");
    python.args(["-B", script]).current_dir(at);
    stdout_of(&python.output().expect("runs"))
}

/// Deadlocks, open file description locks that end with their file, and locks of processes.
#[test]
fn programs_that_lock_meet_on_mounts_what_they_meet_in_a_directory() {
    if !may_mount() || !has("python3") {
        return eprintln!("skipped: this takes python3");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    for name in ["control", "source", "at"] {
        std::fs::create_dir(path(name)).expect("made");
    }
    let text = |name: &str| path(name).display().to_string();
    let control = results(&path("control"));
    assert!(!control.contains("hang"), "{control}");

    let mut command = Command::new(BARGE);
    command.args(["serve", &text("source"), "--virtiofs-locks=shared"]);
    command.args(["--9p", &format!("unix:{}", text("9p"))]);
    command.args(["--nfs", &format!("unix:{}", text("nfs"))]);
    command.args(["--virtiofs", &text("virtiofs")]);
    let served = ServerProcess::run(command);
    let nfs = |version: &str| format!("nfs+unix:{}?vers={version}", text("nfs"));
    let sources = [
        text("source"),
        format!("9p+unix:{}", text("9p")),
        nfs("3"),
        nfs("4.0"),
        nfs("4.2"),
        format!("virtiofs:{}", text("virtiofs")),
    ];
    for source in sources {
        let mounted = Mounted::new(&[&source], &path("at"));
        assert_eq!(results(&path("at")), control, "{source}");
        mounted.signal();
        assert!(mounted.ended().success(), "{source}");
    }
    assert!(served.stop().success());
}
