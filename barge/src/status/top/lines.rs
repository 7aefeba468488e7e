//! Formatting of figures.

use crate::status::change::{OperationDelta, StatusDelta, quantile_of_all};
use crate::status::json::{Client, Export, Limit};
use command::text::printable;

/// Column headings of the table of operations.
pub(super) const OPERATION_HEADINGS: [&str; 8] = [
    "operation",
    "protocol",
    "per s",
    "median",
    "99 %",
    "99.9 %",
    "total",
    "failed",
];

/// Column headings of the table of clients.
pub(super) const CLIENT_HEADINGS: [&str; 8] = [
    "client",
    "protocol",
    "user",
    "age",
    "requests",
    "sent",
    "received",
    "in flight",
];

/// Returns a line each for the server, its load, and each export with its cache.
pub(super) fn summary(change: &StatusDelta<'_>, operations: &[OperationDelta<'_>]) -> Vec<String> {
    let now = change.now;
    let failed = operations
        .iter()
        .fold(0.0, |sum, operation| sum + operation.error_rate);
    let mut lines = vec![
        format!(
            "barge {}, process {}, up {}, {} connections",
            printable(&now.version),
            now.pid,
            age(now.uptime),
            now.connections
        ),
        format!(
            "{} op/s, {}/s sent, {}/s received, median {}, 99th percentile {}, {} in flight, {} waiting, {} errors/s",
            count(change.rate(|done| done.requests)),
            bytes(change.rate(|done| done.sent)),
            bytes(change.rate(|done| done.received)),
            time(quantile_of_all(operations, 0.5)),
            time(quantile_of_all(operations, 0.99)),
            now.in_flight,
            now.parked,
            count(failed)
        ),
    ];
    lines.extend(now.exports.iter().map(export));
    lines
}

fn export(export: &Export) -> String {
    let served = format!(
        "/{} is {}",
        printable(&export.name),
        printable(&export.source)
    );
    let cached = export.cache.map(|cache| {
        format!(
            ", {} cached, {:.1} % cache hits",
            bytes(cache.bytes as f64),
            100.0 * cache.hits as f64 / (cache.hits + cache.misses).max(1) as f64
        )
    });
    let limited = export.limit.as_ref().map(limit);
    served + &cached.unwrap_or_default() + &limited.unwrap_or_default()
}

fn limit(limit: &Limit) -> String {
    let rates = |name: &str, rates: &Option<String>| match rates {
        Some(rates) => format!(", {name} {}", printable(rates)),
        None => String::new(),
    };
    format!(
        "{}{}, {} delayed by {} in total, {} waiting for a limit",
        rates("limit", &limit.limit),
        rates("client limit", &limit.client_limit),
        count(limit.delayed as f64),
        age(limit.waited),
        limit.waiting
    )
}

pub(super) fn operation(operation: &OperationDelta<'_>) -> [String; 8] {
    let now = operation.now;
    [
        printable(&now.name),
        printable(&now.protocol),
        count(operation.rate),
        time(operation.quantile(0.5)),
        time(operation.quantile(0.99)),
        time(operation.quantile(0.999)),
        count(now.count as f64),
        count(now.failures() as f64),
    ]
}

pub(super) fn client(client: &Client) -> [String; 8] {
    let speaks = match client.version.as_str() {
        "" => &client.protocol,
        version => version,
    };
    [
        printable(&client.peer),
        printable(speaks),
        printable(&client.user),
        age(client.age),
        count(client.done.requests as f64),
        bytes(client.done.sent as f64),
        bytes(client.done.received as f64),
        client.in_flight.to_string(),
    ]
}

/// Formats the whole status, for `--once`.
pub(super) fn text(change: &StatusDelta<'_>) -> String {
    let operations = change.operations();
    let mut text = summary(change, &operations).join("\n");
    text.push_str("\n\n");
    table(
        &mut text,
        OPERATION_HEADINGS,
        operations.iter().map(operation).collect(),
    );
    text.push('\n');
    table(
        &mut text,
        CLIENT_HEADINGS,
        change.now.clients.iter().map(client).collect(),
    );
    let failed = operations.iter().flat_map(|operation| {
        let errors = operation.now.errors.iter();
        errors.map(|(errno, count)| {
            [
                printable(errno),
                printable(&operation.now.name),
                count.to_string(),
            ]
        })
    });
    let failed: Vec<_> = failed.collect();
    if !failed.is_empty() {
        text.push('\n');
        table(&mut text, ["error", "operation", "total"], failed);
    }
    text
}

/// Appends a table with the column headings `heads` to `to`, as lines of aligned columns.
pub(crate) fn table<const N: usize>(to: &mut String, heads: [&str; N], rows: Vec<[String; N]>) {
    let mut widths = heads.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let heads = heads.map(str::to_owned);
    for row in std::iter::once(&heads).chain(&rows) {
        let cells = row.iter().zip(widths);
        let line: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        to.push_str(line.join("  ").trim_end());
        to.push('\n');
    }
}

fn with_unit(mut value: f64, units: &[&str], step: f64) -> String {
    let mut unit = 0;
    while value >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 && value.fract() == 0.0 => 0,
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}{}", units[unit])
}

fn count(value: f64) -> String {
    let whole = if value < 1.0 { value } else { value.round() };
    with_unit(whole, &["", " k", " M", " G", " T"], 1000.0)
}

fn bytes(value: f64) -> String {
    let units = [" B", " KiB", " MiB", " GiB", " TiB", " PiB"];
    with_unit(value.round(), &units, 1024.0)
}

fn time(nanos: Option<u64>) -> String {
    match nanos {
        None => "-".into(),
        Some(u64::MAX) => "> 17 s".into(),
        Some(nanos) => with_unit(nanos as f64, &[" ns", " µs", " ms", " s"], 1000.0),
    }
}

fn age(seconds: f64) -> String {
    match seconds {
        ..60.0 => format!("{seconds:.0} s"),
        ..3600.0 => format!("{:.0} min", seconds / 60.0),
        ..86400.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} d", seconds / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_units() {
        assert_eq!(
            [0.0, 0.25, 7.0, 999.0, 1500.0, 123_456.0].map(count),
            ["0", "0.25", "7", "999", "1.50 k", "123 k"]
        );
        assert_eq!(
            [0.0, 1023.0, 1024.0, 5e9].map(bytes),
            ["0 B", "1023 B", "1.00 KiB", "4.66 GiB"]
        );
        assert_eq!(
            [None, Some(640), Some(1280), Some(u64::MAX)].map(time),
            ["-", "640 ns", "1.28 µs", "> 17 s"]
        );
        assert_eq!(
            [5.0, 120.0, 7200.0, 864_000.0].map(age),
            ["5 s", "2 min", "2.0 h", "10.0 d"]
        );
    }
}
