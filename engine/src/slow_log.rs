//! The log of slow requests: a line for each request that took longer than
//! [`Tuning::slow`](crate::Tuning::slow), within the limits of [`LogLimit`], and their counts. With
//! the feature `traces` it also queues them, and a random share of all, for traces.
//!
//! Time in which a request was parked does not count: a request that waits for a lock, or for
//! another event that a client causes, is not slow. Time in the queue of the workers does.

use std::collections::BTreeMap;
#[cfg(feature = "traces")]
use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "traces")]
use std::time::SystemTime;

use parking_lot::Mutex;
use vfs::cx::CallOutcome;
use vfs::{Call, LogLimit, PeerKey};
use wire::{RequestTarget, Session, Vocabulary};

use crate::tuning::Tuning;
#[cfg(feature = "traces")]
use crate::{RequestTrace, TraceQueue};

/// The slow requests of an engine.
pub(crate) struct SlowLog {
    /// The time from which on a request is slow; `None` if the log is off.
    after: Option<Duration>,
    limit: LogLimit<PeerKey>,
    /// By protocol: as few as the program has protocols.
    counts: Mutex<BTreeMap<&'static str, SlowRequests>>,
    #[cfg(feature = "traces")]
    traces: Option<Arc<TraceQueue>>,
}

/// Counts of slow requests of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowRequests {
    /// All of them.
    pub requests: u64,
    /// Those without a line in the log, because of its limits.
    pub suppressed: u64,
}

/// The time that a request took, and its parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestTime {
    /// From its receipt until its reply is complete.
    pub(crate) total: Duration,
    /// The part that it waited for a worker; zero for one that was served inline.
    pub(crate) queued: Duration,
    /// The part that it waited for an event without a worker.
    pub(crate) parked: Duration,
}

impl RequestTime {
    /// Returns the time of a request that was served inline.
    pub(crate) fn inline(total: Duration) -> RequestTime {
        RequestTime {
            total,
            ..RequestTime::default()
        }
    }

    /// Returns the time without that in which it was parked.
    fn active(&self) -> Duration {
        self.total.saturating_sub(self.parked)
    }
}

/// A request that was just answered, and is slow or one of the random share for traces.
pub(crate) struct RecordedRequest {
    pub(crate) outcome: CallOutcome,
    pub(crate) time: RequestTime,
    pub(crate) slow: bool,
}

/// The client of a recorded request, and the sizes of its messages in bytes.
pub(crate) struct Exchanged<'a> {
    pub(crate) client: PeerKey,
    /// The address of the client, or the name of its queue.
    pub(crate) peer: &'a str,
    pub(crate) received: usize,
    pub(crate) sent: usize,
}

impl SlowLog {
    pub(crate) fn new(tuning: &Tuning) -> SlowLog {
        SlowLog {
            after: tuning.slow,
            limit: LogLimit::new(),
            counts: Mutex::default(),
            #[cfg(feature = "traces")]
            traces: tuning.traces.as_ref().map(TraceQueue::new).map(Arc::new),
        }
    }

    /// Returns whether any request is recorded.
    pub(crate) fn is_on(&self) -> bool {
        #[cfg(feature = "traces")]
        if self.traces.is_some() {
            return true;
        }
        self.has_threshold()
    }

    /// Returns whether requests can be slow.
    pub(crate) fn has_threshold(&self) -> bool {
        self.after.is_some()
    }

    /// Returns whether a request is one of the random share for traces.
    #[inline]
    pub(crate) fn sample(&self) -> bool {
        #[cfg(feature = "traces")]
        if let Some(traces) = &self.traces {
            return traces.sample();
        }
        false
    }

    /// Returns the queue of requests for traces, if they are recorded.
    #[cfg(feature = "traces")]
    pub(crate) fn traces(&self) -> Option<&Arc<TraceQueue>> {
        self.traces.as_ref()
    }

    /// Returns whether a request that took `time` is slow.
    pub(crate) fn is_slow(&self, time: &RequestTime) -> bool {
        self.after.is_some_and(|after| time.active() >= after)
    }

