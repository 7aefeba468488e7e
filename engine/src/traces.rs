//! The queue of requests for traces: those that are slow, and a random share of all. An exporter
//! takes them from it.
//!
//! The queue is bounded, also for each client, and drops and counts what does not fit: no request
//! waits for the exporter. Its lock is taken last.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use vfs::PeerKey;
use wire::RequestTarget;

/// The requests that are recorded for traces, besides slow ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceOptions {
    /// The share of all requests to record, from 0 (none) to 1 (all).
    pub ratio: f64,
    /// The maximum number of requests in the queue.
    pub capacity: usize,
}

/// An answered request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestTrace {
    /// The protocol's name, in lower case.
    pub protocol: &'static str,
    /// The name of the request; `other` if it has none.
    pub request: String,
    /// The object of the request.
    pub target: RequestTarget,
    /// The address of the client, or the name of its queue.
    pub client: String,
    /// Length of the request in bytes.
    pub received: usize,
    /// Length of the reply in bytes.
    pub sent: usize,
    /// The name of the error, if the request failed.
    pub error: Option<String>,
    /// The time of its complete reply.
    pub end: SystemTime,
    /// The time from its receipt until then.
    pub duration: Duration,
    /// The part of it that the request waited for a worker.
    pub queued: Duration,
    /// The part of it that the request waited for an event, such as a lock of another client.
    pub parked: Duration,
    /// Whether it took the time of [`crate::Tuning::slow`], without `parked`.
    pub slow: bool,
}

/// A bounded queue of answered requests, which any thread may use.
pub struct TraceQueue {
    /// A request is recorded if a random number is not above it; `None` if none is by chance.
    threshold: Option<u64>,
    capacity: usize,
    state: Mutex<State>,
    /// Wakes the exporter.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(PeerKey, RequestTrace)>,
    /// The number of waiting requests of each client; none is 0.
    clients: HashMap<PeerKey, usize>,
    /// The number of requests that did not fit.
    dropped: u64,
    /// The number of requests for which the exporter is woken.
    enough: usize,
    /// Whether [`TraceQueue::wake`] was called since the exporter waited.
    woken: bool,
}

impl TraceQueue {
    /// Returns an empty queue.
    pub fn new(options: &TraceOptions) -> TraceQueue {
        let part = options.ratio.clamp(0.0, 1.0);
        TraceQueue {
            // The conversion saturates: 1 becomes the maximum.
            threshold: (part > 0.0).then_some((part * u64::MAX as f64) as u64),
            capacity: options.capacity,
            state: Mutex::new(State {
                enough: usize::MAX,
                ..State::default()
            }),
            changed: Condvar::new(),
        }
    }

    /// Returns whether a request is one of the random share.
    #[inline]
    pub(crate) fn sample(&self) -> bool {
        self.threshold
            .is_some_and(|threshold| fastrand::u64(..) <= threshold)
    }

    /// Returns whether there is room for a request of `client`, which takes at most half of the
    /// room that others leave. If not, counts the request.
    pub(crate) fn has_room(&self, client: PeerKey) -> bool {
        let mut state = self.state.lock();
        let own = state.clients.get(&client).copied().unwrap_or(0);
        let others = state.waiting.len() - own;
        let has_room = own < (self.capacity - others).div_ceil(2);
        state.dropped += u64::from(!has_room);
        has_room
    }

    /// Adds a request after [`TraceQueue::has_room`], unless others were faster.
    pub(crate) fn push(&self, client: PeerKey, trace: RequestTrace) {
        let mut state = self.state.lock();
        if state.waiting.len() >= self.capacity {
            state.dropped += 1;
            return;
        }
        state.waiting.push_back((client, trace));
        *state.clients.entry(client).or_default() += 1;
        if state.waiting.len() >= state.enough {
            self.changed.notify_all();
        }
    }

    /// Removes the oldest requests, at most `max`, and returns them.
    pub fn take(&self, max: usize) -> Vec<RequestTrace> {
        let mut state = self.state.lock();
        let count = state.waiting.len().min(max);
        let taken: Vec<_> = state.waiting.drain(..count).collect();
        for (client, _) in &taken {
            if let Some(count) = state.clients.get_mut(client) {
                *count -= 1;
                if *count == 0 {
                    state.clients.remove(client);
                }
            }
        }
        taken.into_iter().map(|(_, trace)| trace).collect()
    }

    /// Waits until `deadline`, until at least `enough` requests wait, or until [`TraceQueue::wake`]
    /// is called. One thread may wait at a time.
    pub fn wait(&self, deadline: Instant, enough: usize) {
        let mut state = self.state.lock();
        state.enough = enough;
        while !state.woken && state.waiting.len() < enough {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.woken = false;
        state.enough = usize::MAX;
    }

    /// Ends the current [`TraceQueue::wait`], or the next one.
    pub fn wake(&self) {
        self.state.lock().woken = true;
        self.changed.notify_all();
    }

    /// Returns the number of requests that did not fit.
    pub fn dropped(&self) -> u64 {
        self.state.lock().dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> RequestTrace {
        RequestTrace {
            protocol: "9p",
            request: "Tread".into(),
            target: RequestTarget::default(),
            client: String::new(),
            received: 0,
            sent: 0,
            error: None,
            end: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            queued: Duration::ZERO,
            parked: Duration::ZERO,
            slow: false,
        }
    }

    fn push(queue: &TraceQueue, client: u32) {
        let client = PeerKey::User(client);
        if queue.has_room(client) {
            queue.push(client, trace());
        }
    }

    fn queue(ratio: f64) -> TraceQueue {
        TraceQueue::new(&TraceOptions { ratio, capacity: 8 })
    }

    #[test]
    fn a_client_leaves_room_to_others_and_the_rest_is_counted() {
        let queue = queue(0.0);
        for _ in 0..10 {
            push(&queue, 1);
        }
        assert_eq!(queue.dropped(), 6);
        for _ in 0..10 {
            push(&queue, 2);
        }
        assert_eq!(queue.take(5).len(), 5);
        assert_eq!(queue.take(5).len(), 1);
        assert_eq!(queue.dropped(), 6 + 8);
        // Room is free again.
        push(&queue, 1);
        assert_eq!(queue.take(5).len(), 1);
        assert!(queue.state.lock().clients.is_empty());
    }

    #[test]
    fn the_random_share_is_as_large_as_the_ratio() {
        let sampled = |ratio| {
            let queue = queue(ratio);
            (0..10_000).filter(|_| queue.sample()).count()
        };
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 10_000));
        // Ten standard deviations.
        assert!((2_067..=2_933).contains(&sampled(0.25)));
    }

    #[test]
    fn a_wait_ends_once_enough_requests_wait_or_at_a_wake_up() {
        let queue = queue(0.0);
        let far = Instant::now() + Duration::from_secs(600);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|_| push(&queue, 1)));
            queue.wait(far, 3);
            scope.spawn(|| queue.wake());
            queue.wait(far, 100);
        });
        assert_eq!(queue.take(9).len(), 3);
    }
}
