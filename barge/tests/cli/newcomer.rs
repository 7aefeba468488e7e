//! `barge serve` without arguments: serves the current directory, and prints an introduction.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::served::{BARGE, ServerProcess, has, stderr_of, stdout_of};

/// Runs `command` in the network namespace of the process `id`.
fn within(id: u32, command: &str) -> Output {
    let mut nsenter = Command::new("nsenter");
    nsenter.args([&format!("--net=/proc/{id}/ns/net"), "sh", "-c", command]);
    nsenter.output().expect("runs")
}

#[test]
fn serve_alone_serves_this_directory_read_only_and_says_how_to_use_and_to_end_it() {
    let programs = ["unshare", "nsenter", "ip"];
    if !geteuid().is_root() || !programs.iter().all(|program| has(program)) {
        eprintln!("skipped: a network of its own takes root, util-linux and iproute2");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("set");
    fs::write(dir.path().join("file"), "hello").expect("written");
    let mut command = Command::new("unshare");
    let script = format!("ip link set lo up && exec '{BARGE}' serve");
    command
        .args(["--net", "sh", "-c", &script])
        .current_dir(&dir);
    command.env("STATE_DIRECTORY", dir.path().join("state"));
    let served = ServerProcess::run(command);
    let lines = served.output.clone();
    let one = |start: &str| {
        let found = lines.iter().find(|line| line.contains(start));
        found.unwrap_or_else(|| panic!("'{start}' in {lines:?}"))
    };
    one("# .: read-only, for this host and its guests only");
    one("Ctrl-C stops the server");
    one("mount -t 9p -o trans=tcp,port=5640,");
    one("mount -t nfs -o vers=4.2,tcp,port=2049 127.0.0.1:/ /mnt");
    // All of it can be pasted into a shell.
    let is_shell = |line: &String| {
        ["# ", "mount ", "mkdir ", BARGE]
            .iter()
            .any(|start| line.starts_with(start))
    };
    assert!(lines.iter().all(is_shell), "{lines:?}");
    let list = one("barge ls -l ");
    assert!(stdout_of(&within(served.id(), list)).contains("file"));
    let nfs = format!("'{BARGE}' cat nfs://127.0.0.1/file");
    assert_eq!(stdout_of(&within(served.id(), &nfs)), "hello");
    let write = format!(
        "'{BARGE}' cp {}/file 9p://127.0.0.1:5640/new",
        dir.path().display()
    );
    let refused = stderr_of(&within(served.id(), &write));
    assert!(refused.contains("Read-only"), "{refused}");
    let ctrl_c = Pid::from_raw(served.id() as i32).expect("a process");
    kill_process(ctrl_c, Signal::INT).expect("asked");
    assert!(served.wait().success());
}

#[test]
fn who_says_where_is_told_the_commands_and_who_may_act_as_whom() {
    let served = ServerProcess::start(&["mem:"]);
    let [command, access] = served.output.as_slice() else {
        panic!("{:?}", served.output);
    };
    assert!(command.starts_with("mount "), "{command}");
    assert!(access.starts_with("# "), "{access}");
}
