//! How long a lane's own thread may take for a request.

use std::time::{Duration, Instant};

use vfs::Patience;

/// How patient the lane's own thread can afford to be: it tries what normally takes microseconds,
/// until that has waited for a disk, and then leaves it to workers for a while.
pub(crate) struct Pace {
    last: Instant,
    strikes: u32,
    careful_until: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            last: Instant::now(),
            strikes: 0,
            careful_until: None,
        }
    }
}

impl Pace {
    /// What takes longer has waited.
    const SLOW: Duration = Duration::from_millis(2);

    /// What each byte of a message may take besides: to copy them all is no wait.
    const BYTE: Duration = Duration::from_nanos(4);

    /// How long the lane is careful then.
    const CAREFUL: Duration = Duration::from_millis(100);

    /// One slow answer may be a thread that lost its processor for a time slice; two within so many
    /// answers are not.
    const WITHIN: u32 = 16;

    pub(crate) fn begin(&mut self) {
        self.last = Instant::now();
        if self.careful_until.is_some_and(|until| until <= self.last) {
            self.careful_until = None;
        }
    }

    /// A request, a message of `len` bytes, has had its turn. Says how long that took.
    pub(crate) fn step(&mut self, len: usize) -> Duration {
        let now = Instant::now();
        let took = now - self.last;
        if took < Pace::SLOW + Pace::BYTE * len as u32 {
            self.strikes = self.strikes.saturating_sub(1);
        } else if self.strikes > 0 {
            self.careful_until = Some(now + Pace::CAREFUL);
            self.strikes = 0;
        } else {
            self.strikes = Pace::WITHIN;
        }
        self.last = now;
        took
    }

    pub(crate) fn patience(&self) -> Patience {
        if self.careful_until.is_some() {
            Patience::None
        } else {
            Patience::Brief
        }
    }
}
