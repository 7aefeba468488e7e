//! Locks as a server and its other clients see them.
//!
//! What barge's clients hold together of a node is held on the server through one open file of the node's
//! own, its mirror, under an owner that no other client has. A file that cannot be opened is not mirrored:
//! clients of this barge exclude one another nevertheless.
//!
//! Lock order: the map of mirrors, to find one; then that mirror, held across requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use vfs::lock::{HostLock, LockKind, LockRange, Outsider, Space};
use vfs::{Cx, Errno, Kind, Node, NodeId, OpenFlags, Ranges, Result};

/// A node that a server has locks for.
pub(crate) trait Lockable: Node {
    /// What is open on the server.
    type Open;

    /// Whether the server has locks of this kind for it.
    fn has_locks(&self, space: Space) -> bool;

    /// Opens it.
    fn open_mirror(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Self::Open>;

    /// Locks or unlocks through what is open; `EAGAIN` if somebody is in the way.
    fn set_lock(
        &self,
        cx: &Cx<'_>,
        open: &Self::Open,
        lock: &LockRange,
        state: HostLock,
    ) -> Result<()>;

    /// Who is in the way of a lock, if it is not us.
    fn find_lock(
        &self,
        cx: &Cx<'_>,
        open: &Self::Open,
        lock: &LockRange,
        kind: LockKind,
    ) -> Result<Option<Outsider>>;
}

/// The mirrors of the nodes that have locks.
pub(crate) struct Mirrors<O> {
    by_node: Mutex<HashMap<(NodeId, Space), Shared<O>>>,
}

type Shared<O> = Arc<Mutex<Mirror<O>>>;

struct Mirror<O> {
    open: Option<O>,
    /// Ranges held.
    held: Ranges,
}

impl<O> Default for Mirrors<O> {
    fn default() -> Mirrors<O> {
        Mirrors {
            by_node: Mutex::default(),
        }
    }
}

impl<O> Mirrors<O> {
    /// [`Node::host_lock`].
    pub(crate) fn lock(
        &self,
        node: &impl Lockable<Open = O>,
        cx: &Cx<'_>,
        range: LockRange,
        state: HostLock,
    ) -> Result<()> {
        self.with(node, cx, range.space, (), |mirror| {
            mirror.set(node, cx, &range, state)
        })
    }

    /// [`Node::host_lock_holder`].
    pub(crate) fn holder(
        &self,
        node: &impl Lockable<Open = O>,
        cx: &Cx<'_>,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<Outsider>> {
        self.with(node, cx, range.space, None, |mirror| {
            mirror.holder(node, cx, &range, kind)
        })
    }

    /// Does something with a node's mirror; `otherwise` is the answer for nodes that have none.
    fn with<T>(
        &self,
        node: &impl Lockable<Open = O>,
        cx: &Cx<'_>,
        space: Space,
        otherwise: T,
        what: impl FnOnce(&mut Mirror<O>) -> Result<T>,
    ) -> Result<T> {
        if !matches!(node.kind(), Kind::File | Kind::Directory) || !node.has_locks(space) {
            return Ok(otherwise);
        }
        cx.may_wait()?;
        let which = (node.id(), space);
        let mirror = lock(&self.by_node)
            .entry(which)
            .or_insert_with(|| {
                Arc::new(Mutex::new(Mirror {
                    open: None,
                    held: Ranges::default(),
                }))
            })
            .clone();
        let done = what(&mut lock(&mirror));
        // Dropped unless somebody else is about to use it, or it holds something. Two: the map's and ours.
        let mut mirrors = lock(&self.by_node);
        if Arc::strong_count(&mirror) == 2 && lock(&mirror).held.is_empty() {
            mirrors.remove(&which);
        }
        done
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no panic holds it")
}

impl<O> Mirror<O> {
    fn set<N: Lockable<Open = O>>(
        &mut self,
        node: &N,
        cx: &Cx<'_>,
        range: &LockRange,
        state: HostLock,
    ) -> Result<()> {
        if self.open.is_none() {
            if state == HostLock::Unlocked {
                return Ok(());
            }
            self.open = open(node, cx)?;
        }
        let Some(open) = &self.open else {
            return Ok(());
        };
        let done = node.set_lock(cx, open, range, state);
        if done.is_ok() {
            match state {
                HostLock::Unlocked => self.held.remove(range.start, range.end),
                HostLock::Shared | HostLock::Exclusive => self.held.insert(range.start, range.end),
            }
        }
        if self.held.is_empty() {
            self.open = None;
        }
        done
    }

    fn holder<N: Lockable<Open = O>>(
        &self,
        node: &N,
        cx: &Cx<'_>,
        range: &LockRange,
        kind: LockKind,
    ) -> Result<Option<Outsider>> {
        if let Some(open) = &self.open {
            return node.find_lock(cx, open, range, kind);
        }
        match open(node, cx)? {
            Some(open) => node.find_lock(cx, &open, range, kind),
            None => Ok(None),
        }
    }
}

/// Opens a mirror, if the caller may: to write, as exclusive locks need, or at least to read.
fn open<N: Lockable>(node: &N, cx: &Cx<'_>) -> Result<Option<N::Open>> {
    let read = OpenFlags::READ;
    let both = read | OpenFlags::WRITE;
    let flags: &[OpenFlags] = match node.kind() {
        Kind::File => &[both, read],
        _ => &[read],
    };
    for &flags in flags {
        match node.open_mirror(cx, flags) {
            Ok(open) => return Ok(Some(open)),
            Err(Errno::EACCES | Errno::EPERM | Errno::EROFS | Errno::ETXTBSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}
