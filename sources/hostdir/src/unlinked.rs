//! Objects whose last name a client removes while they are in use.
//!
//! Such an object cannot be found again, so its node keeps the descriptor. It counts towards the
//! share of the client that removed the name ([`crate::descriptors::Shares`]) until the node is dropped.
//!
//! Lock order: the map last, and not while a share is released.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use vfs::{Cx, Kind, Name, NodeId, Result};

use crate::descriptors::Share;
use crate::node::HostNode;
use crate::{attr, device, tree};

/// The shares of a tree's unnamed objects.
#[derive(Default)]
pub(crate) struct Unnamed(Mutex<HashMap<NodeId, Share>>);

/// An object that is about to lose its last name.
pub(crate) struct Going {
    node: Arc<HostNode>,
    share: Share,
}

/// Called before the thread, with the caller's identity, removes the name `name` in the directory
/// `dir`, whose node is `parent`. Returns `EMFILE` if an object would lose its last name and its
/// peer has no share left for it.
pub(crate) fn going(
    cx: &Cx<'_>,
    parent: &HostNode,
    dir: BorrowedFd<'_>,
    name: Name<'_>,
) -> Result<Option<Going>> {
    if cx.call.account().client().is_none() {
        return Ok(None);
    }
    let device = parent.device();
    let Ok(stx) = tree::stat_child(dir, name) else {
        return Ok(None);
    };
    let attr = attr::of(device, &stx);
    if device::dev_of(&stx) != device.dev || (attr.kind != Kind::Directory && attr.nlink > 1) {
        return Ok(None);
    }
    let Some(node) = device.tree.table.get(attr.id) else {
        return Ok(None);
    };
    let share = device.tree.shares.take(cx.call.account())?;
    Ok(share.map(|share| Going { node, share }))
}

impl Going {
    /// Records that the name was removed.
    pub(crate) fn gone(self) {
        self.node.set_unnamed();
        let unnamed = &self.node.device().tree.unnamed;
        let before = unnamed.map().insert(self.node.number(), self.share);
        drop(before);
    }
}

impl Unnamed {
    /// Forgets a node that is dropped.
    pub(crate) fn forget(&self, id: NodeId) {
        let share = self.map().remove(&id);
        drop(share);
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Share>> {
        self.0.lock().expect("no panic holds it")
    }
}
