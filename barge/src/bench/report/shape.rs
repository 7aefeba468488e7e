//! The one shape of results, which is also that of the JSON: what every form of a report is made from, and what is read again.

use serde::{Deserialize, Serialize};

use super::html::minutes;
use super::machine::Machine;
use crate::Failure;

/// All of a run.
#[derive(Serialize, Deserialize)]
pub(in crate::bench) struct Report {
    /// What made it.
    pub(in crate::bench) barge: String,
    /// The command that makes it again.
    pub(in crate::bench) command: String,
    /// When it began: RFC 3339, UTC.
    pub(in crate::bench) began: String,
    pub(in crate::bench) seconds: f64,
    pub(in crate::bench) machine: Machine,
    pub(in crate::bench) tables: Vec<Entry>,
}

impl Report {
    /// With what a later run has measured in place of its own, and what it has not behind that.
    pub(in crate::bench) fn renewed(mut self, later: Report) -> Report {
        let machine = later.machine.line();
        let again = Again {
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

    /// What keeps its figures from being worth much.
    pub(super) fn warning(&self) -> Option<&'static str> {
        let quick = self.command.contains(" --quick");
        Some(match (quick, self.machine.is_busy()) {
            (true, true) => {
                "Few and short runs, on a machine that was busy with other work: they show that it works, a single figure means nothing."
            }
            (true, false) => "Few and short runs: they show that it works, not what it is worth.",
            (false, true) => {
                "The machine was busy with other work: ratios mean more than figures, and neither means much."
            }
            (false, false) => return None,
        })
    }
}

/// A table, or why there is none.
#[derive(Serialize, Deserialize)]
pub(in crate::bench) struct Entry {
    /// What `barge bench` calls it.
    pub(in crate::bench) name: String,
    pub(in crate::bench) seconds: f64,
    /// What has measured it, if that was not the report's own run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::bench) again: Option<Again>,
    pub(in crate::bench) outcome: Outcome,
}

/// A later run: its command, when it began, and its machine if that was another or in another state.
#[derive(Clone, Serialize, Deserialize)]
pub(in crate::bench) struct Again {
    command: String,
    began: String,
    #[serde(default)]
    machine: Option<String>,
}

impl Entry {
    /// The command that makes it again, and what there is to say of its making.
    pub(super) fn origin(&self) -> (String, String) {
        let took = minutes(self.seconds);
        match &self.again {
            None => (format!("barge bench {}", self.name), took),
            Some(again) => {
                let made = [&took, &again.began].into_iter().chain(&again.machine);
                let made = made.map(String::as_str).collect::<Vec<_>>();
                (again.command.clone(), made.join(", "))
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::bench) enum Outcome {
    Measured(Table),
    /// It should have been measured, and why that went wrong.
    Failed(String),
    /// It was not to be measured, or cannot be here.
    LeftOut(String),
}

impl Outcome {
    /// What came of a table's rows, `failed` of their cells: nothing at all is no table.
    pub(in crate::bench) fn of(table: Table, failed: Vec<String>) -> Outcome {
        let is_measured = |row: &Row| row.cells.iter().any(Option::is_some);
        match failed.first() {
            Some(why) if !table.rows.iter().any(is_measured) => Outcome::Failed(why.clone()),
            _ => Outcome::Measured(Table { failed, ..table }),
        }
    }

    /// Whether all that should have been measured was.
    pub(in crate::bench) fn is_complete(&self) -> bool {
        match self {
            Outcome::Measured(table) => table.failed.is_empty(),
            Outcome::Failed(_) => false,
            Outcome::LeftOut(_) => true,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(in crate::bench) struct Table {
    pub(super) title: String,
    pub(super) notes: Vec<String>,
    pub(super) missing: Vec<String>,
    /// The cells that should have been measured, each with why that went wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) failed: Vec<String>,
    /// Ours first.
    pub(super) columns: Vec<String>,
    /// Numbers of columns.
    pub(super) peers: Vec<usize>,
    pub(super) rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) better: Better,
    /// One for each column, where it was measured.
    pub(super) cells: Vec<Option<Cell>>,
    pub(super) limit: Option<Limit>,
    pub(super) seed: Option<Seed>,
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
    /// How many times as good ours is as this, whichever is better; nothing for ours.
    pub(super) ratio: Option<f64>,
    pub(super) system_calls: Option<f64>,
    /// Microseconds of processors for an operation, which is also seconds for a million: server and
    /// client, as many as there can be.
    pub(super) processor_us: Option<f64>,
    /// The same at each of [`super::PACES`].
    #[serde(default)]
    pub(super) paced_us: [Option<f64>; super::PACES.len()],
}

impl Cell {
    /// Both.
    pub(super) fn processors(&self) -> impl Iterator<Item = Option<f64>> {
        std::iter::once(self.processor_us).chain(self.paced_us)
    }
}

/// What this machine does at best.
#[derive(Serialize, Deserialize)]
pub(super) struct Limit {
    pub(super) what: String,
    pub(super) cell: Cell,
}

/// What the system that a table comes from has published for a row.
#[derive(Serialize, Deserialize)]
pub(super) struct Seed {
    /// The column that its older way is.
    pub(super) against: String,
    /// How many times as good its own way was.
    pub(super) ratio: f64,
    /// As it gave them.
    pub(super) figures: String,
}

/// How ours stands to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Wins,
    /// The interval of the ratio has 1 in it, or the ratio is next to it.
    Level,
    Loses,
}

/// With so many runs of each, which alternate, ratios are those of runs next to each other: what the machine does besides meets both alike. As
/// few as that have least and most around their median in 97 of 100 cases, fewer do not.
const PAIRS: usize = 6;

/// Medians that lie no further apart are level, whatever the runs: as much as two runs of one thing differ on an idle machine.
const LEVEL: f64 = 0.03;

impl Better {
    fn of(unit: &str) -> Better {
        if unit.ends_with("/s") {
            Better::More
        } else {
            Better::Less
        }
    }

    /// How many times as good `ours` is as `theirs`, if that can be said.
    pub(super) fn ratio(self, ours: f64, theirs: f64) -> Option<f64> {
        let ratio = match self {
            _ if ours == theirs => 1.0,
            Better::More => ours / theirs,
            Better::Less => theirs / ours,
        };
        Some(ratio).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
    }

    /// The same of each two runs that were next to each other, in order of size; nothing of fewer than [`PAIRS`].
    fn pairs(self, ours: &Cell, theirs: &Cell) -> Option<Vec<f64>> {
        if ours.runs.len() != theirs.runs.len() || ours.runs.len() < PAIRS {
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

/// The middle of some figures in order, of which there is one at least.
fn median(sorted: &[f64]) -> f64 {
    let last = sorted.len() - 1;
    (sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0
}

/// Between which of some figures in order, of which there are [`PAIRS`] at least, their median lies in 95 of 100 cases, whatever their
/// distribution (the sign test turned round).
fn confident(sorted: &[f64]) -> (f64, f64) {
    let many = sorted.len();
    // How likely it is that no figure lies below the median, that one does, and so on, and that so many at most do.
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
    /// A row of name and unit, with the ratios of its first cell to the others.
    pub(super) fn new(
        (name, unit): (String, &str),
        mut cells: Vec<Option<Cell>>,
        mut limit: Option<Limit>,
        seed: Option<Seed>,
    ) -> Row {
        let better = Better::of(unit);
        if let Some((Some(ours), others)) = cells.split_first_mut() {
            let others = others.iter_mut().flatten();
            for cell in others.chain(limit.as_mut().map(|limit| &mut limit.cell)) {
                cell.ratio = match better.pairs(ours, cell) {
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
            seed,
        }
    }

    pub(super) fn cell(&self, column: usize) -> Option<&Cell> {
        self.cells.get(column)?.as_ref()
    }

    /// Between what the ratio to a column lies in 95 of 100 cases; nothing of fewer than [`PAIRS`] runs.
    pub(super) fn interval(&self, column: usize) -> Option<(f64, f64)> {
        let pairs = self.better.pairs(self.cell(0)?, self.cell(column)?);
        pairs.as_deref().map(confident)
    }

    /// The same, or the least and the most that the ratio may be by fewer runs.
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
            () if (ratio - 1.0).abs() <= LEVEL || (least <= 1.0 && 1.0 <= most) => Verdict::Level,
            () if ratio > 1.0 => Verdict::Wins,
            () => Verdict::Loses,
        })
    }

    /// The peer that ours is worst beside.
    pub(super) fn best_peer(&self, peers: &[usize]) -> Option<(usize, f64)> {
        let ratio = |&peer: &usize| Some((peer, self.cell(peer)?.ratio?));
        let ratios = peers.iter().filter_map(ratio);
        ratios.min_by(|one, other| one.1.total_cmp(&other.1))
    }
}

impl Table {
    /// All that is said below its rows.
    pub(super) fn remarks(&self) -> impl Iterator<Item = String> {
        let said = self.notes.iter().chain(&self.missing).cloned();
        said.chain(self.failed.iter().map(|why| format!("failed: {why}")))
    }

    /// What was published of a row, where that is beside a peer of ours, as a plot of ratios has them.
    pub(super) fn published<'a>(&self, row: &'a Row) -> Option<&'a Seed> {
        let is_peer = |seed: &&Seed| {
            let peers = self.peers.iter();
            peers
                .map(|&peer| &self.columns[peer])
                .any(|name| *name == seed.against)
        };
        row.seed.as_ref().filter(is_peer)
    }

    /// What its rows' limits are.
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

    /// How many rows are won, level and lost, each beside its best peer.
    pub(super) fn score(&self) -> [usize; 3] {
        let verdict = |row: &Row| row.verdict(row.best_peer(&self.peers)?.0);
        let mut score = [0; 3];
        for verdict in self.rows.iter().filter_map(verdict) {
            score[verdict as usize] += 1;
        }
        score
    }

    /// The rows that are lost to their best peer, worst first, with that peer and the ratio.
    pub(super) fn lost(&self) -> Vec<(&Row, usize, f64)> {
        let lost = |row| {
            let (peer, ratio) = Row::best_peer(row, &self.peers)?;
            (row.verdict(peer)? == Verdict::Loses).then_some((row, peer, ratio))
        };
        let mut lost: Vec<_> = self.rows.iter().filter_map(lost).collect();
        lost.sort_by(|one, other| one.2.total_cmp(&other.2));
        lost
    }

    /// The rows that a seed has figures for: here's ratio to the same thing, and the seed's.
    pub(super) fn beside_seed(&self) -> impl Iterator<Item = (&Row, Option<f64>, &Seed)> {
        self.rows.iter().filter_map(|row| {
            let seed = row.seed.as_ref()?;
            let column = self.columns.iter().position(|name| *name == seed.against);
            Some((
                row,
                row.cell(column.unwrap_or(usize::MAX))
                    .and_then(|cell| cell.ratio),
                seed,
            ))
        })
    }
}

/// Which of [`Cell::processors`] a table has, and what they are called.
pub(super) fn used(table: &Table) -> impl Iterator<Item = (usize, &'static str)> {
    let names = ["CPU µs", "at 1,000/s", "at 10,000/s"].into_iter();
    names.enumerate().filter(|&(which, _)| {
        let mut cells = table.rows.iter().flat_map(|row| &row.cells).flatten();
        cells.any(|cell| cell.processors().nth(which).flatten().is_some())
    })
}

/// For programs.
pub(super) fn json(report: &Report) -> String {
    // There is nothing in it that JSON could not have: numbers that are none become null.
    serde_json::to_string_pretty(report).unwrap_or_default() + "\n"
}

/// What [`json`] has written.
pub(in crate::bench) fn read(path: &std::path::Path) -> Result<Report, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&error))
}

/// A figure as people read it: three digits that count, none of a large one lost.
pub(super) fn figure(value: f64) -> String {
    let whole = value.abs();
    match () {
        () if whole >= 100.0 => thousands(value.round()),
        () if whole >= 10.0 => format!("{value:.1}"),
        () if whole == 0.0 => "0".into(),
        () => format!("{value:.2}"),
    }
}

/// A ratio, with two digits behind the point where they tell something.
pub(super) fn ratio(value: f64) -> String {
    match () {
        () if value >= 100.0 => thousands(value.round()),
        () if value >= 10.0 => format!("{value:.1}"),
        () if value >= 0.095 => format!("{value:.2}"),
        () => format!("{value:.3}"),
    }
}

fn thousands(whole: f64) -> String {
    let digits = format!("{:.0}", whole.abs());
    let mut text = String::from(if whole < 0.0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
