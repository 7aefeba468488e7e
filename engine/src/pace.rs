//! How long a lane's own thread may take for a request.

use std::time::{Duration, Instant};

use vfs::Patience;

/// How patient the lane's own thread can afford to be: it tries what normally takes microseconds,
/// until that has waited for a disk, and then leaves it to workers for a while.
pub(crate) struct Pace {
    last: Instant,
    strikes: u32,
    /// How often the thread had waited for something when `last` was, known while there are
    /// strikes.
    waits: Option<u64>,
    careful_until: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            last: Instant::now(),
            strikes: 0,
            waits: None,
            careful_until: None,
        }
    }
}

impl Pace {
    /// What takes longer has waited.
    const SLOW: Duration = Duration::from_millis(2);

    /// What each byte of a message may take besides: to copy them all is no wait.
    const BYTE: Duration = Duration::from_nanos(4);

    /// How long the lane is careful then.
    const CAREFUL: Duration = Duration::from_millis(100);

    /// After one slow answer so many are watched: where processors are short, a thread that is
    /// preempted is slow, too, but has not waited for anything.
    const WITHIN: u32 = 16;

    pub(crate) fn begin(&mut self) {
        self.begin_at(Instant::now(), sys::usage::voluntary_switches);
    }

    fn begin_at(&mut self, now: Instant, waits: impl Fn() -> u64) {
        self.last = now;
        if self.careful_until.is_some_and(|until| until <= self.last) {
            self.careful_until = None;
        }
        // Between two batches the thread waits for requests.
        self.waits = (self.strikes > 0).then(waits);
    }

    /// A request, a message of `len` bytes, has had its turn. Says how long that took.
    pub(crate) fn step(&mut self, len: usize) -> Duration {
        self.step_at(len, Instant::now(), sys::usage::voluntary_switches)
    }

    fn step_at(&mut self, len: usize, now: Instant, waits: impl Fn() -> u64) -> Duration {
        let took = now - self.last;
        self.last = now;
        if took < Pace::SLOW + Pace::BYTE * len as u32 {
            self.strikes = self.strikes.saturating_sub(1);
            if self.strikes == 0 {
                self.waits = None;
                return took;
            }
        } else {
            match self.waits {
                // A second one that has waited.
                Some(before) if waits() > before => {
                    self.careful_until = Some(now + Pace::CAREFUL);
                    self.strikes = 0;
                    self.waits = None;
                    return took;
                }
                // It may have waited.
                None => self.strikes = Pace::WITHIN,
                Some(_) => {}
            }
        }
        self.waits = Some(waits());
        took
    }

    pub(crate) fn patience(&self) -> Patience {
        if self.careful_until.is_some() {
            Patience::None
        } else {
            Patience::Brief
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A thread that answers slowly `slow` times in a row, and each time has waited for something
    /// or was preempted.
    fn after(slow: usize, waited: bool) -> Patience {
        let (mut pace, mut now, waits) = (Pace::default(), Instant::now(), Cell::new(7));
        let reads = || waits.get();
        for _ in 0..slow {
            pace.begin_at(now, reads);
            now += 2 * Pace::SLOW;
            waits.set(waits.get() + u64::from(waited));
            pace.step_at(0, now, reads);
            // For the next request it waits, too.
            waits.set(waits.get() + 1);
        }
        pace.patience()
    }

    #[test]
    fn two_answers_that_have_waited_make_a_lane_careful() {
        assert_eq!(after(1, true), Patience::Brief);
        assert_eq!(after(2, true), Patience::None);
    }

    #[test]
    fn a_thread_that_loses_its_processor_stays_patient() {
        assert_eq!(after(20, false), Patience::Brief);
    }

    #[test]
    fn quick_answers_in_between_are_forgiven() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let waits = Cell::new(0);
        let mut answer = |took: Duration| {
            pace.begin_at(now, || waits.get());
            now += took;
            waits.set(waits.get() + 1);
            pace.step_at(0, now, || waits.get());
            pace.patience()
        };
        answer(2 * Pace::SLOW);
        for _ in 0..Pace::WITHIN {
            answer(Duration::ZERO);
        }
        assert_eq!(answer(2 * Pace::SLOW), Patience::Brief);
        assert_eq!(answer(2 * Pace::SLOW), Patience::None);
    }
}
