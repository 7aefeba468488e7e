//! Published tables that barge's tables repeat, from the five systems that barge unites, measured
//! on other machines. Only their ratios are compared with barge's, not their figures.
//!
//! The figures are data: a TOML file for each system below `published`. The first cell of a row is
//! its name. Each other cell belongs to a column, and is a number, a text, or a pair of numbers of
//! the older and the newer variant. Comparisons say which ratio belongs to which rows of ours.

use serde::Deserialize;

use super::format::{Better, Outcome, Published, Report};
use super::number::ratio;
use crate::data;

const FILES: [&str; 5] = [
    include_str!("published/coalescing.toml"),
    include_str!("published/virtiofs.toml"),
    include_str!("published/readplus.toml"),
    include_str!("published/zerocopy.toml"),
    include_str!("published/image.toml"),
];

/// A published table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedTable {
    /// The table here that repeats it.
    pub(super) table: String,
    pub(super) title: String,
    /// The names of the columns, beginning with that of the rows' names.
    columns: Vec<String>,
    /// The decimal places of numbers [default: as many as they have].
    decimals: Option<usize>,
    rows: Vec<PublishedRow>,
    /// Computed columns, shown after the others.
    #[serde(default)]
    ratios: Vec<RatioColumn>,
    /// The differences and omissions here, with the reasons.
    pub(super) differences: Vec<String>,
    #[serde(default)]
    comparisons: Vec<Comparison>,
}

/// The name of a row, and its cells.
#[derive(Deserialize)]
#[serde(try_from = "Vec<Cell>")]
struct PublishedRow {
    name: String,
    cells: Vec<Cell>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Cell {
    Number(f64),
    /// The older and the newer variant.
    Pair([f64; 2]),
    Text(String),
}

/// The ratio of one column to another.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RatioColumn {
    name: String,
    of: String,
    to: String,
}

/// The comparison of published figures with rows of ours.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Comparison {
    /// Our table.
    table: String,
    /// The names of our rows: `*` stands for a part without a comma, `{row}` for the name of each
    /// published row.
    row: String,
    /// Our column that corresponds to the older variant.
    against: String,
    /// The column of pairs, or else those of the older and the newer variant, each of another row
    /// if one is named.
    pair: Option<String>,
    old: Option<String>,
    new: Option<String>,
    old_row: Option<String>,
    new_row: Option<String>,
    better: Better,
    /// The figures as text: `{old}`, `{new}`, or `{COLUMN}` of the row.
    figures: String,
}

impl TryFrom<Vec<Cell>> for PublishedRow {
    type Error = String;

    fn try_from(mut cells: Vec<Cell>) -> Result<PublishedRow, String> {
        if cells.is_empty() {
            return Err("expected a row, got no cells".into());
        }
        match cells.remove(0) {
            Cell::Text(name) => Ok(PublishedRow { name, cells }),
            Cell::Number(_) | Cell::Pair(_) => Err("expected the name of a row".into()),
        }
    }
}

impl PublishedTable {
    /// Parses a file. Returns an error with the position if it is not a published table, or if a
    /// comparison names a column or row that it lacks.
    fn parse(text: &str) -> Result<PublishedTable, String> {
        let table: PublishedTable = data::parse(text)?;
        for row in &table.rows {
            if row.cells.len() + 1 != table.columns.len() {
                let (expected, got) = (table.columns.len(), row.cells.len() + 1);
                let name = &row.name;
                return Err(format!("{name}: expected {expected} cells, got {got}"));
            }
        }
        for row in &table.rows {
            for column in &table.ratios {
                table.ratio_of(row, column)?;
            }
            for comparison in &table.comparisons {
                table.published(comparison, row)?;
            }
        }
        Ok(table)
    }

    /// Returns the names of all columns.
    pub(super) fn head(&self) -> Vec<String> {
        let ratios = self.ratios.iter().map(|column| &column.name);
        self.columns.iter().chain(ratios).cloned().collect()
    }

    /// Returns the rows as text.
    pub(super) fn lines(&self) -> impl Iterator<Item = Vec<String>> {
        self.rows.iter().map(|row| {
            let cells = row.cells.iter().map(|cell| match cell {
                Cell::Number(number) => self.number(*number),
                Cell::Pair([old, new]) => {
                    format!("{} → {}", self.number(*old), self.number(*new))
                }
                Cell::Text(text) => text.clone(),
            });
            let ratios = self.ratios.iter().map(|column| {
                let value = self.ratio_of(row, column);
                ratio(value.expect("it has been checked"))
            });
            let name = std::iter::once(row.name.clone());
            name.chain(cells).chain(ratios).collect()
        })
    }

