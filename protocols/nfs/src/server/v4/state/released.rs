//! Files and locks that clients no longer hold: the caller closes and releases them with none of
//! the state's locks held.

use std::sync::Arc;

use vfs::NodeId;
use vfs::lock::Owner;

use super::Tree;

/// The key of a node, unique across all exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeKey {
    /// The number of the export.
    pub export: u32,
    /// The node in that export.
    pub node: NodeId,
}

/// A lock owner whose locks of a node are to be released: [`vfs::lock::LockTable::release`].
#[derive(Clone, Debug)]
pub struct Unlock<N> {
    /// The key of the node.
    pub key: NodeKey,
    /// The node, as supplied when it was opened.
    pub node: N,
    /// The owner of the locks.
    pub owner: Owner,
}

/// Files and locks that clients no longer hold.
pub struct Released<T: Tree> {
    /// The files: dropping them closes them.
    pub files: Vec<T::File>,
    /// The locks to release.
    pub locks: Vec<Unlock<T::Node>>,
}

impl<T: Tree> Default for Released<T> {
    fn default() -> Released<T> {
        Released {
            files: Vec::new(),
            locks: Vec::new(),
        }
    }
}

impl<T: Tree> Released<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.locks.is_empty()
    }
}

/// A function called with the removed files and locks before the operation that removed them
/// returns, and with none of the state's locks held.
pub type Release<T> = Arc<dyn Fn(Released<T>) + Send + Sync>;
