//! Tests of the program: reports, brief measurements, and replays of call logs.

#[path = "../../../barge/tests/cli/browser.rs"]
mod browser;
mod replay;
mod report;
mod tables;

use std::path::PathBuf;
use std::process::{Command, Output};

/// The path of the program.
const BENCH: &str = env!("CARGO_BIN_EXE_barge-bench");

/// Runs the program.
fn bench(args: &[&str]) -> Output {
    Command::new(BENCH).args(args).output().expect("runs")
}

/// Returns the path of `barge`, the program to measure. Prints that the test is skipped if it is
/// not built.
fn barge() -> Option<PathBuf> {
    let barge = PathBuf::from(BENCH).with_file_name("barge");
    if !barge.is_file() {
        eprintln!("skipped: barge has not been built");
        return None;
    }
    Some(barge)
}

#[test]
fn help_is_that_of_barge_bench() {
    let help = String::from_utf8(bench(&["--help"]).stdout).expect("text");
    for part in ["virtiofs", "--quick", "--barge <PATH>", "--json <FILE>"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

#[test]
fn a_program_that_cannot_be_run_is_named() {
    let failed = bench(&["9p", "--barge", "/nonexistent/barge"]);
    assert_eq!(failed.status.code(), Some(1));
    let message = String::from_utf8_lossy(&failed.stderr);
    assert!(message.contains("/nonexistent/barge: "), "{message}");
}
