//! Statistics of a lane's requests: types, errors and latencies.
//!
//! Each lane has its own, and only if they are enabled. The lane's threads update them without a
//! lock, except for failed requests. A latency is measured from the receipt of a request until its
//! reply is complete, including the wait for a worker but not the sending.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use vfs::cx::Noted;
use wire::Vocabulary;

use crate::histogram::{Histogram, Times};

/// The statistics of a lane.
pub(crate) struct Ledger {
    pub(crate) vocabulary: &'static Vocabulary,
    /// Latencies, indexed by word.
    times: Box<[OnceLock<Box<Histogram>>]>,
    faults: Mutex<BTreeMap<(u16, u16), u64>>,
}

impl Ledger {
    /// The maximum number of distinct pairs of word and fault: some twenty are usual, but a source
    /// may return any errno.
    const FAULTS: usize = 512;

    pub(crate) fn new(vocabulary: &'static Vocabulary) -> Ledger {
        Ledger {
            vocabulary,
            times: vocabulary.words.iter().map(|_| OnceLock::new()).collect(),
            faults: Mutex::default(),
        }
    }

    /// Counts a request. A word that is not in the vocabulary is ignored.
    pub(crate) fn enter(&self, noted: Noted, took: Duration) {
        let Some(times) = self.times.get(usize::from(noted.word)) else {
            return;
        };
        times.get_or_init(Box::default).count(took);
        if noted.fault != 0 {
            let mut faults = self.faults();
            let full = faults.len() >= Ledger::FAULTS;
            let key = (noted.word, noted.fault);
            let key = match full && !faults.contains_key(&key) {
                true => (noted.word, Vocabulary::OTHER_FAULT),
                false => key,
            };
            *faults.entry(key).or_default() += 1;
        }
    }

    /// Adds its counts to `all`.
    pub(crate) fn add_to(&self, all: &mut Operations) {
        let faults = self.faults();
        let words = self.vocabulary.words.iter().zip(&self.times).enumerate();
        for (word, (name, times)) in words {
            let Some(times) = times.get() else {
                continue;
            };
            let name = match name.as_str() {
                "" => "other",
                name => name,
            };
            let operation = all.entry((self.vocabulary.protocol, name)).or_default();
            operation.times.add(&times.look());
            let word = word as u16;
            for (&(_, fault), count) in faults.range((word, 0)..=(word, u16::MAX)) {
                let mut name = (self.vocabulary.fault)(fault);
                let full = operation.faults.len() >= Ledger::FAULTS;
                if full && !operation.faults.contains_key(&name) {
                    name = (self.vocabulary.fault)(Vocabulary::OTHER_FAULT);
                }
                *operation.faults.entry(name).or_default() += count;
            }
        }
    }

    fn faults(&self) -> MutexGuard<'_, BTreeMap<(u16, u16), u64>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Statistics of requests, by protocol and the protocol's name for the type.
pub type Operations = BTreeMap<(&'static str, &'static str), Operation>;

/// Statistics of one type of request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// The latencies of all of them.
    pub times: Times,
    /// The number of failures, by error.
    pub faults: BTreeMap<String, u64>,
}
