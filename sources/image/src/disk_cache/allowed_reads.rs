//! The ranges of a file that the kernel may be reading, for a mount that reads it.
//!
//! A range is added before it is known to be in the file, and removed when the read is over. A
//! part of the file may be evicted only if no range overlaps it.
//!
//! Lock order: the table's lock is the innermost one.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;

/// Maximum number of ranges, each of a thread that waits or reads. If there are more, nothing is
/// evicted any more.
const MAX_RANGES: usize = 1 << 14;

/// The ranges of bytes that the kernel may be reading, each with a number. Methods may be called
/// concurrently from any number of threads.
#[derive(Debug, Default)]
pub struct AllowedReads(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    reads: BTreeMap<u64, Range<u64>>,
    /// Ranges that are read without an event.
    unobserved: Vec<Range<u64>>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// There may be others than those in the table.
    #[default]
    Incomplete,
    Complete,
    /// There may be others from now on.
    GivenUp,
}

impl AllowedReads {
    /// Adds a read.
    pub fn begin(&self, number: u64, range: Range<u64>) {
        let mut table = self.0.lock();
        if table.reads.len() >= MAX_RANGES {
            table.give_up();
        }
        if table.state != State::GivenUp {
            table.reads.insert(number, range);
        }
    }

    /// Removes a read that is over.
    pub fn end(&self, number: u64) {
        self.0.lock().reads.remove(&number);
    }

    /// Records that all reads of the past are in the table, and all of the future will be.
    pub fn observe(&self) {
        let mut table = self.0.lock();
        if table.state == State::Incomplete {
            table.state = State::Complete;
        }
    }

    /// Records that there will be other reads: nothing may be evicted any more.
    pub fn give_up(&self) {
        self.0.lock().give_up();
    }

    /// Returns whether all reads are in the table, so that something may be evicted.
    pub(crate) fn are_observed(&self) -> bool {
        self.0.lock().state == State::Complete
    }

    /// Excludes a range from eviction, since it is read without events.
    pub(crate) fn exclude(&self, range: Range<u64>) {
        self.0.lock().unobserved.push(range);
    }

    /// Returns whether the bytes of `range` may be evicted: nobody reads them.
    pub(crate) fn permit_eviction(&self, range: &Range<u64>) -> bool {
        let table = self.0.lock();
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        table.state == State::Complete
            && !table.unobserved.iter().any(overlaps)
            && !table.reads.values().any(overlaps)
    }
}

impl Table {
    fn give_up(&mut self) {
        self.state = State::GivenUp;
        self.reads.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_nobody_reads_may_be_evicted_while_all_reads_are_known() {
        let reads = AllowedReads::default();
        let may = |range: Range<u64>| reads.permit_eviction(&range);
        assert!(!may(0..10), "others may read it");
        reads.begin(1, 5..15);
        reads.begin(2, 14..u64::MAX);
        reads.exclude(0..2);
        reads.observe();
        assert!(may(2..5));
        for range in [0..5, 1..3, 2..6, 10..12, 100..110] {
            assert!(!may(range.clone()), "{range:?}");
        }
        reads.end(1);
        reads.end(1);
        assert!(may(2..14) && !may(2..15));
        reads.end(2);
        assert!(may(2..100) && !may(0..100));
        reads.give_up();
        reads.observe();
        assert!(!may(2..5));
    }

    #[test]
    fn too_many_reads_end_all_eviction() {
        let reads = AllowedReads::default();
        reads.observe();
        for number in 0..MAX_RANGES as u64 {
            reads.begin(number, 0..1);
        }
        assert!(reads.permit_eviction(&(1..2)));
        reads.begin(MAX_RANGES as u64, 0..1);
        assert!(!reads.permit_eviction(&(1..2)));
        assert!(reads.0.lock().reads.is_empty());
    }
}
