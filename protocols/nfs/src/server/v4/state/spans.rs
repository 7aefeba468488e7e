//! Which bytes of a file a lock owner has locked.

/// Disjoint ranges, each with its first and its last byte, that do not touch: no more than the lock
/// table has of the owner.
#[derive(Debug, Default)]
pub(super) struct Spans(Vec<(u64, u64)>);

impl Spans {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
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

    pub(super) fn remove(&mut self, start: u64, end: u64) {
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
    fn neighbours_are_one_span() {
        let mut spans = Spans::default();
        spans.insert(0, 4);
        spans.insert(10, 14);
        spans.insert(5, 9);
        assert_eq!(spans.0, [(0, 14)]);
        spans.remove(3, 3);
        assert_eq!(spans.0, [(0, 2), (4, 14)]);
        spans.insert(20, u64::MAX);
        spans.remove(0, u64::MAX);
        assert!(spans.is_empty());
    }
}
