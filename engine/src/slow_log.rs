//! The log of slow requests: a line for each request that took longer than
//! [`Tuning::slow`](crate::Tuning::slow), within the limits of [`LogLimit`], and their counts.
//!
//! Time in which a request was parked does not count: a request that waits for a lock, or for
//! another event that a client causes, is not slow. Time in the queue of the workers does.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use vfs::cx::CallOutcome;
use vfs::{Call, LogLimit, PeerKey};
use wire::{RequestTarget, Session, Vocabulary};

/// The slow requests of an engine.
pub(crate) struct SlowLog {
    /// The time from which on a request is slow; `None` if the log is off.
    after: Option<Duration>,
    limit: LogLimit<PeerKey>,
    /// By protocol: as few as the program has protocols.
    counts: Mutex<BTreeMap<&'static str, SlowRequests>>,
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

/// A slow request that was just answered.
pub(crate) struct SlowRequest {
    pub(crate) outcome: CallOutcome,
    pub(crate) time: RequestTime,
}

/// The client of a slow request, and the sizes of its messages in bytes.
pub(crate) struct Exchanged<'a> {
    pub(crate) client: PeerKey,
    /// The address of the client, or the name of its queue.
    pub(crate) peer: &'a str,
    pub(crate) received: usize,
    pub(crate) sent: usize,
}

impl SlowLog {
    pub(crate) fn new(after: Option<Duration>) -> SlowLog {
        SlowLog {
            after,
            limit: LogLimit::new(),
            counts: Mutex::default(),
        }
    }

    /// Returns whether it is on.
    pub(crate) fn is_on(&self) -> bool {
        self.after.is_some()
    }

    /// Returns whether a request that took `time` is slow.
    pub(crate) fn is_slow(&self, time: &RequestTime) -> bool {
        self.after.is_some_and(|after| time.active() >= after)
    }

    /// Counts a slow request, and logs it within the limits. `target` is called if it is logged.
    pub(crate) fn record(
        &self,
        words: &Vocabulary,
        slow: &SlowRequest,
        exchanged: &Exchanged<'_>,
        target: impl FnOnce() -> RequestTarget,
    ) {
        let permit = self.limit.permit(exchanged.client);
        {
            let mut counts = self.counts.lock();
            let counts = counts.entry(words.protocol).or_default();
            counts.requests += 1;
            counts.suppressed += u64::from(permit.is_none());
        }
        let Some(suppressed) = permit else {
            return;
        };
        let RequestTarget {
            share,
            inode,
            name,
            offset,
        } = target();
        let SlowRequest { outcome, time } = slow;
        let request = words.operations.get(usize::from(outcome.operation));
        let error = (outcome.error != 0).then(|| (words.error)(outcome.error));
        let milliseconds = |time: Duration| time.as_micros() as f64 / 1e3;
        let waited = |time: Duration| (!time.is_zero()).then(|| milliseconds(time));
        tracing::warn!(
            protocol = words.protocol,
            request = request
                .filter(|name| !name.is_empty())
                .map_or("other", |name| name),
            share,
            client = exchanged.peer,
            inode,
            // Both formats of log lines escape strings.
            name,
            offset,
            received = exchanged.received,
            sent = exchanged.sent,
            error,
            duration_ms = milliseconds(time.active()),
            queued_ms = waited(time.queued),
            parked_ms = waited(time.parked),
            suppressed,
            "slow request"
        );
    }

    /// Returns the counts by protocol.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, SlowRequests> {
        self.counts.lock().clone()
    }
}

/// Returns the object of the request in `message`, and logs nothing if `session` panics.
pub(crate) fn target(session: &dyn Session, call: &Call, message: &[u8]) -> RequestTarget {
    let found = std::panic::AssertUnwindSafe(|| session.target(call, message));
    std::panic::catch_unwind(found).unwrap_or_default()
}
