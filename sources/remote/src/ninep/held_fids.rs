//! The fids of nodes, of which a bounded number is idle.
//!
//! A server limits the fids of a client, and each costs it memory. Beyond [`MAX_IDLE`], and when
//! the server has no more, those that were not used for the longest time are clunked: their nodes
//! are found by name again. A fid stays that is in use, that is the node's of an open file, or
//! whose file this client has removed: the file may be a program's current directory.
//!
//! Lock order: a shard or the ring alone; no fid or node is dropped under either.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use concurrency::{FastRandomState, Shards};
use parking_lot::Mutex;

use super::fid::OwnedFid;
use super::node::RemoteNode;

/// The most idle fids: the files that programs use at a time. They cost a server about 2 MiB.
pub(super) const MAX_IDLE: usize = 8192;

/// The fids of a session's nodes.
#[derive(Default)]
pub(super) struct HeldFids {
    /// Fids by the address of their node, which removes them when it is dropped.
    nodes: Shards<HashMap<usize, NodeFids, FastRandomState>, 16>,
    /// The fids that may be given up, the oldest first; some have gone already.
    ring: Mutex<VecDeque<Idle>>,
}

/// The fids of a node, one for each user.
#[derive(Default)]
struct NodeFids {
    fids: Vec<(u32, Arc<OwnedFid>)>,
    /// Used since the clock hand last passed.
    used: bool,
    /// Whether the node cannot be found by name.
    kept: bool,
}

impl NodeFids {
    /// The most users of a node, of which the first goes for a further one.
    const MAX_USERS: usize = 64;
}

/// A fid that may be given up.
struct Idle {
    node: Weak<RemoteNode>,
    user: u32,
}

/// The treatment of fids that were used recently.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecentlyUsed {
    Keep,
    GiveUp,
}

/// The result of passing a fid in the ring.
enum Passed {
    /// It is given up.
    GivenUp(Arc<OwnedFid>),
    /// It stays in the ring.
    Stays,
    /// It is gone, or is no longer one that may be given up.
    Gone,
}

impl HeldFids {
    /// Returns the fid of a node for `user`.
    pub(super) fn get(&self, node: &RemoteNode, user: u32) -> Option<Arc<OwnedFid>> {
        let mut shard = self.nodes.lock(&address(node));
        let held = shard.get_mut(&address(node))?;
        held.used = true;
        let mut fids = held.fids.iter();
        fids.find(|(known, _)| *known == user)
            .map(|(_, fid)| fid.clone())
    }

    /// Returns a fid of a node for any user.
    pub(super) fn any(&self, node: &RemoteNode) -> Option<Arc<OwnedFid>> {
        let shard = self.nodes.lock(&address(node));
        let first = shard.get(&address(node))?.fids.first();
        first.map(|(_, fid)| fid.clone())
    }

    /// Sets the fid of a node for `user`, and gives up others if there are too many.
    pub(super) fn set(&self, node: &Arc<RemoteNode>, user: u32, fid: Arc<OwnedFid>) {
        let mut shard = self.nodes.lock(&address(node));
        let held = shard.entry(address(node)).or_default();
        let mut fids = held.fids.iter_mut();
        let (old, is_new) = match fids.find(|(known, _)| *known == user) {
            Some((_, known)) => (Some(std::mem::replace(known, fid)), false),
            None => {
                let full = held.fids.len() >= NodeFids::MAX_USERS;
                let displaced = full.then(|| held.fids.remove(0).1);
                held.fids.push((user, fid));
                (displaced, !held.kept)
            }
        };
        drop(shard);
        drop(old);
        if is_new {
            let node = Arc::downgrade(node);
            self.ring.lock().push_back(Idle { node, user });
            self.trim();
        }
    }

    /// Sets the fid of a node for `user` and keeps all of its fids until it is dropped.
    pub(super) fn keep(&self, node: &Arc<RemoteNode>, user: u32, fid: Arc<OwnedFid>) {
        let mut shard = self.nodes.lock(&address(node));
        shard.entry(address(node)).or_default().kept = true;
        drop(shard);
        self.set(node, user, fid);
    }

    /// Removes the fids of a node that is dropped.
    pub(super) fn remove(&self, node: &RemoteNode) {
        let removed = self.nodes.lock(&address(node)).remove(&address(node));
        drop(removed);
    }

    /// Gives up half of the idle fids, however recently they were used, and waits until the server
    /// has clunked them. Returns whether there were any.
    pub(super) fn give_up_half(&self) -> bool {
        let count = self.ring.lock().len();
        let mut given_up = Vec::new();
        for _ in 0..count {
            let Some(passed) = self.pass(RecentlyUsed::GiveUp) else {
                break;
            };
            if let Passed::GivenUp(fid) = passed {
                given_up.push(fid);
            }
            if given_up.len() > count / 2 {
                break;
            }
        }
        // The others are clunked with the last one, whose reply comes last.
        let last = given_up.pop();
        drop(given_up);
        let Some(last) = last else {
            return false;
        };
        if let Some(last) = Arc::into_inner(last) {
            // A failed connection reports itself to the next request.
            let _ = last.clunk();
        }
        true
    }

    /// Gives up fids until there are no more than [`MAX_IDLE`].
    fn trim(&self) {
        /// The most fids to pass for a new one: all may be in use.
        const TRIES: usize = 16;
        for _ in 0..TRIES {
            if self.ring.lock().len() <= MAX_IDLE {
                return;
            }
            drop(self.pass(RecentlyUsed::Keep));
        }
    }

    /// Passes the oldest fid of the ring.
    fn pass(&self, recently_used: RecentlyUsed) -> Option<Passed> {
        let idle = self.ring.lock().pop_front()?;
        let Some(node) = idle.node.upgrade() else {
            return Some(Passed::Gone);
        };
        let passed = self.pass_node(&node, idle.user, recently_used);
        if matches!(passed, Passed::Stays) {
            self.ring.lock().push_back(idle);
        }
        Some(passed)
    }

    fn pass_node(&self, node: &RemoteNode, user: u32, recently_used: RecentlyUsed) -> Passed {
        let mut shard = self.nodes.lock(&address(node));
        let Some(held) = shard.get_mut(&address(node)) else {
            return Passed::Gone;
        };
        let at = held.fids.iter().position(|(known, _)| *known == user);
        let Some(at) = at.filter(|_| !held.kept) else {
            return Passed::Gone;
        };
        let used = std::mem::take(&mut held.used) && recently_used == RecentlyUsed::Keep;
        // References are taken under the shard's lock only.
        if used || Arc::strong_count(&held.fids[at].1) > 1 {
            return Passed::Stays;
        }
        let (_, fid) = held.fids.swap_remove(at);
        if held.fids.is_empty() {
            shard.remove(&address(node));
        }
        Passed::GivenUp(fid)
    }
}

fn address(node: &RemoteNode) -> usize {
    std::ptr::from_ref(node).addr()
}
