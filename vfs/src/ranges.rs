//! Sets of byte ranges of a file.

/// A set of bytes as disjoint ranges that are not adjacent, each with its first and its last byte.
/// It holds the locks of a mirror, no more ranges than a lock table has of the same bytes, or the
/// valid bytes of a cached block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ranges, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set contains all of `start..=end`.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        self.0.iter().any(|&(from, to)| from <= start && end <= to)
    }

    /// Returns the first range that contains a byte at or after `at`.
    pub fn next(&self, at: u64) -> Option<(u64, u64)> {
        self.iter().filter(|&(_, to)| at <= to).min()
    }

    /// Returns the parts of `start..=end` that are not in the set, in order.
    pub fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        while let Some((from, to)) = self.next(at).filter(|&(from, _)| from <= end) {
            if at < from {
                gaps.push((at, from - 1));
            }
            match to.checked_add(1) {
                Some(behind) if behind <= end => at = behind,
                _ => return gaps,
            }
        }
        gaps.push((at, end));
        gaps
    }

    /// Adds `start..=end`.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        self.0.retain(|&(from, to)| {
            let touches = from <= end.saturating_add(1) && start <= to.saturating_add(1);
            if touches {
                start = start.min(from);
                end = end.max(to);
            }
            !touches
        });
        self.0.push((start, end));
    }

    /// Removes `start..=end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        let mut rest = Vec::new();
        self.0.retain(|&(from, to)| {
            if to < start || end < from {
                return true;
            }
            if from < start {
                rest.push((from, start - 1));
            }
            if end < to {
                rest.push((end + 1, to));
            }
            false
        });
        self.0.extend(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        let mut ranges = Ranges::default();
        ranges.insert(0, 4);
        ranges.insert(10, 14);
        ranges.insert(5, 9);
        assert_eq!(ranges.0, [(0, 14)]);
        ranges.remove(3, 3);
        assert_eq!(ranges.0, [(0, 2), (4, 14)]);
    }

    #[test]
    fn what_is_missing_lies_between_what_is_there() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.gaps(3, 9), [(3, 9)]);
        ranges.insert(20, 29);
        ranges.insert(0, 4);
        assert_eq!(ranges.gaps(3, 25), [(5, 19)]);
        assert_eq!(ranges.gaps(5, 19), [(5, 19)]);
        assert_eq!(ranges.gaps(22, 31), [(30, 31)]);
        assert_eq!(ranges.gaps(20, 29), []);
        assert!(ranges.covers(21, 29) && !ranges.covers(4, 20));
        assert_eq!(ranges.next(5), Some((20, 29)));
        assert_eq!(ranges.next(30), None);
        assert_eq!(ranges.count(), 2);
        ranges.insert(40, u64::MAX);
        assert_eq!(ranges.gaps(35, u64::MAX), [(35, 39)]);
    }

    #[test]
    fn what_is_taken_out_is_out() {
        let mut ranges = Ranges::default();
        ranges.insert(0, 4);
        ranges.insert(3, 9);
        ranges.insert(20, u64::MAX);
        ranges.remove(5, 29);
        assert_eq!(ranges.0, [(0, 4), (30, u64::MAX)]);
        ranges.remove(40, 49);
        assert_eq!(ranges.0, [(0, 4), (30, 39), (50, u64::MAX)]);
        ranges.remove(0, u64::MAX);
        assert!(ranges.is_empty());
    }
}
