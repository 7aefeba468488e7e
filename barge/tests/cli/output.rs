//! Standard output and standard error that are full, closed, or read by nobody.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, pipe};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Signal, kill_process};
use vfs_testkit::wait_until;

use crate::served::{BARGE, stdout_of};

/// The kinds of standard error that take no line.
const BROKEN: [&str; 4] = ["full", "closed", "never read", "socket that is never read"];

/// Returns standard error of the kind `kind`, and its other end.
fn broken(kind: &str) -> (Stdio, Option<Box<dyn Read>>) {
    match kind {
        "full" => {
            let full = OpenOptions::new().write(true).open("/dev/full");
            (full.expect("opened").into(), None)
        }
        "socket that is never read" => {
            let (here, there) = UnixStream::pair().expect("a pair");
            rustix::net::sockopt::set_socket_send_buffer_size(&here, 4096).expect("set");
            (
                std::os::fd::OwnedFd::from(here).into(),
                Some(Box::new(there)),
            )
        }
        kind => {
            let (read, write) = pipe().expect("a pipe");
            fcntl_setpipe_size(&write, 4096).expect("resized");
            let read = (kind == "never read").then(|| Box::new(read) as Box<dyn Read>);
            (write.into(), read)
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id() as i32).expect("a process");
    kill_process(pid, signal).expect("sent");
}

/// Starts a program, and waits until it prints `ready`.
fn start(mut command: Command, stderr: Stdio) -> Child {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .expect("starts");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let ready = out
        .lines()
        .map_while(Result::ok)
        .any(|line| line == "ready");
    assert!(ready, "it has ended");
    child
}

/// Waits until it ends, and checks that it does so by itself.
fn ends_well(kind: &str, mut child: Child) {
    wait_until(kind, || child.try_wait().expect("a child").is_some());
    let status = child.wait().expect("ended");
    assert_eq!(status.code(), Some(0), "{kind}: {status}");
}

#[test]
fn a_server_whose_log_cannot_be_written_serves_and_hears_signals() {
    for kind in BROKEN {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("f"), "hello").expect("written");
        let (stderr, _reader) = broken(kind);
        let mut command = Command::new(BARGE);
        command.args(["serve", "-vv", "--9p=unix:socket", "."]);
        command.current_dir(&dir);
        let server = start(command, stderr);
        let url = format!("9p+unix:{}", dir.path().join("socket").display());
        for _ in 0..50 {
            // Each request is many lines of the log, and each of these signals is one.
            signal(&server, Signal::HUP);
            signal(&server, Signal::USR1);
            let ls = Command::new(BARGE).args(["ls", &url]).output();
            let listed = stdout_of(&ls.expect("runs"));
            assert_eq!(listed, "f\nsocket\n", "{kind}");
        }
        signal(&server, Signal::TERM);
        ends_well(kind, server);
    }
}

#[test]
fn a_mount_whose_log_cannot_be_written_serves_and_hears_signals() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: this takes root, to mount");
    }
    for kind in BROKEN {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["tree", "mounted"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
        }
        std::fs::write(dir.path().join("tree/f"), "hello").expect("written");
        let (stderr, _reader) = broken(kind);
        let mut command = Command::new(BARGE);
        command.args(["mount", "-vv", "--foreground", "tree", "mounted"]);
        command.current_dir(&dir);
        let mount = start(command, stderr);
        for _ in 0..50 {
            signal(&mount, Signal::HUP);
            let text = std::fs::read_to_string(dir.path().join("mounted/f"));
            assert_eq!(text.expect("read"), "hello", "{kind}");
        }
        signal(&mount, Signal::TERM);
        ends_well(kind, mount);
    }
}

#[test]
fn a_command_whose_output_is_closed_or_full_ends_with_one_line_or_none() {
    let dir = tempfile::tempdir().expect("a directory");
    for number in 0..2000 {
        File::create(dir.path().join(format!("{number:064}"))).expect("made");
    }
    let dir = dir.path().to_str().expect("text");
    std::fs::write(format!("{dir}/barge.toml"), "[[share]]\nsource = 'mem:'\n").expect("written");
    let commands: &[&[&str]] = &[
        &["completions", "zsh"],
        &["completions", "bash"],
        &["man", "serve"],
        &["man", "barge.toml"],
        &["man"],
        &["--help"],
        &["serve", "--help"],
        &["--version"],
        &["ls", dir],
        &["ls", "-l", dir],
        &["ls", "--json", dir],
        &["tree", dir],
        &["stat", dir],
        &["cat", "/proc/self/maps"],
        &["doctor"],
        &["config", "show", &format!("{dir}/barge.toml")],
        &["config", "check", "--json", &format!("{dir}/barge.toml")],
        &["virtiofsd", "--print-capabilities"],
    ];
    for args in commands {
        let run = |stdout: Stdio| {
            let mut command = Command::new(BARGE);
            command.args(*args).stdout(stdout);
            command.output().expect("runs")
        };
        let (read, write) = pipe().expect("a pipe");
        drop(read);
        let closed = run(write.into());
        let text = String::from_utf8_lossy(&closed.stderr);
        assert_eq!(
            (closed.status.code(), text.as_ref()),
            (Some(0), ""),
            "{args:?}"
        );
        let full = OpenOptions::new().write(true).open("/dev/full");
        let full = run(full.expect("opened").into());
        let text = String::from_utf8_lossy(&full.stderr);
        assert!(text.lines().count() <= 1, "{args:?}: {text}");
        assert!(matches!(full.status.code(), Some(0 | 1)), "{args:?}");
    }
}
