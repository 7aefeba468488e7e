//! The status of a server, its exports, clients and operations: the format of `/status.json`, which
//! `barge top` reads.
//!
//! All figures except current values only grow: rates and quantiles of a period are the differences
//! of two snapshots.

use std::collections::BTreeMap;

use engine::{EngineStatus, LaneStatus};
use serde::{Deserialize, Serialize};
use vfs::peer::{Refusal, Refusals};

/// A snapshot of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Version of barge.
    pub(crate) version: String,
    /// Process id.
    pub(crate) pid: u32,
    /// Seconds since the start of the server.
    pub(crate) uptime: f64,
    pub(crate) done: Counts,
    /// Requests that are with workers or wait for one or for an event, and those that wait for an
    /// event.
    pub(crate) in_flight: usize,
    pub(crate) parked: usize,
    pub(crate) exports: Vec<Export>,
    /// Number of connections and queues.
    pub(crate) connections: usize,
    /// Number of clients that export lists denied access, by reason.
    #[serde(default)]
    pub(crate) denied: BTreeMap<String, u64>,
    /// The clients with the most requests, up to 256.
    pub(crate) clients: Vec<Client>,
    pub(crate) operations: Vec<Operation>,
    /// Connections that were refused or closed by the server, by reason.
    #[serde(default)]
    pub(crate) refused: BTreeMap<String, u64>,
}

/// Counts of requests and bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    /// Requests that were processed by a worker.
    pub(crate) offloaded: u64,
    /// Requests that were cancelled in flight.
    pub(crate) cancelled: u64,
    /// Bytes received.
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

/// An export.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Export {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) cache: Option<Cache>,
}

/// Counts of a cache.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Cache {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Current contents.
    pub(crate) bytes: u64,
}

/// A connection, or a queue of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) peer: String,
    pub(crate) protocol: String,
    pub(crate) version: String,
    pub(crate) user: String,
    /// Seconds since it was established.
    pub(crate) age: f64,
    pub(crate) done: Counts,
    pub(crate) in_flight: usize,
    pub(crate) parked: usize,
}

/// Operations of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) protocol: String,
    pub(crate) name: String,
    pub(crate) count: u64,
    /// Number of failures, by error.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Sum of all times.
    pub(crate) nanos: u64,
    /// Upper bounds in nanoseconds, and the number of operations below each and not below the one
    /// before.
    pub(crate) buckets: Vec<(u64, u64)>,
}

impl Operation {
    /// Returns the number of failures.
    pub(super) fn failures(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// Maximum number of clients in the status.
const MAX_CLIENTS: usize = 256;

impl Status {
    /// Returns the status of an engine that has run for `uptime` seconds and serves `exports`.
    pub(super) fn new(
        engine: EngineStatus,
        refusals: &Refusals,
        uptime: f64,
        exports: Vec<Export>,
    ) -> Status {
        let mut lanes = engine.lanes;
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.totals.requests));
        let operations = engine.operations.into_iter();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime,
            done: engine.totals.into(),
            in_flight: lanes.iter().map(|lane| lane.in_flight).sum(),
            parked: lanes.iter().map(|lane| lane.parked).sum(),
            exports,
            connections: lanes.len(),
            denied: Refusal::ALL
                .map(|why| (why.name().into(), refusals.of(why)))
                .into(),
            clients: lanes
                .into_iter()
                .take(MAX_CLIENTS)
                .map(Client::from)
                .collect(),
            operations: operations
                .map(|((protocol, name), operation)| Operation {
                    protocol: protocol.into(),
                    name: name.into(),
                    count: operation.latencies.count(),
                    errors: operation.errors,
                    nanos: operation.latencies.nanos,
                    buckets: operation.latencies.buckets,
                })
                .collect(),
            refused: BTreeMap::new(),
        }
    }
}

impl From<engine::Totals> for Counts {
    fn from(totals: engine::Totals) -> Counts {
        Counts {
            requests: totals.requests,
            offloaded: totals.offloaded,
            cancelled: totals.cancelled,
            received: totals.received,
            sent: totals.sent,
        }
    }
}

impl From<LaneStatus> for Client {
    fn from(lane: LaneStatus) -> Client {
        Client {
            peer: lane.peer,
            protocol: lane.protocol.into(),
            version: lane.facts.version,
            user: lane.facts.user,
            age: lane.age.as_secs_f64(),
            done: lane.totals.into(),
            in_flight: lane.in_flight,
            parked: lane.parked,
        }
    }
}
