//! Statistics of lanes: each counts for itself, and the engine adds them up.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use vfs::Call;
use wire::{ClientInfo, Vocabulary};

use crate::operation_stats::{OperationStats, Operations};
use crate::slow_log::{RecordedRequest, RequestTime, SlowLog};

/// A lane whose statistics are reported.
pub(crate) trait Monitored: Send + Sync {
    fn peer(&self) -> String;
    fn listener(&self) -> &str;
    fn vocabulary(&self) -> &'static Vocabulary;
    fn facts(&self) -> ClientInfo;
    fn in_flight(&self) -> usize;
}

/// Counters of a lane. Written by its own threads, read by any; not consistent with each other.
pub(crate) struct Stats {
    pub(crate) started: Instant,
    pub(crate) requests: AtomicU64,
    pub(crate) offloaded: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    /// The number of requests that wait for an event.
    pub(crate) parked: AtomicUsize,
    /// Statistics by type of request, if enabled.
    operations: Option<OperationStats>,
    /// The log of slow requests of the engine.
    slow: Arc<SlowLog>,
    /// Whether answered requests are recorded at all.
    records: bool,
    /// The lane that the counters belong to.
    lane: OnceLock<Weak<dyn Monitored>>,
}

/// The values of the counters at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests received.
    pub requests: u64,
    /// Requests that went to a worker.
    pub offloaded: u64,
    /// Requests that the client cancelled in flight.
    pub cancelled: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
}

impl Stats {
    fn new(operations: Option<OperationStats>, slow: Arc<SlowLog>) -> Stats {
        Stats {
            records: operations.is_some() || slow.is_on(),
            slow,
            started: Instant::now(),
            requests: AtomicU64::new(0),
            offloaded: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            parked: AtomicUsize::new(0),
            operations,
            lane: OnceLock::new(),
        }
    }

    /// Records an answered request that took `time`, if statistics by type or the log of slow
    /// requests are enabled. Returns the request if it is slow, or one of the random share for
    /// traces (`sampled`), for [`Stats::slow_log`].
    #[inline]
    pub(crate) fn record(
        &self,
        call: &Call,
        sampled: impl FnOnce() -> bool,
        time: impl FnOnce() -> RequestTime,
    ) -> Option<RecordedRequest> {
        if !self.records {
            return None;
        }
        let outcome = call.take_outcome()?;
        let time = time();
        if let Some(operations) = &self.operations {
            operations.record(outcome, time.total);
        }
        let (slow, sampled) = (self.slow.is_slow(&time), sampled());
        (slow || sampled).then_some(RecordedRequest {
            outcome,
            time,
            slow,
        })
    }

    /// Returns the current time if records of requests need it.
    pub(crate) fn start_time(&self) -> Option<Instant> {
        self.records.then(Instant::now)
    }

    /// Returns the log of slow requests.
    pub(crate) fn slow_log(&self) -> &SlowLog {
        &self.slow
    }

    /// Returns whether a request is one of the random share for traces.
    #[inline]
    pub(crate) fn sample(&self) -> bool {
        self.slow.sample()
    }

    /// Sets the lane that these counters belong to.
    pub(crate) fn set_lane<L: Monitored + 'static>(&self, lane: &Arc<L>) {
        let lane: Arc<dyn Monitored> = lane.clone();
        self.lane.get_or_init(|| Arc::downgrade(&lane));
    }

    /// Returns the number of requests that wait for an event.
    pub(crate) fn parked(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    pub(crate) fn lane(&self) -> Option<Arc<dyn Monitored>> {
        self.lane.get()?.upgrade()
    }

    /// Returns the current values.
    pub(crate) fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            requests: read(&self.requests),
            offloaded: read(&self.offloaded),
            cancelled: read(&self.cancelled),
            received: read(&self.received),
            sent: read(&self.sent),
        }
    }
}

impl std::ops::Add for Totals {
    type Output = Totals;

    fn add(self, other: Totals) -> Totals {
        Totals {
            requests: self.requests + other.requests,
            offloaded: self.offloaded + other.offloaded,
            cancelled: self.cancelled + other.cancelled,
            received: self.received + other.received,
            sent: self.sent + other.sent,
        }
    }
}

/// The statistics of all lanes together.
pub(crate) struct StatsRegistry {
    lanes: Mutex<Lanes>,
    /// Whether lanes keep statistics by type of request.
    operation_stats: bool,
    slow: Arc<SlowLog>,
}

#[derive(Default)]
struct Lanes {
    current: Vec<Arc<Stats>>,
    /// The totals of lanes that ended.
    ended: Totals,
    operations: Operations,
}

impl StatsRegistry {
    /// Returns an empty registry, whose lanes keep statistics by type of request if `counts`, and
    /// record slow requests in `slow`.
    pub(crate) fn new(counts: bool, slow: SlowLog) -> Arc<StatsRegistry> {
        Arc::new(StatsRegistry {
            lanes: Mutex::default(),
            operation_stats: counts,
            slow: Arc::new(slow),
        })
    }

    /// Creates the statistics of a new lane, whose request types are `words`.
    pub(crate) fn add_lane(self: &Arc<Self>, words: &'static Vocabulary) -> LaneStats {
        let operations = self.operation_stats.then(|| OperationStats::new(words));
        let stats = Arc::new(Stats::new(operations, self.slow.clone()));
        self.lanes().current.push(stats.clone());
        LaneStats {
            stats,
            registry: self.clone(),
        }
    }

    pub(crate) fn sum(&self) -> Totals {
        let lanes = self.lanes();
        let now = lanes.current.iter().map(|stats| stats.totals());
        now.fold(lanes.ended, |sum, stats| sum + stats)
    }

    /// Returns the statistics by type of request of all lanes, including those that ended.
    pub(crate) fn operations(&self) -> Operations {
        let lanes = self.lanes();
        let mut all = lanes.operations.clone();
        let operations = lanes
            .current
            .iter()
            .filter_map(|stats| stats.operations.as_ref());
        operations.for_each(|lane| lane.add_to(&mut all));
        all
    }

    /// Returns the log of slow requests.
    pub(crate) fn slow_log(&self) -> &SlowLog {
        &self.slow
    }

    /// Returns the current lanes.
    pub(crate) fn current_lanes(&self) -> Vec<Arc<Stats>> {
        self.lanes().current.clone()
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock()
    }
}

/// A lane's statistics, which are added to the totals when dropped.
pub(crate) struct LaneStats {
    stats: Arc<Stats>,
    registry: Arc<StatsRegistry>,
}

impl Deref for LaneStats {
    type Target = Stats;

    fn deref(&self) -> &Stats {
        &self.stats
    }
}

impl Drop for LaneStats {
    fn drop(&mut self) {
        let mut lanes = self.registry.lanes();
        lanes.ended = lanes.ended + self.totals();
        if let Some(operations) = &self.operations {
            operations.add_to(&mut lanes.operations);
        }
        lanes
            .current
            .retain(|stats| !Arc::ptr_eq(stats, &self.stats));
    }
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
