//! What is no longer held: handed to whoever closes files and releases locks, with no lock of ours held.

use std::sync::Arc;

use vfs::NodeId;
use vfs::lock::Owner;

/// A node as all exports together know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeKey {
    /// Which export.
    pub export: u32,
    /// Which of its nodes.
    pub node: NodeId,
}

/// An owner whose locks of a node are to be released: [`vfs::lock::LockTable::release`].
#[derive(Clone, Debug)]
pub struct Unlock<N> {
    /// Which node.
    pub key: NodeKey,
    /// The node, as it was given when it was opened.
    pub node: N,
    /// Whose locks.
    pub owner: Owner,
}

/// What clients held and hold no more.
#[derive(Debug)]
pub struct Gone<F, N> {
    /// Files: dropping them closes them.
    pub files: Vec<F>,
    /// Locks to release.
    pub locks: Vec<Unlock<N>>,
}

impl<F, N> Default for Gone<F, N> {
    fn default() -> Gone<F, N> {
        Gone {
            files: Vec::new(),
            locks: Vec::new(),
        }
    }
}

impl<F, N> Gone<F, N> {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.locks.is_empty()
    }
}

/// Called with what is gone before the operation that ended it returns, and with no lock of the
/// state's held.
pub type Release<F, N> = Arc<dyn Fn(Gone<F, N>) + Send + Sync>;
