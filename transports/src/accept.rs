//! Classification of accept(2) errors: those that end a listener, and the delay after others.
//!
//! Linux passes errors of the new connection through accept(2), and any security module may add its
//! own, so only errors that mean that the descriptor itself is unusable are final (accept(2),
//! "Error handling").

use std::time::Duration;

use rustix::io::Errno;

/// The scope of an error of accept(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// One connection, which was removed from the queue: the next call may succeed at once.
    Connection,
    /// The system, or the process: the connection is still in the queue, and the next call fails
    /// likewise unless something changes.
    System,
    /// The listening socket: no call will succeed any more.
    Listener,
}

impl Severity {
    pub(crate) fn of(error: Errno) -> Severity {
        match error {
            Errno::BADF | Errno::INVAL | Errno::NOTSOCK => Severity::Listener,
            Errno::CONNABORTED | Errno::INTR | Errno::AGAIN => Severity::Connection,
            _ => Severity::System,
        }
    }
}

/// The delay between consecutive failing calls: doubles, so that a lasting error costs no processor
/// time and a short one no delay.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    const MIN: Duration = Duration::from_millis(1);

    /// The maximum delay, for which clients whose connect(2) succeeded may wait after the error is
    /// gone.
    const MAX: Duration = Duration::from_millis(512);

    /// Returns the delay after another failure.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = Backoff::MIN * 2u32.saturating_pow(self.failures).min(1 << 16);
        self.failures = self.failures.saturating_add(1);
        pause.min(Backoff::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unusable_descriptor_is_final() {
        for error in [Errno::BADF, Errno::INVAL, Errno::NOTSOCK] {
            assert_eq!(Severity::of(error), Severity::Listener, "{error}");
        }
        for error in [
            Errno::NOMEM,
            Errno::NOBUFS,
            Errno::PERM,
            Errno::NETDOWN,
            Errno::PROTO,
            Errno::NOPROTOOPT,
            Errno::HOSTDOWN,
            Errno::NONET,
            Errno::HOSTUNREACH,
            Errno::OPNOTSUPP,
            Errno::NETUNREACH,
            Errno::MFILE,
            Errno::NFILE,
            Errno::IO,
            Errno::from_raw_os_error(4000),
        ] {
            assert_eq!(Severity::of(error), Severity::System, "{error}");
        }
        for error in [Errno::CONNABORTED, Errno::INTR, Errno::AGAIN] {
            assert_eq!(Severity::of(error), Severity::Connection, "{error}");
        }
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..100).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(pauses[..4], [1, 2, 4, 8]);
        assert_eq!(pauses[99], Backoff::MAX.as_millis());
    }
}
