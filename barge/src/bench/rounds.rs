//! Rounds: each cell of a table measured again and again, on one server after the other.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::report::Row;
use super::{BenchArgs, syscalls};
use crate::Failure;

/// What is measured, on servers of kind `S`.
pub(super) trait Cell<S> {
    /// Does it, and knows the process that serves it.
    type Client: Client;

    fn name(&self) -> String;

    /// What is counted, and how many of it an operation is.
    fn unit(&self) -> (&'static str, f64);

    /// Clients ready to begin, each for a thread of its own.
    fn connect(&self, server: &S) -> Result<Vec<Self::Client>, String>;

    /// How often it is done while system calls are counted; nothing if they are not.
    fn counted(&self) -> Option<usize>;
}

pub(super) trait Client: Send {
    /// The server's process.
    fn pid(&self) -> u32;

    /// Does what the cell says for about `time` or `most` times, and says how often and how long.
    fn run(&mut self, time: Duration, most: usize) -> vfs::Result<(usize, Duration)>;
}

/// Measures: a row for each cell.
pub(super) fn alternate<S, C: Cell<S>>(
    args: &BenchArgs,
    servers: &[(String, S)],
    cells: &[C],
) -> Result<Vec<Row>, Failure> {
    let row = |cell: &C| Row {
        name: cell.name(),
        unit: cell.unit().0,
        runs: vec![Vec::new(); servers.len()],
        calls: vec![None; servers.len()],
    };
    let mut rows: Vec<Row> = cells.iter().map(row).collect();
    let bar = progress(((args.runs() + 1) * cells.len() * servers.len()) as u64);
    for round in 0..=args.runs() {
        for (cell, row) in cells.iter().zip(&mut rows) {
            for ((name, server), runs) in servers.iter().zip(&mut row.runs) {
                let rate = measure(server, cell, args.time())
                    .map_err(|error| Failure::new(format!("{name}, {}: {error}", cell.name())))?;
                // The first round warms up.
                if round > 0 {
                    runs.push(rate);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Operations, or megabytes, per second.
fn measure<S, C: Cell<S>>(server: &S, cell: &C, time: Duration) -> Result<f64, String> {
    let mut clients = cell.connect(server)?;
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .map(|client| scope.spawn(|| client.run(time, usize::MAX / 64)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut rate = 0.0;
    for result in results {
        let result = result.map_err(|_| "a client panicked")?;
        let (done, took) = result.map_err(|errno| errno.to_string())?;
        rate += done as f64 * cell.unit().1 / took.as_secs_f64();
    }
    Ok(rate)
}

/// Fills in the rows' system calls; says whether that was possible. `log` is a file to write.
pub(super) fn count_calls<S, C: Cell<S>>(
    servers: &[(String, S)],
    cells: &[C],
    rows: &mut [Row],
    log: &Path,
) -> Result<bool, Failure> {
    let mut counted = true;
    for (cell, row) in cells.iter().zip(rows) {
        let Some(times) = cell.counted() else {
            continue;
        };
        for ((name, server), calls) in servers.iter().zip(&mut row.calls) {
            let failed =
                |error: &dyn Display| Failure::new(format!("{name}, {}: {error}", cell.name()));
            let mut clients = cell.connect(server).map_err(|error| failed(&error))?;
            let mut done = Ok((0, Duration::ZERO));
            let long = Duration::from_secs(10);
            let total = syscalls::count(clients[0].pid(), log, || {
                done = clients[0].run(long, times);
            });
            let (done, _) = done.map_err(|errno| failed(&errno))?;
            *calls = total
                .filter(|_| done > 0)
                .map(|total| total as f64 / done as f64);
            counted &= calls.is_some();
        }
    }
    Ok(counted)
}

fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent}% {eta} left") {
        bar.set_style(style);
    }
    bar
}
