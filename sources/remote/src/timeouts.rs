//! Timeouts for servers that do not answer, and retry limits for lost ones.

use std::time::{Duration, Instant};

use vfs::Errno;

/// How long to wait for a lost server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// For this time, then the connection fails; zero means no retry.
    For(Duration),
    /// Until the server returns.
    Forever,
}

impl Default for Retry {
    /// 60 s: long enough for most servers to restart.
    fn default() -> Retry {
        Retry::For(Duration::from_secs(60))
    }
}

impl Retry {
    /// Parses the value of `retry=` in seconds. The error states the expected form.
    pub fn seconds(text: &str) -> Result<Retry, String> {
        let seconds = text.parse().map(Duration::from_secs);
        let bad = |_| format!("retry= with seconds, not '{text}'");
        seconds.map(Retry::For).map_err(bad)
    }

    /// Returns whether time is left for another try, given the time `since` which all tries have
    /// failed.
    pub(crate) fn may_retry(self, since: Instant) -> bool {
        match self {
            Retry::For(time) => since.elapsed() < time,
            Retry::Forever => true,
        }
    }
}

/// Timeouts for a server that does not answer, named as in nfs(5). A cancelled call ends soon in
/// either mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The longest wait for a reply if `soft`, for the first reply of a server at connection time,
    /// and for the server to accept a request.
    pub timeo: Duration,
    /// Whether calls fail with `ETIMEDOUT` after the timeout, except those that wait for a lock. A
    /// failed call may have been carried out, or may still be. Without it (`hard`), calls wait
    /// until there is a reply; an NFS client reconnects after the timeout and sends them again.
    pub soft: bool,
}

impl Default for Timeouts {
    /// Hard, with the 60 s that NFS uses over TCP.
    fn default() -> Timeouts {
        Timeouts {
            timeo: Duration::from_secs(60),
            soft: false,
        }
    }
}

impl Timeouts {
    /// The error of a call whose reply did not arrive in time.
    pub(crate) const ERRNO: Errno = Errno::ETIMEDOUT;

    /// The longest wait for the reply to a call that is sent again and again, as in nfs(5), unless
    /// `timeo` is longer.
    const MAX_RESEND: Duration = Duration::from_secs(600);

    /// Returns how long to wait for the reply to a call before it is sent again, if it has timed
    /// out `timeouts` times: longer each time, so that a slow server is not asked too often.
    pub(crate) fn resend_after(&self, timeouts: u32) -> Duration {
        let longest = Timeouts::MAX_RESEND.max(self.timeo);
        let wait = self.timeo.saturating_mul(timeouts.saturating_add(1));
        wait.min(longest)
    }

    /// Parses the value of `timeo=` in tenths of a second. The error states the expected form.
    pub fn timeo(text: &str) -> Result<Duration, String> {
        match text.parse() {
            // A mount that would wait for longer than an hour can be hard.
            Ok(tenths @ 1..=36_000) => Ok(Duration::from_millis(tenths * 100)),
            _ => Err(format!(
                "timeo= with tenths of a second from 1 to 36000, not '{text}'"
            )),
        }
    }
}
