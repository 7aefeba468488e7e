//! Plots as SVG: bars of ratios around the line of 1, and lines by size. Colours and line widths
//! come from the page's style sheet.
//!
//! Bars are stretched to the available width, so they contain no text; line plots contain theirs.

use std::fmt::Write;

use super::format::{Row, Table, Verdict};
use super::number::{figure, ratio};

/// Escapes a string for XML text or an attribute value.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML cannot represent these characters.
            letter if letter.is_control() && letter != '\n' && letter != '\t' => {
                escaped.push('\u{fffd}')
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// A logarithmic axis of ratios that includes 1.
pub(super) struct RatioAxis {
    /// The ends of the axis as powers of 2.
    min: f64,
    max: f64,
}

impl RatioAxis {
    /// Returns an axis that fits all ratios drawn of a table.
    pub(super) fn of(table: &Table) -> RatioAxis {
        let drawn = table.rows.iter().flat_map(|row| {
            let ratio = |&peer: &usize| row.cell(peer)?.ratio;
            let published = table.published(row).map(|published| published.ratio);
            table.peers.iter().filter_map(ratio).chain(published)
        });
        let mut axis = RatioAxis {
            min: -1.0,
            max: 1.0,
        };
        for power in drawn.map(f64::log2) {
            axis.min = axis.min.min(power.floor());
            axis.max = axis.max.max(power.ceil());
        }
        axis
    }

    /// Returns the position on the axis, from 0 to 1.
    pub(super) fn at(&self, ratio: f64) -> f64 {
        ((ratio.log2() - self.min) / (self.max - self.min)).clamp(0.0, 1.0)
    }

    /// Returns the ratios to label.
    pub(super) fn ticks(&self) -> Vec<f64> {
        // Five labels fit on a phone.
        let step = ((self.max - self.min) / 5.0).ceil().max(1.0);
        let first = (self.min / step).ceil() * step;
        let powers = std::iter::successors(Some(first), |power| Some(power + step));
        let powers = powers.take_while(|power| *power <= self.max);
        powers.map(f64::exp2).collect()
    }
}

/// The width of a bar's coordinate system, and its height.
const BAR: (f64, f64) = (400.0, 16.0);

/// Draws a row's bar: the ratio to its best peer with its spread, thin lines for the other peers, a
/// mark for the published ratio.
pub(super) fn bar(row: &Row, table: &Table, axis: &RatioAxis) -> String {
    let (width, height) = BAR;
    let x = |ratio| axis.at(ratio) * width;
    let title = escaped(&description(row, table));
    let mut svg = format!(
        "<svg class=\"bar\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>"
    );
    for tick in axis.ticks() {
        let class = if tick == 1.0 { "one" } else { "tick" };
        vertical_line(&mut svg, class, x(tick), (0.0, height));
    }
    if let Some((best, ratio)) = row.best_peer(&table.peers) {
        let class = match row.verdict(best) {
            Some(Verdict::Wins) => "wins",
            Some(Verdict::Loses) => "loses",
            Some(Verdict::Level) | None => "level",
        };
        let (from, to) = (x(ratio).min(x(1.0)), x(ratio).max(x(1.0)));
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"3\" width=\"{:.1}\" height=\"10\"/>",
            (to - from).max(1.0)
        );
        for &peer in table.peers.iter().filter(|&&peer| peer != best) {
            if let Some(ratio) = row.cell(peer).and_then(|cell| cell.ratio) {
                vertical_line(&mut svg, "other", x(ratio), (4.0, 12.0));
            }
        }
        if let Some((least, most)) = row.ratios(best).filter(|(least, most)| least < most) {
            let (least, most) = (x(least), x(most));
            let _ = write!(
                svg,
                "<path class=\"spread\" d=\"M{least:.1} 8H{most:.1}M{least:.1} 5V11M{most:.1} 5V11\"/>"
            );
        }
    }
    if let Some(published) = table.published(row) {
        vertical_line(&mut svg, "seed", x(published.ratio), (0.0, height));
    }
    svg + "</svg>"
}

fn vertical_line(svg: &mut String, class: &str, x: f64, (top, bottom): (f64, f64)) {
    let _ = write!(
        svg,
        "<path class=\"{class}\" d=\"M{x:.1} {top}V{bottom}\"/>"
    );
}

