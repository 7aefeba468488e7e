//! The state that all nodes of an overlay share: both trees, the table of nodes, the lock of names.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vfs::{Caller, Cx, Errno, FileSystem, NodeId, Patience, Result};

use super::listing_cache::Listings;
use super::node::OverlayNode;
use super::staging::Staging;
use super::xattrs::OverlayXattrs;

/// The state that all nodes share.
pub(super) struct Tree {
    pub(super) lower: Arc<dyn FileSystem>,
    /// The file system of the directory for changes.
    pub(super) changes: Arc<dyn FileSystem>,
    pub(super) staging: Staging,
    pub(super) xattrs: OverlayXattrs,
    nodes: Mutex<HashMap<NodeId, Weak<OverlayNode>>>,
    /// Write-locked while names change, read-locked during look-ups.
    names: RwLock<()>,
    pub(super) listings: Listings,
}

impl Tree {
    pub(super) fn new(
        lower: Arc<dyn FileSystem>,
        changes: Arc<dyn FileSystem>,
        staging: Staging,
        xattrs: OverlayXattrs,
    ) -> Arc<Tree> {
        Arc::new(Tree {
            lower,
            changes,
            staging,
            xattrs,
            nodes: Mutex::default(),
            names: RwLock::new(()),
            listings: Listings::default(),
        })
    }

    pub(super) fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Weak<OverlayNode>>> {
        self.nodes.lock()
    }

    /// Locks names against changes.
    pub(super) fn names_shared(&self, cx: &Cx<'_>) -> Result<RwLockReadGuard<'_, ()>> {
        match self.names.try_read() {
            Some(guard) => Ok(guard),
            None if cx.patience < Patience::Full => Err(Errno::WOULD_BLOCK),
            None => Ok(self.names.read()),
        }
    }

    /// Locks names for a change.
    pub(super) fn names_exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.names.write()
    }
}

/// Returns the context of the same request, with this program itself as the caller.
pub(super) fn as_process<'a>(cx: &Cx<'a>) -> Cx<'a> {
    cx.on_behalf_of(&Caller::ROOT)
}
