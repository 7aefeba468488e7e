//! Results of benches as they are measured, and their conversion to the format of reports.

use std::time::Duration;

use command::Failure;

use super::format::{self, Cell, Limit, RATES, Table};
use super::published;

/// A table as its bench measures it.
pub(crate) struct Results {
    pub(crate) title: String,
    /// Remarks on the method, and on the measurements that were impossible.
    pub(crate) notes: Vec<String>,
    /// The peers that are not installed, each with the package that provides it.
    pub(crate) missing: Vec<String>,
    /// The servers, barge first.
    pub(crate) servers: Vec<String>,
    /// The indices of the peers among the servers; barge is compared with each.
    pub(crate) peers: Vec<usize>,
    /// The index of the server that serves as the hardware limit of rows without one.
    pub(crate) limit: Option<usize>,
    pub(crate) rows: Vec<Row>,
}

pub(crate) struct Row {
    pub(crate) name: String,
    /// The unit: for a rate (`op/s`, `MB/s`) more is better, for anything else less.
    pub(crate) unit: &'static str,
    /// The runs of each server, in order.
    pub(crate) runs: Vec<Vec<f64>>,
    /// The processor time of each server's runs, and (below) that at each of [`RATES`].
    pub(crate) cpu_time: Vec<CpuTime>,
    pub(crate) cpu_time_at_rates: Vec<[CpuTime; RATES.len()]>,
    /// The system calls per operation of each server, if counted.
    pub(crate) syscalls: Vec<Option<f64>>,
    /// The hardware limit, measured in alternation with the servers: its description, and the runs.
    pub(crate) limit: Option<(&'static str, Vec<f64>)>,
}

impl Row {
    /// Creates a row of the servers' runs only: without processor time, system calls or a limit of
    /// its own.
    pub(crate) fn new(name: String, unit: &'static str, runs: Vec<Vec<f64>>) -> Row {
        Row {
            name,
            unit,
            cpu_time: vec![CpuTime::default(); runs.len()],
            cpu_time_at_rates: vec![Default::default(); runs.len()],
            syscalls: vec![None; runs.len()],
            runs,
            limit: None,
        }
    }
}

impl Row {
    /// Adds the processor time of a server's run, and then, if measured, that at each of [`RATES`].
    pub(crate) fn add_cpu_times(&mut self, column: usize, works: &[CpuTime]) {
        let sums =
            std::iter::once(&mut self.cpu_time[column]).chain(&mut self.cpu_time_at_rates[column]);
        for (sum, more) in sums.zip(works) {
            sum.operations += more.operations;
            sum.time += more.time;
        }
    }
}

/// The operations of a run, and the processor time that the server and the clients' threads spent
/// on them.
#[derive(Clone, Copy, Default)]
pub(crate) struct CpuTime {
    pub(crate) operations: usize,
    pub(crate) time: Duration,
}

impl CpuTime {
    /// Returns the processor time per operation.
    fn microseconds(self) -> Option<f64> {
        let each = self.time.as_secs_f64() * 1e6 / self.operations as f64;
        Some(each).filter(|each| each.is_finite())
    }
}

/// The median and the extremes of some runs.
pub(crate) struct Summary {
    pub(crate) median: f64,
    min: f64,
    max: f64,
}

impl Summary {
    pub(crate) fn of(runs: &[f64]) -> Option<Summary> {
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
            min: least,
            max: most,
        })
    }
}

impl Results {
    /// Converts the results to the format of reports, as the table `name`.
    pub(crate) fn table(self, name: &str) -> Table {
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
            let extras = row
                .cpu_time
                .iter()
                .zip(&row.cpu_time_at_rates)
                .zip(&row.syscalls);
            let cells = row
                .runs
                .iter()
                .zip(extras)
                .map(|(runs, ((work, paced), calls))| {
                    Some(Cell {
                        system_calls: *calls,
                        processor_us: work.microseconds(),
                        paced_us: paced.map(CpuTime::microseconds),
                        ..cell(runs)?
                    })
                });
            let cells = cells.collect();
            format::Row::new(
                (row.name.clone(), row.unit),
                cells,
                limit,
                published::of_row(name, &row.name),
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

/// Returns `None` if there are no runs, or one is not finite: JSON has no such numbers.
fn cell(runs: &[f64]) -> Option<Cell> {
    if !runs.iter().all(|run| run.is_finite()) {
        return None;
    }
    let Summary {
        median,
        min: least,
        max: most,
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

/// The reason why a part has no results.
pub(crate) enum Unmeasured {
    LeftOut(String),
    Failed(Failure),
}

impl From<Failure> for Unmeasured {
    fn from(failure: Failure) -> Unmeasured {
        Unmeasured::Failed(failure)
    }
}
