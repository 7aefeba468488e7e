//! Rounds: each cell of a table is measured repeatedly, on one server after the other.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::hardware_limit::HardwareLimit;
use crate::process::{processor_time, thread_time};
use crate::report::format::RATES;
use crate::report::results::{CpuTime, Row};
use crate::syscalls;
use command::Failure;

/// A measurement on servers of kind `S`.
pub(super) trait Cell<S>: Sync {
    /// A connected client.
    type Client: Send;

    fn name(&self) -> String;

    /// Returns the unit, and the number of units in an operation.
    fn unit(&self) -> (&'static str, f64);

    /// Returns clients ready to start, each for a thread of its own.
    fn connect(&self, server: &S) -> Result<Vec<Self::Client>, String>;

    /// Returns the id of the process that serves a client of `server`.
    fn pid(&self, server: &S, client: &Self::Client) -> u32;

    /// Repeats the operation for about `time` or `most` times; returns the count and the time
    /// taken.
    fn run(&self, client: &mut Self::Client, time: Duration, most: usize) -> Measurement;

    /// Returns how many operations run while system calls are counted; `None` if they are not
    /// counted.
    fn traced_operations(&self) -> Option<usize>;

    /// Returns whether processor time is measured at fixed rates too: for operations that run one
    /// at a time.
    fn is_measured_at_rates(&self) -> bool {
        false
    }

    /// Returns the hardware limit, if there is one.
    fn limit(&self) -> Option<HardwareLimit>;
}

/// The number of operations done, and the time they took.
pub(super) type Measurement = vfs::Result<(usize, Duration)>;

/// Runs operations of `steps` requests each, `depth` of them in flight, for about `time` or `most`
/// times.
///
/// `submit` sends a request, given the operation's slot, its step, and the result of the step
/// before; `finish` waits for the reply, given the step.
pub(super) fn run_pipelined<Flight, Found: Default>(
    (depth, steps): (usize, usize),
    (time, most): (Duration, usize),
    mut submit: impl FnMut(usize, usize, Found) -> vfs::Result<Flight>,
    mut finish: impl FnMut(usize, Flight) -> vfs::Result<Found>,
) -> Measurement {
    let began = Instant::now();
    let mut in_flight = VecDeque::with_capacity(depth);
    for slot in 0..depth {
        in_flight.push_back((slot, 0, submit(slot, 0, Found::default())?));
    }
    let (mut started, mut done) = (depth, 0);
    while let Some((slot, mut step, pending)) = in_flight.pop_front() {
        let mut found = finish(step, pending)?;
        step += 1;
        if step == steps {
            done += 1;
            if started >= most || began.elapsed() >= time {
                continue;
            }
            started += 1;
            (step, found) = (0, Found::default());
        }
        in_flight.push_back((slot, step, submit(slot, step, found)?));
    }
    Ok((done, began.elapsed()))
}

/// The columns of some rows; a column that has failed is skipped.
pub(super) struct Rotation {
    failed: Vec<bool>,
}

impl Rotation {
    pub(super) fn of(columns: usize) -> Rotation {
        Rotation {
            failed: vec![false; columns],
        }
    }

