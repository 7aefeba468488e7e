//! How a server is: what it serves, to whom, and what it has done. The form of `/status.json`, which `barge top` reads.
//!
//! All figures only grow, but for those of the moment: whoever wants rates and quantiles of a while takes the difference of two.

use std::collections::BTreeMap;

use engine::{LaneLook, Look};
use serde::{Deserialize, Serialize};
use vfs::peer::{Refusal, Refusals};

/// A server at a moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Barge's.
    pub(crate) version: String,
    /// Its process.
    pub(crate) pid: u32,
    /// How long it has run, seconds.
    pub(crate) uptime: f64,
    pub(crate) done: Done,
    /// Requests that workers have, or that wait for one or for an event, and of those the latter.
    pub(crate) in_flight: usize,
    pub(crate) parked: usize,
    pub(crate) exports: Vec<Export>,
    /// How many there are.
    pub(crate) connections: usize,
    /// The number of clients that lists of exports denied access, by reason.
    #[serde(default)]
    pub(crate) denied: BTreeMap<String, u64>,
    /// Those of them that did most.
    pub(crate) clients: Vec<Client>,
    pub(crate) operations: Vec<Operation>,
    /// Connections that were refused or closed by the server, by reason.
    #[serde(default)]
    pub(crate) refused: BTreeMap<String, u64>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) requests: u64,
    /// Those of them that went to a worker.
    pub(crate) offloaded: u64,
    /// Those of them that were cancelled in flight.
    pub(crate) cancelled: u64,
    /// Bytes.
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

/// What is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Export {
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) cache: Option<Cache>,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Cache {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// What it holds.
    pub(crate) bytes: u64,
}

/// A connection, or a queue of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) peer: String,
    pub(crate) protocol: String,
    pub(crate) version: String,
    pub(crate) user: String,
    /// Seconds.
    pub(crate) age: f64,
    pub(crate) done: Done,
    pub(crate) in_flight: usize,
    pub(crate) parked: usize,
}

/// Requests of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Operation {
    pub(crate) protocol: String,
    pub(crate) name: String,
    pub(crate) count: u64,
    /// How many failed, by why.
    pub(crate) errors: BTreeMap<String, u64>,
    /// How long all took together.
    pub(crate) nanos: u64,
    /// How many took less than so many nanoseconds, and not less than the entry before says.
    pub(crate) buckets: Vec<(u64, u64)>,
}

impl Operation {
    /// How many failed.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// The most clients that are told of one by one.
const CLIENTS: usize = 256;

impl Status {
    /// What is seen of an engine that has run for `uptime` seconds and serves `exports`.
    pub(super) fn new(
        look: Look,
        refusals: &Refusals,
        uptime: f64,
        exports: Vec<Export>,
    ) -> Status {
        let mut lanes = look.lanes;
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.done.requests));
        let operations = look.operations.into_iter();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime,
            done: look.done.into(),
            in_flight: lanes.iter().map(|lane| lane.in_flight).sum(),
            parked: lanes.iter().map(|lane| lane.parked).sum(),
            exports,
            connections: lanes.len(),
            denied: Refusal::ALL
                .map(|why| (why.name().into(), refusals.of(why)))
                .into(),
            clients: lanes.into_iter().take(CLIENTS).map(Client::from).collect(),
            operations: operations
                .map(|((protocol, name), operation)| Operation {
                    protocol: protocol.into(),
                    name: name.into(),
                    count: operation.times.count(),
                    errors: operation.faults,
                    nanos: operation.times.nanos,
                    buckets: operation.times.buckets,
                })
                .collect(),
            refused: BTreeMap::new(),
        }
    }
}

impl From<engine::Snapshot> for Done {
    fn from(done: engine::Snapshot) -> Done {
        Done {
            requests: done.requests,
            offloaded: done.offloaded,
            cancelled: done.cancelled,
            received: done.received,
            sent: done.sent,
        }
    }
}

impl From<LaneLook> for Client {
    fn from(lane: LaneLook) -> Client {
        Client {
            peer: lane.peer,
            protocol: lane.protocol.into(),
            version: lane.facts.version,
            user: lane.facts.user,
            age: lane.age.as_secs_f64(),
            done: lane.done.into(),
            in_flight: lane.in_flight,
            parked: lane.parked,
        }
    }
}
