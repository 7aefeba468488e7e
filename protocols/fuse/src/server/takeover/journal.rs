//! The journal: requests in progress that must not be carried out twice, and their results.
//!
//! A request is entered before it is carried out, its reply is added before it is sent, and the
//! entry is removed once it was sent. So the successor of a process that was killed finds the reply
//! to a request that the client sends again, or learns that the request was begun.
//!
//! An entry whose reply was sent, but which was not removed in time, belongs to no request any
//! more. The client sends unanswered requests again before all new ones, so such entries are
//! removed when the journal is full, some time after the first new request.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use vfs::Errno;

/// The maximum number of requests in the journal: more than threads carry out at once.
pub(super) const ENTRIES: usize = 2048;

/// The words of an entry.
pub(super) const WIDTH: usize = 24;

/// The entries that may hold a request, beginning at the one that its number determines.
const PROBES: usize = 64;

/// The words of an entry: the request's number, which is 0 if the entry is free; its state; the
/// time at which it began, in ns; an observation before it was carried out; the reply.
const UNIQUE: usize = 0;
const STATE: usize = 1;
const SINCE: usize = 2;
const OBSERVED: usize = 3;
const REPLY: usize = 4;

/// The maximum size of a reply in bytes.
const MAX_REPLY: usize = (WIDTH - REPLY) * 8;

/// The states: begun; answered, with the length of the reply in the low half; failed, with an
/// errno there.
const BEGUN: u64 = 1 << 32;
const ANSWERED: u64 = 2 << 32;
const FAILED: u64 = 3 << 32;
const LOW: u64 = u32::MAX as u64;

/// The time after the first new request at which no request that was sent again is unserved.
const SETTLED: Duration = Duration::from_secs(10);

/// The journal of a mount.
pub(super) struct Journal {
    /// The first word.
    first: usize,
    /// Whether entries of an earlier process may be left.
    has_left: AtomicBool,
    left: Mutex<Left>,
    /// Whether no request is begun any more, because the process is about to end.
    closed: AtomicBool,
}

/// The entries of an earlier process.
#[derive(Default)]
struct Left {
    /// Their requests, by entry.
    requests: Vec<(usize, u64)>,
    /// The time of the first new request.
    new_since: Option<Instant>,
}

/// An entry of a request that is being carried out.
#[derive(Clone, Copy)]
pub(crate) struct JournalEntry(usize);

/// An earlier attempt to carry out a request, of which nothing is known but its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The time at which it began, in ns since 1970.
    pub(crate) since: u64,
    /// The observation before it was carried out; 0 if there is none.
    pub(crate) observed: u64,
}

/// The reply to a request, without its header.
pub(crate) type JournaledReply = Result<Vec<u8>, Errno>;

/// A request, as the journal knows it.
pub(crate) enum Begun {
    /// It is to be carried out, after an earlier attempt if there is one.
    Now(JournalEntry, Option<Attempt>),
    /// It was carried out, with this reply.
    Before(JournaledReply),
}

impl Journal {
    /// Returns the journal that begins at the word `first` of `memory`.
    pub(super) fn new(first: usize, memory: &[AtomicU64]) -> Journal {
        let entry = |at: usize| &memory[first + at * WIDTH];
        let requests = (0..ENTRIES).filter_map(|at| {
            let unique = entry(at).load(Ordering::Acquire);
            (unique != 0).then_some((at, unique))
        });
        let requests: Vec<_> = requests.collect();
        Journal {
            first,
            has_left: AtomicBool::new(!requests.is_empty()),
            left: Mutex::new(Left {
                requests,
                new_since: None,
            }),
            closed: AtomicBool::new(false),
        }
    }

