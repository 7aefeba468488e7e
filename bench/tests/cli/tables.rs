//! Measures tables, briefly.

use std::process::{Command, Stdio};

use serde_json::Value;
use vfs_testkit::wait_until;

use crate::{BENCH, barge};

#[test]
fn tables_are_measured_one_after_the_other() {
    if barge().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let json = dir.path().join("json");
    let done = Command::new(BENCH)
        .args([
            "all",
            "--quick",
            "--runs",
            "1",
            "--only",
            "unix, 1 conn., readdir",
        ])
        .arg("--json")
        .arg(&json)
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("bench nfs, after "), "{said}");
    let report = std::fs::read_to_string(json).expect("read");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let outcome = |name: &str| {
        let tables = report["tables"].as_array().expect("tables");
        let table = tables.iter().find(|table| table["name"] == name);
        table.expect(name)["outcome"].clone()
    };
    let row = &outcome("9p")["measured"]["rows"][0];
    assert_eq!(row["name"], "unix, 1 conn., readdir of 10,000 entries");
    assert!(row["cells"][0]["median"].as_f64() > Some(0.0), "{row}");
    assert_eq!(outcome("zerocopy")["left_out"], "no row of it is selected");
    assert_eq!(
        outcome("guest defaults 9p")["left_out"],
        "it needs a virtual machine: --guest"
    );
}

#[test]
fn a_bench_that_is_stopped_leaves_nothing() {
    if barge().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut child = Command::new(BENCH)
        .args(["9p", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("runs");
    let socket = dir
        .path()
        .join(format!("barge-bench-{}/run/barge.sock", child.id()));
    wait_until("the server listens", || {
        assert!(child.try_wait().expect("asked").is_none(), "it ended");
        socket.exists()
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("told");
    assert_eq!(child.wait().expect("ends").code(), Some(1));
    assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
    let told = dir.path().as_os_str().as_encoded_bytes();
    let left = std::fs::read_dir("/proc")
        .expect("read")
        .flatten()
        .filter(|process| {
            let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            words.windows(told.len()).any(|part| part == told)
        });
    assert_eq!(left.count(), 0);
}
