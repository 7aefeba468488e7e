//! What lanes have done: each counts for itself, and the engine adds up.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a lane has done. Written by its own threads, read by anyone: figures of one moment need not
/// agree with each other.
#[derive(Default)]
pub struct Stats {
    pub(crate) requests: AtomicU64,
    pub(crate) offloaded: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
}

/// [`Stats`] at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Requests taken.
    pub requests: u64,
    /// Those of them that went to a worker.
    pub offloaded: u64,
    /// Those of them that the client cancelled in flight.
    pub cancelled: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

impl Stats {
    /// The figures now.
    pub fn snapshot(&self) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            requests: read(&self.requests),
            offloaded: read(&self.offloaded),
            cancelled: read(&self.cancelled),
            received: read(&self.received),
            sent: read(&self.sent),
        }
    }
}

impl std::ops::Add for Snapshot {
    type Output = Snapshot;

    fn add(self, other: Snapshot) -> Snapshot {
        Snapshot {
            requests: self.requests + other.requests,
            offloaded: self.offloaded + other.offloaded,
            cancelled: self.cancelled + other.cancelled,
            received: self.received + other.received,
            sent: self.sent + other.sent,
        }
    }
}

/// The figures of all lanes together.
#[derive(Default)]
pub(crate) struct Tally(Mutex<Lanes>);

#[derive(Default)]
struct Lanes {
    now: Vec<Arc<Stats>>,
    /// What those that have ended did.
    past: Snapshot,
}

impl Tally {
    /// The account of a lane that begins.
    pub(crate) fn open(self: &Arc<Self>) -> Account {
        let stats = Arc::new(Stats::default());
        self.lanes().now.push(stats.clone());
        Account {
            stats,
            tally: self.clone(),
        }
    }

    pub(crate) fn sum(&self) -> Snapshot {
        let lanes = self.lanes();
        let now = lanes.now.iter().map(|stats| stats.snapshot());
        now.fold(lanes.past, |sum, stats| sum + stats)
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.0.lock().expect("no panic holds it")
    }
}

/// A lane's own figures, which count among all as long as it lives and ever after.
pub(crate) struct Account {
    stats: Arc<Stats>,
    tally: Arc<Tally>,
}

impl Deref for Account {
    type Target = Stats;

    fn deref(&self) -> &Stats {
        &self.stats
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut lanes = self.tally.lanes();
        lanes.past = lanes.past + self.snapshot();
        lanes.now.retain(|stats| !Arc::ptr_eq(stats, &self.stats));
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
