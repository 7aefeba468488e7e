//! Token buckets.

use std::num::NonZeroU64;
use std::time::Duration;

use super::Rates;

/// Tokens that accrue at a constant rate, up to a burst. The number may become negative: a debt.
///
/// Numbers are in billionths of a token, of which a rate of one token a second yields one each
/// nanosecond.
pub(super) struct Bucket {
    /// Tokens per second.
    rate: NonZeroU64,
    capacity: i128,
    level: i128,
    /// The time of the last refill.
    updated: Duration,
}

/// A token.
const TOKEN: i128 = 1_000_000_000;

/// The maximum of [`Bucket::time_until`], after which a waiting request checks again.
const MAX_WAIT: Duration = Duration::from_secs(3600);

impl Bucket {
    fn new(rate: NonZeroU64, burst: Duration, now: Duration) -> Bucket {
        let capacity = i128::from(rate.get()) * burst.as_nanos() as i128;
        // With less than one token nothing would ever be admitted.
        let capacity = capacity.max(TOKEN);
        Bucket {
            rate,
            capacity,
            level: capacity,
            updated: now,
        }
    }

    fn refill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.updated).as_nanos() as i128;
        self.updated = self.updated.max(now);
        let level = self.level + elapsed * i128::from(self.rate.get());
        self.level = level.min(self.capacity);
    }

    fn take(&mut self, tokens: u64) {
        self.level -= i128::from(tokens) * TOKEN;
    }

    fn put_back(&mut self, tokens: u64) {
        self.level = (self.level + i128::from(tokens) * TOKEN).min(self.capacity);
    }

    /// Returns the time until the level is `level`; zero if it is.
    fn time_until(&self, level: i128) -> Duration {
        let missing = level - self.level;
        if missing <= 0 {
            return Duration::ZERO;
        }
        let rate = i128::from(self.rate.get());
        let nanos = (missing + rate - 1) / rate;
        u64::try_from(nanos).map_or(MAX_WAIT, |nanos| Duration::from_nanos(nanos).min(MAX_WAIT))
    }

    /// Returns the time that `tokens` take to accrue, in nanoseconds.
    fn nanos_of(&self, tokens: u64) -> u128 {
        match tokens.checked_mul(TOKEN as u64) {
            // A division of 64 bits is several times as fast.
            Some(nanos) => (nanos / self.rate.get()).into(),
            None => u128::from(tokens) * TOKEN as u128 / u128::from(self.rate.get()),
        }
    }
}

/// The buckets of a share or of a client; one that is missing limits nothing.
#[derive(Default)]
pub(super) struct Buckets {
    rates: Rates,
    ops: Option<Bucket>,
    bytes: Option<Bucket>,
}

/// The buckets that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Ops,
    Both,
    /// It has been charged as an operation already.
    Bytes,
}

impl Need {
    pub(super) const ALL: [Need; 3] = [Need::Ops, Need::Both, Need::Bytes];

    pub(super) fn moves_bytes(self) -> bool {
        self != Need::Ops
    }

    /// Returns the need of a request of so many operations and bytes.
    pub(super) fn of(ops: u64, bytes: u64) -> Need {
        match (ops, bytes) {
            (_, 0) => Need::Ops,
            (0, _) => Need::Bytes,
            _ => Need::Both,
        }
    }
}

/// The smallest level of bytes at which a request is admitted: any request passes, however large,
/// and the ones after it wait for its debt.
const POSITIVE: i128 = 1;

impl Buckets {
    /// Returns full buckets.
    pub(super) fn new(rates: Rates, now: Duration) -> Buckets {
        let bucket = |rate: Option<NonZeroU64>| Some(Bucket::new(rate?, rates.burst, now));
        Buckets {
            rates,
            ops: bucket(rates.ops),
            bytes: bucket(rates.bytes),
        }
    }

    /// Replaces the rates. Buckets whose rate or burst changes are full and without debt.
    pub(super) fn set(&mut self, rates: Rates, now: Duration) {
        let new = Buckets::new(rates, now);
        let old = std::mem::replace(self, new);
        if old.rates.burst == rates.burst {
            if old.rates.ops == rates.ops {
                self.ops = old.ops;
            }
            if old.rates.bytes == rates.bytes {
                self.bytes = old.bytes;
            }
        }
    }

    pub(super) fn refill(&mut self, now: Duration) {
        let both = self.ops.iter_mut().chain(&mut self.bytes);
        both.for_each(|bucket| bucket.refill(now));
    }

    /// Returns the time until a request with this need is admitted; zero if it is now.
    pub(super) fn wait(&self, need: Need) -> Duration {
        let ops = self.ops.as_ref().filter(|_| need != Need::Bytes);
        let ops = ops.map(|ops| ops.time_until(TOKEN));
        let bytes = self.bytes.as_ref().filter(|_| need.moves_bytes());
        let bytes = bytes.map(|bytes| bytes.time_until(POSITIVE));
        ops.max(bytes).unwrap_or_default()
    }

