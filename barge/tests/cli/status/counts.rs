//! The statistics agree with the requests made.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use p9::{Dialect, Fid, Names, Tag, Tmessage, Uid};
use vfs_testkit::wait_until;

use super::{get, http};
use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// Returns the metrics by name and labels.
fn metrics(at: &str) -> HashMap<String, f64> {
    let text = get(at, "/metrics");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(parse).collect()
}

/// A 9P connection with hand-made messages.
pub(super) struct Client(TcpStream);

impl Client {
    pub(super) fn new(port: u16) -> Client {
        Client::of_share(port, b"")
    }

    /// Returns a connection whose fid 0 is the root of the share `name`.
    pub(super) fn of_share(port: u16, name: &[u8]) -> Client {
        let mut client = Client(TcpStream::connect(("127.0.0.1", port)).expect("connected"));
        client.call(Tmessage::Version {
            msize: 8192,
            version: b"9P2000.L",
        });
        client.call(Tmessage::Attach {
            fid: Fid(0),
            afid: Fid::NONE,
            uname: b"",
            aname: name,
            n_uname: Uid(0),
        });
        client
    }

    pub(super) fn call(&mut self, message: Tmessage<'_>) {
        self.send(message);
        let mut size = [0; 4];
        self.0.read_exact(&mut size).expect("a reply");
        let mut rest = vec![0; u32::from_le_bytes(size) as usize - 4];
        self.0.read_exact(&mut rest).expect("all of it");
    }

    /// Sends a request without waiting for its reply.
    pub(super) fn send(&mut self, message: Tmessage<'_>) {
        let tag = match message {
            Tmessage::Version { .. } => Tag::NONE,
            _ => Tag(1),
        };
        let mut bytes = Vec::new();
        message.encode(Dialect::Linux, tag, &mut bytes);
        self.0.write_all(&bytes).expect("sent");
    }
}

#[test]
fn every_request_is_counted_once_and_for_ever() {
    let served = ServerProcess::start(&["mem:", "--http", "0"]);
    let at = http(&served);
    assert_eq!(get(&at, "/healthz"), "ok\n");
    let mut client = Client::new(served.port());
    for _ in 0..40 {
        client.call(Tmessage::Getattr {
            fid: Fid(0),
            mask: 0x7ff,
        });
    }
    for name in ["a", "b", "c"] {
        client.call(Tmessage::Walk {
            fid: Fid(0),
            newfid: Fid(1),
            names: Names::new(&[name.as_bytes()]),
        });
    }
    let check = |connections: f64| {
        let now = metrics(&at);
        let op = |op: &str| {
            now[&format!("barge_operation_seconds_count{{protocol=\"9p\",op=\"{op}\"}}")]
        };
        assert_eq!(
            ["Tversion", "Tattach", "Tgetattr", "Twalk"].map(op),
            [1.0, 1.0, 40.0, 3.0]
        );
        let all = "barge_operation_seconds_bucket{le=\"+Inf\",protocol=\"9p\",op=\"Tgetattr\"}";
        assert_eq!(now.get(all), Some(&40.0), "{now:?}");
        let failed = "barge_operation_errors_total{protocol=\"9p\",op=\"Twalk\",errno=\"ENOENT\"}";
        assert_eq!(now[failed], 3.0);
        assert_eq!(now["barge_requests_total"], 45.0);
        assert!(now["barge_received_bytes_total"] > 45.0 * 7.0);
        now["barge_connections"] == connections
    };
    assert!(check(1.0));
    let status = get(&at, "/status.json");
    for part in ["\"9P2000.L\"", "\"uid 0 at /\"", "\"source\":\"mem:\""] {
        assert!(status.contains(part), "{part} in {status}");
    }
    drop(client);
    // The counts of a connection stay after it is closed.
    wait_until("the connection is closed", || check(0.0));
}

#[test]
fn the_build_in_the_metrics_is_that_of_the_version() {
    let run = |option: &str| Command::new(BARGE).arg(option).output().expect("runs");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(stdout_of(&run("-V")), format!("barge {version}\n"));
    let long = stdout_of(&run("--version"));
    let lines: Vec<&str> = long.lines().collect();
    let [name, commit, features, rustc] = lines[..] else {
        panic!("{long}");
    };
    assert_eq!(name, format!("barge {version}"));
    let value = |line: &str, key: &str, absent: &str| {
        let value = line.strip_prefix(key).expect(key);
        value.replace(absent, "")
    };
    let build = format!(
        "barge_build_info{{version=\"{version}\",commit=\"{}\",features=\"{}\",rustc=\"{}\"}}",
        value(commit, "commit: ", "unknown"),
        value(features, "features: ", "none"),
        value(rustc, "rustc: ", "")
    );
    let served = ServerProcess::start(&["mem:", "--http", "0"]);
    let now = metrics(&http(&served));
    assert_eq!(now.get(&build), Some(&1.0), "{build}");
    // A page does not depend on the build.
    let page = Command::new(BARGE).arg("man").output().expect("runs");
    assert!(!stdout_of(&page).contains("rustc"));
}

#[test]
fn requests_to_the_server_of_a_source_are_measured_and_their_failures_counted() {
    let origin = ServerProcess::start(&["mem:"]);
    let source = format!("far=9p://127.0.0.1:{}/?soft&timeo=5", origin.port());
    let served = ServerProcess::start(&[&source, "near=mem:", "--http", "0"]);
    let at = http(&served);
    let value = |name: &str, export: &str| {
        let name = format!("barge_remote_{name}{{export=\"{export}\"}}");
        metrics(&at).get(&name).copied()
    };
    assert_eq!(value("request_seconds_count", "near"), None);
    let list = |name: &str| served.barge(&["ls", "{}"], name);
    assert_eq!(stdout_of(&list("far")), "");
    let count = value("request_seconds_count", "far").expect("counted");
    let sum = value("request_seconds_sum", "far").expect("counted");
    assert!(count >= 2.0 && sum > 0.0 && sum < 60.0, "{count} {sum}");
    assert_eq!(value("errors_total", "far"), Some(0.0));
    drop(origin);
    stderr_of(&list("far"));
    let failed = value("errors_total", "far").expect("counted");
    assert!(failed >= 1.0, "{failed}");
    assert!(value("request_seconds_count", "far") > Some(count));
}

