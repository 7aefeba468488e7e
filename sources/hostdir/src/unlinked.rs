//! Objects whose last name a client removes while they are in use.
//!
//! Such an object cannot be found again, so its node keeps the descriptor. It counts towards the
//! share of the client that removed the name ([`crate::descriptors::Shares`]) until the node is
//! dropped.
//!
//! Lock order: the map last, and not while a share is released.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use vfs::NodeId;

use crate::descriptors::Share;

/// The shares of a tree's objects without a name.
#[derive(Default)]
pub(crate) struct UnlinkedShares(Mutex<HashMap<NodeId, Share>>);

impl UnlinkedShares {
    /// Keeps the share of a node that lost its last name until the node is forgotten.
    pub(crate) fn keep(&self, id: NodeId, share: Share) {
        let before = self.map().insert(id, share);
        drop(before);
    }

    /// Forgets a node that is dropped.
    pub(crate) fn forget(&self, id: NodeId) {
        let share = self.map().remove(&id);
        drop(share);
    }

    fn map(&self) -> MutexGuard<'_, HashMap<NodeId, Share>> {
        self.0.lock()
    }
}
