//! The common format of results, serialized as JSON: every form of a report is rendered from it,
//! and `barge bench show` reads it.

use command::Failure;
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::number::minutes;

/// The fixed rates, in operations a second, at which processor time is measured, in addition to
/// full speed.
pub(crate) const RATES: [u32; 2] = [1_000, 10_000];

/// The results of a run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Report {
    /// The version of barge.
    pub(crate) barge: String,
    /// The command to repeat the run.
    pub(crate) command: String,
    /// The start time: RFC 3339, UTC.
    pub(crate) began: String,
    pub(crate) seconds: f64,
    pub(crate) machine: Machine,
    pub(crate) tables: Vec<Entry>,
}

impl Report {
    /// Replaces the tables that a later run has measured too, and appends the ones it adds.
    pub(crate) fn merge(mut self, later: Report) -> Report {
        let machine = later.machine.line();
        let again = LaterRun {
            command: later.command,
            began: later.began,
            machine: (machine != self.machine.line()).then_some(machine),
        };
        for mut entry in later.tables {
            if !matches!(entry.outcome, Outcome::Measured(_)) {
                continue;
            }
            entry.again.get_or_insert_with(|| again.clone());
            match self.tables.iter_mut().find(|own| own.name == entry.name) {
                Some(own) => *own = entry,
                None => self.tables.push(entry),
            }
        }
        self
    }

    /// Returns a warning if the figures are not reliable.
    pub(super) fn warning(&self) -> Option<&'static str> {
        let quick = self.command.contains(" --quick");
        Some(match (quick, self.machine.is_busy()) {
            (true, true) => {
                "Few and short runs on a machine that was busy with other work: a check that the bench works, not a measurement."
            }
            (true, false) => "Few and short runs: a check that the bench works, not a measurement.",
            (false, true) => {
                "The machine was busy with other work: ratios are more reliable than figures, and both vary."
            }
            (false, false) => return None,
        })
    }
}

/// A table, or the reason why there is none.
#[derive(Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The name for `barge bench`.
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// The later run that has measured it, if not the report's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) again: Option<LaterRun>,
    pub(crate) outcome: Outcome,
}

/// A later run: its command, its start time, and its machine if that or its state differs.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct LaterRun {
    command: String,
    began: String,
    #[serde(default)]
    machine: Option<String>,
}

impl Entry {
    /// Returns the command to repeat the measurement, and its duration, with start time and machine
    /// if from a later run.
    pub(super) fn origin(&self) -> (String, String) {
        let took = minutes(self.seconds);
        match &self.again {
            None => (self.command(), took),
            Some(again) => {
                let made = [&took, &again.began].into_iter().chain(&again.machine);
                let made = made.map(String::as_str).collect::<Vec<_>>();
                (again.command.clone(), made.join(", "))
            }
        }
    }
}

impl Entry {
    /// Returns the command that measures the table. Parts in a guest belong to the table of their
    /// protocol.
    fn command(&self) -> String {
        let table = match self.name.strip_prefix("guest ") {
            None => return format!("barge bench {}", self.name),
            Some("caches") => "coalescing",
            Some(part) => part.rsplit(' ').next().unwrap_or(part),
        };
        format!("barge bench {table} --guest")
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Measured(Table),
    /// The measurement failed, with the reason.
    Failed(String),
    /// The measurement was not selected, or is impossible here, with the reason.
    LeftOut(String),
}

impl Outcome {
    /// Returns the outcome of a table in which the cells in `failed` failed; a table in which all
    /// failed has failed itself.
    pub(crate) fn of(table: Table, failed: Vec<String>) -> Outcome {
        let is_measured = |row: &Row| row.cells.iter().any(Option::is_some);
        match failed.first() {
            Some(why) if !table.rows.iter().any(is_measured) => Outcome::Failed(why.clone()),
            _ => Outcome::Measured(Table { failed, ..table }),
        }
    }

