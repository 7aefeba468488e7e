//! Progress of a bench: shows it to the user and stops the bench on a signal.
//!
//! Concurrency: the signal watcher's thread sets the flag; the bench's own thread accesses the
//! rest.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::{Mutex, MutexGuard};

use command::Failure;
use command::signals::{SignalHandler, on_signal};
use command::stderr::print_line;

/// The length of the progress bar: long enough that every step of any table moves it.
const BAR_LENGTH: u64 = 1_000_000;

/// The progress of a run of tables. Clones share their state.
#[derive(Clone, Default)]
pub(super) struct Progress(Arc<Inner>);

struct Inner {
    bar: ProgressBar,
    /// The positions on the bar where the current table begins and ends.
    bar_start: AtomicU64,
    bar_end: AtomicU64,
    /// The steps of the current table: planned so far, and done.
    planned: AtomicU64,
    done: AtomicU64,
    /// The cells of the current table that failed, with the reasons.
    failed: Mutex<Vec<String>>,
    stopped: AtomicBool,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            bar: ProgressBar::hidden(),
            bar_start: AtomicU64::new(0),
            bar_end: AtomicU64::new(BAR_LENGTH),
            planned: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }
}

impl Progress {
    /// Creates a progress bar on a terminal, and stops the bench on a terminating signal as long as
    /// the returned [`SignalHandler`] lives.
    pub(super) fn with_signal_handler() -> Result<(Progress, SignalHandler), Failure> {
        let bar = ProgressBar::new(BAR_LENGTH);
        let style = "{msg:14} {wide_bar} {percent:>3}%, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let steps = Progress(Arc::new(Inner {
            bar,
            ..Inner::default()
        }));
        let stopped = steps.clone();
        let stop = move || stopped.0.stopped.store(true, Ordering::Relaxed);
        Ok((steps, on_signal(stop, None)?))
    }

    /// Begins the table `name`, which covers the given part of the run, as shares of 1.
    pub(super) fn begin(&self, name: &str, (from, to): (f64, f64)) {
        let on_bar = |share: f64| (share * BAR_LENGTH as f64) as u64;
        self.0.bar_start.store(on_bar(from), Ordering::Relaxed);
        self.0.bar_end.store(on_bar(to), Ordering::Relaxed);
        self.0.planned.store(0, Ordering::Relaxed);
        self.0.done.store(0, Ordering::Relaxed);
        self.0.bar.set_message(name.to_owned());
        self.0.bar.set_position(on_bar(from));
        // The remaining time is also updated during a long step.
        self.0.bar.enable_steady_tick(Duration::from_secs(1));
        if !std::io::stderr().is_terminal() {
            let percent = from * 100.0;
            print_line(format_args!(
                "barge: bench {name}, after {percent:.0} % of all"
            ));
        }
    }

    /// Adds `more` steps to those planned.
    pub(super) fn plan(&self, more: usize) {
        self.0.planned.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Counts a step as done; returns an error if the bench is stopped.
    pub(super) fn advance(&self) -> Result<(), Failure> {
        let done = self.0.done.fetch_add(1, Ordering::Relaxed) + 1;
        let planned = self.0.planned.load(Ordering::Relaxed).max(done);
        let [from, to] = [&self.0.bar_start, &self.0.bar_end].map(|at| at.load(Ordering::Relaxed));
        self.0.bar.set_position(from + (to - from) * done / planned);
        match self.is_stopped() {
            true => Err(Failure::new("stopped")),
            false => Ok(()),
        }
    }

    /// Reports that a cell of the current table failed; the others go on. Ignored after a signal,
    /// which makes cells fail.
    pub(super) fn report_failure(&self, why: String) {
        if !self.is_stopped() {
            let print = || print_line(format_args!("barge: bench {why}"));
            self.0.bar.suspend(print);
            self.lock_failures().push(why);
        }
    }

    /// Returns the failures since the last call.
    pub(super) fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.lock_failures())
    }

    fn lock_failures(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.failed.lock()
    }

    /// Returns whether a signal has arrived.
    pub(super) fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Relaxed)
    }

    /// Removes the bar at the end of the run.
    pub(super) fn end(&self) {
        self.0.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_part_of_the_bar() {
        let steps = Progress::default();
        steps.0.bar.set_length(BAR_LENGTH);
        steps.begin("table", (0.5, 1.0));
        steps.plan(4);
        steps.advance().expect("goes on");
        assert_eq!(steps.0.bar.position(), 625_000);
        steps.0.stopped.store(true, Ordering::Relaxed);
        assert!(steps.advance().is_err());
        assert_eq!(steps.0.bar.position(), 750_000);
    }
}
