//! What is done about a server that is there and does not answer, and about one that is lost.

use std::time::{Duration, Instant};

use vfs::Errno;

/// For how long a server that is lost is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// For so long; zero means not at all. Then the connection has failed.
    For(Duration),
    /// Until it comes again.
    Forever,
}

impl Default for Retry {
    /// Long enough for most to begin again.
    fn default() -> Retry {
        Retry::For(Duration::from_secs(60))
    }
}

impl Retry {
    /// `retry=`: seconds. Otherwise what was expected.
    pub fn seconds(text: &str) -> Result<Retry, String> {
        let seconds = text.parse().map(Duration::from_secs);
        let bad = |_| format!("retry= with seconds, not '{text}'");
        seconds.map(Retry::For).map_err(bad)
    }

    /// Whether there is time for another try, `since` there has been none that worked.
    pub(crate) fn goes_on(self, since: Instant) -> bool {
        match self {
            Retry::For(time) => since.elapsed() < time,
            Retry::Forever => true,
        }
    }
}

/// What is done about a server that does not answer, by nfs(5)'s names. A call that is cancelled is given up in any case, soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// How long something may take that is waited for: an answer if `soft`; the first answer of a server that is connected to; a
    /// request, to be taken off our hands.
    pub timeo: Duration,
    /// Whether calls that are not answered in time fail (`ETIMEDOUT`). They may have been carried out, or be yet. Those that wait
    /// for a lock wait. Otherwise (`hard`) all wait until there is an answer.
    pub soft: bool,
}

impl Default for Silence {
    /// Hard, and NFS's time over TCP.
    fn default() -> Silence {
        Silence {
            timeo: Duration::from_secs(60),
            soft: false,
        }
    }
}

impl Silence {
    /// What a call fails with whose answer did not come in time.
    pub(crate) const ERRNO: Errno = Errno::ETIMEDOUT;

    /// `timeo=`: tenths of a second. Otherwise what was expected.
    pub fn timeo(text: &str) -> Result<Duration, String> {
        match text.parse() {
            // An hour is long enough for anything that is not to be hard.
            Ok(tenths @ 1..=36_000) => Ok(Duration::from_millis(tenths * 100)),
            _ => Err(format!(
                "timeo= with tenths of a second from 1 to 36000, not '{text}'"
            )),
        }
    }
}
