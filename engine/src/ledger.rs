//! What a lane's requests were, what became of them and how long they took: for those who look on.
//!
//! Each lane has its own, written by its threads without a lock but for requests that failed, and only where somebody has
//! asked for it. A time is from when a request was taken until its reply stands, the wait for a worker included; sending is not.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use vfs::cx::Noted;
use wire::Vocabulary;

use crate::histogram::{Histogram, Times};

/// A lane's.
pub(crate) struct Ledger {
    pub(crate) vocabulary: &'static Vocabulary,
    /// By its words.
    times: Box<[OnceLock<Box<Histogram>>]>,
    faults: Mutex<BTreeMap<(u16, u16), u64>>,
}

impl Ledger {
    /// How many pairs of word and fault are told apart: there are some twenty, but a source may fail by any number.
    const FAULTS: usize = 512;

    pub(crate) fn new(vocabulary: &'static Vocabulary) -> Ledger {
        Ledger {
            vocabulary,
            times: vocabulary.words.iter().map(|_| OnceLock::new()).collect(),
            faults: Mutex::default(),
        }
    }

    /// Enters a request. A number beyond those of the vocabulary is not counted.
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

    /// Adds what it has to `all`.
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

/// What was asked, by protocol and its word for it.
pub type Operations = BTreeMap<(&'static str, &'static str), Operation>;

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// How long they took, all of them.
    pub times: Times,
    /// How many of them failed, by why.
    pub faults: BTreeMap<String, u64>,
}
