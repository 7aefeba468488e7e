//! Tests of reports: a small report in every form, hostile names, and every published row.

use std::time::Duration;

use super::format::{Better, Entry, Outcome, Report, Verdict};
use super::number::{figure, ratio};
use super::results::{CpuTime, Results, Row};
use super::{format, html, markdown, plot, text};

fn row(name: &str, unit: &'static str, ours: &[f64], theirs: &[f64]) -> Row {
    Row {
        name: name.into(),
        unit,
        runs: vec![ours.to_vec(), theirs.to_vec()],
        cpu_time: vec![
            CpuTime {
                operations: 4,
                time: Duration::from_micros(50),
            },
            CpuTime::default(),
        ],
        cpu_time_at_rates: vec![Default::default(); 2],
        syscalls: vec![Some(3.0), None],
        limit: Some(("memory copied", vec![80.0, 40.0])),
    }
}

/// Returns the report that `barge bench NAME` would make of `rows`.
fn report(name: &str, peer: &str, rows: Vec<Row>) -> Report {
    let results = Results {
        title: "table".into(),
        notes: vec!["a note".into()],
        missing: vec!["a peer is missing".into()],
        servers: vec!["barge".into(), peer.into()],
        peers: vec![1],
        limit: None,
        rows,
    };
    let entry = |name: &str, outcome| Entry {
        name: name.into(),
        seconds: 2.0,
        again: None,
        outcome,
    };
    let failed = vec!["peer, other: it fell".into()];
    let machine = serde_json::from_str(
        r#"{"processor":"P","processors":2,"memory_mib":4,"system":"S","kernel":"6","load":3.25,"packages":{"p":"1"}}"#,
    );
    Report {
        barge: "barge 0".into(),
        command: "barge bench all".into(),
        began: "2026-01-01T00:00:00Z".into(),
        seconds: 300.0,
        machine: machine.expect("a machine"),
        tables: vec![
            entry(name, Outcome::of(results.table(name), failed)),
            entry("other", Outcome::Failed("it fell".into())),
            entry("third", Outcome::LeftOut("no <guest>".into())),
        ],
    }
}

fn small() -> Report {
    let rows = vec![
        row("read", "op/s", &[30.0, 10.0, 20.0], &[5.0, 9.0]),
        row("start", "ms", &[30.0], &[10.0]),
        row("same", "MB/s", &[10.0, 12.0], &[11.0, 13.0]),
    ];
    report("9p", "peer", rows)
}

