//! Reports as HTML: one page without scripts or external resources.

use std::fmt::Write;

use super::plot::{Ratios, bar, escaped, lines, size};
use super::seeds::{Published, published};
use super::shape::{Cell, Entry, Outcome, Report, Row, Table, Verdict, figure, ratio};

const STYLE: &str = include_str!("page.css");
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M1 8h14l-3 6H4z' fill='%23277da1'/%3E%3Cpath \
                    d='M4 3h3v4H4zm4 0h3v4H8z' fill='%23f3722c'/%3E%3C/svg%3E";

pub(super) fn of(report: &Report) -> String {
    let (began, barge) = (escaped(&report.began), escaped(&report.barge));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>barge bench, {began}</title>\n<link rel=\"icon\" href=\"{ICON}\">\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>barge beside its peers</h1>\n<p>{barge}, {began}, in {}: <code>{}</code></p>\n<p>{}</p>\n</header>\n<main>\n",
        minutes(report.seconds),
        escaped(&report.command),
        escaped(&report.machine.line()),
    );
    if let Some(warning) = report.warning() {
        let _ = writeln!(page, "<p class=\"why\">{warning}</p>");
    }
    summary(&mut page, report);
    for entry in &report.tables {
        section(&mut page, report, entry);
    }
    page.push_str("</main>\n<footer>");
    for (name, version) in &report.machine.packages {
        let _ = write!(page, "{} {} · ", escaped(name), escaped(version));
    }
    page.push_str("made by barge bench</footer>\n</body>\n</html>\n");
    page
}

pub(super) fn minutes(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    }
}

/// Returns the id of an entry's section.
fn anchor(name: &str) -> String {
    escaped(&name.replace(' ', "-"))
}

fn summary(page: &mut String, report: &Report) {
    page.push_str(
        "<section>\n<h2>What wins, what loses</h2>\n<p class=\"soft\">Each row of each table beside the best of its peers. A row wins or loses when the \
         runs do not overlap, or from six on the interval of the ratio does not reach 1, and the medians are more than 3 % apart; else it is level.</p>\n<ul class=\"tiles\">\n",
    );
    for entry in &report.tables {
        let _ = write!(
            page,
            "<li><a href=\"#{}\"><b>{}</b>",
            anchor(&entry.name),
            escaped(&entry.name)
        );
        match &entry.outcome {
            Outcome::Measured(table) => {
                let score @ [wins, level, loses] = table.score();
                page.push_str("<div class=\"share\" aria-hidden=\"true\">");
                for (class, count) in ["wins", "level", "loses"].into_iter().zip(score) {
                    if count > 0 {
                        let _ = write!(page, "<i class=\"{class}\" style=\"flex:{count}\"></i>");
                    }
                }
                let peers: Vec<_> = table
                    .peers
                    .iter()
                    .map(|&peer| &*table.columns[peer])
                    .collect();
                let beside = match peers.is_empty() {
                    true => "no peer is here".into(),
                    false => format!("beside {}", escaped(&peers.join(", "))),
                };
                let _ = write!(
                    page,
                    "</div><span>wins {wins}, level {level}, loses {loses}</span><span>{beside}</span>"
                );
            }
            Outcome::Failed(_) => page.push_str("<span>failed</span>"),
            Outcome::LeftOut(_) => page.push_str("<span>left out</span>"),
        }
        page.push_str("</a></li>\n");
    }
    page.push_str("</ul>\n");
    let measured = || {
        report
            .tables
            .iter()
            .filter_map(|entry| match &entry.outcome {
                Outcome::Measured(table) => Some((&entry.name, table)),
                Outcome::Failed(_) | Outcome::LeftOut(_) => None,
            })
    };
    page.push_str("<h3>All that is lost, worst first</h3>\n");
    let mut lost: Vec<_> = measured()
        .flat_map(|(name, table)| {
            table
                .lost()
                .into_iter()
                .map(move |lost| (name, table, lost))
        })
        .collect();
    if lost.is_empty() {
        page.push_str("<p>Nothing.</p>\n");
    } else {
        lost.sort_by(|one, other| one.2.2.total_cmp(&other.2.2));
        let _ = writeln!(
            page,
            "<details open><summary>{} in all</summary>",
            lost.len()
        );
        head(page, "", &["table, row", "to", "ratio"].map(str::to_owned));
        for (name, table, (row, peer, times)) in lost {
            let _ = writeln!(
                page,
                "<tr><th scope=\"row\">{}: {}</th><td>{}</td><td class=\"loses\">{}</td></tr>",
                escaped(name),
                escaped(&row.name),
                escaped(&table.columns[peer]),
                ratio(times)
            );
        }
        page.push_str("</tbody></table></div></details>\n");
    }
    page.push_str("<h3>Beside what the five systems have published</h3>\n<p class=\"soft\">How many times as good the new way was as the old: here, and (published).</p>\n");
    for (name, table) in measured() {
        beside(page, name, table);
    }
    page.push_str("</section>\n");
}

