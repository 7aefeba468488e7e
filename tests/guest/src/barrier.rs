//! A barrier for the guests of a run.

use parking_lot::{Condvar, Mutex, MutexGuard};

pub(crate) struct GuestBarrier {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    guests: usize,
    /// Number of guests waiting in this round.
    waiting: usize,
    round: u64,
    /// Whether a guest has ended, so that no round can complete.
    aborted: bool,
}

impl GuestBarrier {
    pub(crate) fn new(guests: usize) -> Self {
        let state = State {
            guests,
            waiting: 0,
            round: 0,
            aborted: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Waits until all guests have called this. Returns `false` if a guest has ended.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.lock();
        let round = state.round;
        state.waiting += 1;
        if state.waiting == state.guests {
            state.waiting = 0;
            state.round += 1;
            self.changed.notify_all();
        }
        let waits = |state: &mut State| state.round == round && !state.aborted;
        self.changed.wait_while(&mut state, waits);
        state.round != round
    }

    /// Records that a guest has ended, and releases the waiting ones.
    pub(crate) fn abort(&self) {
        self.lock().aborted = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn all_wait_for_the_last_and_for_nobody_who_is_gone() {
        let meeting = GuestBarrier::new(2);
        thread::scope(|scope| {
            let other = scope.spawn(|| [meeting.wait(), meeting.wait(), meeting.wait()]);
            assert!(meeting.wait() && meeting.wait());
            meeting.abort();
            assert_eq!(other.join().unwrap(), [true, true, false]);
        });
    }
}
