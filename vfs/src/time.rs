//! Points in time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time, as the time since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

impl Time {
    /// Returns the same for the standard library, or `None` if it is beyond the system's range.
    pub fn to_system_time(self) -> Option<SystemTime> {
        let seconds = Duration::from_secs(self.sec.unsigned_abs());
        let whole = match self.sec {
            0.. => UNIX_EPOCH.checked_add(seconds),
            _ => UNIX_EPOCH.checked_sub(seconds),
        };
        whole?.checked_add(Duration::from_nanos(self.nsec.into()))
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Time {
        const SECOND: u32 = 1_000_000_000;
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Time {
                sec: after.as_secs() as i64,
                nsec: after.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let rest = before.subsec_nanos();
                Time {
                    sec: 0i64
                        .saturating_sub_unsigned(before.as_secs())
                        .saturating_sub(i64::from(rest > 0)),
                    nsec: (SECOND - rest) % SECOND,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted_both_ways() {
        // The unit of Windows is 100 ns.
        for (sec, nsec) in [
            (0, 0),
            (1, 500),
            (-1, 500),
            (-2, 999_999_900),
            (1 << 36, 100),
        ] {
            let time = Time { sec, nsec };
            assert_eq!(time.to_system_time().map(Time::from), Some(time));
        }
        // Some systems have no such times.
        for sec in [i64::MIN, i64::MAX] {
            let time = Time { sec, nsec: 0 };
            let same = time.to_system_time().map(Time::from);
            assert_eq!(same.unwrap_or(time), time);
        }
        let before = |nanos| Time::from(UNIX_EPOCH - Duration::from_nanos(nanos));
        let time = |sec, nsec| Time { sec, nsec };
        assert_eq!(before(100), time(-1, 999_999_900));
        assert_eq!(before(2_000_000_000), time(-2, 0));
    }
}
