//! Objects whose last name a client takes away while somebody has them.
//!
//! Such a one cannot be found again, so that its node keeps the descriptor. It counts as the share
//! of the client that took the name away ([`crate::fds::Shares`]) until the node goes.
//!
//! Lock order: the map last, and not while a share is given back.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use vfs::{Cx, Kind, Name, NodeId, Result};

use crate::fds::Share;
use crate::node::HostNode;
use crate::{attr, device, tree};

/// The shares of a tree's objects without names.
#[derive(Default)]
pub(crate) struct Unnamed(Mutex<HashMap<NodeId, Share>>);

/// An object that is about to lose its last name.
pub(crate) struct Going {
    node: Arc<HostNode>,
    share: Share,
}

/// Before the caller, which the thread is, takes the name `name` in the directory `dir`, whose node
/// is `parent`, away. `EMFILE` if an object would be left without a name that its peer has no share
/// for.
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
    /// It has lost it.
    pub(crate) fn gone(self) {
        self.node.set_unnamed();
        let unnamed = &self.node.device().tree.unnamed;
        let before = unnamed.map().insert(self.node.number(), self.share);
        drop(before);
    }
}

impl Unnamed {
    /// A node is dropped.
    pub(crate) fn forget(&self, id: NodeId) {
        let share = self.map().remove(&id);
        drop(share);
    }

    fn map(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Share>> {
        self.0.lock().expect("no panic holds it")
    }
}
