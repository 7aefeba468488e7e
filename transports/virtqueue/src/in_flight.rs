//! Records of requests in flight, in memory that outlives the process (vhost-user specification,
//! "Inflight I/O tracking").
//!
//! A queue notes each request before it is served, and the reply when it is returned. After the end
//! of the process, by `kill -9` too, another one gets the same memory: from the monitor, which
//! connects to it, or from the keeper of a device ([`crate::DeviceKeeper`]). Requests without a
//! reply are served again, in the order in which the guest sent them.
//!
//! The memory is that of split virtqueues in the specification, in words of the host's byte order:
//!
//! ```text
//! queue:      features u64 (0) | version u16 (1), size u16, last head u16, used index u16
//! descriptor: in flight u8, padding, next u16 | counter u64
//! ```
//! *last head* is the request that was returned last, and *used index* that of the ring after it:
//! if the guest's ring is ahead, the process ended between the return and its note. *counter*
//! numbers the requests of a queue. *next*, for batches of returns, is not used.
//!
//! The monitor may write anything there. Sizes are sealed (`sys::shared_memory`), numbers are
//! checked, and a wrong record makes the guest's own requests be served twice or not at all.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::shared_memory::{self, SharedMemory};

use crate::vhost_user::MAX_QUEUE_SIZE;

/// The version of the specification's layout.
const VERSION: u16 = 1;

/// Words before the descriptors of a queue.
const HEAD: usize = 2;

/// Words of a descriptor.
const DESCRIPTOR: usize = 2;

/// The number of queues and their size, for which a monitor requests memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dimensions {
    pub(crate) queues: u16,
    pub(crate) size: u16,
}

impl Dimensions {
    /// Returns these dimensions, unless a device with `most` queues cannot have them.
    pub(crate) fn checked(queues: u16, size: u16, most: usize) -> Option<Dimensions> {
        let fits = (1..=most).contains(&queues.into()) && (1..=MAX_QUEUE_SIZE).contains(&size);
        fits.then_some(Dimensions { queues, size })
    }

    fn words_of_queue(self) -> usize {
        HEAD + DESCRIPTOR * usize::from(self.size)
    }

    fn words(self) -> usize {
        self.words_of_queue() * usize::from(self.queues)
    }

    /// Returns the size of the memory, in bytes.
    pub(crate) fn bytes(self) -> u64 {
        (self.words() * size_of::<u64>()) as u64
    }
}

/// The memory of a device.
pub(crate) struct InFlightMemory {
    file: File,
    dimensions: Dimensions,
    words: SharedMemory,
}

impl InFlightMemory {
    /// Returns new memory without requests, for [`InFlightMemory::map`].
    pub(crate) fn create(dimensions: Dimensions) -> io::Result<OwnedFd> {
        Ok(shared_memory::create("in-flight", dimensions.words())?)
    }

    /// Maps memory that [`InFlightMemory::create`] has returned, here or in an earlier process.
    /// Returns `InvalidInput` if it has another size, or one that may change.
    pub(crate) fn map(file: File, dimensions: Dimensions) -> io::Result<InFlightMemory> {
        let words = SharedMemory::map(file.as_fd(), dimensions.words())?;
        Ok(InFlightMemory {
            file,
            dimensions,
            words,
        })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn dimensions(&self) -> Dimensions {
        self.dimensions
    }
}

/// The records of one queue, which has them under its lock.
pub(crate) struct InFlight {
    memory: Arc<InFlightMemory>,
    first: usize,
    size: u16,
    /// The number of requests so far.
    counter: u64,
}

/// A request that was popped and not answered before a queue stopped, or its process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unanswered {
    /// Its head descriptor.
    pub(crate) head: u16,
    /// Whether an earlier process may have begun to serve it.
    pub(crate) is_repeated: bool,
}

impl Unanswered {
    /// Returns a request that was not begun.
    pub(crate) fn new(head: u16) -> Unanswered {
        Unanswered {
            head,
            is_repeated: false,
        }
    }

