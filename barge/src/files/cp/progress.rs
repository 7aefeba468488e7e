//! What a long copy shows of itself on a terminal.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Bytes copied of those known of. Shown on standard error if that is a terminal, once it takes long.
pub(crate) struct Progress {
    bar: ProgressBar,
    begun: Instant,
    shown: OnceLock<()>,
    quiet: bool,
}

impl Progress {
    /// What is done sooner needs no bar.
    const PATIENCE: Duration = Duration::from_secs(1);

    pub(crate) fn new(quiet: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress {
            bar,
            begun: Instant::now(),
            shown: OnceLock::new(),
            quiet,
        }
    }

    /// So many bytes more are to be copied.
    pub(crate) fn expect(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// So many have been.
    pub(crate) fn done(&self, bytes: u64) {
        self.bar.inc(bytes);
        if !self.quiet && self.begun.elapsed() > Progress::PATIENCE {
            let show = || self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown.get_or_init(show);
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
