//! Histograms of durations, with exponential buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets for each power of two: a quantile is at most a quarter off.
const SUB_BUCKETS: u32 = 4;

/// The upper bound of the first bucket in nanoseconds, as a power of two: half the cost and noise
/// of a clock.
const MIN_EXPONENT: u32 = 8;

/// The lower bound of the last bucket in nanoseconds, as a power of two: 17 seconds, which waits
/// for locks may take.
const MAX_EXPONENT: u32 = 34;

const BUCKETS: usize = ((MAX_EXPONENT - MIN_EXPONENT) * SUB_BUCKETS) as usize + 2;

/// A histogram of durations. Any thread may count.
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            nanos: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts a duration.
    pub fn count(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub fn snapshot(&self) -> Latencies {
        let counts = self.buckets.iter().enumerate().filter_map(|(at, count)| {
            let count = count.load(Ordering::Relaxed);
            (count > 0).then(|| (upper_bound(at), count))
        });
        Latencies {
            buckets: counts.collect(),
            nanos: self.nanos.load(Ordering::Relaxed),
        }
    }
}

fn bucket(nanos: u64) -> usize {
    let power = nanos.max(1).ilog2();
    match power {
        0..MIN_EXPONENT => 0,
        MIN_EXPONENT..MAX_EXPONENT => {
            let fine = (nanos >> (power - SUB_BUCKETS.ilog2())) & u64::from(SUB_BUCKETS - 1);
            ((power - MIN_EXPONENT) * SUB_BUCKETS) as usize + fine as usize + 1
        }
        _ => BUCKETS - 1,
    }
}

/// Returns the upper bound of bucket `at` in nanoseconds; `u64::MAX` for the last one.
fn upper_bound(at: usize) -> u64 {
    if at == BUCKETS - 1 {
        return u64::MAX;
    }
    let (power, fine) = (
        at as u32 / SUB_BUCKETS + MIN_EXPONENT,
        at as u64 % u64::from(SUB_BUCKETS),
    );
    (1 << power) + (fine << (power - SUB_BUCKETS.ilog2()))
}

/// A snapshot of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// The exclusive upper bound in nanoseconds and the count of each bucket that is not empty, in
    /// order.
    pub buckets: Vec<(u64, u64)>,
    /// The sum of all durations in nanoseconds.
    pub nanos: u64,
}

impl Latencies {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Latencies) {
        self.nanos += other.nanos;
        for &(end, count) in &other.buckets {
            match self.buckets.binary_search_by_key(&end, |bucket| bucket.0) {
                Ok(at) => self.buckets[at].1 += count,
                Err(at) => self.buckets.insert(at, (end, count)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_below_its_buckets_end_and_not_a_quarter_below() {
        let mut nanos = 1;
        while nanos < 1 << 40 {
            let end = upper_bound(bucket(nanos));
            assert!(nanos < end, "{nanos} {end}");
            if (1 << MIN_EXPONENT..1 << MAX_EXPONENT).contains(&nanos) {
                assert!(end - nanos <= nanos / 4 + 1, "{nanos} {end}");
            }
            nanos += nanos / 7 + 1;
        }
        assert_eq!(upper_bound(bucket(0)), 1 << MIN_EXPONENT);
        assert_eq!(upper_bound(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn what_is_added_is_as_if_counted_together() {
        let (one, other, both) = (
            Histogram::default(),
            Histogram::default(),
            Histogram::default(),
        );
        for nanos in [1, 900, 900, 70_000, u64::from(u32::MAX) * 9] {
            one.count(Duration::from_nanos(nanos));
            both.count(Duration::from_nanos(nanos));
        }
        for nanos in [3, 800, 3_000_000] {
            other.count(Duration::from_nanos(nanos));
            both.count(Duration::from_nanos(nanos));
        }
        let mut sum = one.snapshot();
        sum.add(&other.snapshot());
        assert_eq!(sum, both.snapshot());
        assert_eq!(sum.count(), 8);
    }
}
