//! How far a bench is, told to whoever waits for it, and whether it is to go on.
//!
//! Concurrency: the flag is set by the thread that watches for signals, the rest is the bench's own.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::Failure;
use crate::signals::{Watch, on_signal};

/// What the bars of all tables together are long: small enough a part for a step of any table.
const WHOLE: u64 = 1_000_000;

/// The steps of a run of tables. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Steps(Arc<Inner>);

struct Inner {
    bar: ProgressBar,
    /// Where on the bar the table that runs begins and ends.
    from: AtomicU64,
    to: AtomicU64,
    /// Its steps: those that are known of, and those that are done.
    planned: AtomicU64,
    done: AtomicU64,
    /// Its cells that could not be measured, and why.
    failed: Mutex<Vec<String>>,
    stopped: AtomicBool,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            bar: ProgressBar::hidden(),
            from: AtomicU64::new(0),
            to: AtomicU64::new(WHOLE),
            planned: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: Mutex::default(),
            stopped: AtomicBool::new(false),
        }
    }
}

impl Steps {
    /// With a bar on a terminal, and stopped by the signals that stop programs as long as what is given beside it is kept.
    pub(super) fn watched() -> Result<(Steps, Watch), Failure> {
        let bar = ProgressBar::new(WHOLE);
        let style = "{msg:14} {wide_bar} {percent:>3}%, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let steps = Steps(Arc::new(Inner {
            bar,
            ..Inner::default()
        }));
        let stopped = steps.clone();
        let stop = move || stopped.0.stopped.store(true, Ordering::Relaxed);
        Ok((steps, on_signal(stop, None)?))
    }

    /// The table `name` begins, which is a part of all: from where to where, as shares of 1.
    pub(super) fn begin(&self, name: &str, (from, to): (f64, f64)) {
        let on_bar = |share: f64| (share * WHOLE as f64) as u64;
        self.0.from.store(on_bar(from), Ordering::Relaxed);
        self.0.to.store(on_bar(to), Ordering::Relaxed);
        self.0.planned.store(0, Ordering::Relaxed);
        self.0.done.store(0, Ordering::Relaxed);
        self.0.bar.set_message(name.to_owned());
        self.0.bar.set_position(on_bar(from));
        // The time that is left is told also while a step takes its time.
        self.0.bar.enable_steady_tick(Duration::from_secs(1));
        if !std::io::stderr().is_terminal() {
            eprintln!("barge: bench {name}, after {:.0} % of all", from * 100.0);
        }
    }

    /// There are so many steps more.
    pub(super) fn plan(&self, more: usize) {
        self.0.planned.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// A step is done; an error if that was the last.
    pub(super) fn done(&self) -> Result<(), Failure> {
        let done = self.0.done.fetch_add(1, Ordering::Relaxed) + 1;
        let planned = self.0.planned.load(Ordering::Relaxed).max(done);
        let [from, to] = [&self.0.from, &self.0.to].map(|at| at.load(Ordering::Relaxed));
        self.0.bar.set_position(from + (to - from) * done / planned);
        match self.is_stopped() {
            true => Err(Failure::new("stopped")),
            false => Ok(()),
        }
    }

    /// A cell of the table that runs cannot be measured, and why: the others go on. What fails after a signal has come is nobody's fault.
    pub(super) fn fail(&self, why: String) {
        if !self.is_stopped() {
            self.0.bar.suspend(|| eprintln!("barge: bench {why}"));
            self.failed().push(why);
        }
    }

    /// What has failed since this was called last.
    pub(super) fn take_failed(&self) -> Vec<String> {
        std::mem::take(&mut self.failed())
    }

    fn failed(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a signal has come.
    pub(super) fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Relaxed)
    }

    /// All is done: no bar any more.
    pub(super) fn end(&self) {
        self.0.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_part_of_the_bar() {
        let steps = Steps::default();
        steps.0.bar.set_length(WHOLE);
        steps.begin("table", (0.5, 1.0));
        steps.plan(4);
        steps.done().expect("goes on");
        assert_eq!(steps.0.bar.position(), 625_000);
        steps.0.stopped.store(true, Ordering::Relaxed);
        assert!(steps.done().is_err());
        assert_eq!(steps.0.bar.position(), 750_000);
    }
}
