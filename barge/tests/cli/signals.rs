//! Signals that a process gets for no reason of its own, and those of the programs that it starts.

use std::fs;
use std::io;
use std::process::Command;

use barge_client::{Client, OpenOptions};
use rustix::process::{Pid, Signal, kill_process};
use vfs_testkit::wait_until;

use crate::served::{BARGE, ServerProcess, stdout_of};

const MIB: u64 = 1 << 20;

/// Returns a mask of the signals of a process, from the lines of proc_pid_status(5).
fn mask(status: &str, name: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    u64::from_str_radix(mask.expect("a mask").trim(), 16).expect("a number")
}

fn status_of(id: u32) -> String {
    fs::read_to_string(format!("/proc/{id}/status")).expect("it runs")
}

#[test]
fn a_write_beyond_the_limit_of_file_sizes_fails_and_ends_no_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("prlimit");
    command.args(["--fsize=67108864", BARGE, "serve", "--ready", "json"]);
    command.args(["--9p", "tcp:127.0.0.1:0", "--nfs", "tcp:127.0.0.1:0"]);
    let (served, ready) = ServerProcess::run_until_json(command_of(command, dir.path()));
    let serving = served.serving_id();
    for (protocol, query) in [("9p", ""), ("nfs", "?vers=3"), ("nfs", "?vers=4.2")] {
        let endpoints = ready["endpoints"].as_array().expect("endpoints");
        let endpoint = endpoints.iter().find(|one| one["protocol"] == protocol);
        let addr = endpoint.expect("an endpoint")["address"].as_str();
        let addr = addr.expect("an address").trim_start_matches("tcp:");
        let client = Client::open(&format!("{protocol}://{addr}/{query}"));
        let client = client.expect("connects");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = client.open_with("file", &options).expect("made");
        let write = |at| -> io::Result<()> {
            file.write_all_at(&[7; 8192], at)?;
            file.sync_all()
        };
        for at in [64 * MIB, 64 * MIB - 4096] {
            let error = write(at).expect_err("it is too large");
            assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{protocol}");
        }
        let error = file.set_len(65 * MIB).expect_err("it is too large");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{protocol}");
        // The connection and the open file are the same.
        let file = client.open_with("other", &options).expect("made");
        file.write_all_at(b"hello", 0).expect("written");
        assert_eq!(served.serving_id(), serving, "another process");
    }
}

/// Adds a directory to serve.
fn command_of(mut command: Command, dir: &std::path::Path) -> Command {
    command.arg(dir);
    command
}

#[test]
fn signals_that_are_sent_to_any_daemon_end_no_process_that_serves() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("file"), "hello").expect("written");
    let served = ServerProcess::start(&[dir.path().to_str().expect("text")]);
    let [first, serving] = [served.id(), served.serving_id()];
    // SIGUSR2 asks the first process for an upgrade.
    let signals = [Signal::USR1, Signal::XFSZ, Signal::TTOU, Signal::PIPE];
    let sent = signals.map(|signal| (first, signal)).into_iter();
    let sent = sent.chain(signals.map(|signal| (serving, signal)));
    for (id, signal) in sent.chain([(serving, Signal::USR2)]) {
        let process = Pid::from_raw(id as i32).expect("a process");
        kill_process(process, signal).expect("sent");
        wait_until("the signal is delivered", || {
            mask(&status_of(id), "ShdPnd:") == 0
        });
    }
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "file")), "hello");
    assert_eq!(served.serving_id(), serving, "another process");
    let state = status_of(serving);
    assert!(!state.contains("State:\tT"), "{state}");
}

#[test]
fn a_program_of_run_has_default_actions_whatever_the_caller_blocks_or_ignores() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("env");
    // A process that ignores SIGCHLD cannot wait for a child.
    command.args(["--ignore-signal=CHLD,TTOU", "--block-signal=TERM,HUP,USR1"]);
    command.args([BARGE, "serve", "--9p", "tcp:127.0.0.1:0"]);
    command.args(["--run", "grep Sig /proc/self/status"]);
    let output = command.arg(dir.path()).output().expect("runs");
    let status = stdout_of(&output);
    assert_eq!(mask(&status, "SigBlk:"), 0, "{status}");
    let signals = [Signal::CHILD, Signal::TTOU, Signal::PIPE, Signal::XFSZ];
    for signal in signals.into_iter().chain([Signal::USR1, Signal::USR2]) {
        let bit = 1 << (signal.as_raw() - 1);
        assert_eq!(mask(&status, "SigIgn:") & bit, 0, "{signal:?}: {status}");
    }
}
