//! What those see who look on.

use std::sync::Arc;
use std::time::Duration;

use wire::{Facts, Vocabulary};

use crate::Engine;
use crate::ledger::Operations;
use crate::stats::Snapshot;

/// Something whose figures are looked at.
pub(crate) trait Seen: Send + Sync {
    fn peer(&self) -> String;
    fn vocabulary(&self) -> &'static Vocabulary;
    fn facts(&self) -> Facts;
    fn in_flight(&self) -> usize;
}

/// An engine at a moment: figures need not agree with each other to the last request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What its lanes, of now and before, have done.
    pub done: Snapshot,
    /// What was asked of them; nothing unless [`crate::Tuning::counts`].
    pub operations: Operations,
    /// The lanes that there are: connections, and queues of devices.
    pub lanes: Vec<LaneLook>,
}

/// A lane at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneLook {
    /// Who is at the other end: an address, or the name of a queue.
    pub peer: String,
    /// What is spoken; empty where the protocol does not say.
    pub protocol: &'static str,
    /// What is known of the client.
    pub facts: Facts,
    /// How long it has been there.
    pub age: Duration,
    /// What it has done.
    pub done: Snapshot,
    /// Requests that workers have, or that wait for one or for an event.
    pub in_flight: usize,
    /// Those that wait for an event: a lock, as a rule.
    pub parked: usize,
}

impl Engine {
    /// How things are. Takes the time of a walk through all lanes; requests do not wait for it.
    pub fn look(&self) -> Look {
        let tally = self.tally();
        let lanes = tally.now().into_iter().filter_map(|stats| {
            let seen = stats.seen()?;
            Some(LaneLook {
                peer: seen.peer(),
                protocol: seen.vocabulary().protocol,
                facts: seen.facts(),
                age: stats.since.elapsed(),
                done: stats.snapshot(),
                in_flight: seen.in_flight(),
                parked: stats.parked(),
            })
        });
        Look {
            lanes: lanes.collect(),
            done: tally.sum(),
            operations: tally.operations(),
        }
    }
}

impl Seen for crate::lane::Lane {
    fn peer(&self) -> String {
        self.link.peer().to_owned()
    }

    fn vocabulary(&self) -> &'static Vocabulary {
        self.session.vocabulary()
    }

    fn facts(&self) -> Facts {
        self.session.facts()
    }

    fn in_flight(&self) -> usize {
        self.outstanding()
    }
}

/// The lane as it is seen, without keeping it.
pub(crate) fn seen<S: Seen + 'static>(lane: &Arc<S>) -> std::sync::Weak<dyn Seen> {
    let lane: Arc<dyn Seen> = lane.clone();
    Arc::downgrade(&lane)
}
