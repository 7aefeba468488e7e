//! A request that left its lane: run by workers, parked, woken, cancelled, answered once.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use tracing::span::EnteredSpan;
use tracing::{Level, Span, enabled};
use transports::Outbox;
use vfs::{Call, PeerKey};

use crate::slow_log::RequestTime;
use crate::stats::Stats;
use crate::workers::{Run, Workers};

/// Enters the span of a request for log messages, unless tracing is disabled.
pub(crate) fn enter_span(span: impl FnOnce() -> Span) -> Option<EnteredSpan> {
    enabled!(Level::TRACE).then(|| span().entered())
}

/// The times that a request waited, in nanoseconds, if its lane records requests. Only the thread
/// that changes the request's state accesses them, so that the order of the state suffices.
#[derive(Default)]
struct Waits {
    /// The begin of the current wait, after the start of the request.
    since: AtomicU64,
    queued: AtomicU64,
    parked: AtomicU64,
}

impl Waits {
    /// Begins a wait `now`.
    fn begin(&self, now: u64) {
        self.since.store(now, Ordering::Relaxed);
    }

    /// Adds the wait that ends `now` to `sum`, which is one of its own.
    fn end(&self, now: u64, sum: &AtomicU64) {
        let waited = now.saturating_sub(self.since.load(Ordering::Relaxed));
        sum.fetch_add(waited, Ordering::Relaxed);
    }
}

/// A request in flight. Its lane defines its contents.
pub(crate) struct Request<J> {
    pub(crate) job: J,
    pub(crate) call: Call,
    state: AtomicU8,
    /// The export whose share of the lane it uses; for the table of its lane.
    pub(crate) shares_with: AtomicU64,
    /// The time when its lane's thread offloaded it, if statistics need it.
    started: Option<Instant>,
    waits: Waits,
    /// Its span in the log.
    span: Span,
}

/// The request type of a kind of lane.
pub(crate) trait Job: Send + Sync + Sized + 'static {
    /// Serves it with full patience and sends the reply, through `out`, which is empty, if this
    /// kind of lane uses it; or returns that it waits for an event.
    fn run(request: &Arc<Request<Self>>, out: &mut Outbox) -> RunOutcome;

    /// Runs it on a worker as soon as the lane's share allows.
    fn schedule(request: Arc<Request<Self>>);

    /// Notes that it left its worker, but is still in flight.
    fn leave_worker(request: &Request<Self>);

    fn workers(&self) -> &Arc<Workers>;

    /// Returns the statistics of its lane.
    fn stats(&self) -> &Stats;

    /// Returns the owner of the share of the workers that it uses.
    fn owner(&self) -> PeerKey;

    /// Adds the client to the call.
    fn with_client(&self, call: Call) -> Call {
        call
    }
}

/// The result of running a request on a worker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    Answered,
    /// The request is to be rerun when its call is woken.
    Parked,
}

/// Queued for a worker, or in its lane for one.
const QUEUED: u8 = 0;
/// Running on a worker.
const RUNNING: u8 = 1;
/// Running on a worker, and woken meanwhile: parking it would lose the wake-up.
const WOKEN: u8 = 2;
/// Parked until it is woken.
const PARKED: u8 = 3;

impl<J: Job> Request<J> {
    /// Creates a request that its lane's thread offloaded at `started`.
    pub(crate) fn new(started: Option<Instant>, job: J) -> Arc<Request<J>> {
        Arc::new_cyclic(|request: &Weak<Request<J>>| {
            let call = Call::parkable(Waker::from(Arc::new(RequestWaker(request.clone()))));
            let call = job.with_client(call);
            Request {
                job,
                call,
                state: AtomicU8::new(QUEUED),
                shares_with: AtomicU64::new(0),
                started,
                waits: Waits::default(),
                span: Span::current(),
            }
        })
    }

    /// Cancels the request: its waits end early. Returns whether this was the first time.
    pub(crate) fn cancel(self: &Arc<Self>) -> bool {
        let first = self.call.cancel();
        self.clone().wake();
        first
    }

    /// Ends its wait for a lock that others hold, because of a signal for the client's thread.
    pub(crate) fn interrupt(self: &Arc<Self>) {
        self.call.interrupt();
        self.clone().wake();
    }

    /// Returns the time that it has been in flight, and the parts that it waited.
    pub(crate) fn time(&self) -> RequestTime {
        let waited = |sum: &AtomicU64| Duration::from_nanos(sum.load(Ordering::Relaxed));
        RequestTime {
            total: self
                .started
                .map_or(Duration::ZERO, |started| started.elapsed()),
            queued: waited(&self.waits.queued),
            parked: waited(&self.waits.parked),
        }
    }

