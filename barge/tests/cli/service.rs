//! Programs that start barge: a shell, a service manager, and a program that passes it a socket.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

#[test]
fn sockets_of_a_service_manager_are_served_and_it_hears_of_being_ready() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("f"), "hello").expect("written");
    let notify = dir.path().join("notify");
    let manager = UnixDatagram::bind(&notify).expect("bound");
    manager
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("set");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("bound").port();
    // As in sd_listen_fds(3): from descriptor 3 on, with the process id.
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            r#"LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" serve "$1" 3<&0 0</dev/null"#,
        ])
        .args([BARGE.as_ref(), dir.path().as_os_str()])
        .env("NOTIFY_SOCKET", &notify)
        .stdin(Stdio::from(OwnedFd::from(listener)));
    let served = ServerProcess::run(command);
    assert_eq!(served.port(), port);
    let mut message = [0; 256];
    let len = manager.recv(&mut message).expect("told");
    let message = String::from_utf8_lossy(&message[..len]);
    assert!(message.lines().any(|line| line == "READY=1"), "{message}");
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "f")), "hello");
    // Only the passed socket, not the default address as well.
    let mounts = served
        .output
        .iter()
        .filter(|line| line.starts_with("mount "));
    assert_eq!(mounts.count(), 1, "{:?}", served.output);
    assert!(served.stop().success());
}

#[test]
fn a_connection_that_was_handed_over_is_served() {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let mut command = Command::new(BARGE);
    command
        .args(["serve", "mem:", "--9p", "fd:0"])
        .stdin(Stdio::from(OwnedFd::from(theirs)));
    let _served = ServerProcess::run(command);
    let client = ninep::sync::client::Client::new_from_unix_stream("root", "", ours);
    let entries = client.expect("attached").read_dir("/").expect("listed");
    assert!(entries.is_empty(), "{entries:?}");
}

#[test]
fn a_command_runs_with_the_address_and_its_status_is_ours() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("f"), "hello").expect("written");
    let script = r#"[ "$("$BARGE" cat "${BARGE_9P}f")" = hello ] && exit 7"#;
    let status = Command::new(BARGE)
        .args(["serve", "--9p", "tcp:127.0.0.1:0", "--run", script])
        .arg(dir.path())
        .env("BARGE", BARGE)
        .stdout(Stdio::null())
        .status()
        .expect("runs");
    assert_eq!(status.code(), Some(7));
}

#[test]
fn usage_is_status_2_and_what_cannot_be_done_status_1_with_one_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().to_str().expect("a name of text");
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let taken = format!("tcp:{}", taken.local_addr().expect("bound"));
    let cases: &[(&[&str], i32, &str)] = &[
        (&["serve", "--no-such-option"], 2, "--no-such-option"),
        (&["serve", dir, "--9p", "nonsense"], 2, "nonsense"),
        (&["serve", dir, "--map-uid", "1:2"], 2, "1:2"),
        (
            &["serve", dir, "--xattrmap", ":ok:both:::"],
            2,
            "expected client, server or all",
        ),
        (
            &["serve", "/no/such/place", "--9p", "tcp:127.0.0.1:0"],
            1,
            "/no/such/place",
        ),
        (&["serve", dir, "--9p", &taken], 1, "in use"),
        (&["ls", "9p://127.0.0.1:1/"], 1, "refused"),
    ];
    for (args, status, why) in cases {
        let output = Command::new(BARGE).args(*args).output().expect("runs");
        let told = stderr_of(&output);
        assert_eq!(output.status.code(), Some(*status), "{args:?}: {told}");
        assert!(told.contains(why), "{args:?}: {told}");
        if *status == 1 {
            let errors = told.lines().filter(|line| !line.contains(" INFO "));
            assert_eq!(errors.count(), 1, "{args:?}: {told}");
        }
    }
}

#[test]
fn a_signal_ends_it_with_clients_there() {
    let served = ServerProcess::start(&["mem:"]);
    let _client = TcpStream::connect(("127.0.0.1", served.port())).expect("connected");
    assert!(served.stop().success());
}

/// As a service manager or pkill(1) sends it.
#[test]
fn a_signal_to_all_processes_ends_it_cleanly() {
    let served = ServerProcess::start(&["mem:"]);
    let _client = TcpStream::connect(("127.0.0.1", served.port())).expect("connected");
    let serving = Pid::from_raw(served.serving_id() as i32).expect("a process");
    for _ in 0..3 {
        // It may have ended.
        let _ = kill_process(serving, Signal::TERM);
    }
    assert!(served.stop().success());
}

#[test]
fn a_hangup_without_files_to_read_again_ends_nothing_but_what_is_on_a_terminal() {
    // setsid(1): without a terminal, wherever this test runs.
    let mut command = Command::new("setsid");
    command.args([BARGE, "serve", "mem:", "--9p", "tcp:127.0.0.1:0"]);
    let served = ServerProcess::run(command);
    let pid = Pid::from_raw(served.id() as i32).expect("a process");
    kill_process(pid, Signal::HUP).expect("sent");
    assert_eq!(stdout_of(&served.barge(&["ls", "{}"], "")), "");
    assert!(served.stop().success());
}
