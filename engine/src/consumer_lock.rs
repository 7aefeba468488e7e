//! A lock that admits one consumer per ring.

use parking_lot::{Condvar, Mutex, MutexGuard};

#[derive(Default)]
pub(crate) struct ConsumerLock {
    state: Mutex<State>,
    free: Condvar,
}

#[derive(Default)]
struct State {
    locked: bool,
    waiting: usize,
}

impl ConsumerLock {
    /// Waits until the lock is free, and takes it.
    pub(crate) fn lock(&self) {
        let mut state = self.state();
        state.waiting += 1;
        self.free.wait_while(&mut state, |state| state.locked);
        state.waiting -= 1;
        state.locked = true;
    }

    /// Takes the lock if it is free; returns whether it did.
    pub(crate) fn try_lock(&self) -> bool {
        !std::mem::replace(&mut self.state().locked, true)
    }

    pub(crate) fn unlock(&self) {
        let mut state = self.state();
        state.locked = false;
        if state.waiting > 0 {
            self.free.notify_one();
        }
    }

    /// Returns whether a thread waits for the lock.
    pub(crate) fn has_waiters(&self) -> bool {
        self.state().waiting > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
