//! `/healthz` with failures.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use super::{ask, get, http};
use crate::served::{BARGE, ServerProcess};

/// Returns the status and the body of a health check.
fn health(at: &str) -> (String, String) {
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {at}\r\n\r\n");
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
    let mut answer = health(&at);
    while answer.0 == "200" {
        answer = health(&at);
    }
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
    let mut answer = health(&at);
    while answer.0 == "200" {
        answer = health(&at);
    }
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
