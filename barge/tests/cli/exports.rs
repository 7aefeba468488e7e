//! `--export`: the clients that may use each source, over 9P and NFS.

use std::process::{Command, Output};

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

fn barge(args: &[&str]) -> Output {
    Command::new(BARGE).args(args).output().expect("runs")
}

/// Returns the URL of NFS, from the printed mount command.
fn nfs_url(served: &ServerProcess, path: &str) -> String {
    let line = served.output.iter().find(|line| line.contains("vers=4.2"));
    let (_, port) = line.expect("a command").split_once("port=").expect("one");
    let port = port.split(' ').next().expect("a number");
    format!("nfs://127.0.0.1:{port}/{path}")
}

#[test]
fn who_is_not_listed_is_not_let_in_and_who_is_may_what_the_line_says() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("f"), "hello").expect("written");
    let path = dir.path().display();
    let sources = ["all", "other", "ro"].map(|name| format!("{name}={path}"));
    let served = ServerProcess::start(&[
        "--nfs",
        "tcp:127.0.0.1:0",
        "--export",
        "all 127.0.0.0/8(rw,no_root_squash)",
        "--export",
        "/other 127.0.0.2(rw) 10.0.0.0/8(ro)",
        "--export",
        "ro localhost(no_root_squash) 127.0.0.2(rw)",
        &sources[0],
        &sources[1],
        &sources[2],
    ]);
    let from = dir.path().join("f").display().to_string();
    let nine = |path: &str| format!("9p://127.0.0.1:{}/{path}", served.port());
    let urls: [&dyn Fn(&str) -> String; 2] = [&nine, &|path: &str| nfs_url(&served, path)];
    for (at, url) in urls.iter().enumerate() {
        assert_eq!(stdout_of(&barge(&["ls", &url("")])), "all\nro\n");
        assert_eq!(stdout_of(&barge(&["cat", &url("ro/f")])), "hello");
        stdout_of(&barge(&["cp", &from, &url(&format!("all/copy{at}"))]));
        let told = stderr_of(&barge(&["cp", &from, &url("ro/new")]));
        assert!(told.contains("Read-only file system"), "{told}");
        let told = stderr_of(&barge(&["ls", &url("other")]));
        assert!(told.contains("Permission denied"), "{told}");
    }
    assert!(served.stop().success());
}

#[test]
fn a_list_that_is_none_is_one_line_and_status_2() {
    for (line, why) in [
        ("/", "expected NAME CLIENT(OPTIONS), got '/'"),
        ("/ host(rw)", "got 'host'"),
        ("/ *(rw,sec=krb5)", "got 'sec=krb5'"),
        ("/ 10.0.0.1/8", "did you mean 10.0.0.0/8?"),
        ("/ * *(ro)", "'*' occurs twice"),
        ("data *", "expected '/', got '/data'"),
    ] {
        let refused = barge(&["serve", "mem:", "--export", line, "--run", "true"]);
        let told = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{line}: {told}");
        assert!(told.contains(why), "{line}: {told}");
    }
    let twice = ["--export", "/ *", "--export", "/ 10.0.0.0/8"];
    let refused = barge(&[&["serve", "mem:", "--run", "true"], &twice[..]].concat());
    let told = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(
        told.contains("expected one line for '/', got two"),
        "{told}"
    );
}
