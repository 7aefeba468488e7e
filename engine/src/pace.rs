//! The patience that a lane's own thread can afford.

use std::time::{Duration, Instant};

use vfs::Patience;

/// The patience of a lane's own thread: it tries operations that normally take microseconds, and
/// leaves them to workers for a while after some of them waited for a disk.
pub(crate) struct Pace {
    last: Instant,
    strikes: u32,
    /// The thread's count of voluntary context switches at `last`, known while there are strikes.
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
    /// The time from which on an operation is assumed to have blocked.
    const SLOW: Duration = Duration::from_millis(2);

    /// The additional time for each byte of a message, which copying may take.
    const BYTE: Duration = Duration::from_nanos(4);

    /// The time for which the lane then offloads.
    const CAREFUL: Duration = Duration::from_millis(100);

    /// The number of operations that are observed after a slow one. Where processors are short, a
    /// preempted thread is slow, too, but did not block.
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

    /// Records the end of a request, a message of `len` bytes, and returns how long it took.
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
                // The second slow one, and the thread did block.
                Some(before) if waits() > before => {
                    self.careful_until = Some(now + Pace::CAREFUL);
                    self.strikes = 0;
                    self.waits = None;
                    return took;
                }
                // It may have blocked.
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

    /// Returns the patience of a thread after `slow` slow requests in a row, each of which blocked
    /// or was preempted.
    fn after(slow: usize, waited: bool) -> Patience {
        let (mut pace, mut now, waits) = (Pace::default(), Instant::now(), Cell::new(7));
        let reads = || waits.get();
        for _ in 0..slow {
            pace.begin_at(now, reads);
            now += 2 * Pace::SLOW;
            waits.set(waits.get() + u64::from(waited));
            pace.step_at(0, now, reads);
            // The thread also blocks while it waits for the next request.
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
