//! A log of calls, and its replay.

use std::path::Path;
use std::process::{Command, Output};

use crate::served::{BARGE, Served, complained, said};

/// Runs `barge bench replay` of a log; returns its output and its JSON.
fn replay(record: &Path, source: &Path, more: &[&str]) -> (String, serde_json::Value) {
    let json = record.with_extension("json");
    let output = bench(
        record,
        source,
        &[more, &["--json", json.to_str().expect("text")]].concat(),
    );
    let json = std::fs::read(json).expect("written");
    (said(&output), serde_json::from_slice(&json).expect("JSON"))
}

fn bench(record: &Path, source: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(BARGE);
    command
        .args(["bench", "replay"])
        .arg(record)
        .arg(source)
        .args(more);
    command.output().expect("runs")
}

#[test]
fn calls_are_made_again_and_come_to_the_same_on_the_same_tree() {
    let dir = tempfile::tempdir().expect("a directory");
    let (share, record) = (dir.path().join("share"), dir.path().join("record"));
    std::fs::create_dir_all(share.join("sub")).expect("made");
    std::fs::write(share.join("sub/file"), vec![7; 100_000]).expect("written");
    for number in 0..300 {
        std::fs::write(share.join(format!("sub/{number}")), "x").expect("written");
    }
    let path = |path: &Path| path.to_str().expect("text").to_owned();
    let served = Served::start(&[&path(&share), "--record-calls", &path(&record)]);
    assert_eq!(
        said(&served.barge(&["cat", "{}"], "sub/file")).len(),
        100_000
    );
    assert_eq!(
        said(&served.barge(&["ls", "{}"], "sub")).lines().count(),
        301
    );
    complained(&served.barge(&["cat", "{}"], "sub/none"));
    let copied = dir.path().join("copied");
    std::fs::write(&copied, vec![1; 50_000]).expect("written");
    let url = format!("9p://127.0.0.1:{}/new", served.port());
    let cp = Command::new(BARGE)
        .arg("cp")
        .arg(&copied)
        .arg(&url)
        .output()
        .expect("runs");
    said(&cp);
    assert!(served.stop().success());

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
        let said = complained(&bench(&record, dir.path(), &[]));
        assert!(said.contains(expected), "{said}");
    }
    // Calls on unknown nodes and files are skipped.
    let strange = "{\"op\":\"lookup\",\"node\":9,\"name\":[255,47]}\n{\"op\":\"read\",\"file\":1,\"len\":18446744073709551615}\n{}\n";
    std::fs::write(&record, strange).expect("written");
    assert!(said(&bench(&record, dir.path(), &[])).contains("0 calls in"));
}
