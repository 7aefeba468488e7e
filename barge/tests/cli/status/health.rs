//! `/healthz`, `/livez` and `/readyz`, with failures.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use p9::{Fid, Names, Tmessage};
use rustix::process::{Pid, Signal, kill_process};
use vfs_testkit::wait_until;

use super::counts::Client;
use super::{ask, get, http};
use crate::served::{BARGE, ServerProcess, stdout_of};

/// Returns the status and the body of a health check.
fn health(at: &str) -> (String, String) {
    probe(at, "/healthz")
}

/// Waits until a health check fails, and returns its status and body.
fn ill(at: &str) -> (String, String) {
    let mut answer = Default::default();
    wait_until("a health check fails", || {
        answer = health(at);
        answer.0 != "200"
    });
    answer
}

/// Returns the status and the body of the check at `path`.
pub(crate) fn probe(at: &str, path: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n");
    let answer = ask(at, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    (status.to_owned(), body.to_owned())
}

#[test]
fn a_listener_that_has_ended_is_no_health() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let ours = OwnedFd::from(listener.try_clone().expect("a descriptor"));
    let mut command = Command::new(BARGE);
    command
        .args(["serve", "mem:", "--9p", "fd:0", "--http", "0"])
        .stdin(Stdio::from(OwnedFd::from(listener)));
    let served = ServerProcess::run(command);
    let at = http(&served);
    assert_eq!(get(&at, "/healthz"), "ok\n");
    // accept(2) of a socket that no longer listens is EINVAL, for all descriptors of the socket.
    rustix::net::shutdown(ours.as_fd(), rustix::net::Shutdown::Both).expect("shut down");
    let answer = ill(&at);
    assert_eq!(answer.0, "503");
    assert!(
        answer.1.starts_with("no longer listening at "),
        "{}",
        answer.1
    );
    drop(served);
}

#[test]
fn a_source_that_is_gone_is_no_health() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    std::fs::create_dir(&source).expect("made");
    let path = source.to_str().expect("text");
    let served = ServerProcess::start(&[path, "--9p", "tcp:127.0.0.1:0", "--http", "0"]);
    let at = http(&served);
    assert_eq!(get(&at, "/healthz"), "ok\n");
    std::fs::remove_dir(&source).expect("removed");
    // A result is cached for a second.
    let answer = ill(&at);
    let expected = format!("{path}: has been removed\n");
    assert_eq!(answer, ("503".into(), expected));
}

#[test]
fn refused_clients_are_counted_by_reason() {
    let served = ServerProcess::start(&[
        "mem:",
        "--9p",
        "tcp:127.0.0.1:0",
        "--http",
        "0",
        "--max-connections-per-client",
        "0",
    ]);
    let at = http(&served);
    let port = served.port();
    let mut refused = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let end = std::io::Read::read(&mut refused, &mut [0]);
    assert!(matches!(end, Ok(0) | Err(_)));
    let metrics = get(&at, "/metrics");
    let line = "barge_connections_refused_total{reason=\"client-connections\"} 1";
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    let status = get(&at, "/status.json");
    assert!(status.contains("\"client-connections\":1"), "{status}");
}

#[test]
fn a_server_is_ready_while_its_source_on_another_server_answers() {
    let origin = ServerProcess::start(&["mem:"]);
    let source = format!("far=9p://127.0.0.1:{}/", origin.port());
    let served = ServerProcess::start(&[&source, "near=mem:", "--http", "0"]);
    let at = http(&served);
    let good = "[+]state ok\n[+]listeners ok\n[+]source/far ok\n[+]source/near ok\n\
                readyz check passed\n";
    assert_eq!(probe(&at, "/readyz"), ("200".into(), "ok\n".into()));
    assert_eq!(probe(&at, "/readyz?verbose"), ("200".into(), good.into()));
    let live = "[+]listeners ok\nlivez check passed\n";
    assert_eq!(probe(&at, "/livez?verbose=1"), ("200".into(), live.into()));
    let signal = |signal| {
        let pid = Pid::from_raw(origin.serving_id() as i32).expect("a process");
        kill_process(pid, signal).expect("sent");
    };
    signal(Signal::STOP);
    // The results of the first checks may be recent enough.
    wait_until("the source does not answer", || {
        probe(&at, "/readyz").0 == "503"
    });
    let (status, body) = probe(&at, "/readyz");
    assert_eq!(status, "503");
    let problem = format!("[-]source/far failed: {}: ", &source[4..]);
    assert!(body.contains(&problem), "{body}");
    assert!(body.contains("[+]source/near ok\n"), "{body}");
    assert!(body.ends_with("readyz check failed\n"), "{body}");
    assert_eq!(health(&at).0, "503");
    assert_eq!(probe(&at, "/livez"), ("200".into(), "ok\n".into()));
    assert!(get(&at, "/metrics").contains("\nbarge_ready 0"));
    signal(Signal::CONT);
    wait_until("it answers again", || probe(&at, "/readyz").0 == "200");
    assert!(get(&at, "/metrics").contains("\nbarge_ready 1"));
}

#[test]
fn a_server_that_drains_is_not_ready() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = format!("unix:{}", dir.path().join("control").display());
    let served = ServerProcess::start(&["a=mem:", "--http", "0", "--control", &socket]);
    let at = http(&served);
    assert_eq!(probe(&at, "/readyz").0, "200");
    let ctl = |args: &[&str]| {
        let mut command = Command::new(BARGE);
        command.args(["ctl", "--control", &socket]).args(args);
        command.stdout(Stdio::piped());
        command
    };
    // The second lock waits for the first one, so that a request is in flight.
    let mut clients = [0, 1].map(|_| Client::of_share(served.port(), b"a"));
    let lock = |id: u32| Tmessage::Lock {
        fid: Fid(1),
        kind: 1,
        flags: 1,
        start: 0,
        length: 0,
        proc_id: id,
        client_id: b"test",
    };
    for (at, client) in clients.iter_mut().enumerate() {
        client.call(Tmessage::Walk {
            fid: Fid(0),
            newfid: Fid(1),
            names: Names::new(&[&b"f"[..]][..at]),
        });
        client.call(match at {
            0 => Tmessage::Lcreate {
                fid: Fid(1),
                name: b"f",
                flags: 2,
                mode: 0o600,
                gid: 0,
            },
            _ => Tmessage::Lopen {
                fid: Fid(1),
                flags: 2,
            },
        });
    }
    let [holder, waiter] = &mut clients;
    holder.call(lock(1));
    waiter.send(lock(2));
    let status = || get(&at, "/metrics");
    wait_until("the lock waits", || {
        status().contains("barge_requests_parked 1")
    });
    let mut drain = ctl(&["drain", "a", "--timeout", "60"]);
    let drain = drain.spawn().expect("runs");
    wait_until("it drains", || probe(&at, "/readyz").0 == "503");
    let problem = "[-]state failed: all shares or endpoints are being drained\n";
    let (_, body) = probe(&at, "/readyz");
    assert!(body.starts_with(problem), "{body}");
    assert_eq!(health(&at).0, "200");
    drop(clients);
    let drained = drain.wait_with_output().expect("ends");
    assert_eq!(stdout_of(&drained), "");
    // It waits for requests that add shares.
    assert_eq!(probe(&at, "/readyz").0, "200");
}
