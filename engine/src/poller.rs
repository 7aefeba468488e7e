//! Whether to look again before going to sleep: a wake-up costs far more than a look, if the
//! next message comes soon.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Grants a processor to lanes that poll: never more at once than leave one for their clients.
pub(crate) struct Spare {
    limit: usize,
    taken: AtomicUsize,
}

impl Spare {
    pub(crate) fn new(processors: usize) -> Spare {
        Spare {
            limit: processors.saturating_sub(1),
            taken: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> Option<Taken<'_>> {
        let taken = Taken(self);
        // The guard is there first, so that a take too many is given back with it.
        (self.taken.fetch_add(1, Ordering::Relaxed) < self.limit).then_some(taken)
    }
}

struct Taken<'a>(&'a Spare);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A lane's own idea of how long polling pays: it grows while messages come just after it slept
/// and shrinks while they do not come at all.
pub(crate) struct Poller {
    max: Duration,
    window: Duration,
}

impl Poller {
    const FIRST: Duration = Duration::from_micros(5);

    pub(crate) fn new(max: Duration) -> Poller {
        Poller {
            max,
            window: max.min(Poller::FIRST),
        }
    }

    /// Tries `look` until it finds something or the window is over, then has `sleep` wait.
    pub(crate) fn wait<T>(
        &mut self,
        spare: &Spare,
        mut look: impl FnMut() -> Option<T>,
        sleep: impl FnOnce() -> T,
    ) -> T {
        if self.max.is_zero() {
            return sleep();
        }
        let began = Instant::now();
        if !self.window.is_zero()
            && let Some(_taken) = spare.take()
        {
            while began.elapsed() < self.window {
                if let Some(found) = look() {
                    return found;
                }
                std::thread::yield_now();
            }
        }
        let found = sleep();
        self.window = if began.elapsed() <= self.max {
            (self.window * 2).clamp(Poller::FIRST, self.max)
        } else {
            // Halving, not zeroing: one pause between two bursts should not undo what was learned.
            if self.window > Poller::FIRST {
                self.window / 2
            } else {
                Duration::ZERO
            }
        };
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_grows_with_early_messages_and_shrinks_to_nothing_without() {
        let spare = Spare::new(2);
        let max = Duration::from_secs(3600);
        let mut poller = Poller::new(max);
        poller.window = Duration::ZERO;
        poller.wait(&spare, || None::<()>, || ());
        assert_eq!(poller.window, Poller::FIRST);
        poller.max = Duration::from_nanos(1);
        for _ in 0..10 {
            poller.window = poller.window.min(Duration::from_micros(1));
            poller.wait(&spare, || None::<()>, std::thread::yield_now);
        }
        assert_eq!(poller.window, Duration::ZERO);
        assert_eq!(spare.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_processor_spares_none() {
        assert!(Spare::new(1).take().is_none());
        let two = Spare::new(2);
        let taken = two.take();
        assert!(taken.is_some() && two.take().is_none());
        drop(taken);
        assert!(two.take().is_some());
    }

    #[test]
    fn polling_off_only_sleeps() {
        let mut poller = Poller::new(Duration::ZERO);
        assert_eq!(
            poller.wait(&Spare::new(8), || Some("look"), || "sleep"),
            "sleep"
        );
    }
}
