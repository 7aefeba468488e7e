//! Coordination of a mount's threads: which of them wait for requests.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The threads of a mount. While one of them is awake and polls for requests, the others sleep here
/// instead of at the device, where each request would wake one of them in vain. They are called
/// when there is more work than for one, and then stay awake for a while.
#[derive(Default)]
pub(super) struct ThreadGroup {
    state: Mutex<State>,
    wakeup: Condvar,
}

#[derive(Default)]
struct State {
    threads: usize,
    sleeping: usize,
    /// The number of sleeping threads that were called and have not woken yet.
    waking: usize,
    /// The time until which no thread sleeps.
    busy_until: Option<Instant>,
    closed: bool,
}

/// The result of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleepResult {
    /// Did not sleep: no other thread is awake, there is much work, or the mount is gone.
    NotSlept,
    /// Slept until called.
    Woken,
    /// Slept for the whole time.
    TimedOut,
}

impl ThreadGroup {
    /// The time for which there is usually more work than for one thread, once there was: two
    /// programs that send requests in turn do not always overlap.
    const BUSY_TIME: Duration = Duration::from_millis(10);

    /// Adds a thread, which is awake.
    pub(super) fn join(&self) {
        self.state().threads += 1;
    }

    /// Sleeps until called, for `time` at most. A thread that does not sleep polls for requests.
    pub(super) fn sleep(&self, time: Option<Duration>) -> SleepResult {
        let mut state = self.state();
        let busy = state.busy_until.is_some_and(|until| Instant::now() < until);
        if state.closed || busy || state.threads - state.sleeping <= 1 {
            return SleepResult::NotSlept;
        }
        state.sleeping += 1;
        let sleeps = |state: &mut State| state.waking == 0 && !state.closed;
        match time {
            None => self.wakeup.wait_while(&mut state, sleeps),
            Some(time) => {
                self.wakeup.wait_while_for(&mut state, sleeps, time);
            }
        }
        if state.waking > 0 {
            state.waking -= 1;
            return SleepResult::Woken;
        }
        state.sleeping -= 1;
        match state.closed {
            true => SleepResult::NotSlept,
            false => SleepResult::TimedOut,
        }
    }

    /// Wakes one more thread, if any sleeps, and keeps all that are awake so for a while.
    pub(super) fn wake_one(&self) {
        let mut state = self.state();
        state.busy_until = Some(Instant::now() + ThreadGroup::BUSY_TIME);
        if state.sleeping > 0 {
            state.sleeping -= 1;
            state.waking += 1;
            self.wakeup.notify_one();
        }
    }

    /// Ends sleeping for all threads, now and later.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.wakeup.notify_all();
    }

    /// Returns whether a thread was called since the last time.
    #[cfg(test)]
    pub(super) fn has_woken(&self) -> bool {
        self.state().busy_until.take().is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{scope, sleep};

    #[test]
    fn the_last_who_is_awake_does_not_sleep() {
        let group = ThreadGroup::default();
        group.join();
        assert_eq!(group.sleep(None), SleepResult::NotSlept);
        group.join();
        scope(|threads| {
            let other = threads.spawn(|| group.sleep(None));
            while group.state().sleeping == 0 {
                sleep(Duration::from_millis(1));
            }
            assert_eq!(group.sleep(None), SleepResult::NotSlept);
            group.wake_one();
            assert_eq!(other.join().unwrap(), SleepResult::Woken);
        });
        let short = Some(Duration::from_millis(1));
        group.state().busy_until = Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!(
            group.sleep(short),
            SleepResult::NotSlept,
            "there is much to do"
        );
        group.state().busy_until = Some(Instant::now());
        assert_eq!(
            group.sleep(short),
            SleepResult::TimedOut,
            "the other is awake now"
        );
        assert_eq!(group.state().sleeping, 0);
    }

    #[test]
    fn at_the_end_all_are_awake() {
        let group = ThreadGroup::default();
        (0..3).for_each(|_| group.join());
        scope(|threads| {
            let all: Vec<_> = (0..2)
                .map(|_| threads.spawn(|| group.sleep(None)))
                .collect();
            while group.state().sleeping < 2 {
                sleep(Duration::from_millis(1));
            }
            group.close();
            for one in all {
                assert_eq!(one.join().unwrap(), SleepResult::NotSlept);
            }
        });
        assert_eq!(group.sleep(None), SleepResult::NotSlept);
    }
}
