//! The status of a server, its exports, clients and operations: the format of `/status.json`, which
//! `barge top` reads.
//!
//! All figures except current values only grow: rates and quantiles of a period are the differences
//! of two snapshots.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use engine::{EngineStatus, LaneStatus};
use serde::{Deserialize, Serialize};
use vfs::peer::{Refusal, Refusals};
use vfs::source_stats::{CacheStats, RemoteStats};

use crate::version::{Build, VERSION};

/// A snapshot of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Version of barge.
    pub(crate) version: String,
    #[serde(default)]
    pub(crate) build: Build,
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
    /// How often connections were not read for a while because of a limit, by reason.
    #[serde(default)]
    pub(crate) throttled: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) memory: Memory,
    /// Slow requests, and those of them that were not logged, by protocol.
    #[serde(default)]
    pub(crate) slow: BTreeMap<String, u64>,
    #[serde(default)]
    pub(crate) slow_suppressed: BTreeMap<String, u64>,
    /// Spans for an OpenTelemetry collector, by result.
    #[cfg(feature = "otel")]
    #[serde(default)]
    pub(crate) spans: BTreeMap<String, u64>,
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
    /// The cache on a disk of this host.
    #[serde(default)]
    pub(crate) disk_cache: Option<Cache>,
    /// The requests to the server that has the source.
    #[serde(default)]
    pub(crate) remote: Option<Remote>,
    /// Its limits, if it has or had any.
    #[serde(default)]
    pub(crate) limit: Option<Limit>,
    /// Its quota, if it has one.
    #[serde(default)]
    pub(crate) quota: Option<Quota>,
}

/// The usage of a quota, and its limits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Quota {
    /// Bytes in use.
    pub(crate) bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
    /// Files, directories and other objects.
    pub(crate) inodes: u64,
    pub(crate) limit_inodes: Option<u64>,
}

/// Counts of requests to another server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Remote {
    pub(crate) requests: u64,
    /// Requests that failed because of the server or the connection.
    pub(crate) errors: u64,
    /// Bytes of contents received.
    pub(crate) received: u64,
    /// Sum of all times, and the number of requests by time, as in an [`Operation`].
    pub(crate) nanos: u64,
    pub(crate) buckets: Vec<(u64, u64)>,
}

/// Memory for clients.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Bytes in use.
    pub(crate) used: u64,
    /// The limit, --memory.
    pub(crate) limit: u64,
}

/// The limits of a share and the requests that waited for them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Limit {
    /// The limit of all clients together, in the syntax of `--limit`.
    pub(crate) limit: Option<String>,
    /// The limit of each client.
    pub(crate) client_limit: Option<String>,
    /// Number of requests that had to wait.
    pub(crate) delayed: u64,
    /// Sum of the times that they waited, seconds.
    pub(crate) waited: f64,
    /// Requests that wait.
    pub(crate) waiting: usize,
    /// Clients with a state of their own.
    pub(crate) clients: usize,
}

/// Counts of a cache.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Cache {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Current contents.
    pub(crate) bytes: u64,
    /// Maximum size of the contents.
    #[serde(default)]
    pub(crate) limit: u64,
    /// Bytes that were evicted.
    #[serde(default)]
    pub(crate) evicted: u64,
}

impl From<CacheStats> for Cache {
    fn from(stats: CacheStats) -> Cache {
        Cache {
            hits: stats.hits,
            misses: stats.misses,
            bytes: stats.bytes,
            limit: stats.limit,
            evicted: stats.evicted,
        }
    }
}

impl From<RemoteStats> for Remote {
    fn from(stats: RemoteStats) -> Remote {
        Remote {
            requests: stats.latencies.count(),
            errors: stats.errors,
            received: stats.received,
            nanos: stats.latencies.nanos,
            buckets: stats.latencies.buckets,
        }
    }
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
        let slow = engine.slow.iter();
        Status {
            version: VERSION.into(),
            build: Build::own(),
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
            throttled: BTreeMap::new(),
            memory: Memory::default(),
            slow: slow
                .clone()
                .map(|(protocol, slow)| ((*protocol).into(), slow.requests))
                .collect(),
            slow_suppressed: slow
                .map(|(protocol, slow)| ((*protocol).into(), slow.suppressed))
                .collect(),
            #[cfg(feature = "otel")]
            spans: BTreeMap::new(),
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.requests += other.requests;
        self.offloaded += other.offloaded;
        self.cancelled += other.cancelled;
        self.received += other.received;
        self.sent += other.sent;
    }
}

