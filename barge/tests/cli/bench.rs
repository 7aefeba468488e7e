//! `barge bench` starts `barge-bench`; help, man pages and completions need no such program.

use std::fs;
use std::path::Path;
use std::process::Command;

use vfs_testkit::{copy_program, write_program};

use crate::served::{BARGE, stderr_of, stdout_of};

/// Returns a command for a copy of the program in `dir`, without PATH.
fn alone(dir: &Path, args: &[&str]) -> Command {
    let barge = dir.join("barge");
    if !barge.exists() && fs::hard_link(BARGE, &barge).is_err() {
        copy_program(BARGE, &barge);
    }
    let mut command = Command::new(barge);
    command
        .args(args)
        .env("PATH", "/nonexistent")
        .env("HOME", dir);
    command
}

#[test]
fn the_program_gets_all_arguments_and_the_barge_that_was_started() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("barge-bench");
    write_program(&program, "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n");
    let output = alone(dir.path(), &["-v", "bench", "9p", "--only", "unix, read"]).output();
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(7));
    let this = dir.path().canonicalize().expect("a path").join("barge");
    let expected = format!("-v\n9p\n--only\nunix, read\n--barge\n{}\n", this.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn without_the_program_one_line_says_how_to_get_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = alone(dir.path(), &["bench", "9p"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1));
    let message = stderr_of(&output);
    assert!(
        message.starts_with("barge: barge-bench is neither"),
        "{message}"
    );
    assert!(
        message.contains("cargo build --release -p barge-bench"),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn help_man_page_and_completions_know_its_options() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |args: &[&str]| stdout_of(&alone(dir.path(), args).output().expect("runs"));
    let help = run(&["bench", "--help"]);
    let page = run(&["man", "bench"]);
    let completions = run(&["completions", "bash"]);
    for part in ["quick", "virtiofs", "barge"] {
        for text in [&help, &page, &completions] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    run(&["man", "--all", dir.path().to_str().expect("text")]);
    let page = fs::read_to_string(dir.path().join("barge-bench.1")).expect("a page");
    assert!(page.contains("quick"), "{page}");
}
