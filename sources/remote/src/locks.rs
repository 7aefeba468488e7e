//! Locks of local clients, mirrored to the server, so that its other clients see them.
//!
//! The union of the local clients' locks on a node is held on the server through one open file per
//! node, the mirror, with a lock owner that no other client uses. A file that cannot be opened is
//! not mirrored: its locks still exclude the local clients from one another.
//!
//! Lock order: the map of mirrors, to find one; then that mirror, held across requests.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use vfs::lock::{ForeignLock, HostLock, LockFamily, LockKind, LockRange};
use vfs::{Cx, Errno, Kind, Node, NodeId, OpenFlags, Ranges, Result};

/// A node whose server supports locks.
pub(crate) trait Lockable: Node {
    /// An open file on the server.
    type Open;

    /// Returns whether the server supports locks of this kind on the node.
    fn has_locks(&self, space: LockFamily) -> bool;

    /// Opens the node.
    fn open_mirror(&self, cx: &Cx<'_>, flags: OpenFlags) -> Result<Self::Open>;

    /// Locks or unlocks through the open file. Returns `EAGAIN` if a conflicting lock is held.
    fn set_lock(
        &self,
        cx: &Cx<'_>,
        open: &Self::Open,
        lock: &LockRange,
        state: HostLock,
    ) -> Result<()>;

    /// Returns the owner of a conflicting lock, other than this client.
    fn find_lock(
        &self,
        cx: &Cx<'_>,
        open: &Self::Open,
        lock: &LockRange,
        kind: LockKind,
    ) -> Result<Option<ForeignLock>>;
}

/// The mirrors of the locked nodes.
pub(crate) struct Mirrors<O> {
    by_node: Mutex<HashMap<(NodeId, LockFamily), Shared<O>>>,
}

type Shared<O> = Arc<Mutex<Mirror<O>>>;

struct Mirror<O> {
    open: Option<O>,
    /// The locked ranges.
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
        self.with(node, cx, range.family, (), |mirror| {
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
    ) -> Result<Option<ForeignLock>> {
        self.with(node, cx, range.family, None, |mirror| {
            mirror.holder(node, cx, &range, kind)
        })
    }

    /// Calls `what` with a node's mirror, or returns `otherwise` for a node without locks.
    fn with<T>(
        &self,
        node: &impl Lockable<Open = O>,
        cx: &Cx<'_>,
        space: LockFamily,
        otherwise: T,
        what: impl FnOnce(&mut Mirror<O>) -> Result<T>,
    ) -> Result<T> {
        if !matches!(node.kind(), Kind::File | Kind::Directory) || !node.has_locks(space) {
            return Ok(otherwise);
        }
        cx.check_may_block()?;
        let which = (node.id(), space);
        let mirror = self
            .by_node
            .lock()
            .entry(which)
            .or_insert_with(|| {
                Arc::new(Mutex::new(Mirror {
                    open: None,
                    held: Ranges::default(),
                }))
            })
            .clone();
        let done = what(&mut mirror.lock());
        // Drops the mirror unless another thread uses it or it holds locks. The two references are
        // the map's and this function's.
        let mut mirrors = self.by_node.lock();
        if Arc::strong_count(&mirror) == 2 && mirror.lock().held.is_empty() {
            mirrors.remove(&which);
        }
        done
    }
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
    ) -> Result<Option<ForeignLock>> {
        if let Some(open) = &self.open {
            return node.find_lock(cx, open, range, kind);
        }
        match open(node, cx)? {
            Some(open) => node.find_lock(cx, &open, range, kind),
            None => Ok(None),
        }
    }
}

/// Opens a mirror if the caller has permission: for writing, as exclusive locks require, else for
/// reading.
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
