//! 9P: diod's tools (9P2000.L), and a library of 9P2000.

use std::process::{Command, Output};

use ninep::fs::{Mode, Perm};
use ninep::sync::client::Client;

use crate::served::{ServerProcess, has, stdout_of};

/// Runs one of diod's tools on a server. Returns `None` with a message if it is not installed.
fn tool(name: &str, served: &ServerProcess, args: &[&str]) -> Option<Output> {
    if !has(name) && !has(&format!("../sbin/{name}")) {
        eprintln!("skipped: {name} (Debian's package diod) is not installed");
        return None;
    }
    let server = format!("127.0.0.1:{}", served.port());
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(name)
        .env("PATH", format!("{path}:/usr/sbin"))
        .args(["-s", &server])
        .args(args)
        .output()
        .expect("runs");
    Some(output)
}

#[test]
fn diods_tools_list_and_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let big: String = (0..100_000).map(|line| format!("{line}\n")).collect();
    std::fs::create_dir(dir.path().join("sub")).expect("made");
    std::fs::write(dir.path().join("sub/big"), &big).expect("written");
    let served = ServerProcess::start(&[&format!("files={}", dir.path().display()), "other=mem:"]);
    let Some(listed) = tool("diodls", &served, &["-a", "files", "-l", "sub"]) else {
        return;
    };
    let listed = stdout_of(&listed);
    assert!(
        listed.contains(&big.len().to_string()) && listed.contains("big"),
        "{listed}"
    );
    let read = tool("diodcat", &served, &["-a", "files", "sub/big"]).expect("installed");
    assert!(stdout_of(&read) == big);
    let other = tool("diodls", &served, &["-a", "other"]).expect("installed");
    assert_eq!(stdout_of(&other), "");
    let wrong = tool("diodls", &served, &["-a", "nowhere"]).expect("installed");
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(told.contains("No such file or directory"), "{told}");
}

#[test]
fn diods_load_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let zero = std::fs::File::create(dir.path().join("zero")).expect("made");
    zero.set_len(1 << 20).expect("sized");
    std::fs::write(dir.path().join("null"), "").expect("made");
    let served = ServerProcess::start(&[&format!("ctl={}", dir.path().display())]);
    for attributes in [&[][..], &["-g"]] {
        let args = [&["-r", "1", "-n", "4"], attributes].concat();
        let Some(load) = tool("diodload", &served, &args) else {
            return;
        };
        let told = String::from_utf8_lossy(&load.stderr).into_owned();
        let rate = told
            .split_whitespace()
            .nth(1)
            .and_then(|rate| rate.parse::<u64>().ok());
        assert!(rate.is_some_and(|rate| rate > 0), "{told}");
    }
}

#[test]
fn a_library_of_9p2000_works_in_a_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("f"), "hello").expect("written");
    let served = ServerProcess::start(&[dir.path().to_str().expect("text")]);
    let client = Client::new_tcp("root", ("127.0.0.1", served.port()), "").expect("attached");
    assert_eq!(client.read_str("f").expect("read"), "hello");
    client
        .create("", "made", Perm::new(0o640), Mode::new(0))
        .expect("created");
    // Creating and writing leave the fid open, and this client would open it again.
    client.clunk_path("made").expect("clunked");
    let long = "x".repeat(100_000);
    assert_eq!(
        client.write_str("made", 0, &long).expect("written"),
        long.len()
    );
    client.clunk_path("made").expect("clunked");
    assert!(client.read_str("made").expect("read") == long);
    assert_eq!(client.stat("made").expect("there").n_bytes, 100_000);
    let mut names: Vec<_> = client
        .read_dir("")
        .expect("listed")
        .into_iter()
        .map(|stat| stat.name)
        .collect();
    names.sort();
    assert_eq!(names, ["f", "made"]);
    client.remove("made").expect("removed");
    assert!(client.stat("made").is_err());
    assert!(!dir.path().join("made").exists());
}