    /// Returns a request that an earlier process may have begun to serve.
    pub(crate) fn repeated(head: u16) -> Unanswered {
        Unanswered {
            head,
            is_repeated: true,
        }
    }
}

/// The state of a queue that an earlier process has served.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// The index of the next available request.
    pub(crate) next_avail: u16,
    /// The requests without a reply, in the order of their arrival.
    pub(crate) unanswered: Vec<Unanswered>,
}

impl InFlight {
    /// Returns the records of the queue `index` with `size` entries, to be
    /// [recovered](InFlight::recover) or [cleared](InFlight::clear). Returns `InvalidInput` if the
    /// memory is not for such a queue.
    pub(crate) fn of_queue(
        memory: Arc<InFlightMemory>,
        index: usize,
        size: u16,
    ) -> io::Result<InFlight> {
        let dimensions = memory.dimensions;
        if index >= dimensions.queues.into() || size > dimensions.size {
            let why = "expected a queue for which the memory was requested";
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        Ok(InFlight {
            first: index * dimensions.words_of_queue(),
            memory,
            size,
            counter: 0,
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.words[self.first + at]
    }

    fn state(&self, head: u16) -> &AtomicU64 {
        self.word(HEAD + DESCRIPTOR * usize::from(head))
    }

    fn counter(&self, head: u16) -> &AtomicU64 {
        self.word(HEAD + DESCRIPTOR * usize::from(head) + 1)
    }

    fn set_head(&self, last: u16, used: u16) {
        let fields = [VERSION, self.size, last, used].map(u64::from);
        let word = fields
            .iter()
            .rev()
            .fold(0, |word, &field| word << 16 | field);
        self.word(1).store(word, Ordering::Release);
    }

    /// Removes all requests. `used` is the used index in the guest's memory.
    pub(crate) fn clear(&self, used: u16) {
        for head in 0..self.size {
            self.state(head).store(0, Ordering::Relaxed);
        }
        self.set_head(0, used);
    }

    /// Returns the requests that an earlier process has left without a reply. `used` is the used
    /// index in the guest's memory.
    pub(crate) fn recover(&mut self, used: u16) -> Recovered {
        let word = self.word(1).load(Ordering::Acquire);
        let [version, size, last, noted] = [0, 16, 32, 48].map(|shift| (word >> shift) as u16);
        if (version, size) != (VERSION, self.size) {
            // New memory, or that of another size of the queue, which the guest has reset.
            self.clear(used);
            return Recovered {
                next_avail: used,
                unanswered: Vec::new(),
            };
        }
        if noted != used && last < size {
            self.state(last).store(0, Ordering::Relaxed);
        }
        self.set_head(last, used);
        let mut requests: Vec<_> = (0..size)
            .filter(|&head| self.state(head).load(Ordering::Relaxed) != 0)
            .map(|head| (self.counter(head).load(Ordering::Relaxed), head))
            .collect();
        requests.sort_unstable();
        self.counter = requests.last().map_or(0, |(counter, _)| *counter);
        Recovered {
            next_avail: used.wrapping_add(requests.len() as u16),
            unanswered: requests
                .into_iter()
                .map(|(_, head)| Unanswered::repeated(head))
                .collect(),
        }
    }

    /// Notes the request with this head descriptor, before it is served. It may be noted already.
    pub(crate) fn begin(&mut self, head: u16) {
        if head < self.size {
            self.counter = self.counter.wrapping_add(1);
            self.counter(head).store(self.counter, Ordering::Relaxed);
            self.state(head).store(1, Ordering::Release);
        }
    }

    /// Notes that the request is returned next, when the used index is `used`.
    pub(crate) fn before_return(&self, head: u16, used: u16) {
        self.set_head(head, used);
    }

    /// Notes that the request was returned, and that the used index is `used` now.
    pub(crate) fn after_return(&self, head: u16, used: u16) {
        if head < self.size {
            self.state(head).store(0, Ordering::Release);
        }
        self.set_head(head, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMENSIONS: Dimensions = Dimensions { queues: 2, size: 8 };

    fn file() -> File {
        InFlightMemory::create(DIMENSIONS).expect("memory").into()
    }

    fn open(file: &File, index: usize, used: u16) -> (InFlight, Recovered) {
        let file = file.try_clone().expect("a descriptor");
        let memory = InFlightMemory::map(file, DIMENSIONS).expect("mapped");
        let mut queue = InFlight::of_queue(Arc::new(memory), index, 8).expect("a queue");
        let recovered = queue.recover(used);
        (queue, recovered)
    }

    fn recovered(next_avail: u16, heads: &[u16]) -> Recovered {
        Recovered {
            next_avail,
            unanswered: heads.iter().copied().map(Unanswered::repeated).collect(),
        }
    }

    #[test]
    fn requests_without_a_reply_are_found_in_order() {
        let file = file();
        let (mut queue, none) = open(&file, 1, 40);
        assert_eq!(none, recovered(40, &[]));
        [5, 2, 7, 0].iter().for_each(|&head| queue.begin(head));
        queue.before_return(2, 40);
        queue.after_return(2, 41);
        queue.begin(2);
        assert_eq!(open(&file, 1, 41).1, recovered(45, &[5, 7, 0, 2]));
        assert_eq!(open(&file, 0, 9).1, recovered(9, &[]), "the other queue");
        // Those that come later, after two ends, are last.
        let (mut queue, _) = open(&file, 1, 41);
        queue.before_return(7, 41);
        queue.after_return(7, 42);
        queue.begin(1);
        assert_eq!(open(&file, 1, 42).1, recovered(46, &[5, 0, 2, 1]));
    }

    #[test]
    fn a_return_that_was_not_noted_is_known_by_the_ring() {
        let file = file();
        let (mut queue, _) = open(&file, 0, u16::MAX);
        [3, 4].iter().for_each(|&head| queue.begin(head));
        queue.before_return(3, u16::MAX);
        // Before the used ring was written, and after it.
        assert_eq!(open(&file, 0, u16::MAX).1, recovered(1, &[3, 4]));
        assert_eq!(open(&file, 0, 0).1, recovered(1, &[4]));
        assert_eq!(open(&file, 0, 0).1, recovered(1, &[4]), "it was noted now");
    }

    #[test]
    fn a_queue_that_starts_anew_has_no_requests() {
        let file = file();
        let (mut queue, _) = open(&file, 0, 7);
        queue.begin(3);
        let mut anew = InFlight::of_queue(queue.memory.clone(), 0, 8).expect("a queue");
        anew.clear(0);
        anew.begin(5);
        assert_eq!(open(&file, 0, 0).1, recovered(1, &[5]));
    }

    #[test]
    fn memory_of_another_layout_has_no_requests() {
        let file = file();
        let (mut queue, _) = open(&file, 0, 0);
        queue.begin(1);
        let smaller = |size| {
            let file = file.try_clone().expect("a descriptor");
            let memory = InFlightMemory::map(file, DIMENSIONS).expect("mapped");
            InFlight::of_queue(Arc::new(memory), 0, size).map(|mut queue| queue.recover(0))
        };
        assert_eq!(smaller(4).expect("a queue"), recovered(0, &[]));
        assert!(smaller(9).is_err());
        assert!(InFlight::of_queue(queue.memory.clone(), 2, 8).is_err());
        // Anything may be there.
        for word in queue.memory.words.iter() {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(open(&file, 0, 3).1, recovered(3, &[]));
        queue.set_head(u16::MAX, 0);
        for head in 0..8 {
            queue.state(head).store(u64::MAX, Ordering::Relaxed);
        }
        let found = open(&file, 0, 3).1;
        assert_eq!(found.unanswered.len(), 8);
        assert_eq!(Dimensions::checked(3, 8, 2), None);
        assert_eq!(Dimensions::checked(2, MAX_QUEUE_SIZE + 1, 2), None);
        assert_eq!(Dimensions::checked(0, 8, 2), None);
        let other = Dimensions { queues: 1, size: 8 };
        assert!(InFlightMemory::map(file.try_clone().expect("one"), other).is_err());
    }
}
