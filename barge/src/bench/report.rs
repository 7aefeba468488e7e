//! Results, as a table for people and as JSON.

use std::fmt::Write;
use std::time::Duration;

use serde_json::json;

/// A table.
pub(super) struct Results {
    pub(super) title: String,
    /// What was measured, with what, and what could not be.
    pub(super) notes: Vec<String>,
    /// The servers, ours first.
    pub(super) servers: Vec<String>,
    /// Which of them are peers: ours is compared with the best of them.
    pub(super) peers: Vec<usize>,
    pub(super) rows: Vec<Row>,
}

pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// For each server the runs, in order.
    pub(super) runs: Vec<Vec<f64>>,
    /// For each server what the runs were for it.
    pub(super) work: Vec<Work>,
    /// For each server its system calls per operation, where they were counted.
    pub(super) calls: Vec<Option<f64>>,
}

/// What a server has done, and for how long processors have worked for it.
#[derive(Clone, Copy, Default)]
pub(super) struct Work {
    pub(super) operations: usize,
    pub(super) time: Duration,
}

impl Work {
    /// Of an operation.
    fn microseconds(self) -> Option<f64> {
        let each = self.time.as_secs_f64() * 1e6 / self.operations as f64;
        Some(each).filter(|each| each.is_finite())
    }
}

/// The middle of some runs and how far they lie apart.
pub(super) struct Summary {
    pub(super) median: f64,
    least: f64,
    most: f64,
}

impl Summary {
    pub(super) fn of(runs: &[f64]) -> Option<Summary> {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Summary {
            median,
            least,
            most,
        })
    }
}

impl Row {
    fn summaries(&self) -> Vec<Option<Summary>> {
        self.runs.iter().map(|runs| Summary::of(runs)).collect()
    }
}

/// The table, for a terminal.
pub(super) fn text(results: &Results) -> String {
    let mut text = format!("{}\n", results.title);
    let width = results
        .rows
        .iter()
        .map(|row| row.name.len())
        .max()
        .unwrap_or(0);
    let _ = write!(text, "{:width$} {:>6}", "", "unit");
    for server in &results.servers {
        let _ = write!(text, " {:>34}", format!("{server} median (least..most)"));
    }
    let _ = writeln!(
        text,
        " {:>6}  system calls each; µs of processors each",
        "ratio"
    );
    for row in &results.rows {
        let _ = write!(text, "{:width$} {:>6}", row.name, row.unit);
        let summaries = row.summaries();
        for summary in &summaries {
            let cell = match summary {
                Some(s) => format!("{:.0} ({:.0}..{:.0})", s.median, s.least, s.most),
                None => "-".into(),
            };
            let _ = write!(text, " {cell:>34}");
        }
        let of = |server: usize| summaries.get(server)?.as_ref();
        let peers = results.peers.iter().filter_map(|&peer| of(peer));
        let best = peers.map(|peer| peer.median).max_by(f64::total_cmp);
        let ratio = match (of(0), best) {
            (Some(ours), Some(theirs)) => format!("{:.2}", ours.median / theirs),
            _ => "-".into(),
        };
        let _ = write!(text, " {ratio:>6} ");
        if row.calls.iter().all(Option::is_none) {
            text.push_str(" -");
        }
        for calls in row.calls.iter().flatten() {
            let _ = write!(text, " {calls:.2}");
        }
        text.push(';');
        for each in row.work.iter().filter_map(|work| work.microseconds()) {
            let _ = write!(text, " {each:.1}");
        }
        text.push('\n');
    }
    for note in &results.notes {
        let _ = writeln!(text, "- {note}");
    }
    text
}

/// The table, for programs.
pub(super) fn json(results: &Results) -> String {
    let rows: Vec<_> = results
        .rows
        .iter()
        .map(|row| {
            let servers: Vec<_> = results
                .servers
                .iter()
                .zip(row.summaries())
                .zip(row.runs.iter().zip(&row.calls))
                .zip(&row.work)
                .map(|(((server, summary), (runs, calls)), work)| {
                    json!({
                        "server": server,
                        "median": summary.as_ref().map(|s| s.median),
                        "least": summary.as_ref().map(|s| s.least),
                        "most": summary.as_ref().map(|s| s.most),
                        "runs": runs,
                        "system_calls": calls,
                        "server_us": work.microseconds(),
                    })
                })
                .collect();
            json!({ "name": row.name, "unit": row.unit, "servers": servers })
        })
        .collect();
    let table = json!({ "title": results.title, "notes": results.notes, "rows": rows });
    format!("{table:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_medians_their_ratio_and_the_spread() {
        let results = Results {
            title: "table".into(),
            notes: vec!["a note".into()],
            servers: vec!["barge".into(), "peer".into()],
            peers: vec![1],
            rows: vec![Row {
                name: "read".into(),
                unit: "op/s",
                runs: vec![vec![30.0, 10.0, 20.0], vec![5.0, 15.0]],
                work: vec![
                    Work {
                        operations: 4,
                        time: Duration::from_micros(50),
                    },
                    Work::default(),
                ],
                calls: vec![Some(3.0), None],
            }],
        };
        let text = text(&results);
        for part in [
            "20 (10..30)",
            "10 (5..15)",
            " 2.00 ",
            " 3.00; 12.5\n",
            "- a note",
        ] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
        let json: serde_json::Value = serde_json::from_str(&json(&results)).expect("JSON");
        assert_eq!(json["rows"][0]["servers"][1]["median"], 10.0);
    }
}
