//! A fast keyed hasher for tables of numbers.

use std::hash::BuildHasher;

use foldhash::SharedSeed;
use foldhash::fast::{FoldHasher, SeedableRandomState};

/// Builds foldhash hashers with a random key, each instance with its own. Clones share the key.
///
/// A number costs one multiplication, a tenth of SipHash. A peer that chooses the numbers, such as
/// 9P's fids, cannot compute collisions because it does not know the key. foldhash does not claim
/// to withstand a peer that measures the duration of many lookups: tables that several peers share,
/// with keys that a peer chooses, use the standard library's `RandomState` (SipHash) instead.
#[derive(Clone, Debug)]
pub struct FastRandomState(SeedableRandomState);

impl Default for FastRandomState {
    fn default() -> FastRandomState {
        // foldhash derives its own random keys from addresses and the time, the standard library
        // from the kernel's random numbers.
        let key = std::hash::RandomState::new().hash_one(());
        let shared = SharedSeed::global_random();
        FastRandomState(SeedableRandomState::with_seed(key, shared))
    }
}

impl BuildHasher for FastRandomState {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_have_different_keys_and_clones_the_same() {
        let (one, other) = (FastRandomState::default(), FastRandomState::default());
        assert_ne!(one.hash_one(1u64), other.hash_one(1u64));
        assert_eq!(one.hash_one(1u64), one.clone().hash_one(1u64));
    }

    /// The low bits select a bucket, the top seven are its tag, and bit 32 on select a shard.
    #[test]
    fn regular_numbers_differ_in_all_bits_that_tables_use() {
        let hasher = FastRandomState::default();
        for stride in [1, 8, 64, 1 << 16, 1 << 32, 1 << 48] {
            for shift in [0, 32, 57] {
                let mut counts = [0; 64];
                for number in 0..64_000u64 {
                    let hash = hasher.hash_one(number.wrapping_mul(stride));
                    counts[(hash >> shift) as usize % 64] += 1;
                }
                let most = counts.iter().max().expect("some");
                assert!(*most < 4_000, "stride {stride}, bit {shift}: {counts:?}");
            }
        }
    }
}
