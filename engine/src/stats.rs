use std::sync::atomic::{AtomicU64, Ordering};

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

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