/// Writes a table of ratios here and published: a row for each published figure, a column for each
/// variant here.
fn beside(page: &mut String, name: &str, table: &Table) {
    let mut groups: Vec<&str> = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    let mut cells = Vec::new();
    for (row, here, seed) in table.beside_seed() {
        let (group, last) = row.name.rsplit_once(", ").unwrap_or(("here", &row.name));
        let group = position(&mut groups, group);
        let last = position(&mut rows, last);
        cells.push((last, group, here, seed));
    }
    let Some((.., first)) = cells.first() else {
        return;
    };
    let mut columns = vec![format!("{name}, to {}", first.against)];
    columns.extend(groups.iter().map(|&group| group.to_owned()));
    let known = cells.iter().filter_map(|(.., here, _)| *here);
    let won = known.clone().filter(|here| *here > 1.0).count();
    let beyond = cells
        .iter()
        .filter(|(.., here, seed)| here.is_some_and(|here| here >= seed.ratio))
        .count();
    let caption = format!(
        "{name}: above 1 in {won} of {} rows, no less than published in {beyond}",
        cells.len()
    );
    page.push_str("<details><summary>");
    let _ = writeln!(page, "{}</summary>", escaped(&caption));
    head(page, "", &columns);
    for (at, row) in rows.iter().enumerate() {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escaped(row));
        for group in 0..groups.len() {
            let cell = cells
                .iter()
                .find(|(row, column, ..)| (*row, *column) == (at, group));
            let _ = match cell {
                Some((.., Some(here), seed)) => {
                    let class = if *here > 1.0 { "wins" } else { "loses" };
                    write!(
                        page,
                        "<td class=\"{class}\">{} <small>({})</small></td>",
                        ratio(*here),
                        ratio(seed.ratio)
                    )
                }
                Some((.., None, seed)) => {
                    write!(page, "<td>– <small>({})</small></td>", ratio(seed.ratio))
                }
                None => write!(page, "<td></td>"),
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div></details>\n");
}

fn position<'a>(list: &mut Vec<&'a str>, name: &'a str) -> usize {
    list.iter()
        .position(|known| *known == name)
        .unwrap_or_else(|| {
            list.push(name);
            list.len() - 1
        })
}

fn section(page: &mut String, report: &Report, entry: &Entry) {
    let _ = writeln!(page, "<section id=\"{}\">", anchor(&entry.name));
    let name = escaped(&entry.name);
    match &entry.outcome {
        Outcome::Measured(table) => measured(page, entry, table),
        Outcome::Failed(why) => {
            let _ = writeln!(
                page,
                "<h2>{name}</h2>\n<p class=\"why\">Failed: {}</p>",
                escaped(why)
            );
        }
        Outcome::LeftOut(why) => {
            let _ = writeln!(
                page,
                "<h2>{name}</h2>\n<p class=\"why out\">Left out: {}</p>",
                escaped(why)
            );
        }
    }
    if let Some(published) = published()
        .into_iter()
        .find(|published| published.table == entry.name)
    {
        seed(page, &published, &published.unmeasured(report));
    }
    page.push_str("</section>\n");
}

fn measured(page: &mut String, entry: &Entry, table: &Table) {
    let (command, made) = entry.origin();
    let _ = writeln!(
        page,
        "<h2>{}</h2>\n<p class=\"soft\">{}, {}</p>",
        escaped(&table.title),
        escaped(&command),
        escaped(&made)
    );
    let sized = table.rows.iter().map(|row| {
        let (group, last) = row.name.rsplit_once(", ")?;
        Some((group, size(last)?, row))
    });
    let sized: Option<Vec<_>> = sized.collect();
    match sized.filter(|rows| !rows.is_empty()) {
        Some(rows) => multiples(page, table, &rows),
        None => bars(page, table),
    }
    page.push_str("<h3>Figures</h3>\n");
    figures(page, table);
    page.push_str("<ul class=\"notes\">\n");
    for note in table.remarks() {
        let _ = writeln!(page, "<li>{}</li>", escaped(&note));
    }
    page.push_str("</ul>\n");
}

/// Draws a plot for each group of rows that differ in size.
fn multiples(page: &mut String, table: &Table, rows: &[(&str, f64, &Row)]) {
    page.push_str("<div class=\"legend\">");
    for (at, column) in table.columns.iter().enumerate() {
        let _ = write!(
            page,
            "<span><i class=\"dash s{at}\"></i>{}</span>",
            escaped(column)
        );
    }
    let unit = rows.first().map_or("", |(.., row)| &row.unit);
    if rows.iter().any(|(.., row)| row.limit.is_some()) {
        page.push_str("<span><i class=\"dash limit\"></i>limit</span>");
    }
    if rows.iter().any(|(.., row)| row.seed.is_some()) {
        page.push_str("<span><i class=\"seed\"></i>published ratio</span>");
    }
    let _ = write!(
        page,
        "</div>\n<p class=\"soft\">Above: {} by block size, both logarithmic. Below: the ratio of {} to {}.</p>\n<div class=\"multiples\">\n",
        escaped(unit),
        escaped(&table.columns[0]),
        escaped(table.peers.first().map_or("", |&peer| &table.columns[peer])),
    );
    for group in rows.chunk_by(|one, other| one.0 == other.0) {
        let name = group[0].0;
        let sized: Vec<_> = group.iter().map(|&(_, size, row)| (size, row)).collect();
        let _ = writeln!(
            page,
            "<div><h3>{}</h3>{}</div>",
            escaped(name),
            lines(name, table, &sized)
        );
    }
    page.push_str("</div>\n");
}

/// Draws a bar for each row that has a peer, in groups by the first part of the rows' names.
fn bars(page: &mut String, table: &Table) {
    if table.peers.is_empty() {
        return;
    }
    let axis = Ratios::of(table);
    page.push_str(
        "<div class=\"legend\"><span><i class=\"wins\"></i>wins</span><span><i class=\"level\"></i>level</span><span><i class=\"loses\"></i>loses to the best \
         peer</span>",
    );
    if table.peers.len() > 1 {
        page.push_str("<span><i class=\"rule other\"></i>other peers</span>");
    }
    if table.rows.iter().any(|row| table.published(row).is_some()) {
        page.push_str("<span><i class=\"rule seed\"></i>published ratio</span>");
    }
    page.push_str("</div>\n");
    let rest = |row: &Row| match row.name.split_once(", ") {
        Some((_, rest)) => escaped(rest),
        None => escaped(&row.name),
    };
    let group = |row: &Row| {
        row.name
            .split_once(", ")
            .map_or(String::new(), |(group, _)| group.into())
    };
    for rows in table.rows.chunk_by(|one, other| group(one) == group(other)) {
        let heading = group(&rows[0]);
        if !heading.is_empty() {
            let _ = writeln!(page, "<h3>{}</h3>", escaped(&heading));
        }
        page.push_str(
            "<div class=\"bars\">\n<div class=\"axis\"><div class=\"scale\" aria-hidden=\"true\">",
        );
        for tick in axis.ticks() {
            let _ = write!(
                page,
                "<span style=\"left:{:.1}%\">{}</span>",
                axis.at(tick) * 100.0,
                tick
            );
        }
        page.push_str("</div></div>\n");
        for row in rows {
            let Some((peer, times)) = row.best_peer(&table.peers) else {
                continue;
            };
            let _ = writeln!(
                page,
                "<div><span class=\"name\">{}</span>{}<span class=\"value {}\">{}</span></div>",
                rest(row),
                bar(row, table, &axis),
                class(row.verdict(peer)),
                ratio(times)
            );
        }
        page.push_str("</div>\n");
    }
}

fn class(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Wins) => "wins",
        Some(Verdict::Loses) => "loses",
        Some(Verdict::Level) | None => "level",
    }
}