    /// Returns whether everything that should have been measured was.
    pub(crate) fn is_complete(&self) -> bool {
        match self {
            Outcome::Measured(table) => table.failed.is_empty(),
            Outcome::Failed(_) => false,
            Outcome::LeftOut(_) => true,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Table {
    pub(super) title: String,
    pub(super) notes: Vec<String>,
    pub(super) missing: Vec<String>,
    /// The cells that failed, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) failed: Vec<String>,
    /// The columns, barge first.
    pub(super) columns: Vec<String>,
    /// The indices of columns.
    pub(super) peers: Vec<usize>,
    pub(super) rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) better: Better,
    /// One for each column; `None` if not measured.
    pub(super) cells: Vec<Option<Cell>>,
    pub(super) limit: Option<Limit>,
    #[serde(rename = "seed")]
    pub(super) published: Option<Published>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Better {
    More,
    Less,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) runs: Vec<f64>,
    /// The ratio of barge to this cell, above 1 if barge is better; `None` for barge's own.
    pub(super) ratio: Option<f64>,
    pub(super) system_calls: Option<f64>,
    /// Processor time of server and client for an operation at full speed, in microseconds; that is
    /// also seconds for a million operations.
    pub(super) processor_us: Option<f64>,
    /// The processor time at each of [`RATES`], in microseconds.
    #[serde(default)]
    pub(super) paced_us: [Option<f64>; RATES.len()],
}

impl Cell {
    /// Returns the processor times at full speed and at each pace.
    pub(super) fn processors(&self) -> impl Iterator<Item = Option<f64>> {
        std::iter::once(self.processor_us).chain(self.paced_us)
    }
}

/// The hardware limit of a row.
#[derive(Serialize, Deserialize)]
pub(super) struct Limit {
    pub(super) what: String,
    pub(super) cell: Cell,
}

/// Published figures for a row, from the system whose table it repeats.
#[derive(Serialize, Deserialize)]
pub(super) struct Published {
    /// The column here that corresponds to the older variant of that system.
    pub(super) against: String,
    /// The published ratio of its new variant to the older one, above 1 if better.
    pub(super) ratio: f64,
    /// The figures as published.
    pub(super) figures: String,
}

/// The comparison of barge with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Wins,
    /// The interval of the ratio contains 1, or the ratio is close to 1.
    Level,
    Loses,
}

/// The least number of runs from which ratios are computed over pairs of adjacent runs. The columns
/// alternate, so other load on the machine affects both runs of a pair alike. Six are the fewest
/// whose extremes enclose their median with at least 95 % confidence (97 %).
const MIN_PAIRS: usize = 6;

/// Medians that differ by no more than this are level, whatever the runs: two runs of the same
/// thing differ as much on an idle machine.
const LEVEL_MARGIN: f64 = 0.03;

impl Better {
    fn of(unit: &str) -> Better {
        if unit.ends_with("/s") {
            Better::More
        } else {
            Better::Less
        }
    }

    /// Returns the ratio of `ours` to `theirs`, above 1 if ours is better; `None` if it is not a
    /// positive number.
    pub(super) fn ratio(self, ours: f64, theirs: f64) -> Option<f64> {
        let ratio = match self {
            _ if ours == theirs => 1.0,
            Better::More => ours / theirs,
            Better::Less => theirs / ours,
        };
        Some(ratio).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
    }

    /// Returns the ratios of adjacent runs, sorted; `None` if there are fewer than [`MIN_PAIRS`].
    fn paired_ratios(self, ours: &Cell, theirs: &Cell) -> Option<Vec<f64>> {
        if ours.runs.len() != theirs.runs.len() || ours.runs.len() < MIN_PAIRS {
            return None;
        }
        let runs = ours.runs.iter().zip(&theirs.runs);
        let mut pairs: Vec<f64> = runs
            .map(|(ours, theirs)| self.ratio(*ours, *theirs))
            .collect::<Option<_>>()?;
        pairs.sort_by(f64::total_cmp);
        Some(pairs)
    }
}

/// Returns the median of sorted figures; there must be at least one.
fn median(sorted: &[f64]) -> f64 {
    let last = sorted.len() - 1;
    (sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0
}

/// Returns the 95 % confidence interval of the median of sorted figures, whatever their
/// distribution (inversion of the sign test); there must be at least [`MIN_PAIRS`].
fn confidence_interval(sorted: &[f64]) -> (f64, f64) {
    let many = sorted.len();
    // The probabilities that exactly `first` figures lie below the median, and that at most `first`
    // do.
    let mut exactly = 0.5f64.powf(many as f64);
    let mut at_most = exactly;
    let mut first = 0;
    while first < many / 2 {
        exactly *= (many - first) as f64 / (first + 1) as f64;
        at_most += exactly;
        if at_most > 0.025 {
            break;
        }
        first += 1;
    }
    (sorted[first], sorted[many - 1 - first])
}

impl Row {
    /// Creates a row and computes the ratios of its first cell to the others.
    pub(super) fn new(
        (name, unit): (String, &str),
        mut cells: Vec<Option<Cell>>,
        mut limit: Option<Limit>,
        published: Option<Published>,
    ) -> Row {
        let better = Better::of(unit);
        if let Some((Some(ours), others)) = cells.split_first_mut() {
            let others = others.iter_mut().flatten();
            for cell in others.chain(limit.as_mut().map(|limit| &mut limit.cell)) {
                cell.ratio = match better.paired_ratios(ours, cell) {
                    Some(pairs) => Some(median(&pairs)),
                    None => better.ratio(ours.median, cell.median),
                };
            }
        }
        Row {
            name,
            unit: unit.into(),
            better,
            cells,
            limit,
            published,
        }
    }

    pub(super) fn cell(&self, column: usize) -> Option<&Cell> {
        self.cells.get(column)?.as_ref()
    }

    /// Returns the 95 % confidence interval of the ratio to a column; `None` with fewer than
    /// [`MIN_PAIRS`] runs.
    pub(super) fn interval(&self, column: usize) -> Option<(f64, f64)> {
        let pairs = self.better.paired_ratios(self.cell(0)?, self.cell(column)?);
        pairs.as_deref().map(confidence_interval)
    }

    /// Returns that interval, or with fewer runs the least and the greatest possible ratio.
    pub(super) fn ratios(&self, column: usize) -> Option<(f64, f64)> {
        if let Some(interval) = self.interval(column) {
            return Some(interval);
        }
        let (ours, theirs) = (self.cell(0)?, self.cell(column)?);
        let one = self.better.ratio(ours.least, theirs.most)?;
        let other = self.better.ratio(ours.most, theirs.least)?;
        Some((one.min(other), one.max(other)))
    }

    pub(super) fn verdict(&self, column: usize) -> Option<Verdict> {
        let ratio = self.cell(column)?.ratio?;
        let (least, most) = self.ratios(column)?;
        Some(match () {
            () if (ratio - 1.0).abs() <= LEVEL_MARGIN || (least <= 1.0 && 1.0 <= most) => {
                Verdict::Level
            }
            () if ratio > 1.0 => Verdict::Wins,
            () => Verdict::Loses,
        })
    }

    /// Returns the peer with the lowest ratio of barge to it, and that ratio.
    pub(super) fn best_peer(&self, peers: &[usize]) -> Option<(usize, f64)> {
        let ratio = |&peer: &usize| Some((peer, self.cell(peer)?.ratio?));
        let ratios = peers.iter().filter_map(ratio);
        ratios.min_by(|one, other| one.1.total_cmp(&other.1))
    }
}

impl Table {
    /// Returns the remarks below the rows.
    pub(super) fn remarks(&self) -> impl Iterator<Item = String> {
        let notes = self.notes.iter().chain(&self.missing).cloned();
        notes.chain(self.failed.iter().map(|why| format!("failed: {why}")))
    }

    /// Returns the published figures of a row if they compare with a peer of the table, as a plot
    /// of ratios requires.
    pub(super) fn published<'a>(&self, row: &'a Row) -> Option<&'a Published> {
        let is_peer = |published: &&Published| {
            let peers = self.peers.iter();
            peers
                .map(|&peer| &self.columns[peer])
                .any(|name| *name == published.against)
        };
        row.published.as_ref().filter(is_peer)
    }

