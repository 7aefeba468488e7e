//! Listening at an address that the command line names.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use transports::{Addr, Listener};

use crate::{Failure, diagnose};

/// Time for the processes of a server that was killed to end, after its first process has. Until
/// then they hold its sockets and state.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_millis(500);

/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Listens at `addr`. Only this user and the members of `group` may connect to a Unix socket.
pub(crate) fn listen(addr: &Addr, group: Option<u32>) -> Result<Listener, Failure> {
    let in_use = |listened: &std::io::Result<Listener>| {
        listened
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    };
    retry_while(in_use, || Listener::bind_for(addr, group))
        .map_err(|error| Failure::new(diagnose::listen_error(addr, &error)))
}

/// Repeats `attempt` while its result is `in_use`, by a server that is ending.
pub(crate) fn retry_while<T>(in_use: impl Fn(&T) -> bool, attempt: impl Fn() -> T) -> T {
    let deadline = Instant::now() + PREDECESSOR_TIMEOUT;
    loop {
        let result = attempt();
        if !in_use(&result) || Instant::now() >= deadline {
            return result;
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_in_use_for_a_moment_is_awaited_and_what_stays_in_use_is_not() {
        let left = Cell::new(3);
        let attempt = || left.replace(left.get() - 1);
        assert_eq!(retry_while(|left| *left > 0, attempt), 0);
        let begin = Instant::now();
        assert!(retry_while(|in_use| *in_use, || true));
        assert!(begin.elapsed() >= PREDECESSOR_TIMEOUT);
    }
}