    /// Returns the names of the rows of ours that a report has not measured.
    pub(super) fn unmeasured(&self, report: &Report) -> Vec<String> {
        let measured: Vec<&str> = report
            .tables
            .iter()
            .filter(|entry| entry.name == self.table)
            .flat_map(|entry| match &entry.outcome {
                Outcome::Measured(table) => &*table.rows,
                Outcome::Failed(_) | Outcome::LeftOut(_) => &[],
            })
            .map(|row| &*row.name)
            .collect();
        let comparisons = self.comparisons.iter();
        let mut names: Vec<String> = Vec::new();
        for comparison in comparisons.filter(|comparison| comparison.table == self.table) {
            for row in &self.rows {
                let pattern = comparison.row.replace("{row}", &row.name);
                if !measured.iter().any(|name| matches(&pattern, name)) {
                    let name = pattern.strip_prefix("*, ").unwrap_or(&pattern);
                    if !names.iter().any(|other| other == name) {
                        names.push(name.to_owned());
                    }
                }
            }
        }
        names
    }

    fn number(&self, number: f64) -> String {
        match self.decimals {
            Some(decimals) => format!("{number:.decimals$}"),
            None => number.to_string(),
        }
    }

    fn cell<'a>(&self, row: &'a PublishedRow, column: &str) -> Result<&'a Cell, String> {
        let at = self.columns.iter().skip(1).position(|name| name == column);
        at.and_then(|at| row.cells.get(at))
            .ok_or_else(|| format!("expected a column, got '{column}'"))
    }

    fn figure(&self, row: &PublishedRow, column: &str) -> Result<f64, String> {
        match self.cell(row, column)? {
            Cell::Number(number) => Ok(*number),
            Cell::Pair(_) | Cell::Text(_) => {
                Err(format!("{}, {column}: expected a number", row.name))
            }
        }
    }

    fn ratio_of(&self, row: &PublishedRow, column: &RatioColumn) -> Result<f64, String> {
        Ok(self.figure(row, &column.of)? / self.figure(row, &column.to)?)
    }

    /// Returns the figures of the older and the newer variant that `comparison` has for `row`.
    fn variants(&self, comparison: &Comparison, row: &PublishedRow) -> Result<[f64; 2], String> {
        let Comparison {
            pair,
            old,
            new,
            old_row,
            new_row,
            ..
        } = comparison;
        let (old, new) = match (pair, old, new) {
            (Some(pair), None, None) => {
                return match self.cell(row, pair)? {
                    Cell::Pair(pair) => Ok(*pair),
                    Cell::Number(_) | Cell::Text(_) => {
                        Err(format!("{}, {pair}: expected a pair", row.name))
                    }
                };
            }
            (None, Some(old), Some(new)) => (old, new),
            _ => return Err("expected pair, or old and new".into()),
        };
        let row_of = |name: &Option<String>| match name {
            None => Ok(row),
            Some(name) => {
                let found = self.rows.iter().find(|row| row.name == *name);
                found.ok_or_else(|| format!("expected a row, got '{name}'"))
            }
        };
        Ok([
            self.figure(row_of(old_row)?, old)?,
            self.figure(row_of(new_row)?, new)?,
        ])
    }

    fn published(&self, comparison: &Comparison, row: &PublishedRow) -> Result<Published, String> {
        let [old, new] = self.variants(comparison, row)?;
        let mut figures = comparison
            .figures
            .replace("{old}", &self.number(old))
            .replace("{new}", &self.number(new));
        for column in &self.columns[1..] {
            let workspace = format!("{{{column}}}");
            if figures.contains(&workspace) {
                figures = figures.replace(&workspace, &self.number(self.figure(row, column)?));
            }
        }
        if figures.contains('{') {
            return Err(format!("figures: expected columns, got '{figures}'"));
        }
        let ratio = comparison.better.ratio(new, old);
        Ok(Published {
            against: comparison.against.clone(),
            ratio: ratio.ok_or_else(|| format!("{}: expected positive figures", row.name))?,
            figures,
        })
    }
}

/// Returns the published tables by year, except the first, which is the oldest about caches.
pub(super) fn tables() -> [PublishedTable; 5] {
    FILES.map(|text| PublishedTable::parse(text).expect("a test checks the files"))
}

