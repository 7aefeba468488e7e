//! A bound on how often something is logged.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Permits the first line about each subject, and later ones with a pause in between, so that a peer that can cause
/// lines cannot fill a disk. Remembers a bounded number of subjects; while all are recent, others get no line. May be
/// used by several threads at once.
#[derive(Debug)]
pub struct Occasionally<K = ()> {
    last: Mutex<HashMap<K, Instant>>,
}

impl<K> Default for Occasionally<K> {
    fn default() -> Occasionally<K> {
        Occasionally {
            last: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash> Occasionally<K> {
    /// The pause between two lines about one subject: as often as an administrator reads them.
    pub const PAUSE: Duration = Duration::from_secs(30);

    /// The number of subjects that are remembered.
    const SUBJECTS: usize = 1024;

    /// Whether a line about `subject` may be logged now.
    pub fn may_log(&self, subject: K) -> bool {
        self.may_log_at(subject, Instant::now())
    }

    fn may_log_at(&self, subject: K, now: Instant) -> bool {
        let recent = |last: &Instant| now.saturating_duration_since(*last) < Self::PAUSE;
        let mut all = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&subject).is_some_and(recent) {
            return false;
        }
        if all.len() >= Self::SUBJECTS {
            all.retain(|_, last| recent(last));
        }
        let may = all.len() < Self::SUBJECTS;
        if may {
            all.insert(subject, now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_about_one_subject_is_one_line_and_hides_no_other() {
        let (lines, start) = (Occasionally::default(), Instant::now());
        let logged = (0..1000).filter(|_| lines.may_log_at("one", start)).count();
        assert_eq!(logged, 1);
        assert!(lines.may_log_at("other", start));
        assert!(lines.may_log_at("one", start + Occasionally::<&str>::PAUSE));
    }

    #[test]
    fn the_number_of_subjects_is_bounded() {
        let (lines, start) = (Occasionally::default(), Instant::now());
        let logged = (0..10_000).filter(|&n| lines.may_log_at(n, start)).count();
        assert_eq!(logged, Occasionally::<i32>::SUBJECTS);
        assert!(lines.may_log_at(9_999, start + Occasionally::<i32>::PAUSE));
        assert_eq!(lines.last.lock().expect("no panic").len(), 1);
    }
}