#[test]
fn each_protocol_has_its_words() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("file"), "contents").expect("written");
    let socket = dir.path().join("virtiofs.sock");
    let share = dir.path().to_str().expect("a name");
    let socket = socket.to_str().expect("a name");
    let nfs = ["--nfs", "tcp:127.0.0.1:0", "--virtiofs", socket];
    let served = ServerProcess::start(&[&[share, "--http", "0"], &nfs[..]].concat());
    let at = http(&served);
    let port = served.output.iter().find_map(|line| {
        let (_, rest) = line.split_once("-t nfs")?.1.split_once(",port=")?;
        rest.split([',', ' ']).next()?.parse::<u16>().ok()
    });
    let port = port.expect("a port");
    for source in [
        format!("nfs://127.0.0.1:{port}/file?vers=3"),
        format!("nfs://127.0.0.1:{port}/file?vers=4.2"),
        format!("virtiofs:{socket}/file"),
    ] {
        let cat = Command::new(BARGE)
            .args(["cat", &source])
            .output()
            .expect("runs");
        assert_eq!(stdout_of(&cat), "contents");
    }
    let now = metrics(&at);
    for (protocol, op) in [
        ("nfs", "NFS3_READ"),
        ("nfs", "NFS4_EXCHANGE_ID"),
        ("nfs", "NFS4_OPEN"),
        ("fuse", "FUSE_INIT"),
        ("fuse", "FUSE_READ"),
        ("fuse", "FUSE_LOOKUP"),
    ] {
        let name = format!("barge_operation_seconds_count{{protocol=\"{protocol}\",op=\"{op}\"}}");
        assert!(
            now.get(&name).is_some_and(|count| *count > 0.0),
            "{name} in {now:?}"
        );
    }
    // Each request has one kind.
    let counts = now
        .iter()
        .filter(|(name, _)| name.starts_with("barge_operation_seconds_count"));
    assert_eq!(
        counts.map(|(_, count)| count).sum::<f64>(),
        now["barge_requests_total"]
    );
}

#[test]
fn an_images_cache_is_seen() {
    if !crate::served::has("mkfs.erofs") {
        eprintln!("skipped: mkfs.erofs is missing (Debian's package erofs-utils)");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("tree")).expect("made");
    std::fs::write(dir.path().join("tree/file"), vec![7; 100_000]).expect("written");
    let image = dir.path().join("image");
    let mut command = Command::new("mkfs.erofs");
    command
        .arg("-zlz4")
        .arg(&image)
        .arg(dir.path().join("tree"));
    let made = command.stdout(Stdio::null()).status().expect("runs");
    assert!(made.success());
    let served = ServerProcess::start(&[image.to_str().expect("a name"), "--http", "0"]);
    assert_eq!(
        stdout_of(&served.barge(&["cat", "{}"], "file")).len(),
        100_000
    );
    let now = metrics(&http(&served));
    assert!(
        now["barge_cache_lookups_total{export=\"\",found=\"miss\"}"] > 0.0,
        "{now:?}"
    );
    assert!(now["barge_cache_bytes{export=\"\"}"] > 0.0);
}

#[test]
fn top_shows_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = format!("unix:{}", dir.path().join("http.sock").display());
    let served = ServerProcess::start(&["mem:", "--http", &socket]);
    let mut client = Client::new(served.port());
    client.call(Tmessage::Statfs { fid: Fid(0) });
    let top = |args: &[&str]| {
        let mut command = Command::new(BARGE);
        command
            .args(["top", &socket])
            .args(args)
            .output()
            .expect("runs")
    };
    // Without a terminal it prints once.
    let text = stdout_of(&top(&[]));
    for part in [
        "1 connections",
        "Tstatfs",
        "9P2000.L",
        "uid 0 at /",
        "/ is mem:",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json = stdout_of(&top(&["--json", "--once"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["done"]["requests"], 3);
    drop(served);
    let gone = stderr_of(&top(&["--once"]));
    assert!(
        gone.contains("is a server running there with --http?"),
        "{gone}"
    );
}

#[test]
fn a_log_line_says_of_which_request_it_is() {
    let mut command = Command::new(BARGE);
    command.args([
        "serve",
        "mem:",
        "--9p",
        "tcp:127.0.0.1:0",
        "-vv",
        "--log-format",
        "json",
    ]);
    let log = tempfile::NamedTempFile::new().expect("a file");
    command.stderr(log.reopen().expect("opened"));
    let served = ServerProcess::run(command);
    let mut client = Client::new(served.port());
    client.call(Tmessage::Statfs { fid: Fid(0) });
    drop(client);
    served.stop();
    let text = std::fs::read_to_string(log.path()).expect("a log");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<serde_json::Value> = lines.collect();
    let line = |field: &str, value: &str| {
        let found = lines.iter().find(|line| line[field] == value);
        found.unwrap_or_else(|| panic!("{field} {value} in {text}"))["span"].clone()
    };
    // The counts of the protocol and of the source agree.
    let asked = line("kind", "Statfs");
    assert_eq!(asked, line("op", "statfs"));
    assert_eq!(
        (asked["conn"].clone(), asked["id"].clone()),
        (1.into(), 3.into())
    );
}
