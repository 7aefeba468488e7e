//! Open files that lose their last name: a successor cannot find them by handle, because their
//! object ends with its last descriptor. So another process keeps a descriptor of each.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use concurrency::{FastRandomState, Shards};
use vfs::{AttrMask, Errno, Kind, Name, Node, Result};

use super::super::RequestContext;

/// A process that keeps descriptors. Methods may be called concurrently.
pub trait FileKeeper: Send + Sync {
    /// Keeps a descriptor of the file of the node `nodeid`. It must have arrived when this returns,
    /// whatever happens to this process then.
    fn keep(&self, nodeid: u64, file: BorrowedFd<'_>);

    /// Closes the descriptor for `nodeid`.
    fn release(&self, nodeid: u64);
}

/// The open files of each node.
#[derive(Default)]
pub(in super::super) struct OpenNodes {
    /// `None` if no files are kept.
    kept: Option<KeptNodes>,
}

/// A keeper, and the open files of each node.
struct KeptNodes {
    keeper: Arc<dyn FileKeeper>,
    nodes: Shards<HashMap<u64, OpenNode, FastRandomState>, SHARDS>,
}

/// More than the threads that work for one mount.
const SHARDS: usize = 64;

/// A node that is open.
#[derive(Default)]
struct OpenNode {
    /// Its open files, by their handles.
    handles: Vec<u64>,
    is_kept: bool,
}

impl OpenNodes {
    /// Uses `keeper`.
    pub(in super::super) fn new(keeper: Arc<dyn FileKeeper>) -> OpenNodes {
        let nodes = Shards::new(HashMap::default);
        OpenNodes {
            kept: Some(KeptNodes { keeper, nodes }),
        }
    }

    /// Notes that the keeper has a file of this node already.
    pub(super) fn note_kept(&self, nodeid: u64) {
        if let Some(kept) = &self.kept {
            let mut shard = kept.nodes.lock(&nodeid);
            shard.entry(nodeid).or_default().is_kept = true;
        }
    }

    /// Lets the keeper keep a file of this node, if the node is open.
    pub(in super::super) fn keep(&self, nodeid: u64, file: BorrowedFd<'_>) {
        let Some(KeptNodes { keeper, nodes }) = &self.kept else {
            return;
        };
        if !nodes.lock(&nodeid).contains_key(&nodeid) {
            return;
        }
        keeper.keep(nodeid, file);
        match nodes.lock(&nodeid).get_mut(&nodeid) {
            Some(node) => node.is_kept = true,
            // It was closed meanwhile.
            None => keeper.release(nodeid),
        }
    }

    /// Adds the open file `fh` of a node.
    pub(in super::super) fn add(&self, nodeid: u64, fh: u64) {
        if let Some(kept) = &self.kept {
            let mut shard = kept.nodes.lock(&nodeid);
            shard.entry(nodeid).or_default().handles.push(fh);
        }
    }

    /// Removes the open file `fh` of a node.
    pub(in super::super) fn remove(&self, nodeid: u64, fh: u64) {
        let Some(KeptNodes { keeper, nodes }) = &self.kept else {
            return;
        };
        let mut shard = nodes.lock(&nodeid);
        let Some(node) = shard.get_mut(&nodeid) else {
            return;
        };
        node.handles.retain(|&one| one != fh);
        // Under the lock: a later request may keep a file of the same number.
        if node.handles.is_empty() && shard.remove(&nodeid).is_some_and(|node| node.is_kept) {
            keeper.release(nodeid);
        }
    }

    /// Removes all open files, at the end of an incarnation.
    pub(in super::super) fn clear(&self) {
        if let Some(kept) = &self.kept {
            for shard in kept.nodes.all() {
                shard
                    .lock()
                    .values_mut()
                    .for_each(|node| node.handles.clear());
            }
            self.release_closed();
        }
    }

    /// Releases the files of nodes that are not open.
    pub(super) fn release_closed(&self) {
        let Some(KeptNodes { keeper, nodes }) = &self.kept else {
            return;
        };
        for shard in nodes.all() {
            shard.lock().retain(|&nodeid, node| {
                if node.handles.is_empty() && node.is_kept {
                    keeper.release(nodeid);
                }
                !node.handles.is_empty()
            });
        }
    }
}

impl RequestContext<'_> {
    /// Keeps the file `name` in `dir`, if it is open and this is its last name, which is about to
    /// be removed.
    pub(in super::super) fn keep_open_file(&self, dir: &dyn Node, name: Name<'_>) -> Result<()> {
        let handles = &self.session.handles;
        let kept = handles.open_nodes.kept.as_ref();
        let Some(KeptNodes { nodes, .. }) = kept.filter(|_| handles.count() > 0) else {
            return Ok(());
        };
        let cx = self.observer();
        let Ok(entry) = dir.lookup(&cx, name) else {
            return Ok(());
        };
        if entry.attr.kind != Kind::File || entry.attr.nlink > 1 {
            return Ok(());
        }
        let nodeid = self.session.nodes.nodeid_of(entry.node.id());
        let fh = {
            let shard = nodes.lock(&nodeid);
            let node = shard.get(&nodeid).filter(|node| !node.is_kept);
            node.and_then(|node| node.handles.first().copied())
        };
        let Some(fh) = fh else {
            return Ok(());
        };
        let Ok(open) = handles.get(self.incarnation, fh) else {
            return Ok(());
        };
        // The number may have been another object's.
        let is_same = |ino| ino == entry.attr.id;
        let same = open
            .file
            .attr(&cx, AttrMask::STAT)
            .map(|attr| is_same(attr.id));
        match (same, open.file.backing(&cx)) {
            (Ok(true), Some(file)) => handles.open_nodes.keep(nodeid, file.as_fd()),
            // Its requests fail after a takeover.
            (Ok(_) | Err(Errno::ESTALE), _) => {}
            (Err(errno), _) => return Err(errno),
        }
        Ok(())
    }
}