fn head(page: &mut String, caption: &str, columns: &[String]) {
    page.push_str("<div class=\"scroll\" tabindex=\"0\"><table>");
    if !caption.is_empty() {
        let _ = write!(page, "<caption>{}</caption>", escaped(caption));
    }
    page.push_str("<thead><tr>");
    for column in columns {
        let _ = write!(page, "<th scope=\"col\">{}</th>", escaped(column));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
}

fn figures(page: &mut String, table: &Table) {
    let limited = table.rows.iter().any(|row| row.limit.is_some());
    let seeded = table.rows.iter().any(|row| row.seed.is_some());
    let mut columns = vec!["row".to_owned(), "unit".into()];
    columns.extend(table.columns.iter().cloned());
    columns.extend(
        table
            .peers
            .iter()
            .map(|&peer| format!("to {}", table.columns[peer])),
    );
    if limited {
        columns.extend(["limit".into(), "to limit".into()]);
    }
    columns.extend(seeded.then(|| "published".into()));
    let caption = match table.limits().join(", ") {
        limits if limits.is_empty() => String::new(),
        limits => format!("; the limit is {limits}"),
    };
    let caption = format!("median, and from the least to the most of the runs{caption}");
    head(page, &caption, &columns);
    let cell = |cell: Option<&Cell>| match cell {
        Some(cell) => {
            let [median, least, most] = [cell.median, cell.least, cell.most].map(figure);
            let mut more = String::new();
            if let Some(calls) = cell.system_calls {
                let _ = write!(more, "{calls:.2} system calls each");
            }
            let names = ["", " at 1,000/s", " at 10,000/s"];
            for (us, name) in cell.processors().zip(names) {
                let Some(us) = us else { continue };
                let comma = if more.is_empty() { "" } else { ", " };
                let _ = write!(more, "{comma}{us:.1} µs of processors each{name}");
            }
            format!("<td title=\"{more}\">{median} <small>{least}–{most}</small></td>")
        }
        None => "<td>–</td>".into(),
    };
    for row in &table.rows {
        let arrow = if row.better == super::shape::Better::More {
            "more"
        } else {
            "less"
        };
        let _ = write!(
            page,
            "<tr><th scope=\"row\">{}</th><td title=\"{arrow} is better\">{}</td>",
            escaped(&row.name),
            escaped(&row.unit)
        );
        for column in 0..table.columns.len() {
            page.push_str(&cell(row.cell(column)));
        }
        for &peer in &table.peers {
            let times = row.cell(peer).and_then(|cell| cell.ratio);
            let _ = write!(
                page,
                "<td class=\"{}\">{}</td>",
                class(row.verdict(peer)),
                times.map_or("–".into(), ratio)
            );
        }
        if limited {
            let limit = row.limit.as_ref();
            page.push_str(&cell(limit.map(|limit| &limit.cell)));
            let times = limit.and_then(|limit| limit.cell.ratio);
            let what = limit.map_or("", |limit| &limit.what);
            let _ = write!(
                page,
                "<td title=\"{}\">{}</td>",
                escaped(what),
                times.map_or("–".into(), ratio)
            );
        }
        if seeded {
            let _ = match &row.seed {
                Some(seed) => write!(
                    page,
                    "<td>{} <small>{}</small></td>",
                    ratio(seed.ratio),
                    escaped(&seed.figures)
                ),
                None => write!(page, "<td></td>"),
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

/// Writes a published table, with the differences from the one here.
fn seed(page: &mut String, published: &Published, unmeasured: &[&str]) {
    let _ = writeln!(page, "<details><summary>The published table</summary>");
    head(
        page,
        published.title,
        &published
            .head
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>(),
    );
    for row in &published.rows {
        let mut cells = row.iter().map(|cell| escaped(cell));
        let _ = write!(
            page,
            "<tr><th scope=\"row\">{}</th>",
            cells.next().unwrap_or_default()
        );
        for cell in cells {
            let _ = write!(page, "<td>{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n<ul class=\"notes\">\n");
    for line in published.otherwise {
        let _ = writeln!(page, "<li>{}</li>", escaped(line));
    }
    if !unmeasured.is_empty() {
        let _ = writeln!(
            page,
            "<li>not measured in this run: {}</li>",
            escaped(&unmeasured.join("; "))
        );
    }
    page.push_str("</ul></details>\n");
}
