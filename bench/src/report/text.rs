//! Reports as text for a terminal.

use std::fmt::Write;

use super::format::{Entry, Outcome, Report, Row, Table, cpu_columns};
use super::number::{figure, ratio};

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    for (at, entry) in report.tables.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        let Entry { name, outcome, .. } = entry;
        let _ = match outcome {
            Outcome::Measured(table) => {
                render_table(&mut text, table);
                Ok(())
            }
            Outcome::Failed(why) => writeln!(text, "{name} failed: {why}"),
            Outcome::LeftOut(why) => writeln!(text, "{name} was left out: {why}"),
        };
    }
    text
}

fn render_table(text: &mut String, table: &Table) {
    let _ = writeln!(text, "{}", table.title);
    let limited = table.rows.iter().any(|row| row.limit.is_some());
    let mut head = vec![String::new(), "unit".into()];
    head.extend(table.columns.iter().cloned());
    head.extend(
        table
            .peers
            .iter()
            .map(|&peer| format!("ratio to {}", table.columns[peer])),
    );
    head.extend(limited.then(|| "ratio to limit".into()));
    let used: Vec<_> = cpu_columns(table).collect();
    head.push("system calls".into());
    head.extend(used.iter().map(|&(_, name)| name.to_owned()));
    let mut lines = vec![head];
    lines.extend(table.rows.iter().map(|row| {
        let mut line = line(table, row, limited);
        line.extend(used.iter().map(|&(which, _)| {
            let cells = row.cells.iter().flatten();
            let figures =
                cells.filter_map(|cell| Some(format!("{:.1}", cell.processors().nth(which)??)));
            figures.collect::<Vec<_>>().join(" ")
        }));
        line
    }));
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..lines[0].len()).map(width).collect();
    for line in &lines {
        let _ = write!(text, "{:width$}", line[0], width = widths[0]);
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "- median (minimum..maximum); ratios above 1 mean that {} is better; from six runs on they are of adjacent runs, with their 95 % confidence intervals",
        table.columns[0]
    );
    if limited {
        let _ = writeln!(text, "- hardware limit: {}", table.limits().join(", "));
    }
    for note in table.remarks() {
        let _ = writeln!(text, "- {note}");
    }
}

fn line(table: &Table, row: &Row, limited: bool) -> Vec<String> {
    let none = || "-".to_owned();
    let mut line = vec![row.name.clone(), row.unit.clone()];
    line.extend(row.cells.iter().map(|cell| {
        cell.as_ref().map_or_else(none, |cell| {
            let [median, least, most] = [cell.median, cell.least, cell.most].map(figure);
            format!("{median} ({least}..{most})")
        })
    }));
    let format_ratio = |value: Option<f64>| value.map_or_else(none, ratio);
    let to = |&peer: &usize| {
        let to = format_ratio(row.cell(peer).and_then(|cell| cell.ratio));
        match row.interval(peer) {
            Some((least, most)) => format!("{to} ({}..{})", ratio(least), ratio(most)),
            None => to,
        }
    };
    line.extend(table.peers.iter().map(to));
    let limit = row.limit.as_ref().and_then(|limit| limit.cell.ratio);
    line.extend(limited.then(|| format_ratio(limit)));
    let calls = row.cells.iter().flatten();
    let calls = calls.filter_map(|cell| Some(format!("{:.2}", cell.system_calls?)));
    line.push(calls.collect::<Vec<_>>().join(" "));
    line
}
