//! Reports as Markdown, such as `docs/benchmarks.md`.

use std::fmt::Write;

use super::html::minutes;
use super::seeds::published;
use super::shape::{Cell, Outcome, Report, Row, Table, Verdict, figure, ratio, used};

pub(super) fn of(report: &Report) -> String {
    let mut text = format!(
        "# Benchmarks\n\nThis page was made by `{}` ({}, {}, {}); the same command makes it again. `--html FILE` makes a page with plots of it, `--json FILE` what \
         `barge bench show FILE` reads again.\n\n\
         Measured on: {}.\n\n\
         Figures are medians, with the least and the most of the runs behind them, which alternate between the columns. A ratio says how many times as good \
         the first column is, whatever is better: above 1 it wins; from six runs on it is the median of the ratios of runs next to each other, with its 95 % confidence interval. `limit` is what this machine does of it at best, measured by turns with the rest. `published` is \
         what the system that a table comes from has told, on a machine of its own: its ratio is to be compared, its figures are not.\n\n",
        report.command,
        report.barge,
        report.began,
        minutes(report.seconds),
        report.machine.line()
    );
    if let Some(warning) = report.warning() {
        let _ = write!(text, "**{warning}**\n\n");
    }
    summary(&mut text, report);
    for entry in &report.tables {
        let _ = write!(text, "## {}\n\n", plain(&entry.name));
        let _ = match &entry.outcome {
            Outcome::Measured(table) => {
                let (command, made) = entry.origin();
                let _ = write!(text, "{} (`{command}`, {made})\n\n", plain(&table.title));
                figures(&mut text, table);
                Ok(())
            }
            Outcome::Failed(why) => write!(text, "Failed: {}\n\n", plain(why)),
            Outcome::LeftOut(why) => write!(text, "Left out: {}\n\n", plain(why)),
        };
        if let Some(published) = published()
            .into_iter()
            .find(|published| published.table == entry.name)
        {
            let _ = write!(text, "Published: {}\n\n", published.title);
            let head: Vec<_> = published.head.iter().map(|&name| name.to_owned()).collect();
            table(&mut text, &head, &published.rows);
            for line in published.otherwise {
                let _ = writeln!(text, "- {line}");
            }
            let unmeasured = published.unmeasured(report);
            if !unmeasured.is_empty() {
                let _ = writeln!(
                    text,
                    "- not measured in this run: {}",
                    unmeasured.join("; ")
                );
            }
            text.push('\n');
        }
    }
    let packages: Vec<_> = report
        .machine
        .packages
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let _ = writeln!(text, "Debian's packages: {}.", packages.join(", "));
    text
}

fn summary(text: &mut String, report: &Report) {
    let mut lines = Vec::new();
    let mut lost = Vec::new();
    for entry in &report.tables {
        let name = plain(&entry.name);
        let Outcome::Measured(table) = &entry.outcome else {
            let how = if matches!(entry.outcome, Outcome::Failed(_)) {
                "failed"
            } else {
                "left out"
            };
            lines.push(vec![
                name,
                how.into(),
                String::new(),
                String::new(),
                String::new(),
            ]);
            continue;
        };
        let peers: Vec<_> = table
            .peers
            .iter()
            .map(|&peer| plain(&table.columns[peer]))
            .collect();
        let mut line = vec![name.clone(), peers.join(", ")];
        line.extend(table.score().map(|count| count.to_string()));
        lines.push(line);
        for (row, peer, times) in table.lost() {
            lost.push((
                times,
                format!(
                    "- {name}, {}: {} of {}\n",
                    plain(&row.name),
                    ratio(times),
                    plain(&table.columns[peer])
                ),
            ));
        }
    }
    text.push_str("## What wins, what loses\n\n");
    let head = ["table", "beside", "wins", "level", "loses"].map(str::to_owned);
    table(text, &head, &lines);
    text.push_str(
        "A row wins or loses beside the best of its peers when the runs do not overlap, or from six on the interval of the ratio does not reach 1, and the medians are more than 3 % apart.\n\nAll that is lost, worst first:\n\n",
    );
    if lost.is_empty() {
        text.push_str("- nothing\n");
    }
    lost.sort_by(|one, other| one.0.total_cmp(&other.0));
    for (_, line) in lost {
        text.push_str(&line);
    }
    text.push('\n');
}