    fn entry<'m>(&self, memory: &'m [AtomicU64], at: usize) -> &'m [AtomicU64] {
        let at = self.first + at * WIDTH;
        &memory[at..at + WIDTH]
    }

    /// Returns the entries that may hold the request `unique`. The client's numbers are even.
    fn candidates(unique: u64) -> impl Iterator<Item = usize> {
        let from = (unique >> 1) as usize;
        (0..PROBES).map(move |step| from.wrapping_add(step) % ENTRIES)
    }

    fn find(&self, memory: &[AtomicU64], unique: u64) -> Option<usize> {
        Journal::candidates(unique)
            .find(|&at| self.entry(memory, at)[UNIQUE].load(Ordering::Acquire) == unique)
    }

    /// Enters the request `unique` at the time `now`, in ns since 1970. It may be known if it is
    /// `resent`. Returns `ENOMEM` if the journal is full.
    pub(super) fn begin(
        &self,
        memory: &[AtomicU64],
        unique: u64,
        resent: bool,
        now: u64,
    ) -> Result<Begun, Errno> {
        let known = match resent {
            true => self.find(memory, unique),
            false => None,
        };
        let begun = match known {
            Some(at) => {
                self.left.lock().requests.retain(|left| left.0 != at);
                self.begin_again(memory, at, now)
            }
            None => {
                if !resent && self.has_left.load(Ordering::Relaxed) {
                    self.left.lock().new_since.get_or_insert_with(Instant::now);
                }
                let claimed = self.claim(memory, unique).or_else(|| {
                    self.remove_left(memory);
                    self.claim(memory, unique)
                });
                let at = claimed.ok_or(Errno::ENOMEM)?;
                self.start(memory, at, now);
                Begun::Now(JournalEntry(at), None)
            }
        };
        // After the entry: either this thread finds the journal closed, or the thread that closes
        // it finds the entry.
        if self.closed.load(Ordering::SeqCst)
            && let Begun::Now(entry, attempt) = begun
        {
            if attempt.is_none() {
                self.cancel(memory, entry);
            }
            // The client sends the request to the successor.
            loop {
                std::thread::park();
            }
        }
        Ok(begun)
    }

    /// Claims a free entry for the request `unique`.
    fn claim(&self, memory: &[AtomicU64], unique: u64) -> Option<usize> {
        Journal::candidates(unique).find(|&at| {
            let word = &self.entry(memory, at)[UNIQUE];
            let claimed = word.compare_exchange(0, unique, Ordering::AcqRel, Ordering::Relaxed);
            claimed.is_ok()
        })
    }

    fn start(&self, memory: &[AtomicU64], at: usize, now: u64) {
        let entry = self.entry(memory, at);
        entry[SINCE].store(now, Ordering::Relaxed);
        entry[OBSERVED].store(0, Ordering::Relaxed);
        entry[STATE].store(BEGUN, Ordering::SeqCst);
    }

    /// Begins a request that the client has sent again, and that has an entry.
    fn begin_again(&self, memory: &[AtomicU64], at: usize, now: u64) -> Begun {
        let entry = self.entry(memory, at);
        let state = entry[STATE].load(Ordering::Acquire);
        let low = state & LOW;
        match state & !LOW {
            ANSWERED if low <= MAX_REPLY as u64 => {
                let words = entry[REPLY..].iter();
                let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
                Begun::Before(Ok(bytes.take(low as usize).collect()))
            }
            FAILED if (1..=crate::numbers::MAX_ERRNO.into()).contains(&low) => {
                Begun::Before(Err(Errno::from_raw(low as i32)))
            }
            BEGUN => {
                let attempt = Attempt {
                    since: entry[SINCE].load(Ordering::Relaxed),
                    observed: entry[OBSERVED].load(Ordering::Relaxed),
                };
                Begun::Now(JournalEntry(at), Some(attempt))
            }
            // It was entered and not begun.
            0 if low == 0 => {
                self.start(memory, at, now);
                Begun::Now(JournalEntry(at), None)
            }
            _ => Begun::Before(Err(Errno::EIO)),
        }
    }

    /// Removes the entries of an earlier process whose requests were answered.
    fn remove_left(&self, memory: &[AtomicU64]) {
        let mut left = self.left.lock();
        if left.new_since.is_none_or(|since| since.elapsed() < SETTLED) {
            return;
        }
        for (at, unique) in std::mem::take(&mut left.requests) {
            if self.entry(memory, at)[UNIQUE].load(Ordering::Acquire) == unique {
                self.clear(memory, at);
            }
        }
        self.has_left.store(false, Ordering::Relaxed);
    }

    /// Removes all entries at the end of an incarnation: the next one has numbers of its own.
    pub(super) fn clear_all(&self, memory: &[AtomicU64]) {
        *self.left.lock() = Left::default();
        self.has_left.store(false, Ordering::Relaxed);
        let used = |&at: &usize| self.entry(memory, at)[UNIQUE].load(Ordering::Acquire) != 0;
        (0..ENTRIES)
            .filter(used)
            .for_each(|at| self.clear(memory, at));
    }

    fn clear(&self, memory: &[AtomicU64], at: usize) {
        let entry = self.entry(memory, at);
        entry[STATE].store(0, Ordering::Release);
        entry[UNIQUE].store(0, Ordering::Release);
    }

    /// Records an observation, not 0, before a request is carried out.
    pub(super) fn observe(&self, memory: &[AtomicU64], entry: JournalEntry, observed: u64) {
        self.entry(memory, entry.0)[OBSERVED].store(observed, Ordering::Release);
    }

    /// Records the reply to a request.
    pub(super) fn finish(
        &self,
        memory: &[AtomicU64],
        entry: JournalEntry,
        reply: Result<&[&[u8]], Errno>,
    ) {
        let entry = self.entry(memory, entry.0);
        let state = match reply {
            Err(errno) => FAILED | u64::from(errno.raw()),
            Ok(pieces) => {
                let mut bytes = [0; MAX_REPLY];
                let mut len = 0;
                for piece in pieces {
                    // No reply of a request in the journal is longer.
                    let Some(place) = bytes.get_mut(len..len + piece.len()) else {
                        return;
                    };
                    place.copy_from_slice(piece);
                    len += piece.len();
                }
                let words = bytes[..len.next_multiple_of(8)].as_chunks().0;
                for (word, bytes) in entry[REPLY..].iter().zip(words) {
                    word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
                }
                ANSWERED | len as u64
            }
        };
        entry[STATE].store(state, Ordering::Release);
    }

    /// Removes an entry whose request has had no effect.
    pub(super) fn cancel(&self, memory: &[AtomicU64], entry: JournalEntry) {
        self.clear(memory, entry.0);
    }

    /// Removes the entry of a request whose reply was sent.
    pub(super) fn end(&self, memory: &[AtomicU64], unique: u64) {
        if let Some(at) = self.find(memory, unique) {
            self.clear(memory, at);
        }
    }

    /// Lets no further request begin: the threads that serve them stop. Returns when all that began
    /// in this process have a reply, or after `limit`. Those of an earlier process that were not
    /// sent again may never be: their programs were killed.
    pub(super) fn close(&self, memory: &[AtomicU64], limit: Duration) {
        self.closed.store(true, Ordering::SeqCst);
        let start = Instant::now();
        // After `closed`: a request that begins again leaves the list before it reads that.
        let left: HashSet<usize> = self.left.lock().requests.iter().map(|one| one.0).collect();
        let is_begun = |at| {
            if left.contains(&at) {
                return false;
            }
            let entry = self.entry(memory, at);
            entry[STATE].load(Ordering::SeqCst) & !LOW == BEGUN
                && entry[UNIQUE].load(Ordering::SeqCst) != 0
        };
        while (0..ENTRIES).any(is_begun) && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns whether a request was begun and has no reply.
    pub(super) fn is_begun(&self, memory: &[AtomicU64], unique: u64) -> bool {
        self.find(memory, unique)
            .is_some_and(|at| self.entry(memory, at)[STATE].load(Ordering::Acquire) & !LOW == BEGUN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Vec<AtomicU64> {
        (0..ENTRIES * WIDTH).map(|_| AtomicU64::new(0)).collect()
    }

    fn entry(begun: Result<Begun, Errno>) -> JournalEntry {
        match begun {
            Ok(Begun::Now(entry, None)) => entry,
            _ => panic!("expected a request that was not begun before"),
        }
    }

    fn reply(begun: Result<Begun, Errno>) -> JournaledReply {
        match begun {
            Ok(Begun::Before(reply)) => reply,
            _ => panic!("expected a request with a reply"),
        }
    }

    #[test]
    fn a_successor_finds_replies_and_attempts() {
        let memory = memory();
        let journal = Journal::new(0, &memory);
        let begin = |unique| entry(journal.begin(&memory, unique, false, 5));
        journal.finish(&memory, begin(2), Ok(&[b"abc", &[7; 9]]));
        journal.finish(&memory, begin(4), Err(Errno::EEXIST));
        journal.observe(&memory, begin(6), 42);
        journal.cancel(&memory, begin(8));
        journal.finish(&memory, begin(10), Ok(&[]));
        journal.end(&memory, 10);
        let next = Journal::new(0, &memory);
        let begin = |unique| next.begin(&memory, unique, true, 9);
        assert_eq!(
            reply(begin(2)),
            Ok(b"abc\x07\x07\x07\x07\x07\x07\x07\x07\x07".to_vec())
        );
        assert_eq!(reply(begin(4)), Err(Errno::EEXIST));
        assert!(next.is_begun(&memory, 6) && !next.is_begun(&memory, 2));
        let Ok(Begun::Now(again, Some(attempt))) = begin(6) else {
            panic!("expected an attempt");
        };
        let (since, observed) = (5, 42);
        assert_eq!(attempt, Attempt { since, observed });
        next.finish(&memory, again, Ok(&[b"x"]));
        assert_eq!(reply(begin(6)), Ok(b"x".to_vec()), "killed once more");
        for unique in [8, 10, 12] {
            entry(begin(unique));
        }
    }

    #[test]
    fn a_full_journal_refuses_requests_until_old_ones_are_known_to_be_answered() {
        let memory = memory();
        let journal = Journal::new(0, &memory);
        // All of them begin at one entry.
        let unique = |number: u64| 2 * (1 + number * ENTRIES as u64);
        for number in 0..PROBES as u64 {
            entry(journal.begin(&memory, unique(number), false, 0));
        }
        let more = |journal: &Journal| journal.begin(&memory, unique(1000), false, 0).err();
        assert_eq!(more(&journal), Some(Errno::ENOMEM));
        let next = Journal::new(0, &memory);
        assert_eq!(more(&next), Some(Errno::ENOMEM), "they may be sent again");
        assert!(next.begin(&memory, unique(0), true, 0).is_ok());
        let long_ago = Instant::now().checked_sub(SETTLED);
        next.left.lock().new_since = Some(long_ago.expect("the host runs for long enough"));
        assert_eq!(more(&next), None);
        assert!(next.find(&memory, unique(0)).is_some(), "it is carried out");
        assert!(next.find(&memory, unique(1)).is_none());
    }

    #[test]
    fn a_request_that_is_not_sent_again_does_not_delay_the_end() {
        let memory = memory();
        entry(Journal::new(0, &memory).begin(&memory, 2, false, 0));
        let (start, limit) = (Instant::now(), Duration::from_secs(60));
        Journal::new(0, &memory).close(&memory, limit);
        assert!(start.elapsed() < limit);
        let next = Journal::new(0, &memory);
        assert!(next.is_begun(&memory, 2), "it may be sent again later");
        assert!(next.begin(&memory, 2, true, 0).is_ok());
        let (start, limit) = (Instant::now(), Duration::from_millis(20));
        next.close(&memory, limit);
        assert!(start.elapsed() >= limit, "it is carried out");
    }

    #[test]
    fn any_contents_are_read() {
        let memory = memory();
        for state in [ANSWERED | LOW, FAILED, FAILED | LOW, 9 << 32, u64::MAX, 1] {
            memory[2 * WIDTH].store(4, Ordering::Relaxed);
            memory[2 * WIDTH + 1].store(state, Ordering::Relaxed);
            let journal = Journal::new(0, &memory);
            let begun = journal.begin(&memory, 4, true, 0);
            assert_eq!(reply(begun), Err(Errno::EIO), "{state:x}");
        }
    }
}
