//! What benches have found: first as they find it ([`Results`]), then in one shape ([`shape`]) from which alone come the table of a
//! terminal, JSON, HTML and Markdown.

mod html;
pub(super) mod machine;
mod markdown;
mod plot;
mod seeds;
pub(super) mod shape;
mod text;

use std::time::Duration;

use self::shape::{Cell, Limit, Report, Row as ShapeRow, Table};
use crate::Failure;

/// A table as its bench has found it.
pub(super) struct Results {
    pub(super) title: String,
    /// What was measured, with what, and what could not be.
    pub(super) notes: Vec<String>,
    /// The peers that are not here, each with what brings it.
    pub(super) missing: Vec<String>,
    /// The servers, ours first.
    pub(super) servers: Vec<String>,
    /// Which of them are peers: ours is compared with each of them.
    pub(super) peers: Vec<usize>,
    /// Which of them is as fast as this machine goes, where that is none of the rows' own.
    pub(super) limit: Option<usize>,
    pub(super) rows: Vec<Row>,
}

pub(super) struct Row {
    pub(super) name: String,
    /// A rate (`op/s`, `MB/s`) is better when there is more of it, anything else when there is less.
    pub(super) unit: &'static str,
    /// For each server the runs, in order.
    pub(super) runs: Vec<Vec<f64>>,
    /// For each server what the runs were for processors, and then what those at each of [`PACES`]
    /// were.
    pub(super) work: Vec<Work>,
    pub(super) paced: Vec<[Work; PACES.len()]>,
    /// For each server its system calls per operation, where they were counted.
    pub(super) calls: Vec<Option<f64>>,
    /// What this machine does of it at best, measured by turns with the servers: what that is, and the runs.
    pub(super) limit: Option<(&'static str, Vec<f64>)>,
}

impl Row {
    /// A row of figures alone, for each server its runs: no work, no system calls, no limit of its own.
    pub(super) fn new(name: String, unit: &'static str, runs: Vec<Vec<f64>>) -> Row {
        Row {
            name,
            unit,
            work: vec![Work::default(); runs.len()],
            paced: vec![Default::default(); runs.len()],
            calls: vec![None; runs.len()],
            runs,
            limit: None,
        }
    }
}

/// Operations a second at which processor time is measured, besides as many as there can be.
pub(super) const PACES: [u32; 2] = [1_000, 10_000];

impl Row {
    /// Adds what a run of a server was, and then, if they were measured, what those at each of
    /// [`PACES`] were.
    pub(super) fn add(&mut self, column: usize, works: &[Work]) {
        let sums = std::iter::once(&mut self.work[column]).chain(&mut self.paced[column]);
        for (sum, more) in sums.zip(works) {
            sum.operations += more.operations;
            sum.time += more.time;
        }
    }
}

/// The operations of a run, and the processor time that the server and the clients' threads spent
/// on them.
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

impl Results {
    /// In the shape of reports, as the table `name`.
    pub(super) fn shape(self, name: &str) -> Table {
        let rows = self.rows.into_iter().map(|row| {
            let limit = match (&row.limit, self.limit) {
                (Some((what, runs)), _) => Some(((*what).to_owned(), runs)),
                (None, Some(column)) => Some((self.servers[column].clone(), &row.runs[column])),
                (None, None) => None,
            };
            let limit = limit.and_then(|(what, runs)| {
                let cell = cell(runs)?;
                Some(Limit { what, cell })
            });
            let extras = row.work.iter().zip(&row.paced).zip(&row.calls);
            let cells = row
                .runs
                .iter()
                .zip(extras)
                .map(|(runs, ((work, paced), calls))| {
                    Some(Cell {
                        system_calls: *calls,
                        processor_us: work.microseconds(),
                        paced_us: paced.map(Work::microseconds),
                        ..cell(runs)?
                    })
                });
            let cells = cells.collect();
            ShapeRow::new(
                (row.name.clone(), row.unit),
                cells,
                limit,
                seeds::of_row(name, &row.name),
            )
        });
        Table {
            rows: rows.collect(),
            title: self.title,
            notes: self.notes,
            missing: self.missing,
            failed: Vec::new(),
            columns: self.servers,
            peers: self.peers,
        }
    }
}

/// Nothing where there are no runs, or some that are no figures: JSON has none of those.
fn cell(runs: &[f64]) -> Option<Cell> {
    if !runs.iter().all(|run| run.is_finite()) {
        return None;
    }
    let Summary {
        median,
        least,
        most,
    } = Summary::of(runs)?;
    Some(Cell {
        median,
        least,
        most,
        runs: runs.to_vec(),
        ratio: None,
        system_calls: None,
        processor_us: None,
        paced_us: Default::default(),
    })
}

/// Where a report goes besides the terminal.
#[derive(clap::Args, Clone, Default)]
pub(super) struct Outputs {
    /// Also write the results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<std::path::PathBuf>,
    /// Also write them to a page with plots, which needs nothing but a browser
    #[arg(long, value_name = "FILE")]
    html: Option<std::path::PathBuf>,
    /// Also write them to a page of Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<std::path::PathBuf>,
}

impl Outputs {
    /// Prints a report, and writes it to all files that were asked for.
    pub(super) fn give(&self, report: &Report) -> Result<(), Failure> {
        // Whoever reads it may have read enough.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), text::of(report).as_bytes());
        let written = [
            (&self.json, shape::json as fn(&Report) -> String),
            (&self.html, html::of),
            (&self.markdown, markdown::of),
        ];
        for (path, form) in written {
            if let Some(path) = path {
                std::fs::write(path, form(report))
                    .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