    /// Measures one column after the other, each as one [step](crate::progress::Progress::advance).
    /// Each round starts with another column, because the first finds the caches as another cell
    /// left them.
    ///
    /// A column whose `measure` fails is [reported](crate::progress::Progress::report_failure) and
    /// loses its figures for good: part of its runs would not be comparable with all runs of the
    /// others.
    pub(super) fn round(
        &mut self,
        args: &Context,
        round: usize,
        rows: &mut [Row],
        mut measure: impl FnMut(&mut [Row], usize) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let many = self.failed.len();
        for position in 0..many {
            let column = (position + round) % many;
            args.progress.advance()?;
            if self.failed[column] {
                continue;
            }
            if let Err(why) = measure(rows, column) {
                self.failed[column] = true;
                for row in rows.iter_mut() {
                    (row.runs[column], row.cpu_time[column]) = (Vec::new(), CpuTime::default());
                    row.cpu_time_at_rates[column] = Default::default();
                }
                args.progress.report_failure(why);
            }
        }
        Ok(())
    }
}

/// Measures a row for each cell; the caller has [planned](Context::plan) them. A cell that fails
/// on a server is not repeated there, and is [reported](crate::progress::Progress::report_failure).
pub(super) fn measure_alternating<S, C: Cell<S>>(
    args: &Context,
    servers: &[(String, S)],
    cells: &[C],
) -> Result<Vec<Row>, Failure> {
    let row = |cell: &C| Row {
        limit: cell.limit().map(|limit| (limit.description(), Vec::new())),
        ..Row::new(cell.name(), cell.unit().0, vec![Vec::new(); servers.len()])
    };
    let mut rows: Vec<Row> = cells.iter().map(row).collect();
    let mut rotation: Vec<_> = cells.iter().map(|_| Rotation::of(servers.len())).collect();
    for round in 0..=args.runs() {
        for ((cell, row), rotation) in cells.iter().zip(&mut rows).zip(&mut rotation) {
            rotation.round(args, round, std::slice::from_mut(row), |rows, column| {
                let (name, server) = &servers[column];
                // The first round warms up.
                let rates = match round > 0 && cell.is_measured_at_rates() && !args.options.quick {
                    true => &RATES[..],
                    false => &[],
                };
                let measured = measure(server, cell, args.run_time(), rates);
                let (rate, times) =
                    measured.map_err(|why| format!("{name}, {}: {why}", cell.name()))?;
                if round > 0 {
                    rows[0].runs[column].push(rate);
                    rows[0].add_cpu_times(column, &times);
                }
                Ok(())
            })?;
            if let (Some(limit), Some((what, runs))) = (cell.limit(), &mut row.limit) {
                let rate = limit.rate(args.run_time());
                let failed = |error| Failure::new(format!("{what}: {error}"));
                runs.push(rate.map_err(failed)? * cell.unit().1);
            }
        }
    }
    Ok(rows)
}

/// Returns operations, or megabytes, per second, and the processor time used; the latter first at
/// full speed, then at each of `rates`.
fn measure<S, C: Cell<S>>(
    server: &S,
    cell: &C,
    time: Duration,
    rates: &[u32],
) -> Result<(f64, Vec<CpuTime>), String> {
    let mut clients = cell.connect(server)?;
    let pid = cell.pid(server, &clients[0]);
    let mut rate = 0.0;
    let mut times = Vec::new();
    for pace in std::iter::once(None).chain(rates.iter().copied().map(Some)) {
        let before = processor_time(pid);
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .iter_mut()
                .map(|client| {
                    scope.spawn(move || {
                        let before = thread_time();
                        let done = match pace {
                            None => cell.run(client, time, usize::MAX / 64),
                            Some(pace) => at_rate(cell, client, time, pace),
                        };
                        (done, thread_time().saturating_sub(before))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let mut work = CpuTime {
            operations: 0,
            time: processor_time(pid).saturating_sub(before),
        };
        for result in results {
            let (done, own) = result.map_err(|_| "a client panicked")?;
            let (done, took) = done.map_err(|errno| errno.to_string())?;
            work.operations += done;
            work.time += own;
            if pace.is_none() {
                rate += done as f64 * cell.unit().1 / took.as_secs_f64();
            }
        }
        times.push(work);
    }
    Ok((rate, times))
}

/// Runs `pace` operations a second; the client sleeps in between.
fn at_rate<S, C: Cell<S>>(
    cell: &C,
    client: &mut C::Client,
    time: Duration,
    pace: u32,
) -> Measurement {
    // The least timer slack: the default of 50 µs would delay each wake-up.
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
        .map_err(|error| vfs::Errno::from_raw(error.raw_os_error()))?;
    let began = Instant::now();
    let mut done = 0;
    while began.elapsed() < time {
        done += cell.run(client, Duration::MAX, 1)?.0;
        let next = began + Duration::from_secs(done as u64) / pace;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok((done, began.elapsed()))
}

/// [Plans](Context::plan) and measures all cells, and counts system calls unless quick; adds a
/// note if they could not be counted. `run` is a directory to write to.
pub(super) fn measure_all<S, C: Cell<S>>(
    args: &Context,
    servers: &[(String, S)],
    cells: &[C],
    run: &Path,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>, Failure> {
    args.plan(cells.len(), servers.len());
    let mut rows = measure_alternating(args, servers, cells)?;
    if !args.options.quick && !count_syscalls(args, servers, cells, &mut rows, &run.join("strace"))
    {
        notes.push(syscalls::STRACE_MISSING.into());
    }
    Ok(rows)
}

/// Fills in the system calls of the columns that have figures; returns whether they could be
/// counted. `log` is a file to write.
pub(super) fn count_syscalls<S, C: Cell<S>>(
    args: &Context,
    servers: &[(String, S)],
    cells: &[C],
    rows: &mut [Row],
    log: &Path,
) -> bool {
    let mut counted = true;
    for (cell, row) in cells.iter().zip(rows) {
        let Some(times) = cell.traced_operations() else {
            continue;
        };
        let figures = row.runs.iter().zip(&mut row.syscalls);
        for ((name, server), (runs, calls)) in servers.iter().zip(figures) {
            if runs.is_empty() {
                continue;
            }
            match count(server, cell, times, log) {
                Ok(found) => {
                    *calls = found;
                    counted &= found.is_some();
                }
                Err(why) => {
                    let cell = cell.name();
                    args.progress
                        .report_failure(format!("{name}, {cell}, system calls: {why}"));
                }
            }
        }
    }
    counted
}

/// Returns the system calls per operation, if they can be counted.
fn count<S, C: Cell<S>>(
    server: &S,
    cell: &C,
    times: usize,
    log: &Path,
) -> Result<Option<f64>, String> {
    let mut clients = cell.connect(server)?;
    let mut done = Ok((0, Duration::ZERO));
    let long = Duration::from_secs(10);
    let pid = cell.pid(server, &clients[0]);
    let total = syscalls::count(pid, log, || {
        done = cell.run(&mut clients[0], long, times);
    });
    let (done, _) = done.map_err(|errno| errno.to_string())?;
    let total = total.filter(|_| done > 0);
    Ok(total.map(|total| total as f64 / done as f64))
}
