//! Several sources as one share.

use std::path::Path;

use tempfile::TempDir;

use crate::served::{BARGE, ServerProcess, stderr_of, stdout_of};

/// Makes a directory with `a` and `b` in it, each with a file that contains its name.
fn place() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["a", "b"] {
        std::fs::create_dir(dir.path().join(name)).expect("made");
        std::fs::write(dir.path().join(name).join("file"), name).expect("written");
    }
    dir
}

fn sources(dir: &Path) -> [String; 2] {
    ["a", "b"].map(|name| format!("{name}={}", dir.join(name).display()))
}

fn barge(args: &[&str]) -> std::process::Output {
    std::process::Command::new(BARGE)
        .args(args)
        .output()
        .expect("runs")
}

#[test]
fn a_socket_without_a_name_shows_all_sources() {
    let dir = place();
    let [a, b] = sources(dir.path());
    let socket = |name: &str| dir.path().join(name).display().to_string();
    let of_b = format!("b={}", socket("only-b"));
    let args = ["--virtiofs", &socket("all"), "--virtiofs", &of_b, &a, &b];
    let served = ServerProcess::start(&args);
    let all = |path: &str| format!("virtiofs:{}{path}", socket("all"));
    assert_eq!(stdout_of(&barge(&["ls", &all("")])), "a\nb\n");
    assert_eq!(stdout_of(&barge(&["cat", &all("/a/file")])), "a");
    assert_eq!(stdout_of(&barge(&["cat", &all("/b/file")])), "b");
    let from = dir.path().join("a/file").display().to_string();
    stdout_of(&barge(&["cp", &from, &all("/b/copy")]));
    // A file created through one mount is visible in the other.
    let only_b = format!("virtiofs:{}", socket("only-b"));
    assert_eq!(stdout_of(&barge(&["ls", &only_b])), "copy\nfile\n");
    let told = stderr_of(&barge(&["cp", &from, &all("/new")]));
    assert!(told.contains("Read-only file system"), "{told}");
    assert!(served.stop().success());
}

#[test]
fn an_attach_without_a_name_shows_all_sources() {
    let dir = place();
    let [a, b] = sources(dir.path());
    let served = ServerProcess::start(&[&a, &b]);
    let mounts = served
        .output
        .iter()
        .filter(|line| line.starts_with("mount "));
    let anames = mounts.map(|line| line.contains("aname="));
    assert_eq!(anames.collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(stdout_of(&served.barge(&["ls", "{}"], "")), "a\nb\n");
    assert_eq!(stdout_of(&served.barge(&["cat", "{}"], "a/file")), "a");
    assert!(served.stop().success());
}

#[test]
fn an_attach_without_a_name_is_to_the_only_source_whatever_its_name() {
    let dir = place();
    let served = ServerProcess::start(&[&sources(dir.path())[0]]);
    assert_eq!(stdout_of(&served.barge(&["ls", "{}"], "")), "file\n");
    for path in ["a/file", "file"] {
        assert_eq!(
            stdout_of(&served.barge(&["cat", "{}"], path)),
            "a",
            "{path}"
        );
    }
    assert!(served.stop().success());
}

#[test]
fn a_name_that_no_source_has_is_refused() {
    let dir = place();
    let [a, b] = sources(dir.path());
    let told = stderr_of(&barge(&["serve", &a, &b, "--virtiofs", "c=/run/socket"]));
    assert!(told.contains("expected the name of a source"), "{told}");
    let told = stderr_of(&barge(&["serve", &a, "..=/tmp"]));
    assert!(told.contains("invalid name"), "{told}");
}