#[test]
fn what_a_later_run_has_measured_stands_in_for_what_was() {
    let later = |kernel: &str| {
        let mut later = report("third", "peer", vec![row("read", "op/s", &[7.0], &[1.0])]);
        later.command = "barge bench third --runs 7".into();
        later.began = "2026-02-02T00:00:00Z".into();
        later.machine.kernel = kernel.into();
        later
    };
    let unwrapped = |report: &Report| {
        let page = markdown::page(report);
        page.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = unwrapped(&small().merge(later("6")));
    for part in [
        "## 9p table (`barge bench 9p`, 2 s).",
        "## other Failed: it fell",
        "## third table (`barge bench third --runs 7`, 2 s, 2026-02-02T00:00:00Z).",
        "`barge bench all --markdown FILE` (barge 0, 2026-01-01T00:00:00Z",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = unwrapped(&small().merge(later("7")));
    assert!(
        text.contains("2026-02-02T00:00:00Z, P, 2 processors, 4 MiB of memory, Linux 7, S"),
        "{text}"
    );
}

#[test]
fn a_terminal_shows_medians_their_spread_and_ratios() {
    let text = text::render(&small());
    for part in [
        "20.0 (10.0..30.0)",
        "7.00 (5.00..9.00)",
        " 2.86 ",
        "  3.00    12.5\n",
        "- a note\n- a peer is missing\n- failed: peer, other: it fell\n",
        "other failed: it fell\n",
        "third was left out: no <guest>\n",
    ] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
}

#[test]
fn what_processors_did_at_a_pace_is_a_column() {
    let mut paced = row("read", "op/s", &[1.0], &[1.0]);
    let second = CpuTime {
        operations: 2,
        time: Duration::from_micros(30),
    };
    paced.add_cpu_times(0, &[CpuTime::default(), second, second]);
    paced.add_cpu_times(0, &[CpuTime::default(), second]);
    paced.add_cpu_times(1, &[second, second]);
    let report = report("9p", "peer", vec![paced]);
    let text = text::render(&report);
    assert!(
        text.contains("12.5 15.0   15.0 15.0         15.0\n"),
        "{text}"
    );
    let text = markdown::page(&report);
    let columns = "| CPU µs | at 1,000/s | at 10,000/s |";
    assert!(text.contains(columns), "{text}");
    let figures = "| 12.5 / 15.0 | 15.0 / 15.0 | 15.0 / – |";
    assert!(text.contains(figures), "{text}");
}

#[test]
fn rows_are_won_level_and_lost_whichever_way_is_better() {
    let report = small();
    let Outcome::Measured(table) = &report.tables[0].outcome else {
        panic!("it is measured");
    };
    let verdicts = table.rows.iter().map(|row| row.verdict(1));
    assert_eq!(
        verdicts.collect::<Vec<_>>(),
        [Verdict::Wins, Verdict::Loses, Verdict::Level].map(Some)
    );
    assert_eq!(table.score(), [1, 1, 1]);
    assert_eq!(table.rows[1].better, Better::Less);
    assert_eq!(
        table.rows[1].cell(1).and_then(|cell| cell.ratio),
        Some(1.0 / 3.0)
    );
    assert_eq!(table.losses().len(), 1);
}

#[test]
fn ratios_of_many_runs_are_of_those_next_to_each_other() {
    // The machine slows down from run to run; barge is better by a twentieth each time.
    let theirs: Vec<f64> = (1..=9).rev().map(|run| f64::from(run) * 100.0).collect();
    let ours: Vec<f64> = theirs.iter().map(|run| run * 1.05).collect();
    let mut noisy = ours.clone();
    noisy[4] = 1.0;
    let report = report("9p", "peer", vec![row("read", "op/s", &noisy, &theirs)]);
    let Outcome::Measured(table) = &report.tables[0].outcome else {
        panic!("it is measured");
    };
    let read = &table.rows[0];
    let near = |ratio: f64, expected: f64| (ratio - expected).abs() < 1e-9;
    assert!(near(
        read.cell(1).and_then(|cell| cell.ratio).expect("a ratio"),
        1.05
    ));
    // Of nine pairs, the second lowest and the second highest.
    let (least, most) = read.interval(1).expect("of many runs");
    assert!(near(least, 1.05) && near(most, 1.05), "{least} to {most}");
    assert_eq!(read.verdict(1), Some(Verdict::Wins));
    assert!(text::render(&report).contains("1.05 (1.05..1.05)"));
    assert!(markdown::page(&report).contains("| 1.05 (1.05–1.05) |"));
}

#[test]
fn json_is_as_it_was_and_is_read_again() {
    let report = small();
    let json = format::json(&report);
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let expected = serde_json::json!({
        "name": "start", "unit": "ms", "better": "less",
        "cells": [
            { "median": 30.0, "least": 30.0, "most": 30.0, "runs": [30.0], "ratio": null, "system_calls": 3.0, "processor_us": 12.5, "paced_us": [null, null] },
            { "median": 10.0, "least": 10.0, "most": 10.0, "runs": [10.0], "ratio": 1.0 / 3.0, "system_calls": null, "processor_us": null, "paced_us": [null, null] },
        ],
        "limit": {
            "what": "memory copied",
            "cell": { "median": 60.0, "least": 40.0, "most": 80.0, "runs": [80.0, 40.0], "ratio": 2.0, "system_calls": null, "processor_us": null, "paced_us": [null, null] },
        },
        "seed": null,
    });
    assert_eq!(
        value["tables"][0]["outcome"]["measured"]["rows"][1],
        expected
    );
    assert_eq!(value["tables"][1]["outcome"]["failed"], "it fell");
    assert_eq!(value["tables"][2]["outcome"]["left_out"], "no <guest>");

    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("report.json");
    std::fs::write(&path, &json).expect("written");
    let again = format::read(&path).expect("read");
    assert_eq!(html::render(&again), html::render(&report));
    std::fs::write(&path, "{}").expect("written");
    assert!(format::read(&path).is_err());
}

#[test]
fn what_names_contain_stays_text() {
    const HARM: &str = "<script>alert('&\"')</script>\u{1b}";
    let mut rows = vec![row(HARM, "op/s", &[1.0], &[2.0])];
    // Line plots escape names in code of their own.
    for name in ["unix, read, 1 B", "unix, read, 2 B"] {
        rows.push(row(name, "kB/s", &[1.0], &[2.0]));
    }
    let bars = html::render(&report(HARM, HARM, rows));
    let sized = vec![
        row(&format!("{HARM}, 1 B"), "kB/s", &[1.0], &[2.0]),
        row(&format!("{HARM}, 4 KiB"), "kB/s", &[0.0], &[f64::NAN]),
    ];
    let lines = html::render(&report(HARM, HARM, sized));
    for page in [bars, lines] {
        assert!(!page.contains("<script"), "{page}");
        assert!(!page.contains('\u{1b}'), "{page}");
        assert!(
            page.contains("&lt;script&gt;alert(&#39;&amp;&quot;&#39;)"),
            "{page}"
        );
        assert!(!page.contains("NaN") && !page.contains("inf\""), "{page}");
    }
    let document = markdown::page(&report(
        "a|b",
        "c|d",
        vec![row("<b>|\n", "op/s", &[1.0], &[2.0])],
    ));
    assert!(document.contains("| &lt;b>\\| "), "{document}");
}

#[test]
fn a_page_takes_nothing_from_elsewhere() {
    let page = html::render(&small());
    for word in ["<script", "http://", "https://", "url(", "@import", "src="] {
        let page = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn bars_begin_at_one_and_lines_go_over_sizes() {
    let report = small();
    let Outcome::Measured(table) = &report.tables[0].outcome else {
        panic!("it is measured");
    };
    let axis = plot::RatioAxis::of(table);
    assert_eq!(
        (axis.at(1.0), axis.at(4.0), axis.at(100.0)),
        (0.5, 1.0, 1.0)
    );
    assert_eq!(axis.ticks(), [0.25, 0.5, 1.0, 2.0, 4.0]);
    let won = plot::bar(&table.rows[0], table, &axis);
    assert!(
        won.contains("<rect class=\"wins\" x=\"200.0\" y=\"3\" width=\"151.5\""),
        "{won}"
    );
    assert!(won.contains("ratio 2.86 to peer (1.11 to 6.00)"), "{won}");
    let lost = plot::bar(&table.rows[1], table, &axis);
    assert!(
        lost.contains("<rect class=\"loses\" x=\"41.5\" y=\"3\" width=\"158.5\""),
        "{lost}"
    );
    assert_eq!(plot::size("4 KiB"), Some(4096.0));
    for no in ["4K", "0 B", "x MiB", "-1 B"] {
        assert_eq!(plot::size(no), None, "{no}");
    }
    let sized: Vec<_> = [1.0, 4096.0].into_iter().zip(&table.rows).collect();
    let lines = plot::lines("rows", table, &sized);
    assert!(
        lines.contains("<path class=\"line s0\" d=\"M46.0 "),
        "{lines}"
    );
    assert!(lines.contains("L352.0 "), "{lines}");
}

#[test]
fn figures_are_short() {
    let figures = [0.0, 0.123, 9.999, 10.04, 99.94, 1234.4, 1_234_567.0].map(figure);
    assert_eq!(
        figures,
        ["0", "0.12", "10.00", "10.0", "99.9", "1,234", "1,234,567"]
    );
    assert_eq!(
        [0.0123, 0.5, 1.0, 12.34, 12345.0].map(ratio),
        ["0.012", "0.50", "1.00", "12.3", "12,345"]
    );
}

#[test]
fn each_table_has_a_page_whose_text_wraps() {
    let pages: Vec<_> = markdown::pages(&small()).collect();
    let names: Vec<_> = pages.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["9p.md", "other.md", "third.md"]);
    let (_, page) = &pages[0];
    let head = "# Benchmark 9p\n\nGenerated by `barge bench 9p --markdown DIR` (";
    assert!(page.starts_with(head), "{page}");
    let text = page.lines().filter(|line| !line.starts_with('|'));
    assert!(
        text.clone().all(|line| line.chars().count() <= 100),
        "{page}"
    );
    let guest = report("guest defaults nfs", "peer", Vec::new());
    assert_eq!(guest.tables[0].origin().0, "barge bench nfs --guest");
}
