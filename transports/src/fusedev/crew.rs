//! Coordination of a mount's threads: which of them wait for requests.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The threads of a mount. While one of them is awake and polls for requests, the others sleep here
/// instead of at the device, where each request would wake one of them in vain. They are called
/// when there is more work than for one, and then stay awake for a while.
#[derive(Default)]
pub(super) struct Crew {
    state: Mutex<State>,
    wakes: Condvar,
}

#[derive(Default)]
struct State {
    members: usize,
    asleep: usize,
    /// The number of sleeping threads that were called and have not woken yet.
    called: usize,
    /// The time until which no thread sleeps.
    busy: Option<Instant>,
    over: bool,
}

/// The result of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slept {
    /// Did not sleep: no other thread is awake, there is much work, or the mount is gone.
    Not,
    /// Slept until called.
    Called,
    /// Slept for the whole time.
    Enough,
}

impl Crew {
    /// The time for which there is usually more work than for one thread, once there was: two
    /// programs that send requests in turn do not always overlap.
    const BUSY: Duration = Duration::from_millis(10);

    /// Adds a thread, which is awake.
    pub(super) fn join(&self) {
        self.state().members += 1;
    }

    /// Sleeps until called, for `time` at most. A thread that does not sleep polls for requests.
    pub(super) fn sleep(&self, time: Option<Duration>) -> Slept {
        let mut state = self.state();
        let busy = state.busy.is_some_and(|until| Instant::now() < until);
        if state.over || busy || state.members - state.asleep <= 1 {
            return Slept::Not;
        }
        state.asleep += 1;
        let sleeps = |state: &mut State| state.called == 0 && !state.over;
        let mut state = match time {
            None => self.wakes.wait_while(state, sleeps).expect(POISON),
            Some(time) => {
                let slept = self.wakes.wait_timeout_while(state, time, sleeps);
                slept.expect(POISON).0
            }
        };
        if state.called > 0 {
            state.called -= 1;
            return Slept::Called;
        }
        state.asleep -= 1;
        match state.over {
            true => Slept::Not,
            false => Slept::Enough,
        }
    }

    /// Wakes one more thread, if any sleeps, and keeps all that are awake so for a while.
    pub(super) fn call(&self) {
        let mut state = self.state();
        state.busy = Some(Instant::now() + Crew::BUSY);
        if state.asleep > 0 {
            state.asleep -= 1;
            state.called += 1;
            self.wakes.notify_one();
        }
    }

    /// Ends sleeping for all threads, now and later.
    pub(super) fn end(&self) {
        self.state().over = true;
        self.wakes.notify_all();
    }

    /// Returns whether a thread was called since the last time.
    #[cfg(test)]
    pub(super) fn has_called(&self) -> bool {
        self.state().busy.take().is_some()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(POISON)
    }
}

const POISON: &str = "no panic holds it";

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{scope, sleep};

    #[test]
    fn the_last_who_is_awake_does_not_sleep() {
        let crew = Crew::default();
        crew.join();
        assert_eq!(crew.sleep(None), Slept::Not);
        crew.join();
        scope(|threads| {
            let other = threads.spawn(|| crew.sleep(None));
            while crew.state().asleep == 0 {
                sleep(Duration::from_millis(1));
            }
            assert_eq!(crew.sleep(None), Slept::Not);
            crew.call();
            assert_eq!(other.join().unwrap(), Slept::Called);
        });
        let short = Some(Duration::from_millis(1));
        crew.state().busy = Some(Instant::now() + Duration::from_secs(3600));
        assert_eq!(crew.sleep(short), Slept::Not, "there is much to do");
        crew.state().busy = Some(Instant::now());
        assert_eq!(crew.sleep(short), Slept::Enough, "the other is awake now");
        assert_eq!(crew.state().asleep, 0);
    }

    #[test]
    fn at_the_end_all_are_awake() {
        let crew = Crew::default();
        (0..3).for_each(|_| crew.join());
        scope(|threads| {
            let all: Vec<_> = (0..2).map(|_| threads.spawn(|| crew.sleep(None))).collect();
            while crew.state().asleep < 2 {
                sleep(Duration::from_millis(1));
            }
            crew.end();
            for one in all {
                assert_eq!(one.join().unwrap(), Slept::Not);
            }
        });
        assert_eq!(crew.sleep(None), Slept::Not);
    }
}
