//! Limits and options of an engine.

use std::time::Duration;

use transports::Poller;

use crate::timeouts::Timeouts;

/// Limits and options of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// The maximum time for which a lane polls before it sleeps; zero disables polling.
    pub poll: Duration,
    /// The maximum number of requests of a connection in flight; beyond it, the connection is not
    /// read.
    pub in_flight: usize,
    /// The maximum total size of those in bytes; a single one may be larger.
    pub in_flight_bytes: usize,
    /// Whether file pages are sent without a copy, on connections where that pays.
    pub zerocopy: bool,
    /// The maximum number of worker threads, for requests that would block.
    pub workers: usize,
    /// The maximum number of connections; more are closed at once.
    pub connections: usize,
    /// The maximum number of connections of one client: a user of this host, a guest, or an
    /// address. `None` is half of what other clients leave of [`Tuning::connections`], so that the
    /// next client can connect.
    pub connections_per_client: Option<usize>,
    /// The times after which a connection that makes no progress is closed.
    pub timeouts: Timeouts,
    /// The memory limit for all clients in bytes: see [`vfs::memory::MemoryBudget`].
    pub memory: usize,
    /// Whether requests are counted by type and latency ([`crate::Engine::snapshot`]).
    pub operation_stats: bool,
    /// The time from which on a request is slow, and is logged and counted; `None` disables that.
    /// Time in which it was parked does not count.
    pub slow: Option<Duration>,
    /// Whether slow requests, and a share of all, are recorded for traces
    /// ([`crate::Engine::traces`]).
    #[cfg(feature = "traces")]
    pub traces: Option<crate::TraceOptions>,
    /// The grace period for requests in flight when the engine stops, before they are cancelled.
    pub grace: Duration,
}

impl Default for Tuning {
    /// Defaults for this machine.
    fn default() -> Tuning {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Tuning {
            poll: Poller::default_max(),
            in_flight: 256,
            in_flight_bytes: 32 << 20,
            zerocopy: true,
            workers: (processors * 4).clamp(16, 128),
            connections: 4096,
            connections_per_client: None,
            timeouts: Timeouts::default(),
            memory: 1 << 30,
            operation_stats: false,
            slow: None,
            #[cfg(feature = "traces")]
            traces: None,
            grace: Duration::from_secs(5),
        }
    }
}
