//! A lock that admits one consumer per ring.

use std::sync::{Condvar, Mutex, MutexGuard};

#[derive(Default)]
pub(crate) struct Wheel {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Default)]
struct State {
    taken: bool,
    waiting: usize,
}

impl Wheel {
    /// Waits for the lock and takes it.
    pub(crate) fn take(&self) {
        let mut state = self.state();
        state.waiting += 1;
        state = self
            .free
            .wait_while(state, |state| state.taken)
            .expect("no panic holds it");
        state.waiting -= 1;
        state.taken = true;
    }

    /// Takes the lock if it is free; returns whether it did.
    pub(crate) fn try_take(&self) -> bool {
        !std::mem::replace(&mut self.state().taken, true)
    }

    pub(crate) fn release(&self) {
        let mut state = self.state();
        state.taken = false;
        if state.waiting > 0 {
            self.free.notify_one();
        }
    }

    /// Returns whether a thread waits for it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.state().waiting > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic holds it")
    }
}
