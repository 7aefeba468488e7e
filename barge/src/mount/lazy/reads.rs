//! The reads of an image's file that the holder has allowed and that may not be over.
//!
//! A read is over when the kernel says so, when its thread asks for another one, or when the thread
//! has ended: a read that fails raises no further event. A read of a thread that this process
//! cannot name is never over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Fill;

/// Maximum number of reads. If there are more, tracking ends. All of them fit in a message, and in
/// an environment variable together with the readers that wait.
const MAX_READS: usize = 1 << 10;

/// The reads that may not be over.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Reads {
    /// Whether all reads are known.
    pub(super) complete: bool,
    /// Ranges by the thread and the number of the read.
    #[serde(with = "as_list")]
    allowed: BTreeMap<(i32, u64), (u64, u64)>,
    /// The number of the next read.
    next: u64,
}

impl Reads {
    /// Returns a table without reads, for a file that is not read yet.
    pub(super) fn new() -> Reads {
        Reads {
            complete: true,
            ..Reads::default()
        }
    }

    /// Returns the number of a new read.
    pub(super) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Adds a read that will be allowed.
    pub(super) fn allow(&mut self, fill: &Fill) {
        if self.complete && self.allowed.len() >= MAX_READS {
            self.give_up();
        }
        if self.complete {
            let key = (fill.thread, fill.number);
            self.allowed.insert(key, (fill.start, fill.end));
        }
    }

    /// Removes the reads of a thread, which are over, and returns their numbers.
    pub(super) fn end(&mut self, thread: i32) -> Vec<u64> {
        if thread <= 0 {
            return Vec::new();
        }
        let of = self.allowed.range((thread, 0)..=(thread, u64::MAX));
        let numbers: Vec<u64> = of.map(|(&(_, number), _)| number).collect();
        for number in &numbers {
            self.allowed.remove(&(thread, *number));
        }
        numbers
    }

    /// Removes the reads of threads that are not among those that exist, and returns their numbers.
    pub(super) fn end_without(&mut self, exists: impl Fn(i32) -> bool) -> Vec<u64> {
        let threads = self.allowed.keys().map(|(thread, _)| *thread);
        let mut ended: Vec<i32> = threads.filter(|thread| !exists(*thread)).collect();
        ended.dedup();
        ended
            .into_iter()
            .flat_map(|thread| self.end(thread))
            .collect()
    }

    /// Records that there will be reads without events.
    pub(super) fn give_up(&mut self) {
        self.complete = false;
        self.allowed.clear();
    }

    /// Returns the number and the range of each read.
    pub(super) fn ranges(&self) -> Vec<(u64, u64, u64)> {
        let reads = self.allowed.iter();
        reads
            .map(|(&(_, number), &(start, end))| (number, start, end))
            .collect()
    }
}

/// A map whose keys are no text, as a list of its entries.
mod as_list {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type Allowed = BTreeMap<(i32, u64), (u64, u64)>;

    pub(super) fn serialize<S: Serializer>(map: &Allowed, to: S) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Allowed, D::Error> {
        let entries = Vec::<((i32, u64), (u64, u64))>::deserialize(from)?;
        Ok(entries.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(reads: &mut Reads, thread: i32) -> Fill {
        Fill {
            event: 5,
            start: 0,
            end: 4096,
            thread,
            number: reads.next(),
        }
    }

    #[test]
    fn a_read_is_over_with_its_thread_or_when_that_reads_again() {
        let mut reads = Reads::new();
        for thread in [7, 8, 7, 9, 0] {
            let fill = fill(&mut reads, thread);
            reads.allow(&fill);
        }
        assert!(reads.complete);
        let text = serde_json::to_string(&reads).expect("text");
        let mut reads: Reads = serde_json::from_str(&text).expect("the same");
        assert_eq!(reads.end(7), [1, 3]);
        assert!(reads.end(7).is_empty());
        assert_eq!(reads.end_without(|thread| thread == 9), [2]);
        // The threads that have no name here are never over.
        assert!(reads.end(0).is_empty());
        assert_eq!(reads.ranges(), [(5, 0, 4096), (4, 0, 4096)]);
        assert_eq!(reads.next(), 6);
        reads.give_up();
        assert!(reads.ranges().is_empty() && !reads.complete);
    }

    #[test]
    fn too_many_reads_are_not_known_any_more() {
        let mut reads = Reads::new();
        let mut allow = |thread| {
            // Numbers as long as they get.
            let number = (1 << 40) + reads.next();
            let fill = Fill {
                event: 1 << 20,
                start: 1 << 50,
                end: (1 << 50) + 4096,
                thread,
                number,
            };
            reads.allow(&fill);
            (fill, reads.clone())
        };
        let mut waiting = Vec::new();
        for thread in 0..MAX_READS as i32 {
            let (fill, reads) = allow((1 << 22) - thread);
            assert!(reads.complete);
            waiting.push(fill);
        }
        let (fill, reads) = allow(1);
        assert!(!reads.complete && reads.ranges().is_empty());
        // A full table, and 300 readers that wait, have to fit in an environment variable
        // (`MAX_ARG_STRLEN` of Linux).
        let mut reads = Reads::new();
        waiting.iter().for_each(|fill| reads.allow(fill));
        let text = serde_json::to_string(&(&reads, vec![fill; 300])).expect("text");
        assert!(text.len() < 120 << 10, "{}", text.len());
    }
}
