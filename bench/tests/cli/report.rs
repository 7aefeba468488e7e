//! Reports of `barge bench`, rebuilt from saved results and shown in Chromium.

use std::path::Path;

use command::tools::find;
use serde_json::{Value, json};

use crate::bench;
use crate::browser::{Browser, Device};

/// A long name that would be a tag without escaping.
const LONG: &str = "<b onclick=alert(1)>a-name-without-any-place-where-a-line-could-end-and-longer-than-a-phone-is-wide";

fn cell(median: f64, ratio: Option<f64>) -> Value {
    let (least, most) = (median * 0.9, median * 1.2);
    json!({ "median": median, "least": least, "most": most, "runs": [least, median, most], "ratio": ratio, "system_calls": null, "processor_us": 1.5, "paced_us": [null, null] })
}

fn row(name: &str, unit: &str, [ours, theirs]: [f64; 2], seed: Option<f64>) -> Value {
    json!({
        "name": name, "unit": unit, "better": "more",
        "cells": [cell(ours, None), cell(theirs, Some(ours / theirs)), null],
        "limit": { "what": "memory copied", "cell": cell(ours * 3.0, Some(1.0 / 3.0)) },
        "seed": seed.map(|ratio| json!({ "against": "peer", "ratio": ratio, "figures": "1 → 2 MB/s" })),
    })
}

fn table(name: &str, rows: &[Value]) -> Value {
    let measured = json!({
        "title": format!("{name}, measured"), "notes": ["a note", LONG], "missing": ["a peer is missing: a package brings it"],
        "columns": ["barge", "peer", LONG], "peers": [1, 2], "rows": rows,
    });
    json!({ "name": name, "seconds": 61.5, "outcome": { "measured": measured } })
}

/// Makes a report with every kind of table.
fn saved_report(dir: &Path) -> std::path::PathBuf {
    let sized = ["unix, read", "unix, write"].into_iter().flat_map(|group| {
        ["1 B", "512 B", "4 KiB", "1 MiB"]
            .iter()
            .zip(1_u32..)
            .map(move |(size, at)| {
                let base = f64::from(10_u32.pow(at));
                row(
                    &format!("{group}, {size}"),
                    "kB/s",
                    [base * 1.1, base],
                    Some(1.02),
                )
            })
    });
    let named = [
        row("Unix, write 1M", "MB/s", [100.0, 10.0], Some(2.6)),
        row("Unix, read 1M", "MB/s", [5.0, 10.0], Some(1.95)),
        row(&format!("{LONG}, {LONG}"), "op/s", [1234.5, 1200.0], None),
    ];
    let report = json!({
        "barge": "barge 0", "command": "barge bench all", "began": "2026-01-01T00:00:00Z", "seconds": 100.0,
        "machine": { "processor": "P", "processors": 2, "memory_mib": 4, "system": "S", "kernel": "6", "load": 2.5, "gives_memory_back": true, "min_free_ms": 0, "packages": { "fio": "3" } },
        "tables": [
            table("zerocopy", &sized.collect::<Vec<_>>()),
            table("coalescing", &named),
            { "name": "nfs", "seconds": 0.0, "outcome": { "failed": LONG } },
            { "name": "guest defaults 9p", "seconds": 0.0, "outcome": { "left_out": "it takes a virtual machine: --guest" } },
        ],
    });
    let path = dir.join("kept.json");
    std::fs::write(&path, report.to_string()).expect("written");
    path
}

#[test]
fn a_report_is_made_again_in_each_form() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let kept = saved_report(dir.path()).display().to_string();
    let done = bench(&[
        "show",
        &kept,
        "--html",
        &path("page"),
        "--markdown",
        &path("text"),
        "--json",
        &path("again"),
    ]);
    assert!(done.status.success(), "{done:?}");
    let out = String::from_utf8(done.stdout).expect("text");
    assert!(out.contains("nfs failed: "), "{out}");
    let read = |path: &str| std::fs::read_to_string(path).expect("read");
    let [before, after] = [&kept, &path("again")].map(|path| {
        let value: Value = serde_json::from_str(&read(path)).expect("JSON");
        value
    });
    assert_eq!(before, after);
    let text = read(&path("text"));
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in ["| zerocopy | peer, ", "free memory returns to its host"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let none = bench(&["show", &path("none")]);
    assert_eq!(none.status.code(), Some(1));
    for words in [&["show"][..], &["9p", "file"], &["replay", "file"]] {
        assert_eq!(bench(words).status.code(), Some(2), "{words:?}");
    }
}

/// The properties of a loaded page.
const SEEN: &str = "({
    text: document.body.innerText,
    fits: document.documentElement.scrollWidth <= innerWidth,
    width: innerWidth,
    titled: [...document.querySelectorAll('svg')].every(svg => svg.getAttribute('aria-label') && svg.querySelector('title')),
    plots: document.querySelectorAll('svg').length,
    tags: document.querySelectorAll('[onclick]').length,
})";

#[test]
fn a_browser_shows_a_report_on_a_desk_and_on_a_phone() {
    if find("chromium").is_none() {
        eprintln!("skipped: chromium is missing (Debian's package chromium)");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("report.html").display().to_string();
    let kept = saved_report(dir.path()).display().to_string();
    let done = bench(&["show", &kept, "--html", &page]);
    assert!(done.status.success(), "{done:?}");
    let url = format!("file://{page}");
    let mut browser = Browser::start(&dir.path().join("profile"));
    for device in Device::ALL {
        let mut tab = browser.open(&device, &url);
        let seen = tab.evaluate(SEEN);
        tab.shoot(&format!("report-{}", device.name));
        assert_eq!(
            [
                &seen["width"],
                &seen["fits"],
                &seen["titled"],
                &seen["tags"],
                &seen["plots"]
            ],
            [
                &json!(device.width),
                &json!(true),
                &json!(true),
                &json!(0),
                &json!(5)
            ],
            "{}: {seen}",
            device.name
        );
        let text = seen["text"].as_str().expect("text");
        for part in [
            "Rows slower than the best peer",
            "zerocopy, measured",
            "Failed: <b",
            "Left out: it takes",
        ] {
            assert!(text.contains(part), "{}: {part} in {text}", device.name);
        }
        tab.close();
    }
    assert_eq!(browser.complaints, [Value::Null; 0]);
    let outside = |wanted: &&String| {
        **wanted != url && !wanted.starts_with("data:") && *wanted != "about:blank"
    };
    assert_eq!(
        browser.wanted.iter().filter(outside).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
}