impl Status {
    /// Returns the status of a server whose processes have the status of each of `parts`.
    pub(crate) fn sum(parts: impl IntoIterator<Item = Status>) -> Status {
        let mut sum = Status {
            version: VERSION.into(),
            build: Build::own(),
            ..Status::default()
        };
        let mut operations: BTreeMap<(String, String), Operation> = BTreeMap::new();
        for part in parts {
            sum.pid = part.pid;
            sum.uptime = sum.uptime.max(part.uptime);
            sum.done += part.done;
            sum.in_flight += part.in_flight;
            sum.parked += part.parked;
            sum.exports.extend(part.exports);
            sum.connections += part.connections;
            add_counts(&mut sum.denied, part.denied);
            add_counts(&mut sum.refused, part.refused);
            add_counts(&mut sum.throttled, part.throttled);
            sum.memory.used += part.memory.used;
            sum.memory.limit += part.memory.limit;
            add_counts(&mut sum.slow, part.slow);
            add_counts(&mut sum.slow_suppressed, part.slow_suppressed);
            #[cfg(feature = "otel")]
            add_counts(&mut sum.spans, part.spans);
            sum.clients.extend(part.clients);
            for operation in part.operations {
                let key = (operation.protocol.clone(), operation.name.clone());
                match operations.entry(key) {
                    Entry::Vacant(new) => drop(new.insert(operation)),
                    Entry::Occupied(known) => known.into_mut().add(operation),
                }
            }
        }
        sum.clients
            .sort_by_key(|client| std::cmp::Reverse(client.done.requests));
        sum.clients.truncate(MAX_CLIENTS);
        sum.operations = operations.into_values().collect();
        sum
    }
}

impl Operation {
    fn add(&mut self, other: Operation) {
        self.count += other.count;
        self.nanos += other.nanos;
        add_counts(&mut self.errors, other.errors);
        let mut buckets: BTreeMap<u64, u64> = self.buckets.drain(..).collect();
        add_counts(&mut buckets, other.buckets);
        self.buckets = buckets.into_iter().collect();
    }
}

fn add_counts<K: Ord>(sums: &mut BTreeMap<K, u64>, counts: impl IntoIterator<Item = (K, u64)>) {
    for (key, count) in counts {
        *sums.entry(key).or_default() += count;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_parts_has_each_client_and_operation_once() {
        let operation = |name: &str, count, buckets: &[(u64, u64)]| Operation {
            protocol: "fuse".into(),
            name: name.into(),
            count,
            errors: [("EIO".to_owned(), 1)].into(),
            nanos: 10 * count,
            buckets: buckets.into(),
        };
        let part = |requests, operations| Status {
            pid: 7,
            uptime: requests as f64,
            done: Counts {
                requests,
                ..Counts::default()
            },
            connections: 1,
            denied: [("unlisted".to_owned(), 2)].into(),
            clients: vec![Client {
                peer: requests.to_string(),
                protocol: "fuse".into(),
                version: String::new(),
                user: String::new(),
                age: 0.0,
                done: Counts {
                    requests,
                    ..Counts::default()
                },
                in_flight: 0,
                parked: 0,
            }],
            operations,
            ..Status::default()
        };
        let read = operation("FUSE_READ", 3, &[(10, 2), (20, 1)]);
        let more = operation("FUSE_READ", 4, &[(20, 3), (40, 1)]);
        let write = operation("FUSE_WRITE", 1, &[(10, 1)]);
        let sum = Status::sum([part(5, vec![read]), part(9, vec![more, write])]);
        assert_eq!((sum.pid, sum.uptime, sum.done.requests), (7, 9.0, 14));
        assert_eq!((sum.connections, sum.denied["unlisted"]), (2, 4));
        let peers: Vec<_> = sum.clients.iter().map(|client| &client.peer[..]).collect();
        assert_eq!(peers, ["9", "5"]);
        let [read, write] = &sum.operations[..] else {
            panic!("{:?}", sum.operations);
        };
        assert_eq!((read.count, read.nanos, read.errors["EIO"]), (7, 70, 2));
        assert_eq!(read.buckets, [(10, 2), (20, 4), (40, 1)]);
        assert_eq!(write.count, 1);
    }
}
