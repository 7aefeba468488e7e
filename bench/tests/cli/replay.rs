//! A log of calls, and its replay.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{BENCH, barge};

/// Starts `barge serve` of a directory at `addr` and waits until it is ready.
fn serve(barge: &Path, share: &Path, addr: SocketAddr, record: &Path) -> Child {
    let mut command = Command::new(barge);
    command
        .args(["serve", "--9p", &format!("tcp:{addr}")])
        .arg("--record-calls")
        .args([record, share]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"), "it is not ready");
    child
}

/// Returns the standard output of a program that succeeded.
fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the standard error of a program that failed.
fn stderr_of(output: &Output) -> String {
    assert!(!output.status.success(), "it succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Replays a call log; returns its output and its JSON.
fn replay(record: &Path, source: &Path, more: &[&str]) -> (String, serde_json::Value) {
    let json = record.with_extension("json");
    let output = bench(
        record,
        source,
        &[more, &["--json", json.to_str().expect("text")]].concat(),
    );
    let json = std::fs::read(json).expect("written");
    (
        stdout_of(&output),
        serde_json::from_slice(&json).expect("JSON"),
    )
}

fn bench(record: &Path, source: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(BENCH);
    command.arg("replay").args([record, source]).args(more);
    command.output().expect("runs")
}

#[test]
fn calls_are_made_again_and_come_to_the_same_on_the_same_tree() {
    let Some(barge) = barge() else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let (share, record) = (dir.path().join("share"), dir.path().join("record"));
    std::fs::create_dir_all(share.join("sub")).expect("made");
    std::fs::write(share.join("sub/file"), vec![7; 100_000]).expect("written");
    for number in 0..300 {
        std::fs::write(share.join(format!("sub/{number}")), "x").expect("written");
    }
    let free = TcpListener::bind("127.0.0.1:0").expect("bound");
    let addr = free.local_addr().expect("an address");
    drop(free);
    let mut server = serve(&barge, &share, addr, &record);
    let url = |path: &str| format!("9p://{addr}/{path}");
    let run = |args: &[&str]| Command::new(&barge).args(args).output().expect("runs");
    assert_eq!(stdout_of(&run(&["cat", &url("sub/file")])).len(), 100_000);
    assert_eq!(stdout_of(&run(&["ls", &url("sub")])).lines().count(), 301);
    stderr_of(&run(&["cat", &url("sub/none")]));
    let copied = dir.path().join("copied");
    std::fs::write(&copied, vec![1; 50_000]).expect("written");
    stdout_of(&run(&["cp", copied.to_str().expect("text"), &url("new")]));
    kill_process(Pid::from_child(&server), Signal::TERM).expect("asked");
    assert!(server.wait().expect("ends").success());

    // By default, replay changes no file.
    std::fs::remove_file(share.join("new")).expect("removed");
    let (text, json) = replay(&record, &share, &[]);
    assert!(
        !share.join("new").exists() && text.contains("not made again: "),
        "{text}"
    );
    for op in ["root", "lookup", "open", "read", "readdir"] {
        let of = &json["operations"][op];
        assert!(
            of["calls"].as_u64().is_some_and(|calls| calls > 0),
            "{op}: {text}"
        );
        assert!(
            of["median"][0].as_u64().is_some_and(|nanos| nanos > 0),
            "{op}: {json}"
        );
    }
    for op in ["read", "readdir", "open"] {
        assert_eq!(json["operations"][op]["differences"], 0, "{text}");
    }
    assert!(
        json["not_made"]["write"]
            .as_u64()
            .is_some_and(|calls| calls > 0),
        "{text}"
    );
    let (text, json) = replay(&record, &share, &["--changes", "--paced"]);
    assert_eq!(
        std::fs::read(share.join("new")).expect("made").len(),
        50_000,
        "{text}"
    );
    assert_eq!(json["differences"], 0, "{text}");

    // Differences are reported.
    std::fs::write(share.join("sub/file"), "short").expect("written");
    let (text, json) = replay(&record, &share, &[]);
    assert!(
        json["operations"]["read"]["differences"]
            .as_u64()
            .is_some_and(|some| some > 0)
    );
    assert!(text.contains(" then, 5 now"), "{text}");
}

#[test]
fn what_is_no_record_is_told_by_its_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let record = dir.path().join("record");
    for (text, expected) in [
        (
            "{\"op\":\"root\",\"found\":1}\nnonsense\n",
            "line 2: expected a call",
        ),
        ("{\"op\":7}\n", "line 1: expected a call"),
    ] {
        std::fs::write(&record, text).expect("written");
        let said = stderr_of(&bench(&record, dir.path(), &[]));
        assert!(said.contains(expected), "{said}");
    }
    // Calls on unknown nodes and files are skipped.
    let strange = "{\"op\":\"lookup\",\"node\":9,\"name\":[255,47]}\n{\"op\":\"read\",\"file\":1,\"len\":18446744073709551615}\n{}\n";
    std::fs::write(&record, strange).expect("written");
    assert!(stdout_of(&bench(&record, dir.path(), &[])).contains("0 calls in"));
}
