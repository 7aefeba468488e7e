//! A time in which something does not work, such as writes to a disk that is full.

use std::time::{Duration, Instant};

/// The state of work that is given up while it fails, and resumes by itself: after a failure it is
/// attempted once in a while. The first failure and the end of the outage are each logged once.
///
/// ```
/// use std::time::Instant;
/// use vfs::Outage;
///
/// fn store(outage: &mut Outage, write: impl FnOnce() -> std::io::Result<()>) {
///     let now = Instant::now();
///     if !outage.may_try(now) {
///         return;
///     }
///     match write() {
///         Ok(()) if outage.succeeded() => eprintln!("stored again"),
///         Ok(()) => {}
///         Err(error) if outage.failed(now) => eprintln!("not stored for now: {error}"),
///         Err(_) => {}
///     }
/// }
/// # store(&mut Outage::default(), || Ok(()));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Outage {
    is_on: bool,
    /// The last pause, also of an outage that is over.
    pause: Option<Pause>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl Outage {
    /// The pause after the first failure. It doubles with each further one, also if there was a
    /// success in between: so an outage that comes and goes is logged rarely.
    pub const MIN_PAUSE: Duration = Duration::from_secs(1);

    /// The maximum pause, and the time after a pause in which a failure doubles it.
    pub const MAX_PAUSE: Duration = Duration::from_secs(64);

    /// Returns whether the last attempt has failed.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns whether an attempt is due.
    pub fn may_try(&self, now: Instant) -> bool {
        !self.is_on || self.pause.is_none_or(|pause| pause.until <= now)
    }

    /// Records a failure. Returns whether it begins an outage.
    pub fn failed(&mut self, now: Instant) -> bool {
        let begins = !std::mem::replace(&mut self.is_on, true);
        let length = match self.pause {
            // Several attempts at a time count as one.
            Some(pause) if !begins && now < pause.until => return false,
            Some(pause) if now < pause.until + Outage::MAX_PAUSE => 2 * pause.length,
            _ => Outage::MIN_PAUSE,
        };
        let length = length.min(Outage::MAX_PAUSE);
        let until = now + length;
        self.pause = Some(Pause { until, length });
        begins
    }

    /// Records a success. Returns whether it ends an outage.
    pub fn succeeded(&mut self) -> bool {
        std::mem::replace(&mut self.is_on, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_attempted_again_less_and_less_often_until_it_succeeds() {
        let mut outage = Outage::default();
        let mut now = Instant::now();
        assert!(!outage.is_on() && outage.may_try(now) && !outage.succeeded());
        assert!(outage.failed(now), "the first one is logged");
        let next = |outage: &Outage| outage.pause.expect("a pause").until;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(!outage.may_try(now) && !outage.failed(now));
            let until = next(&outage);
            pauses.push((until - now).as_secs());
            now = until;
            assert!(outage.may_try(now) && !outage.failed(now));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64]);
        assert!(outage.succeeded() && !outage.succeeded());
        assert!(
            outage.may_try(now) && outage.failed(now),
            "it comes and goes"
        );
        assert_eq!(next(&outage) - now, Outage::MAX_PAUSE);
        assert!(outage.succeeded());
        now += 3 * Outage::MAX_PAUSE;
        assert!(outage.failed(now));
        assert_eq!(next(&outage) - now, Outage::MIN_PAUSE);
    }
}