    /// Returns the descriptions of the rows' limits.
    pub(super) fn limits(&self) -> Vec<&str> {
        let mut limits: Vec<_> = self
            .rows
            .iter()
            .filter_map(|row| Some(row.limit.as_ref()?.what.as_str()))
            .collect();
        limits.sort_unstable();
        limits.dedup();
        limits
    }

    /// Returns the numbers of rows won, level and lost, each compared with its best peer.
    pub(super) fn score(&self) -> [usize; 3] {
        let verdict = |row: &Row| row.verdict(row.best_peer(&self.peers)?.0);
        let mut score = [0; 3];
        for verdict in self.rows.iter().filter_map(verdict) {
            score[verdict as usize] += 1;
        }
        score
    }

    /// Returns the rows lost to their best peer, worst first, with that peer and the ratio.
    pub(super) fn losses(&self) -> Vec<(&Row, usize, f64)> {
        let lost = |row| {
            let (peer, ratio) = Row::best_peer(row, &self.peers)?;
            (row.verdict(peer)? == Verdict::Loses).then_some((row, peer, ratio))
        };
        let mut lost: Vec<_> = self.rows.iter().filter_map(lost).collect();
        lost.sort_by(|one, other| one.2.total_cmp(&other.2));
        lost
    }

    /// Returns the rows with published figures: the ratio measured here for the same comparison,
    /// and the published one.
    pub(super) fn with_published(&self) -> impl Iterator<Item = (&Row, Option<f64>, &Published)> {
        self.rows.iter().filter_map(|row| {
            let published = row.published.as_ref()?;
            let column = self
                .columns
                .iter()
                .position(|name| *name == published.against);
            Some((
                row,
                row.cell(column.unwrap_or(usize::MAX))
                    .and_then(|cell| cell.ratio),
                published,
            ))
        })
    }
}

/// Returns the indices of those of [`Cell::processors`] that a table has, with their names.
pub(super) fn cpu_columns(table: &Table) -> impl Iterator<Item = (usize, &'static str)> {
    let names = ["CPU µs", "at 1,000/s", "at 10,000/s"].into_iter();
    names.enumerate().filter(|&(which, _)| {
        let mut cells = table.rows.iter().flat_map(|row| &row.cells).flatten();
        cells.any(|cell| cell.processors().nth(which).flatten().is_some())
    })
}

/// Formats a report as JSON.
pub(super) fn json(report: &Report) -> String {
    // Serialization cannot fail; numbers that are not finite become null.
    serde_json::to_string_pretty(report).unwrap_or_default() + "\n"
}

/// Reads a report that [`json`] has written.
pub(crate) fn read(path: &std::path::Path) -> Result<Report, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}
