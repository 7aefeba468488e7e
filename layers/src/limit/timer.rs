//! The thread that admits waiting requests when their time has come: one for all limiters that
//! share a [`Timer`]. It starts with the first request that waits, and ends when none has for a
//! while.
//!
//! Lock order: the timer's alone; limiters are called without it.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Limiter;

/// A timer of limiters.
#[derive(Default)]
pub struct Timer {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The next time of each limiter with waiting requests, by its number.
    due: HashMap<u64, (Instant, Weak<Limiter>)>,
    /// Whether the thread runs.
    runs: bool,
}

/// The minimum time that the thread sleeps: it admits the requests of that time together.
const RESOLUTION: Duration = Duration::from_micros(500);

/// The time without waiting requests after which the thread ends.
const IDLE: Duration = Duration::from_secs(10);

impl Timer {
    /// Creates a timer whose thread is not started yet.
    pub fn new() -> Arc<Timer> {
        Arc::default()
    }

    /// Calls [`Limiter::admit_due`] of `limiter` after `time`, instead of the time set before.
    /// Returns false if the thread cannot be started.
    pub(super) fn schedule(self: &Arc<Self>, limiter: &Arc<Limiter>, time: Duration) -> bool {
        let due = Instant::now() + time.max(RESOLUTION);
        let mut state = self.state.lock();
        let entry = (due, Arc::downgrade(limiter));
        state.due.insert(limiter.number, entry);
        if state.runs {
            self.changed.notify_one();
            return true;
        }
        let timer = self.clone();
        let thread = Builder::new().name("barge-limits".into());
        match thread.spawn(move || timer.run()) {
            Ok(_) => state.runs = true,
            Err(error) => {
                tracing::debug!("cannot start the thread for limits: {error}");
                state.due.remove(&limiter.number);
            }
        }
        state.runs
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let next = state.due.iter().min_by_key(|(_, (due, _))| *due);
            let next = next.map(|(number, (due, _))| (*number, *due));
            match next {
                Some((number, due)) if due <= now => {
                    let due = state.due.remove(&number);
                    drop(state);
                    if let Some(limiter) = due.and_then(|(_, limiter)| limiter.upgrade()) {
                        // A waker of a request must not end the thread that others wait for.
                        let admit = AssertUnwindSafe(|| limiter.admit_due());
                        if catch_unwind(admit).is_err() {
                            tracing::error!("waking a request panicked");
                        }
                    }
                    state = self.state.lock();
                }
                Some((_, due)) => drop(self.changed.wait_until(&mut state, due)),
                None => {
                    let waited = self.changed.wait_for(&mut state, IDLE);
                    if waited.timed_out() && state.due.is_empty() {
                        state.runs = false;
                        return;
                    }
                }
            }
        }
    }
}
