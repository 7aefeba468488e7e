//! Waits with a limit, so that a test fails in place of running forever, and ends of the threads
//! that run until a test ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest wait: many times what a busy machine needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until `condition` holds, for 60 s at most. Panics with `condition_name` after that.
#[track_caller]
pub fn wait_until(condition_name: &str, condition: impl FnMut() -> bool) {
    wait_within(LIMIT, condition_name, condition);
}

#[track_caller]
fn wait_within(limit: Duration, condition_name: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "not within {limit:?}: {condition_name}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sets a flag when it is dropped, also by a panic. Threads of a scope run until a flag is set, and
/// the scope waits for them.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_its_condition_holds_and_at_its_limit() {
        let mut left = 3;
        wait_until("three attempts", || {
            left -= 1;
            left == 0
        });
        assert_eq!(left, 0);
        let never =
            std::panic::catch_unwind(|| wait_within(Duration::from_millis(5), "never", || false));
        let why = never.expect_err("a panic");
        let why = why.downcast_ref::<String>().expect("text");
        assert_eq!(why, "not within 5ms: never");
    }

    #[test]
    fn the_threads_of_a_scope_that_panics_end() {
        let stop = AtomicBool::new(false);
        let scope = std::panic::AssertUnwindSafe(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                });
                let _stop = SetOnDrop(&stop);
                panic!("a failure");
            })
        });
        assert!(std::panic::catch_unwind(scope).is_err());
    }
}