fn figures(text: &mut String, of: &Table) {
    let limited = of.rows.iter().any(|row| row.limit.is_some());
    let seeded = of.rows.iter().any(|row| row.seed.is_some());
    let mut head = vec![String::new(), "unit".into()];
    head.extend(of.columns.iter().map(|name| plain(name)));
    head.extend(
        of.peers
            .iter()
            .map(|&peer| format!("to {}", plain(&of.columns[peer]))),
    );
    if limited {
        head.extend(["limit".into(), "to limit".into()]);
    }
    let used: Vec<_> = used(of).collect();
    head.extend(used.iter().map(|&(_, name)| name.to_owned()));
    head.extend(seeded.then(|| "published".into()));
    let cell = |cell: Option<&Cell>| {
        cell.map_or("–".into(), |cell| {
            let [median, least, most] = [cell.median, cell.least, cell.most].map(figure);
            format!("{median} ({least}–{most})")
        })
    };
    let times = |cell: Option<&Cell>| cell.and_then(|cell| cell.ratio).map_or("–".into(), ratio);
    let line = |row: &Row| {
        let mut line = vec![plain(&row.name), row.unit.clone()];
        line.extend((0..of.columns.len()).map(|column| cell(row.cell(column))));
        line.extend(of.peers.iter().map(|&peer| {
            let times = times(row.cell(peer));
            let interval = row.interval(peer).map_or(String::new(), |(least, most)| {
                format!(" ({}–{})", ratio(least), ratio(most))
            });
            match row.verdict(peer) {
                Some(Verdict::Loses) => format!("**{times}**{interval}"),
                _ => times + &interval,
            }
        }));
        if limited {
            let limit = row.limit.as_ref().map(|limit| &limit.cell);
            line.extend([cell(limit), times(limit)]);
        }
        // barge's, and the least of the peers'.
        line.extend(used.iter().map(|&(which, _)| {
            let figure_of = |column| row.cell(column)?.processors().nth(which)?;
            let peers = of.peers.iter().filter_map(|&peer| figure_of(peer));
            let least = peers.min_by(f64::total_cmp);
            let [ours, least] = [figure_of(0), least].map(|us| us.map_or("–".into(), figure));
            format!("{ours} / {least}")
        }));
        line.extend(seeded.then(|| match &row.seed {
            Some(seed) => format!("{} ({})", ratio(seed.ratio), plain(&seed.figures)),
            None => String::new(),
        }));
        line
    };
    let lines: Vec<_> = of.rows.iter().map(line).collect();
    table(text, &head, &lines);
    if limited {
        let _ = writeln!(text, "- limit: {}", plain(&of.limits().join(", ")));
    }
    if !used.is_empty() {
        let _ = writeln!(
            text,
            "- CPU µs: user and system time of server and clients for an operation, which is seconds for a million: {} / the least of the \
             peers; as many as there can be, and one at a time at a pace",
            plain(&of.columns[0])
        );
    }
    for note in of.remarks() {
        let _ = writeln!(text, "- {}", plain(&note));
    }
    text.push('\n');
}

fn table(text: &mut String, head: &[String], rows: &[Vec<String>]) {
    let _ = writeln!(
        text,
        "| {} |\n|{}",
        head.join(" | "),
        "---|".repeat(head.len())
    );
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text.push('\n');
}

/// Escapes characters that would end a cell or begin a tag.
fn plain(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
        .replace('|', "\\|")
        .replace('<', "&lt;")
}
