//! The state that all nodes of a tree share: its clock, its budget, the table of its nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use concurrency::{FastRandomState, Shards};
use parking_lot::{Mutex, MutexGuard};
use vfs::{NodeId, Time};

use crate::budget::Budget;
use crate::node::MemNode;

/// A clock: returns the wall-clock time since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The state that all nodes of a tree share.
pub(crate) struct Shared {
    clock: Clock,
    pub(crate) budget: Arc<Budget>,
    pub(crate) generation: u64,
    next_id: AtomicU64,
    nodes: Shards<Nodes, SHARDS>,
    pub(crate) renames: Mutex<()>,
}

/// The nodes of a shard.
pub(crate) type Nodes = HashMap<NodeId, Weak<MemNode>, FastRandomState>;

/// The number of shards of the table of nodes: more than the processors that create and remove
/// files concurrently.
const SHARDS: usize = 32;

impl Shared {
    pub(crate) fn new(clock: Clock, budget: Budget) -> Arc<Shared> {
        Arc::new(Shared {
            budget: Arc::new(budget),
            generation: new_generation(&clock),
            clock,
            next_id: AtomicU64::new(1),
            nodes: Shards::default(),
            renames: Mutex::new(()),
        })
    }

    pub(crate) fn now(&self) -> Time {
        (self.clock)()
    }

    pub(crate) fn new_id(&self) -> NodeId {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn nodes(&self, id: NodeId) -> MutexGuard<'_, Nodes> {
        self.nodes.lock(&id)
    }
}

/// Returns a number unique among all trees of this process and earlier ones: node numbers are not
/// reused within a tree, so it serves as the generation of all its nodes.
fn new_generation(clock: &Clock) -> u64 {
    static TREES: AtomicU64 = AtomicU64::new(0);
    let now = clock();
    let nanos = (now.sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.nsec.into());
    nanos.wrapping_add(TREES.fetch_add(1, Ordering::Relaxed)) | 1 << 63
}