/// Returns the published figures for a row of one of barge's tables.
pub(super) fn of_row(table: &str, row: &str) -> Option<Published> {
    tables().iter().find_map(|published| {
        let mut comparisons = published.comparisons.iter();
        comparisons.find_map(|comparison| {
            let is_row = |row_of: &&PublishedRow| {
                matches(&comparison.row.replace("{row}", &row_of.name), row)
            };
            let found = published.rows.iter().find(is_row);
            let found = found.filter(|_| comparison.table == table)?;
            published.published(comparison, found).ok()
        })
    })
}

/// Returns whether `name` is `pattern`, in which a leading `*` stands for a part without a comma.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        None => name == pattern,
        Some(end) => name
            .strip_suffix(end)
            .is_some_and(|part| !part.contains(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_published_tables() {
        for (text, expected) in
            FILES
                .iter()
                .zip(["coalescing", "virtiofs", "readplus", "zerocopy", "image"])
        {
            match PublishedTable::parse(text) {
                Ok(table) => assert_eq!(table.table, expected),
                Err(why) => panic!("{expected}: {why}"),
            }
        }
    }

    #[test]
    fn a_bad_file_is_refused() {
        const GOOD: &str = "table = 't'\ntitle = 'T'\ncolumns = ['row', 'a', 'b']\ndifferences = []\n\
             rows = [['x', 1, [2, 3]]]\n[[comparisons]]\ntable = 't'\nrow = '{row}'\nagainst = 'c'\n\
             pair = 'b'\nbetter = 'more'\nfigures = '{old} to {new}, {a}'\n";
        assert!(PublishedTable::parse(GOOD).is_ok());
        for (from, to) in [
            ("title", "name"),
            ("['x', 1, [2, 3]]", "['x', 1]"),
            ("['x', 1, [2, 3]]", "[1, 1, [2, 3]]"),
            ("[2, 3]", "[2, 3, 4]"),
            ("pair = 'b'", "pair = 'a'"),
            ("pair = 'b'", "pair = 'd'"),
            ("pair = 'b'", "old = 'a'\nnew = 'b'"),
            ("pair = 'b'", "old = 'a'\nnew = 'a'\nold_row = 'y'"),
            ("'more'", "'most'"),
            ("{a}", "{d}"),
            ("[2, 3]", "[0, 3]"),
        ] {
            let bad = GOOD.replace(from, to);
            assert!(PublishedTable::parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_are_found_by_the_names_of_ours() {
        let ratio = |table, row| of_row(table, row).map(|found| format!("{:.2}", found.ratio));
        let rows = [
            ("coalescing", "Unix, write 1M", "2.60"),
            ("coalescing", "TCP + 1 ms, random write 1M", "2.16"),
            ("guest caches", "random read 4K", "1.56"),
            ("readplus", "xfs uncached, whole hole", "1.32"),
            ("readplus", "btrfs cached, 32K hole first", "0.81"),
            ("guest readplus", "whole hole", "1.15"),
            ("zerocopy", "unix, write, 4 KiB", "1.02"),
            ("zerocopy", "tcp, read, 512 B", "1.68"),
            ("image", "java hello, plain, cold", "0.36"),
        ];
        for (table, row, expected) in rows {
            assert_eq!(
                ratio(table, row).as_deref(),
                Some(expected),
                "{table}, {row}"
            );
        }
        for (table, row) in [
            ("coalescing", "Unix, fd passing, write 1M"),
            ("zerocopy", "unix, read, 1 MiB"),
            ("readplus", "xfs, whole hole, on the wire"),
            ("image", "java hello, lz4, cold"),
            ("9p", "whole hole"),
        ] {
            assert_eq!(ratio(table, row), None, "{table}, {row}");
        }
        let found = of_row("readplus", "xfs cached, whole data").expect("published");
        assert_eq!(found.figures, "0.942 → 1.153 s");
        let found = of_row("coalescing", "TCP, write 1M").expect("published");
        assert_eq!(found.figures, "127 → 330 MB/s, disk 391");
        let found = of_row("image", "node hello, plain, cold").expect("published");
        assert_eq!(found.figures, "ramfs 166, mfs2 289 ms");
    }

    #[test]
    fn lines_are_as_wide_as_their_heads() {
        for table in tables() {
            let width = table.head().len();
            assert!(
                table.lines().all(|line| line.len() == width),
                "{}",
                table.title
            );
        }
    }
}
