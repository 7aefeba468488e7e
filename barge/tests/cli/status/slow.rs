//! `--slow-ms`: lines and counts of requests that take long.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use p9::{Fid, Names, Tmessage};
use serde_json::Value;
use vfs_testkit::wait_until;

use super::counts::Client;
use super::{get, http};
use crate::served::{BARGE, ServerProcess, stdout_of};

/// The time that each reply of a [`slow_path`] takes.
const DELAY: Duration = Duration::from_millis(20);

/// Forwards connections to the server at `port`, and each reply after [`DELAY`]. Returns the port
/// to connect to.
pub(super) fn slow_path(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let own = listener.local_addr().expect("an address").port();
    let forward = |mut from: TcpStream, mut to: TcpStream, delay: Duration| {
        let mut buffer = [0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            thread::sleep(delay);
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    };
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("connected");
            let other = (client.try_clone(), server.try_clone());
            let (Ok(client_too), Ok(server_too)) = other else {
                return;
            };
            thread::spawn(move || forward(client, server, Duration::ZERO));
            thread::spawn(move || forward(server_too, client_too, DELAY));
        }
    });
    own
}

#[test]
fn a_slow_request_is_logged_with_its_share_and_path_and_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("sub")).expect("made");
    std::fs::write(dir.path().join("sub/file"), "contents").expect("written");
    let origin = ServerProcess::start(&[dir.path().to_str().expect("text")]);
    let source = format!("data=9p://127.0.0.1:{}/", slow_path(origin.port()));
    let log = dir.path().join("log");
    let start = |options: &[&str]| {
        let mut command = Command::new(BARGE);
        command.args(["serve", "--9p", "tcp:127.0.0.1:0", &source, "--http", "0"]);
        command.args(["--log-format", "json"]).args(options);
        command.stderr(Stdio::from(File::create(&log).expect("made")));
        ServerProcess::run(command)
    };
    let slow_lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).expect("a log");
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let is_slow = |line: &Value| line["message"] == "slow request";
        lines.filter(is_slow).collect()
    };
    let served = start(&["--slow-ms", "10"]);
    let read = || {
        let mut client = Client::of_share(served.port(), b"data");
        for message in [
            Tmessage::Walk {
                fid: Fid(0),
                newfid: Fid(1),
                names: Names::new(&[b"sub", b"file"]),
            },
            Tmessage::Lopen {
                fid: Fid(1),
                flags: 0,
            },
            Tmessage::Read {
                fid: Fid(1),
                offset: 2,
                count: 100,
            },
        ] {
            client.call(message);
        }
    };
    read();
    let find = |request: &str| {
        let mut lines = slow_lines().into_iter();
        lines.find(|line| line["request"] == request)
    };
    wait_until("a line about the read", || find("Tread").is_some());
    let line = find("Tread").expect("found");
    assert_eq!(line["protocol"], "9p", "{line}");
    assert_eq!(line["share"], "data", "{line}");
    assert_eq!(line["name"], "/sub/file", "{line}");
    assert_eq!(line["offset"], 2, "{line}");
    assert!(line["inode"].as_u64().is_some(), "{line}");
    assert!(
        line["sent"].as_u64().is_some_and(|sent| sent == 7 + 4 + 6),
        "{line}"
    );
    let client = line["client"].as_str().unwrap_or_default();
    assert!(client.contains("127.0.0.1"), "{line}");
    let duration = line["duration_ms"].as_f64().expect("a number");
    assert!(duration >= 10.0, "{line}");
    assert!(line["queued_ms"].as_f64().is_some(), "{line}");
    let metrics = get(&http(&served), "/metrics");
    let count = metrics
        .lines()
        .find_map(|line| line.strip_prefix("barge_slow_requests_total{protocol=\"9p\"} "));
    let count: usize = count.expect("counted").parse().expect("a number");
    assert!(count >= slow_lines().len() && count > 0);
    drop(served);
    // Off by default.
    let served = start(&[]);
    let read = served.barge(&["cat", "{}"], "data/sub/file");
    assert_eq!(stdout_of(&read), "contents");
    assert!(!get(&http(&served), "/metrics").contains("barge_slow_requests_total{"));
    assert!(slow_lines().is_empty());
}

/// Returns the port in a server's command that mounts NFS.
fn nfs_port(served: &ServerProcess) -> u16 {
    let port = served.output.iter().find_map(|line| {
        let (_, rest) = line.split_once("-t nfs")?.1.split_once(",port=")?;
        rest.split([',', ' ']).next()?.parse().ok()
    });
    port.unwrap_or_else(|| panic!("a port in {:?}", served.output))
}

#[test]
fn lines_of_all_protocols_have_the_share_of_several() {
    let dir = tempfile::tempdir().expect("a directory");
    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).expect("made");
    std::fs::write(shared.join("file"), "contents").expect("written");
    let nfs_addr = "tcp:127.0.0.1:0";
    let origin = ServerProcess::start(&[shared.to_str().expect("text"), "--nfs", nfs_addr]);
    // A tree over 9P has no file handles.
    let source = format!("data=nfs://127.0.0.1:{}/", slow_path(nfs_port(&origin)));
    let socket = dir.path().join("socket");
    let socket = socket.to_str().expect("text");
    for (options, protocol, query) in [
        (["--nfs", nfs_addr], "nfs", "?vers=3"),
        (["--nfs", nfs_addr], "nfs", "?vers=4.2"),
        (["--virtiofs", socket], "fuse", ""),
    ] {
        let log = dir.path().join("log");
        let mut command = Command::new(BARGE);
        command.args(["serve", &source, "other=mem:", "--slow-ms", "10"]);
        command.args(["--log-format", "json"]).args(options);
        command.stderr(Stdio::from(File::create(&log).expect("made")));
        let served = ServerProcess::run(command);
        let url = match protocol {
            "nfs" => format!("nfs://127.0.0.1:{}/data{query}", nfs_port(&served)),
            _ => format!("virtiofs:{socket}/data"),
        };
        let list = Command::new(BARGE).args(["ls", &url]).output();
        assert_eq!(stdout_of(&list.expect("runs")), "file\n");
        let found = || {
            let text = std::fs::read_to_string(&log).expect("a log");
            let lines = text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            let mut slow = lines.filter(|line: &Value| line["message"] == "slow request");
            slow.any(|line| {
                line["protocol"] == protocol && line["share"] == "data" && line["inode"].is_u64()
            })
        };
        wait_until("a line with the object", found);
    }
}

#[test]
fn a_time_of_zero_is_no_time() {
    for args in [["serve", "--slow-ms", "0"], ["serve", "--slow-ms", "x"]] {
        let output = Command::new(BARGE).args(args).output().expect("runs");
        assert_eq!(output.status.code(), Some(2));
    }
    let output = Command::new(BARGE)
        .args(["mount", "mem:", "/nonexistent", "-o", "slow_ms=0"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(2));
}
