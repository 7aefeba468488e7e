//! Objects whose last name a client removes while they are in use.
//!
//! Such an object cannot be found again, so its node keeps the descriptor. It counts towards the
//! share of the client that removed the name ([`crate::descriptors::Shares`]) until the node is
//! dropped. When the share is used up, objects that are not open are given up, the oldest first:
//! clients merely remember them. Directories are the last, as one may be a program's current
//! directory.
//!
//! Lock order: the map last, and not while a share is released.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};
use vfs::{Kind, NodeId, PeerKey};

use crate::descriptors::Share;

/// The shares of a tree's objects without a name.
#[derive(Default)]
pub(crate) struct UnlinkedShares(Mutex<Unlinked>);

#[derive(Default)]
struct Unlinked {
    shares: HashMap<NodeId, UnlinkedShare>,
    /// The number of objects so far.
    count: u64,
}

struct UnlinkedShare {
    share: Share,
    is_directory: bool,
    /// The number of objects before this one.
    age: u64,
}

impl UnlinkedShares {
    /// Keeps the share of a node that lost its last name until the node is forgotten.
    pub(crate) fn keep(&self, id: NodeId, kind: Kind, share: Share) {
        let mut unlinked = self.map();
        let age = unlinked.count;
        unlinked.count += 1;
        let is_directory = kind == Kind::Directory;
        let share = UnlinkedShare {
            share,
            is_directory,
            age,
        };
        let before = unlinked.shares.insert(id, share);
        drop(unlinked);
        drop(before);
    }

    /// Returns the objects that count towards the share of `peer`, in the order in which they are
    /// given up.
    pub(crate) fn of_peer(&self, peer: PeerKey) -> Vec<NodeId> {
        let unlinked = self.map();
        let own = unlinked.shares.iter();
        let own = own.filter(|(_, unlinked)| unlinked.share.peer() == peer);
        let mut own: Vec<_> = own
            .map(|(&id, unlinked)| (unlinked.is_directory, unlinked.age, id))
            .collect();
        drop(unlinked);
        own.sort_unstable();
        own.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Forgets a node that is dropped.
    pub(crate) fn forget(&self, id: NodeId) {
        let share = self.map().shares.remove(&id);
        drop(share);
    }

    fn map(&self) -> MutexGuard<'_, Unlinked> {
        self.0.lock()
    }
}
