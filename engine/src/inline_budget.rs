//! The time that a lane's own thread may spend on a request, and the patience that follows from it.

use std::time::{Duration, Instant};

use vfs::Patience;

/// The patience of a lane's own thread: it tries operations that normally take microseconds, and
/// leaves them to workers for a while after some of them waited for a disk.
pub(crate) struct InlineBudget {
    last: Instant,
    /// The number of further requests to observe after a slow one.
    to_observe: u32,
    /// The thread's count of voluntary context switches at `last`, known while requests are
    /// observed.
    switches: Option<u64>,
    /// The time until which requests that could block go to workers.
    exhausted_until: Option<Instant>,
}

impl Default for InlineBudget {
    fn default() -> InlineBudget {
        InlineBudget {
            last: Instant::now(),
            to_observe: 0,
            switches: None,
            exhausted_until: None,
        }
    }
}

impl InlineBudget {
    /// The time from which on an operation is assumed to have blocked.
    const SLOW: Duration = Duration::from_millis(2);

    /// The additional time for each byte of a message, which copying may take.
    const SLOW_PER_BYTE: Duration = Duration::from_nanos(4);

    /// The time for which the lane then offloads.
    const EXHAUSTED: Duration = Duration::from_millis(100);

    /// The number of operations that are observed after a slow one. Where processors are short, a
    /// preempted thread is slow, too, but did not block.
    const OBSERVED: u32 = 16;

    /// Notes that the thread has received requests.
    pub(crate) fn begin_batch(&mut self) {
        self.begin_batch_at(Instant::now(), sys::usage::voluntary_switches);
    }

    fn begin_batch_at(&mut self, now: Instant, switches: impl Fn() -> u64) {
        self.last = now;
        if self.exhausted_until.is_some_and(|until| until <= self.last) {
            self.exhausted_until = None;
        }
        // Between two batches the thread waits for requests.
        self.switches = (self.to_observe > 0).then(switches);
    }

    /// Records the end of a request, a message of `len` bytes, and returns how long it took.
    pub(crate) fn end_request(&mut self, len: usize) -> Duration {
        self.end_request_at(len, Instant::now(), sys::usage::voluntary_switches)
    }

    fn end_request_at(&mut self, len: usize, now: Instant, switches: impl Fn() -> u64) -> Duration {
        let took = now - self.last;
        self.last = now;
        if took < InlineBudget::SLOW + InlineBudget::SLOW_PER_BYTE * len as u32 {
            self.to_observe = self.to_observe.saturating_sub(1);
            if self.to_observe == 0 {
                self.switches = None;
                return took;
            }
        } else {
            match self.switches {
                // The second slow one, and the thread did block.
                Some(before) if switches() > before => {
                    self.exhausted_until = Some(now + InlineBudget::EXHAUSTED);
                    self.to_observe = 0;
                    self.switches = None;
                    return took;
                }
                // It may have blocked.
                None => self.to_observe = InlineBudget::OBSERVED,
                Some(_) => {}
            }
        }
        self.switches = Some(switches());
        took
    }

    /// Returns the time that the request which is being served has taken so far.
    pub(crate) fn elapsed(&self) -> Duration {
        self.last.elapsed()
    }

    /// Returns the patience for the next request.
    pub(crate) fn patience(&self) -> Patience {
        if self.exhausted_until.is_some() {
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
        let (mut budget, mut now, switches) =
            (InlineBudget::default(), Instant::now(), Cell::new(7));
        let reads = || switches.get();
        for _ in 0..slow {
            budget.begin_batch_at(now, reads);
            now += 2 * InlineBudget::SLOW;
            switches.set(switches.get() + u64::from(waited));
            budget.end_request_at(0, now, reads);
            // The thread also blocks while it waits for the next request.
            switches.set(switches.get() + 1);
        }
        budget.patience()
    }

    #[test]
    fn two_requests_that_blocked_exhaust_the_budget() {
        assert_eq!(after(1, true), Patience::Brief);
        assert_eq!(after(2, true), Patience::None);
    }

    #[test]
    fn a_thread_that_loses_its_processor_stays_patient() {
        assert_eq!(after(20, false), Patience::Brief);
    }

    #[test]
    fn fast_requests_in_between_restore_the_budget() {
        let (mut budget, mut now) = (InlineBudget::default(), Instant::now());
        let switches = Cell::new(0);
        let mut answer = |took: Duration| {
            budget.begin_batch_at(now, || switches.get());
            now += took;
            switches.set(switches.get() + 1);
            budget.end_request_at(0, now, || switches.get());
            budget.patience()
        };
        answer(2 * InlineBudget::SLOW);
        for _ in 0..InlineBudget::OBSERVED {
            answer(Duration::ZERO);
        }
        assert_eq!(answer(2 * InlineBudget::SLOW), Patience::Brief);
        assert_eq!(answer(2 * InlineBudget::SLOW), Patience::None);
    }
}