    /// Counts and logs a request within the limits if it is slow, and queues it for traces.
    /// `target` is called if it is logged or queued.
    pub(crate) fn record(
        &self,
        words: &Vocabulary,
        request: &RecordedRequest,
        exchanged: &Exchanged<'_>,
        target: impl FnOnce() -> RequestTarget,
    ) {
        let permit = request
            .slow
            .then(|| self.count(words, exchanged.client))
            .flatten();
        #[cfg(feature = "traces")]
        let traces = self.traces.as_ref();
        #[cfg(feature = "traces")]
        let traces = traces.filter(|queue| queue.has_room(exchanged.client));
        #[cfg(feature = "traces")]
        if let Some(queue) = traces {
            let target = target();
            if let Some(suppressed) = permit {
                log(words, request, exchanged, target.clone(), suppressed);
            }
            return queue.push(exchanged.client, trace(words, request, exchanged, target));
        }
        if let Some(suppressed) = permit {
            log(words, request, exchanged, target(), suppressed);
        }
    }

    /// Counts a slow request. If it is logged, returns the number of lines that were left out
    /// before it, unless that is none.
    fn count(&self, words: &Vocabulary, client: PeerKey) -> Option<Option<u64>> {
        let permit = self.limit.permit(client);
        let mut counts = self.counts.lock();
        let counts = counts.entry(words.protocol).or_default();
        counts.requests += 1;
        counts.suppressed += u64::from(permit.is_none());
        permit
    }

    /// Returns the counts by protocol.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, SlowRequests> {
        self.counts.lock().clone()
    }
}

/// Writes the line of a slow request.
fn log(
    words: &Vocabulary,
    request: &RecordedRequest,
    exchanged: &Exchanged<'_>,
    target: RequestTarget,
    suppressed: Option<u64>,
) {
    let RequestTarget {
        share,
        inode,
        name,
        offset,
    } = target;
    let time = &request.time;
    let milliseconds = |time: Duration| time.as_micros() as f64 / 1e3;
    let waited = |time: Duration| (!time.is_zero()).then(|| milliseconds(time));
    tracing::warn!(
        protocol = words.protocol,
        request = request.name(words),
        share,
        client = exchanged.peer,
        inode,
        // Both formats of log lines escape strings.
        name,
        offset,
        received = exchanged.received,
        sent = exchanged.sent,
        error = request.error(words),
        duration_ms = milliseconds(time.active()),
        queued_ms = waited(time.queued),
        parked_ms = waited(time.parked),
        suppressed,
        "slow request"
    );
}

impl RecordedRequest {
    /// Returns the name of the request.
    fn name<'a>(&self, words: &'a Vocabulary) -> &'a str {
        let name = words.operations.get(usize::from(self.outcome.operation));
        name.filter(|name| !name.is_empty())
            .map_or("other", |name| name)
    }

    /// Returns the name of its error, if it failed.
    fn error(&self, words: &Vocabulary) -> Option<String> {
        let error = self.outcome.error;
        (error != 0).then(|| (words.error)(error))
    }
}

/// Returns a request for the queue.
#[cfg(feature = "traces")]
fn trace(
    words: &Vocabulary,
    request: &RecordedRequest,
    exchanged: &Exchanged<'_>,
    target: RequestTarget,
) -> RequestTrace {
    RequestTrace {
        protocol: words.protocol,
        request: request.name(words).to_owned(),
        target,
        client: exchanged.peer.to_owned(),
        received: exchanged.received,
        sent: exchanged.sent,
        error: request.error(words),
        end: SystemTime::now(),
        duration: request.time.total,
        queued: request.time.queued,
        parked: request.time.parked,
        slow: request.slow,
    }
}

/// Returns the object of the request in `message`, and logs nothing if `session` panics.
pub(crate) fn target(session: &dyn Session, call: &Call, message: &[u8]) -> RequestTarget {
    let found = std::panic::AssertUnwindSafe(|| session.target(call, message));
    std::panic::catch_unwind(found).unwrap_or_default()
}
