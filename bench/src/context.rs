//! The context of a run: its options, its progress, and the program to measure.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use command::Failure;
use command::bench::BenchArgs;
use command::tools::companion;

use crate::progress::Progress;

/// The options of a run, its progress, and the path of `barge`.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) options: BenchArgs,
    pub(crate) progress: Progress,
    pub(crate) barge: PathBuf,
}

impl Context {
    /// Returns the context of a run with `options`. Returns an error if there is no `barge` to
    /// measure.
    pub(crate) fn new(options: &BenchArgs, steps: Progress) -> Result<Context, Failure> {
        let barge = options.barge.clone().or_else(|| companion("barge"));
        let barge = barge.ok_or_else(|| {
            Failure::new("barge is neither beside barge-bench nor on PATH: --barge PATH names it")
        })?;
        Ok(Context {
            options: options.clone(),
            progress: steps,
            barge,
        })
    }

    /// Returns the name and version of the program to measure, as it prints them.
    pub(crate) fn version(&self) -> Result<String, Failure> {
        let output = Command::new(&self.barge).arg("--version").output();
        let output =
            output.map_err(|error| Failure::new(format!("{}: {error}", self.barge.display())))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Returns the number of runs of each cell.
    pub(crate) fn runs(&self) -> usize {
        self.options
            .runs
            .map_or(if self.options.quick { 3 } else { 5 }, usize::from)
    }

    /// Returns a copy with `runs` runs, or one if quick, unless `--runs` is given: for tables in
    /// which a run of all cells takes long.
    pub(crate) fn with_default_runs(&self, runs: u16) -> Context {
        let mut context = self.clone();
        let runs = if self.options.quick { 1 } else { runs };
        context.options.runs.get_or_insert(runs);
        context
    }

    /// Returns the duration of a run: five runs make some hundred operations of the slowest kinds,
    /// and hundreds of thousands of the fastest.
    pub(crate) fn run_time(&self) -> Duration {
        // With busy loops, a run is longer, so that it spans many time slices, which last
        // milliseconds.
        let times = if self.options.busy > 0 { 5 } else { 1 };
        Duration::from_millis(times * if self.options.quick { 40 } else { 80 })
    }

    /// Returns whether a row of this name is selected by `--only`.
    pub(crate) fn selects(&self, name: &str) -> bool {
        let only = self.options.only.as_ref();
        only.is_none_or(|only| name.contains(only.as_str()))
    }

    /// Adds the runs of `cells` cells on `servers` servers each to the planned steps.
    pub(crate) fn plan(&self, cells: usize, servers: usize) {
        self.progress.plan((self.runs() + 1) * cells * servers);
    }
}
