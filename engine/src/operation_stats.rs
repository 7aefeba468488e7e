//! Statistics of a lane's requests: types, errors and latencies.
//!
//! Each lane has its own, and only if they are enabled. The lane's threads update them without a
//! lock, except for failed requests. A latency is measured from the receipt of a request until its
//! reply is complete, including the wait for a worker but not the sending.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use vfs::cx::CallOutcome;
use vfs::histogram::{Histogram, Latencies};
use wire::Vocabulary;

/// The statistics of a lane.
pub(crate) struct OperationStats {
    pub(crate) vocabulary: &'static Vocabulary,
    /// Latencies, indexed by word.
    latencies: Box<[OnceLock<Box<Histogram>>]>,
    errors: Mutex<BTreeMap<(u16, u16), u64>>,
}

impl OperationStats {
    /// The maximum number of distinct pairs of word and error: some twenty are usual, but a source
    /// may return any errno.
    const ERRORS: usize = 512;

    pub(crate) fn new(vocabulary: &'static Vocabulary) -> OperationStats {
        OperationStats {
            vocabulary,
            latencies: vocabulary
                .operations
                .iter()
                .map(|_| OnceLock::new())
                .collect(),
            errors: Mutex::default(),
        }
    }

    /// Counts a request. A word that is not in the vocabulary is ignored.
    pub(crate) fn record(&self, noted: CallOutcome, took: Duration) {
        let Some(latencies) = self.latencies.get(usize::from(noted.operation)) else {
            return;
        };
        latencies.get_or_init(Box::default).count(took);
        if noted.error != 0 {
            let mut errors = self.errors();
            let full = errors.len() >= OperationStats::ERRORS;
            let key = (noted.operation, noted.error);
            let key = match full && !errors.contains_key(&key) {
                true => (noted.operation, Vocabulary::OTHER_ERROR),
                false => key,
            };
            *errors.entry(key).or_default() += 1;
        }
    }

    /// Adds its counts to `all`.
    pub(crate) fn add_to(&self, all: &mut Operations) {
        let errors = self.errors();
        let words = self
            .vocabulary
            .operations
            .iter()
            .zip(&self.latencies)
            .enumerate();
        for (word, (name, latencies)) in words {
            let Some(latencies) = latencies.get() else {
                continue;
            };
            let name = match name.as_str() {
                "" => "other",
                name => name,
            };
            let operation = all.entry((self.vocabulary.protocol, name)).or_default();
            operation.latencies.add(&latencies.snapshot());
            let word = word as u16;
            for (&(_, fault), count) in errors.range((word, 0)..=(word, u16::MAX)) {
                let mut name = (self.vocabulary.error)(fault);
                let full = operation.errors.len() >= OperationStats::ERRORS;
                if full && !operation.errors.contains_key(&name) {
                    name = (self.vocabulary.error)(Vocabulary::OTHER_ERROR);
                }
                *operation.errors.entry(name).or_default() += count;
            }
        }
    }

    fn errors(&self) -> MutexGuard<'_, BTreeMap<(u16, u16), u64>> {
        self.errors.lock()
    }
}

/// Statistics of requests, by protocol and the protocol's name for the type.
pub type Operations = BTreeMap<(&'static str, &'static str), Operation>;

/// Statistics of one type of request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// The latencies of all of them.
    pub latencies: Latencies,
    /// The number of failures, by error.
    pub errors: BTreeMap<String, u64>,
}