    /// Returns the nanoseconds since its start, if its lane records requests.
    fn clock(&self) -> Option<u64> {
        let started = self.started?;
        let logs = self.job.stats().slow_log().is_on();
        logs.then(|| u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn park(self: &Arc<Self>) {
        let retry = self.call.take_wake_within();
        self.job.stats().parked.fetch_add(1, Ordering::Relaxed);
        J::leave_worker(self);
        if let Some(now) = self.clock() {
            self.waits.begin(now);
        }
        if !self.exchange(RUNNING, PARKED) {
            self.unpark();
            self.state.store(QUEUED, Ordering::SeqCst);
            J::schedule(self.clone());
        } else if let Some(time) = retry {
            let this: Arc<dyn Run> = self.clone();
            self.job.workers().wake_after(time, &this);
        }
    }

    fn unpark(&self) {
        self.job.stats().parked.fetch_sub(1, Ordering::Relaxed);
    }

    fn exchange(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

impl<J: Job> Run for Request<J> {
    fn run(self: Arc<Self>, out: &mut Outbox) {
        self.state.store(RUNNING, Ordering::SeqCst);
        if let Some(now) = self.clock() {
            self.waits.end(now, &self.waits.queued);
        }
        let span = self.span.clone();
        let _span = span.enter();
        if J::run(&self, out) == RunOutcome::Parked {
            self.park();
        }
    }

    fn wake(self: Arc<Self>) {
        // One atomic step, or it might be parked between a check and an update.
        let woken = |state| match state {
            PARKED => Some(QUEUED),
            RUNNING => Some(WOKEN),
            _ => None,
        };
        let before = self
            .state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, woken);
        if before == Ok(PARKED) {
            if let Some(now) = self.clock() {
                self.waits.end(now, &self.waits.parked);
                self.waits.begin(now);
            }
            self.unpark();
            J::schedule(self);
        }
    }

    fn owner(&self) -> PeerKey {
        self.job.owner()
    }

    fn export(&self) -> u64 {
        self.call.export_number()
    }
}

/// A waker that does not keep its request alive.
struct RequestWaker<J>(Weak<Request<J>>);

impl<J: Job> Wake for RequestWaker<J> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(request) = self.0.upgrade() {
            request.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use vfs_testkit::wait_until;
    use wire::Vocabulary;

    use super::*;
    use crate::Tuning;
    use crate::slow_log::SlowLog;
    use crate::stats::{LaneStats, StatsRegistry};

    /// A job that parks each time it runs.
    struct Waits {
        stats: LaneStats,
        runs: AtomicBool,
        scheduled: AtomicUsize,
    }

    impl Job for Waits {
        fn run(request: &Arc<Request<Waits>>, _: &mut Outbox) -> RunOutcome {
            request.job.runs.store(true, Ordering::SeqCst);
            RunOutcome::Parked
        }

        fn schedule(request: Arc<Request<Waits>>) {
            request.job.scheduled.fetch_add(1, Ordering::SeqCst);
        }

        fn leave_worker(_: &Request<Waits>) {}

        fn workers(&self) -> &Arc<Workers> {
            unreachable!("it asks for no time")
        }

        fn stats(&self) -> &Stats {
            &self.stats
        }

        fn owner(&self) -> PeerKey {
            PeerKey::Device(0)
        }
    }

    #[test]
    fn the_time_while_it_is_parked_is_known() {
        let tuning = Tuning {
            slow: Some(Duration::from_nanos(1)),
            ..Tuning::default()
        };
        let tally = StatsRegistry::new(false, SlowLog::new(&tuning));
        let stats = tally.add_lane(Vocabulary::none());
        let started = stats.start_time();
        let request = Request::new(
            started,
            Waits {
                stats,
                runs: AtomicBool::default(),
                scheduled: AtomicUsize::default(),
            },
        );
        request.clone().run(&mut Outbox::default());
        let parked = Instant::now();
        while parked.elapsed() < Duration::from_millis(5) {
            std::thread::yield_now();
        }
        request.clone().wake();
        let woken = Instant::now();
        while woken.elapsed() < Duration::from_millis(5) {
            std::thread::yield_now();
        }
        // It waits for a worker from then on.
        request.clone().run(&mut Outbox::default());
        let time = request.time();
        assert!(time.parked >= Duration::from_millis(5), "{time:?}");
        assert!(time.queued >= Duration::from_millis(5), "{time:?}");
        assert!(time.parked + time.queued <= time.total, "{time:?}");
        let log = tally.slow_log();
        let all_parked = RequestTime {
            parked: time.total,
            ..time
        };
        assert!(log.is_slow(&time) && !log.is_slow(&all_parked));
    }

    #[test]
    fn one_that_is_woken_while_it_parks_is_run_again() {
        let tally = StatsRegistry::new(false, SlowLog::new(&Tuning::default()));
        for _ in 0..2000 {
            let request = Request::new(
                None,
                Waits {
                    stats: tally.add_lane(Vocabulary::none()),
                    runs: AtomicBool::default(),
                    scheduled: AtomicUsize::default(),
                },
            );
            std::thread::scope(|scope| {
                scope.spawn(|| request.clone().run(&mut Outbox::default()));
                wait_until("the request runs", || {
                    request.job.runs.load(Ordering::SeqCst)
                });
                request.clone().wake();
            });
            assert_eq!(request.job.scheduled.load(Ordering::SeqCst), 1);
        }
    }
}
