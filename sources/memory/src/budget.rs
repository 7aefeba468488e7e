//! The limits of a tree's memory.
//!
//! A tree is charged as if nothing were shared: cloned pages count for each file that has them, so
//! that a later write to one does not exceed the budget.
//!
//! Lock order: none, two counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vfs::{Errno, Result};

/// The bytes and nodes of a tree, and their limits.
pub(crate) struct Budget {
    pub(crate) max_bytes: u64,
    pub(crate) max_nodes: u64,
    bytes: AtomicU64,
    nodes: AtomicU64,
}

impl Budget {
    pub(crate) fn new(max_bytes: u64, max_nodes: u64) -> Budget {
        Budget {
            max_bytes,
            max_nodes,
            bytes: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed)
    }
}

fn take(counter: &AtomicU64, amount: u64, max: u64) -> Result<()> {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(amount).filter(|sum| *sum <= max)
        })
        .map(drop)
        .map_err(|_| Errno::ENOSPC)
}

/// Bytes charged to a budget, released on drop.
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    /// Charges `bytes`. Returns `ENOSPC` if too few are left.
    pub(crate) fn new(budget: &Arc<Budget>, bytes: u64) -> Result<Charge> {
        let mut charge = Charge {
            budget: budget.clone(),
            bytes: 0,
        };
        charge.grow(bytes)?;
        Ok(charge)
    }

    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        take(&self.budget.bytes, bytes, self.budget.max_bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    pub(crate) fn shrink(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.budget.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

/// The charge for a node, released on drop.
pub(crate) struct NodeCharge {
    bytes: Charge,
}

impl NodeCharge {
    /// The memory in bytes of a node in addition to contents, names and attributes: its structure,
    /// its entry in the table of nodes, and the allocator's overhead; measured roughly and rounded
    /// up.
    const BYTES: u64 = 512;

    /// Charges a node with `extra` bytes of its own. Returns `ENOSPC` if the budget has no room.
    pub(crate) fn new(budget: &Arc<Budget>, extra: usize) -> Result<NodeCharge> {
        let bytes = Charge::new(budget, NodeCharge::BYTES + extra as u64)?;
        take(&budget.nodes, 1, budget.max_nodes)?;
        Ok(NodeCharge { bytes })
    }
}

impl Drop for NodeCharge {
    fn drop(&mut self) {
        self.bytes.budget.nodes.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_comes_back() {
        let budget = Arc::new(Budget::new(2000, 2));
        let first = NodeCharge::new(&budget, 0).expect("room");
        let mut charge = Charge::new(&budget, 1000).expect("room");
        assert_eq!(charge.grow(1000), Err(Errno::ENOSPC));
        assert!(NodeCharge::new(&budget, 0).is_err());
        charge.shrink(900);
        let second = NodeCharge::new(&budget, 0).expect("room");
        assert!(NodeCharge::new(&budget, 0).is_err(), "two nodes at most");
        assert_eq!((budget.bytes(), budget.nodes()), (1124, 2));
        drop((first, second, charge));
        assert_eq!((budget.bytes(), budget.nodes()), (0, 0));
    }
}