/// Describes a row in a sentence.
fn description(row: &Row, table: &Table) -> String {
    let mut text = format!("{}: ", row.name);
    match row.best_peer(&table.peers) {
        Some((peer, times)) => {
            let (least, most) = row.ratios(peer).unwrap_or((times, times));
            let [times, least, most] = [times, least, most].map(ratio);
            let _ = write!(
                text,
                "ratio {times} to {} ({least} to {most})",
                table.columns[peer]
            );
        }
        None => text.push_str("no peer"),
    }
    if let Some(published) = table.published(row) {
        let _ = write!(text, "; published: {}", ratio(published.ratio));
    }
    text
}

/// Parses a name that is a size: `32 B`, `4 KiB`, `1 MiB`; returns bytes.
pub(super) fn size(name: &str) -> Option<f64> {
    let (count, unit) = name.split_once(' ')?;
    let scale = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        _ => return None,
    };
    let count: u32 = count.parse().ok()?;
    (count > 0).then(|| f64::from(count) * scale)
}

/// The width of the drawing, and the edges of its upper field: left, right, top, bottom.
const LINES: (f64, [f64; 4]) = (360.0, [46.0, 352.0, 8.0, 176.0]);
/// The top and bottom edges of the lower field, with the ratios.
const LOWER_FIELD: [f64; 2] = [206.0, 282.0];
const HEIGHT: f64 = 312.0;

/// Draws the columns by size, both axes logarithmic, and below them the ratio to the first peer.
/// `rows` is a group of rows with their sizes.
pub(super) fn lines(title: &str, table: &Table, rows: &[(f64, &Row)]) -> String {
    let (width, [left, right, top, bottom]) = LINES;
    let title = escaped(title);
    let unit = rows.first().map_or("", |(_, row)| &row.unit);
    let mut svg = format!(
        "<svg class=\"lines\" viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" aria-label=\"{title}: {unit} by size\"><title>{title}: {unit} by size</title>"
    );
    let sizes: Vec<f64> = rows.iter().map(|(size, _)| *size).collect();
    let across = Axis::over(&sizes, (left, right));
    let cells = rows.iter().flat_map(|(_, row)| row.cells.iter().flatten());
    let limits = rows.iter().filter_map(|(_, row)| row.limit.as_ref());
    let figures: Vec<f64> = cells
        .chain(limits.map(|limit| &limit.cell))
        .flat_map(|cell| [cell.least, cell.most])
        .filter(|figure| *figure > 0.0)
        .collect();
    let up = Axis::over(&figures, (bottom, top));
    for decade in up.powers(10.0) {
        horizontal_line(&mut svg, "tick", (left, right), up.at(decade));
        label(
            &mut svg,
            "end",
            (left - 5.0, up.at(decade) + 4.0),
            &with_suffix(decade),
        );
    }
    for size in across.powers(16.0) {
        vertical_line(&mut svg, "tick", across.at(size), (top, bottom));
        vertical_line(
            &mut svg,
            "tick",
            across.at(size),
            (LOWER_FIELD[0], LOWER_FIELD[1]),
        );
        label(
            &mut svg,
            "middle",
            (across.at(size), HEIGHT - 14.0),
            &bytes(size),
        );
    }
    let cells = |column: usize| {
        move |row: &Row| {
            row.cell(column)
                .map(|cell| (cell.least, cell.median, cell.most))
        }
    };
    let limit = |row: &Row| {
        row.limit
            .as_ref()
            .map(|limit| (limit.cell.least, limit.cell.median, limit.cell.most))
    };
    series(&mut svg, "limit", rows, (&across, &up), limit);
    for column in (0..table.columns.len()).rev() {
        series(
            &mut svg,
            &format!("s{column}"),
            rows,
            (&across, &up),
            cells(column),
        );
    }

    let Some(&peer) = table.peers.first() else {
        return svg + "</svg>";
    };
    let axis = RatioAxis::of(table);
    let y = |ratio| LOWER_FIELD[1] - axis.at(ratio) * (LOWER_FIELD[1] - LOWER_FIELD[0]);
    for tick in axis.ticks() {
        horizontal_line(
            &mut svg,
            if tick == 1.0 { "one" } else { "tick" },
            (left, right),
            y(tick),
        );
        label(
            &mut svg,
            "end",
            (left - 5.0, y(tick) + 4.0),
            &tick.to_string(),
        );
    }
    let mut path = String::new();
    for (size, row) in rows {
        let x = across.at(*size);
        if let Some(published) = &row.published {
            let _ = write!(
                svg,
                "<circle class=\"published\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                y(published.ratio)
            );
        }
        if let (Some(ratio), Some((least, most))) =
            (row.cell(peer).and_then(|cell| cell.ratio), row.ratios(peer))
        {
            vertical_line(&mut svg, "spread s0", x, (y(least), y(most)));
            let _ = write!(
                path,
                "{}{x:.1} {:.1}",
                if path.is_empty() { 'M' } else { 'L' },
                y(ratio)
            );
        }
    }
    let _ = write!(svg, "<path class=\"line s0\" d=\"{path}\"/>");
    svg + "</svg>"
}

