//! The progress bar of long copies.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Bytes copied of those expected. The bar is shown on standard error if that is a terminal, after
/// [`Progress::DELAY`].
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: OnceLock<()>,
    quiet: bool,
}

impl Progress {
    /// Time before the bar is shown.
    const DELAY: Duration = Duration::from_secs(1);

    pub(crate) fn new(quiet: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress {
            bar,
            started: Instant::now(),
            shown: OnceLock::new(),
            quiet,
        }
    }

    /// Adds `bytes` to those expected.
    pub(crate) fn inc_length(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Adds `bytes` to those copied.
    pub(crate) fn inc(&self, bytes: u64) {
        self.bar.inc(bytes);
        if !self.quiet && self.started.elapsed() > Progress::DELAY {
            let show = || self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown.get_or_init(show);
        }
    }

    /// Returns the number of bytes copied.
    pub(crate) fn bytes(&self) -> u64 {
        self.bar.position()
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
