//! Snapshots of an engine's state, for monitoring.

use std::collections::BTreeMap;
use std::time::Duration;

use wire::ClientInfo;

use crate::operation_stats::Operations;
use crate::server::Engine;
use crate::slow_log::SlowRequests;
use crate::stats::Totals;

/// A snapshot of an engine, whose counters need not be consistent with each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// Totals of all lanes, including those that ended.
    pub totals: Totals,
    /// Statistics by type of request; empty unless [`crate::Tuning::operation_stats`] is set.
    pub operations: Operations,
    /// Slow requests by protocol; empty unless [`crate::Tuning::slow`] is set.
    pub slow: BTreeMap<&'static str, SlowRequests>,
    /// The current lanes: connections, and queues of devices.
    pub lanes: Vec<LaneStatus>,
}

/// A snapshot of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStatus {
    /// The peer: an address, or the name of a queue.
    pub peer: String,
    /// The name of the listener that accepted its connection, or its device's; empty without one.
    pub listener: String,
    /// The protocol; empty if unknown.
    pub protocol: &'static str,
    /// Information about the client.
    pub facts: ClientInfo,
    /// The time since the lane started.
    pub age: Duration,
    /// Its totals.
    pub totals: Totals,
    /// The number of requests that workers run, or that wait for one or for an event.
    pub in_flight: usize,
    /// The number of those that wait for an event, usually a lock.
    pub parked: usize,
}

/// A snapshot of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Its number, which no other connection of the engine has.
    pub id: u64,
    /// The name of the listener that accepted it; empty without one.
    pub listener: String,
    /// The peer's address.
    pub peer: String,
    /// The protocol.
    pub protocol: &'static str,
    /// Information about the client.
    pub client: ClientInfo,
    /// The time since it was accepted.
    pub age: Duration,
    /// The number of requests received.
    pub requests: u64,
    /// The number of requests that workers run, or that wait for one or for an event.
    pub in_flight: usize,
}

impl Engine {
    /// Takes a snapshot. Iterates over all lanes, without delaying requests.
    pub fn snapshot(&self) -> EngineStatus {
        let tally = self.stats_registry();
        let lanes = tally.current_lanes().into_iter().filter_map(|stats| {
            let lane = stats.lane()?;
            Some(LaneStatus {
                peer: lane.peer(),
                listener: lane.listener().to_owned(),
                protocol: lane.vocabulary().protocol,
                facts: lane.facts(),
                age: stats.started.elapsed(),
                totals: stats.totals(),
                in_flight: lane.in_flight(),
                parked: stats.parked(),
            })
        });
        EngineStatus {
            lanes: lanes.collect(),
            totals: tally.sum(),
            operations: tally.operations(),
            slow: tally.slow_log().counts(),
        }
    }
}