/// Draws a line through the medians, and the spread at each.
fn series(
    svg: &mut String,
    class: &str,
    rows: &[(f64, &Row)],
    (across, up): (&Axis, &Axis),
    cell: impl Fn(&Row) -> Option<(f64, f64, f64)>,
) {
    let mut path = String::new();
    for (size, row) in rows {
        let Some((least, median, most)) = cell(row).filter(|(least, ..)| *least > 0.0) else {
            continue;
        };
        let x = across.at(*size);
        if least < most {
            vertical_line(
                svg,
                &format!("spread {class}"),
                x,
                (up.at(least), up.at(most)),
            );
        }
        let _ = write!(
            path,
            "{}{x:.1} {:.1}",
            if path.is_empty() { 'M' } else { 'L' },
            up.at(median)
        );
    }
    let _ = write!(svg, "<path class=\"line {class}\" d=\"{path}\"/>");
}

fn horizontal_line(svg: &mut String, class: &str, (left, right): (f64, f64), y: f64) {
    let _ = write!(
        svg,
        "<path class=\"{class}\" d=\"M{left} {y:.1}H{right}\"/>"
    );
}

fn label(svg: &mut String, anchor: &str, (x, y): (f64, f64), text: &str) {
    let text = escaped(text);
    let _ = write!(
        svg,
        "<text class=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>"
    );
}

/// A logarithmic axis of a drawing.
struct Axis {
    min: f64,
    max: f64,
    ends: (f64, f64),
}

impl Axis {
    fn over(values: &[f64], ends: (f64, f64)) -> Axis {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        match least < most {
            true => Axis {
                min: least.ln(),
                max: most.ln(),
                ends,
            },
            // A single value, or none, is centred.
            false => Axis {
                min: -1.0 + most.max(1.0).ln(),
                max: 1.0 + most.max(1.0).ln(),
                ends,
            },
        }
    }

    fn at(&self, value: f64) -> f64 {
        let along = (value.ln() - self.min) / (self.max - self.min);
        self.ends.0 + along.clamp(0.0, 1.0) * (self.ends.1 - self.ends.0)
    }

    /// Returns the powers of `base` on the axis.
    fn powers(&self, base: f64) -> Vec<f64> {
        // The tolerance allows for rounding errors of the logarithms.
        let first = (self.min / base.ln() - 1e-9).ceil();
        let powers = std::iter::successors(Some(first), |power| Some(power + 1.0));
        let powers = powers.take_while(|power| *power <= self.max / base.ln() + 1e-9);
        powers.map(|power| base.powf(power)).collect()
    }
}

/// Formats a size in bytes: `4K`.
fn bytes(size: f64) -> String {
    match () {
        () if size >= 1_048_576.0 => format!("{}M", size / 1_048_576.0),
        () if size >= 1024.0 => format!("{}K", size / 1024.0),
        () => format!("{size}"),
    }
}

/// Formats a number: `10k`.
fn with_suffix(value: f64) -> String {
    match () {
        () if value >= 1e9 => format!(
            "{}G",
            figure(value / 1e9)
                .trim_end_matches(".0")
                .trim_end_matches(".00")
        ),
        () if value >= 1e6 => format!("{:.0}M", value / 1e6),
        () if value >= 1e3 => format!("{:.0}k", value / 1e3),
        () => format!("{value:.0}"),
    }
}