    pub(super) fn admits(&self, need: Need) -> bool {
        self.wait(need).is_zero()
    }

    pub(super) fn take(&mut self, ops: u64, bytes: u64) {
        if let Some(bucket) = &mut self.ops {
            bucket.take(ops);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(bytes);
        }
    }

    pub(super) fn put_back(&mut self, ops: u64, bytes: u64) {
        if let Some(bucket) = &mut self.ops {
            bucket.put_back(ops);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.put_back(bytes);
        }
    }

    /// Returns the time that a request uses of the scarcer bucket, in nanoseconds.
    pub(super) fn nanos_of(&self, ops: u64, bytes: u64) -> u128 {
        let ops = self.ops.as_ref().map_or(0, |bucket| bucket.nanos_of(ops));
        let bytes = (self.bytes.as_ref()).map_or(0, |bucket| bucket.nanos_of(bytes));
        ops.max(bytes)
    }

    pub(super) fn is_full(&self) -> bool {
        let mut both = self.ops.iter().chain(&self.bytes);
        both.all(|bucket| bucket.level == bucket.capacity)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rates(ops: u64, bytes: u64, burst_ms: u64) -> Rates {
        Rates {
            ops: NonZeroU64::new(ops),
            bytes: NonZeroU64::new(bytes),
            burst: Duration::from_millis(burst_ms),
        }
    }

    #[test]
    fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let mut buckets = Buckets::new(rates(10, 0, 500), Duration::ZERO);
        for _ in 0..5 {
            assert!(buckets.admits(Need::Ops));
            buckets.take(1, 0);
        }
        assert_eq!(buckets.wait(Need::Ops), Duration::from_millis(100));
        buckets.refill(Duration::from_millis(100));
        assert!(buckets.admits(Need::Ops));
    }

    #[test]
    fn a_request_above_the_burst_passes_and_leaves_a_debt() {
        let mut buckets = Buckets::new(rates(0, 1000, 100), Duration::ZERO);
        buckets.take(1, 5100);
        assert!(
            buckets.admits(Need::Ops),
            "requests without bytes do not wait"
        );
        let wait = buckets.wait(Need::Both);
        assert!(Duration::from_secs(5) < wait && wait < Duration::from_millis(5001));
        buckets.put_back(0, 5000);
        assert!(!buckets.admits(Need::Bytes));
    }

    #[test]
    fn less_than_a_token_of_burst_is_one() {
        let mut buckets = Buckets::new(rates(1, 0, 10), Duration::ZERO);
        assert!(buckets.admits(Need::Ops));
        buckets.take(1, 0);
        assert_eq!(buckets.wait(Need::Ops), Duration::from_secs(1));
    }

    #[test]
    fn a_changed_rate_starts_full_and_an_unchanged_one_goes_on() {
        let mut buckets = Buckets::new(rates(1, 1000, 100), Duration::ZERO);
        buckets.take(1, 10_000);
        buckets.set(rates(5, 1000, 100), Duration::ZERO);
        assert!(buckets.admits(Need::Ops) && !buckets.admits(Need::Both));
        buckets.set(rates(5, 2000, 100), Duration::ZERO);
        assert!(buckets.admits(Need::Both) && buckets.is_full());
        buckets.set(Rates::default(), Duration::ZERO);
        buckets.take(u64::MAX, u64::MAX);
        assert!(buckets.admits(Need::Both));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let mut buckets = Buckets::new(rates(u64::MAX, 1, 1000), Duration::ZERO);
        for _ in 0..100 {
            buckets.take(u64::MAX, u64::MAX);
        }
        assert_eq!(buckets.wait(Need::Both), MAX_WAIT);
        buckets.refill(Duration::from_secs(u32::MAX.into()));
        assert!(buckets.nanos_of(u64::MAX, u64::MAX) > 0);
    }

    proptest! {
        /// The bytes admitted until a time are those of the rate until then, the burst, and the
        /// last request.
        #[test]
        fn the_rate_is_kept(sizes in proptest::collection::vec(1u64..5000, 1..200), rate in 1u64..100_000) {
            let mut buckets = Buckets::new(rates(0, rate, 100), Duration::ZERO);
            let (mut now, mut sum, mut last) = (Duration::ZERO, 0, 0);
            for size in sizes {
                now += buckets.wait(Need::Both);
                buckets.refill(now);
                prop_assert!(buckets.admits(Need::Both));
                buckets.take(1, size);
                sum += size;
                last = size;
            }
            let accrued = rate as f64 * (now.as_secs_f64() + 0.1) + 1.0;
            prop_assert!((sum - last) as f64 <= accrued + 1e-3);
            prop_assert!(sum as f64 + 1.0 >= rate as f64 * now.as_secs_f64());
        }
    }
}
